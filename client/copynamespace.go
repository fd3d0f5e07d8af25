package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

const (
	// copyFlights is how many batches of keys are on their way at a time.
	copyFlights = 4
	// copyBatchKeys and copyBatchBytes bound a batch; copyBatchBytes bounds the most that its keys may take.
	copyBatchKeys  = 500
	copyBatchBytes = 4 << 20
	// copyBinBytes is what a bin takes in an image at most: its id, its count, and its name with the length.
	copyBinBytes = 5 + 8 + 2 + proto.BinLenMax
	// copyBodyBytes is the assumed size of a key that is no distribution.
	copyBodyBytes = 64 << 10
	// copyRunMin is how many consecutive ids are copied as a range at least.
	copyRunMin = 4096
	// copyLeftMax is how many of the keys that were not copied are named.
	copyLeftMax = 100
	// copyPauses bounds how often a put waits for a shard whose clock is behind.
	copyPauses = 20
)

// CopyOptions configure CopyNamespace. The zero value is useful.
type CopyOptions struct {
	// Resume continues a copy that was interrupted: the namespace may exist, if its settings are the same. Keys that it
	// holds are replaced. Keys that the original does not have stay.
	Resume bool
	// After leaves out the keys up to this one, in the order of their names: CopyProgress.After of a copy that was
	// interrupted.
	After string
	// SkipTooLarge copies all other keys when some are too large. They are in NamespaceCopy.Left.
	SkipTooLarge bool
	// Progress is called after each batch of keys, by one goroutine at a time. It must not block.
	Progress func(CopyProgress)
}

// CopyProgress is how far a copy has come.
type CopyProgress struct {
	Checked int    // keys that were looked at before the copy began
	Total   int    // keys to copy, as counted before the copy began
	Keys    int    // copied
	Bytes   int64  // of what these keys hold; 8 for each id of a bitmap that is copied by its ids
	After   string // all keys up to this one are copied; "" at first
}

// NamespaceCopy is what CopyNamespace has done.
type NamespaceCopy struct {
	Namespace Namespace
	CopyProgress
	Gone    int // keys that had faded, or were deleted, when their turn came
	LeftOut int // keys that were not copied; Left has the first ones
	Left    []LeftKey
}

// LeftKey is a key that was not copied, and why.
type LeftKey struct {
	Key string
	Err error
}

// CopyNamespace makes namespace to with the settings of from, and copies all keys with what they hold and their times
// to live. The hash seed is the same, so that summaries of both can be merged. Not copied: the budget, the ids of a
// dictionary (each string gets another id), sessions and sources.
//
// The copy is not atomic: each key is copied at a moment of its own. It may or may not include what is written to from
// during the copy. If it fails, repeat it with Resume; After skips what was done.
//
// The event clock of the copy is only as far as the keys that were copied. So to compare both namespaces, ask them as
// of one time (AsOf).
//
// The content of a key is sent in one command of up to proto.ImageBytesMax bytes, from proto.VersionAdds on also in
// pieces of up to proto.SketchBytesMax together. Bitmaps may be larger. If another key is larger, the error is
// ErrKeyTooLarge, and nothing is made.
func (c *Client) CopyNamespace(ctx context.Context, from, to string, opts CopyOptions) (NamespaceCopy, error) {
	cp := &namespaceCopy{client: c, from: from, to: to, opts: opts, start: c.now()}
	cp.done.After = opts.After
	err := cp.run(ctx)
	if err != nil {
		failed := c.fail(attempt{op: "copy namespace", start: cp.start}, err)
		failed.Op = "copy namespace " + from + " to " + to
		return cp.done, failed
	}
	return cp.done, nil
}

// namespaceCopy is one run of CopyNamespace.
type namespaceCopy struct {
	client   *Client
	from, to string
	opts     CopyOptions
	start    time.Time
	settings *ebbv1.Namespace // of from
	pieces   bool             // keys that are too large for one command go in pieces

	mu   sync.Mutex // guards done
	done NamespaceCopy
}

func (cp *namespaceCopy) run(ctx context.Context) error {
	exists, err := cp.examine(ctx)
	if err != nil {
		return err
	}
	table, err := cp.client.Table(ctx)
	if err != nil {
		return err
	}
	cp.pieces = table.GetVersion() >= proto.VersionAdds
	if err := cp.eachPage(ctx, cp.check); err != nil {
		return err
	}
	if n := cp.done.LeftOut; n > 0 && !cp.opts.SkipTooLarge {
		return proto.ErrKeyTooLarge.Errorf("nothing was made: %d keys cannot be copied, the first is %s: %s", n,
			keyText(cp.done.Left[0].Key), causeText(cp.done.Left[0].Err)).
			WithHint("leave such keys out (--skip-too-large), and write them again from their source")
	}
	found := cp.done.LeftOut
	cp.done.LeftOut, cp.done.Left = 0, nil // the copy finds them again, unless they are smaller by then
	if err := cp.create(ctx, exists); err != nil {
		return err
	}
	if err := cp.eachPage(ctx, cp.copyPage); err != nil {
		return err
	}
	if n := cp.done.LeftOut; n > 0 && (!cp.opts.SkipTooLarge || n > found) {
		return proto.ErrKeyTooLarge.Errorf("%d of %d keys were not copied, the first is %s: %s", n, n+cp.done.Keys,
			keyText(cp.done.Left[0].Key), causeText(cp.done.Left[0].Err)).
			WithHint("write them again from their source; all other keys are copied")
	}
	return nil
}

// examine checks whether the copy is possible. exists reports whether the namespace exists already.
func (cp *namespaceCopy) examine(ctx context.Context) (exists bool, err error) {
	for _, name := range []string{cp.from, cp.to} {
		if err := proto.CheckNamespaceName(name); err != nil {
			return false, err
		}
	}
	if cp.from == cp.to {
		return false, proto.ErrBadNamespace.Errorf("namespace %s cannot be copied to itself", cp.from)
	}
	resp, err := cp.client.listNamespaces(ctx)
	if err != nil {
		return false, err
	}
	var old *ebbv1.Namespace
	for _, ns := range resp.GetNamespaces() {
		switch ns.GetName() {
		case cp.from:
			cp.settings = ns
		case cp.to:
			old = ns
		}
	}
	for _, gone := range resp.GetDeleted() {
		switch gone.GetName() {
		case cp.from:
			return false, proto.ErrDeleted(gone)
		case cp.to:
			old = gone
		}
	}
	ns := cp.settings
	switch {
	case old.GetDeletion() != nil:
		return false, proto.ErrStillDeleted(old)
	case ns == nil:
		return false, proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", cp.from).
			WithHint("list those that do: ebb namespace list")
	case old != nil && !cp.opts.Resume:
		return false, proto.ErrNamespaceExists.Errorf("namespace %s exists", cp.to).
			WithHint("choose another name; to continue a copy that was interrupted: --resume")
	case old != nil && !protobuf.Equal(copySettings(ns), copySettings(old)):
		return false, proto.ErrBadNamespace.Errorf("namespaces %s and %s have different settings", cp.from, cp.to).
			WithHint("only a copy that was interrupted can be resumed; compare: ebb namespace show")
	case len(ns.GetRollups().GetUnits()) > 0 && cp.byIDs():
		return false, errCopyRollups(cp.from, "its bitmaps are copied by their ids")
	case ns.GetSlowHalfLifeUs() > 0:
		table, err := cp.client.Table(ctx)
		if err == nil && table.GetVersion() < proto.VersionDeletion {
			err = proto.ErrBadNamespace.Errorf("to copy the second half-life of namespace %s the cluster needs storage version %d and has %d", cp.from, proto.VersionDeletion, table.GetVersion()).
				WithHint("upgrade all nodes: see ebb cluster status")
		}
		if err != nil {
			return false, err
		}
	}
	return old != nil, nil
}

// errCopyRollups refuses to copy bitmaps by their ids in a namespace with rollups: there an answer about a period
// includes the ids of shorter periods.
func errCopyRollups(ns, why string) *proto.Error {
	return proto.ErrBadNamespace.Errorf("namespace %s has rollups, and %s: an answer about a period has those of shorter ones, too", ns, why).
		WithHint("copy without rollups (ebb namespace set " + ns + " --rollups none), then set them in both namespaces")
}

// byIDs reports whether bitmaps are copied by their ids. Their images would not mean the same in the copy: their slices
// are in all shards, or their ids are of the dictionary.
func (cp *namespaceCopy) byIDs() bool {
	return proto.BySlice(cp.settings) || proto.HasDictionary(cp.settings)
}

// copySettings returns the settings that a copy has too.
func copySettings(ns *ebbv1.Namespace) *ebbv1.Namespace {
	names := proto.HasDictionary(ns)
	ns = protobuf.CloneOf(ns)
	ns.Name, ns.Version, ns.Budget, ns.Deletion, ns.Dictionary, ns.ClockSetting = "", 0, nil, nil, nil, nil
	if names {
		ns.Dictionary = &ebbv1.Dictionary{}
	}
	ns.AllowNegative, ns.WindowUs = new(ns.GetAllowNegative()), new(ns.GetWindowUs())
	ns.SlowHalfLifeUs = new(ns.GetSlowHalfLifeUs())
	ns.Universe = append([]byte{}, ns.GetUniverse()...)
	if len(ns.GetRollups().GetUnits()) == 0 {
		ns.Rollups = nil
	}
	return ns
}

func (cp *namespaceCopy) create(ctx context.Context, exists bool) error {
	if exists {
		cp.done.Namespace = namespaceOf(cp.settings)
		cp.done.Namespace.Name = cp.to
		return nil
	}
	req := &ebbv1.SetNamespaceRequest{Namespace: copySettings(cp.settings), Create: true}
	req.Namespace.Name = cp.to
	var resp *ebbv1.SetNamespaceResponse
	err := cp.client.anywhere(ctx, attempt{op: "create namespace", key: cp.to}, changeOnce,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).SetNamespace(ctx, req)
			return err
		})
	if err != nil {
		return err
	}
	cp.client.renewal()
	if !protobuf.Equal(copySettings(resp.GetNamespace()), copySettings(cp.settings)) {
		return proto.ErrBadNamespace.Errorf("namespace %s was made with other settings than %s has", cp.to, cp.from).
			WithHint("are all nodes of one version? compare: ebb namespace show")
	}
	cp.done.Namespace = namespaceOf(resp.GetNamespace())
	return nil
}

// eachPage lists the keys in the order of their names. A page is as large as an answer may be, because each page
// searches the names of all keys.
func (cp *namespaceCopy) eachPage(ctx context.Context, visit func(context.Context, []KeyInfo) error) error {
	after, limit := cp.opts.After, proto.KeysListMax
	for {
		page, err := cp.client.keysPage(ctx, cp.from, KeysQuery{}, after, limit, nil)
		switch {
		case errors.Is(err, ErrResponseTooLarge) && limit > 1:
			limit /= 2
			continue
		case err != nil:
			return err
		case len(page.Keys) == 0:
			return nil
		}
		if err := visit(ctx, page.Keys); err != nil {
			return err
		}
		if page.Matched <= uint64(len(page.Keys)) {
			return nil
		}
		after = page.Keys[len(page.Keys)-1].Key
	}
}

func (cp *namespaceCopy) progress(change func(*NamespaceCopy)) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	change(&cp.done)
	if cp.opts.Progress != nil {
		cp.opts.Progress(cp.done.CopyProgress)
	}
}

// leave notes a key that is not copied.
func (cp *namespaceCopy) leave(key string, why error) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.done.LeftOut++; len(cp.done.Left) < copyLeftMax {
		cp.done.Left = append(cp.done.Left, LeftKey{key, why})
	}
}

// check looks for keys that are too large, before anything is made.
func (cp *namespaceCopy) check(ctx context.Context, keys []KeyInfo) error {
	var questions, sizes []*ebbv1.Question
	bins := proto.ImageBytesMax / copyBinBytes
	if cp.settings.GetSlowHalfLifeUs() > 0 {
		bins /= 2
	}
	for _, key := range keys {
		name := []byte(key.Key)
		switch key.Kind {
		case KindDistribution:
			if key.Bins > bins {
				sizes = append(sizes, cp.sizeOf(key.Key))
			}
		case KindMorris, KindString:
		case KindBitmap:
			if len(cp.settings.GetRollups().GetUnits()) == 0 {
				break
			}
			fallthrough
		default:
			questions = append(questions, &ebbv1.Question{
				Namespace: cp.from,
				Ask:       &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: name}},
			})
		}
	}
	most := copyBatchBytes / copyBodyBytes
	sized := most
	if cp.pieces { // each may be of a large key
		sized /= 4
	}
	if err := cp.examineKeys(ctx, questions, most); err != nil {
		return err
	}
	if err := cp.examineKeys(ctx, sizes, sized); err != nil {
		return err
	}
	cp.progress(func(done *NamespaceCopy) { done.Checked += len(keys); done.Total += len(keys) })
	return nil
}

// examineKeys asks how large keys are, and leaves out those that are too large.
func (cp *namespaceCopy) examineKeys(ctx context.Context, questions []*ebbv1.Question, most int) error {
	for len(questions) > 0 {
		n := min(len(questions), most)
		answers, err := cp.client.Ask(ctx, questions[:n])
		if err != nil {
			return err
		}
		for i, a := range answers {
			key := string(proto.QuestionKeys(questions[i])[0])
			e := proto.FromWire(a.GetError())
			d := a.GetDescribe()
			switch {
			case e != nil && e.Code != proto.ErrKeyTooLarge.Code:
				return e
			case e != nil:
				cp.leave(key, e)
			case d != nil && d.GetBytes()+64 > proto.ImageBytesMax && d.GetKey().GetKind() == KindBitmap:
				return errCopyRollups(cp.from, fmt.Sprintf("bitmap %s is too large for one command", keyText(key)))
			case d != nil && d.GetBytes()+64 > uint64(cp.most()):
				cp.leave(key, errCopyTooLarge(key, d.GetBytes(), cp.most()))
			case a.GetExport().GetFound() && !cp.pieces && cp.lacks(KindDistribution, a.GetExport().GetImage()):
				cp.leave(key, errCopyHalf(key))
			}
		}
		questions = questions[n:]
	}
	return nil
}

// most is how large the image of a key may be.
func (cp *namespaceCopy) most() int {
	if cp.pieces {
		return proto.SketchBytesMax
	}
	return proto.ImageBytesMax
}

func errCopyTooLarge(key string, size uint64, most int) *proto.Error {
	return proto.ErrKeyTooLarge.Errorf("key %s takes %d bytes: the limit of what goes from one shard to another is %d",
		keyText(key), size, most)
}

// errCopyHalf refuses a key whose image has only one half-life.
func errCopyHalf(key string) *proto.Error {
	return proto.ErrKeyTooLarge.Errorf("both half-lives of key %s take more than %d bytes, or a node is of an older version", keyText(key), proto.ImageBytesMax)
}

// lacks reports whether an image has only the counts of the first half-life although there are two.
func (cp *namespaceCopy) lacks(kind Kind, image []byte) bool {
	return kind == KindDistribution && cp.settings.GetSlowHalfLifeUs() > 0 &&
		(len(image) < 2 || image[1] < proto.ImageBothVersion)
}

// sizeOf asks whether a key has an image. Where keys are not copied in pieces, it asks for the image itself.
func (cp *namespaceCopy) sizeOf(key string) *ebbv1.Question {
	q := cp.exportOf(key)
	if cp.pieces {
		q.GetExport().Large, q.GetExport().From = true, new(uint64(math.MaxUint64))
	}
	return q
}

func (cp *namespaceCopy) exportOf(key string) *ebbv1.Question {
	return &ebbv1.Question{
		Namespace: cp.from,
		Ask:       &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: []byte(key), Both: true}},
	}
}

// copyPage copies some keys, and notes now and then how far it has come.
func (cp *namespaceCopy) copyPage(ctx context.Context, keys []KeyInfo) error {
	for some := range slices.Chunk(keys, copyFlights*copyBatchKeys) {
		if err := cp.copyKeys(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// copyKeys copies some keys, a few batches at a time.
func (cp *namespaceCopy) copyKeys(ctx context.Context, keys []KeyInfo) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var flights sync.WaitGroup
	free := make(chan struct{}, copyFlights)
	last := keys[len(keys)-1].Key
	for len(keys) > 0 && ctx.Err() == nil {
		batch := cp.batch(keys)
		keys = keys[len(batch):]
		free <- struct{}{}
		flights.Go(func() {
			defer func() { <-free }()
			if err := cp.copyBatch(ctx, batch); err != nil {
				cancel(err)
			}
		})
	}
	flights.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	cp.progress(func(done *NamespaceCopy) { done.After = last })
	return nil
}

// batch returns the first keys, which are asked for at once. A key that is copied by its ids is a batch of its own.
func (cp *namespaceCopy) batch(keys []KeyInfo) []KeyInfo {
	n, size := 0, 0
	for n < len(keys) && n < copyBatchKeys {
		key := keys[n]
		if key.Kind == KindBitmap && cp.byIDs() {
			return keys[:max(n, 1)]
		}
		switch key.Kind {
		case KindDistribution:
			size += min(64+key.Bins*copyBinBytes, proto.ImageBytesMax)
		case KindMorris:
			size += 64
		default:
			size += copyBodyBytes
		}
		if n > 0 && size > copyBatchBytes {
			break
		}
		n++
	}
	return keys[:n]
}

func (cp *namespaceCopy) copyBatch(ctx context.Context, keys []KeyInfo) error {
	if keys[0].Kind == KindBitmap && cp.byIDs() {
		return cp.copyIDs(ctx, keys[0])
	}
	questions := make([]*ebbv1.Question, len(keys))
	for i, key := range keys {
		questions[i] = cp.exportOf(key.Key)
	}
	answers, err := cp.client.Ask(ctx, questions)
	if err != nil {
		return err
	}
	puts := make([]*copyPut, 0, len(keys))
	gone := 0
	for i, a := range answers {
		e, image := proto.FromWire(a.GetError()), a.GetExport().GetImage()
		switch key := keys[i]; {
		case e != nil && e.Code == proto.ErrKeyTooLarge.Code && key.Kind == KindBitmap:
			if len(cp.settings.GetRollups().GetUnits()) > 0 {
				cp.leave(key.Key, errCopyRollups(cp.from, "the bitmap is too large for one command"))
			} else if err := cp.copyIDs(ctx, key); err != nil {
				return err
			}
		case e != nil && e.Code == proto.ErrKeyTooLarge.Code && cp.pieces:
			if err := cp.copyPieces(ctx, key); err != nil {
				return err
			}
		case e != nil && e.Code == proto.ErrKeyTooLarge.Code:
			cp.leave(key.Key, e)
		case e != nil:
			return cp.client.fail(attempt{op: "export", key: key.Key, shard: e.Shard}, e)
		case !a.GetExport().GetFound():
			gone++
		case cp.lacks(key.Kind, image) && cp.pieces:
			if err := cp.copyPieces(ctx, key); err != nil {
				return err
			}
		case cp.lacks(key.Kind, image):
			cp.leave(key.Key, errCopyHalf(key.Key))
		case len(image) > proto.ImageBytesMax: // a node of an older build allows more
			cp.leave(key.Key, errCopyTooLarge(key.Key, uint64(len(image)), proto.ImageBytesMax))
		default:
			puts = append(puts, &copyPut{key: key.Key, image: image})
		}
	}
	n, size := 0, int64(0)
	for tries := 0; len(puts) > 0; tries++ {
		if tries > 0 {
			if err := cp.client.sleep(ctx, cp.client.backoff(tries, puts[0].err)); err != nil {
				return err
			}
		}
		cp.put(ctx, puts)
		var again []*copyPut
		for _, p := range puts {
			if p.err == nil {
				n++
				size += int64(len(p.image))
				continue
			}
			switch code := coded(p.err).Code; {
			case code == proto.ErrKeyNotFound.Code:
				gone++
			case code == proto.ErrBadTime.Code && tries < copyPauses: // the shard's clock is behind that of the other
				again = append(again, p)
			case code == proto.ErrUnknownOutcome.Code && tries < 3 && ctx.Err() == nil: // it may be put once more
				again = append(again, p)
			case code == proto.ErrBadRequest.Code, code == proto.ErrTooManyBins.Code:
				cp.leave(p.key, p.err)
			default:
				return cp.client.fail(attempt{op: "put", key: p.key}, p.err)
			}
		}
		puts = again
	}
	cp.progress(func(done *NamespaceCopy) { done.Keys += n; done.Bytes += size; done.Gone += gone })
	return nil
}

// copyPieces copies a key that is too large for one command.
func (cp *namespaceCopy) copyPieces(ctx context.Context, key KeyInfo) error {
	export, _, err := cp.client.exportWhole(ctx, cp.from, []byte(key.Key))
	switch {
	case err != nil && (coded(err).Code == proto.ErrKeyTooLarge.Code || coded(err).Code == proto.ErrKeyBusy.Code):
		cp.leave(key.Key, err)
		return nil
	case err != nil:
		return cp.client.fail(attempt{op: "export", key: key.Key}, err)
	case export.GetFound():
		err = cp.client.putWhole(ctx, ImportOptions{Namespace: cp.to, Key: key.Key, Replace: true}, export.GetImage())
	}
	gone := !export.GetFound()
	if err != nil {
		switch coded(err).Code {
		case proto.ErrKeyNotFound.Code:
			gone = true
		case proto.ErrBadRequest.Code, proto.ErrTooManyBins.Code:
			cp.leave(key.Key, err)
			return nil
		default:
			return cp.client.fail(attempt{op: "put", key: key.Key}, err)
		}
	}
	cp.progress(func(done *NamespaceCopy) {
		if gone {
			done.Gone++
			return
		}
		done.Keys++
		done.Bytes += int64(len(export.GetImage()))
	})
	return nil
}

// copyPut is an image that is being copied.
type copyPut struct {
	key   string
	image []byte
	err   error
	all   *sync.WaitGroup
}

func (p *copyPut) handleResult(_ *pendingCommand, _ *ebbv1.CommandResult, err error) {
	p.err = err
	p.all.Done()
}

// put sends images, and waits for the result of each. The commands have no identity that shards would have to remember:
// to put the same image again changes nothing.
func (cp *namespaceCopy) put(ctx context.Context, puts []*copyPut) {
	commands := make([][]byte, len(puts))
	for i, p := range puts {
		commands[i] = marshal(&ebbv1.Command{Namespace: cp.to, Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
			Key:  []byte(p.key),
			What: &ebbv1.PutKey_Image{Image: p.image}, Overwrite: true,
		}}})
	}
	cp.client.applyEach(ctx, cp.to, puts, commands)
}

// applyEach sends each of some commands to the shard of its key, and waits for the results.
func (c *Client) applyEach(ctx context.Context, ns string, puts []*copyPut, commands [][]byte) {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var all sync.WaitGroup
	all.Add(len(puts))
	pending := make([]*pendingCommand, len(puts))
	for i, p := range puts {
		p.all = &all
		pending[i] = &pendingCommand{
			shard: proto.ShardOf(ns, []byte(p.key), c.routing.shards()), buf: commands[i], entries: 1, ctx: ctx,
			deadline: deadline, made: c.now(), handler: p,
		}
	}
	c.dispatch(pending)
	all.Wait()
}

// copyIDs copies a bitmap by its ids, or by the strings of the ids. It first deletes what an interrupted copy has left.
func (cp *namespaceCopy) copyIDs(ctx context.Context, key KeyInfo) error {
	c := cp.client
	if _, err := c.Delete(ctx, cp.to, key.Key); err != nil {
		return err
	}
	names := proto.HasDictionary(cp.settings)
	b, limit := c.Bitmap(cp.from, Bits(key.Key)), c.cfg.limits.IDsPage
	if names {
		limit = proto.NamesMax
	}
	n := 0
	for from, more := uint64(0), true; more; {
		page, err := b.page(ctx, &ebbv1.BitmapPage{From: from, Limit: uint32(limit), Bare: !names})
		if err != nil {
			return err
		}
		if names {
			err = cp.setNames(ctx, key.Key, page.Names)
		} else {
			err = cp.setIDs(ctx, key.Key, page.IDs)
		}
		if err != nil {
			return err
		}
		n += len(page.IDs)
		cp.progress(func(done *NamespaceCopy) { done.Bytes += 8 * int64(len(page.IDs)) })
		from, more = page.Next, page.More
	}
	if !key.Expires.IsZero() {
		if _, err := c.ExpireAt(ctx, cp.to, key.Expires, key.Key); err != nil {
			return err
		}
	}
	cp.progress(func(done *NamespaceCopy) {
		if n > 0 {
			done.Keys++
		} else {
			done.Gone++
		}
	})
	return nil
}

func (cp *namespaceCopy) setNames(ctx context.Context, key string, all []string) error {
	names := make([]string, 0, len(all))
	for _, name := range all {
		if name != "" {
			names = append(names, name)
		}
	}
	_, err := cp.client.SetNames(ctx, cp.to, key, names...)
	return err
}

// setIDs puts in ids, which ascend; it puts in long runs as ranges.
func (cp *namespaceCopy) setIDs(ctx context.Context, key string, ids []uint64) error {
	for len(ids) > 0 {
		if run := runOf(ids); run >= copyRunMin {
			if _, err := cp.client.SetBitRange(ctx, cp.to, key, ids[0], ids[run-1]); err != nil {
				return err
			}
			ids = ids[run:]
			continue
		}
		n := 0
		for n < len(ids) {
			run := runOf(ids[n:])
			if run >= copyRunMin {
				break
			}
			n += run
		}
		if _, err := cp.client.SetBits(ctx, cp.to, key, ids[:n]...); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// runOf is how many ids at the beginning follow each other without a gap.
func runOf(ids []uint64) int {
	n := 1
	for n < len(ids) && ids[n] == ids[n-1]+1 {
		n++
	}
	return n
}
