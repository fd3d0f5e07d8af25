package client

import (
	"context"
	"iter"
	"maps"
	"slices"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// SetNames puts strings into the bitmap of a key, and returns how many were not in it. It makes the key if necessary.
// The namespace has a dictionary (see Namespace), in which each string gets an id that never changes; so UUIDs take
// little space. A string has 1 to 256 bytes of UTF-8 without control characters. Each request, of up to 10,000 strings,
// counts once, even if it is sent several times.
func (c *Client) SetNames(ctx context.Context, ns, key string, names ...string) (changed int, err error) {
	return c.editNames(ctx, ns, key, ebbv1.BitOp_BIT_OP_SET, names)
}

// ClearNames takes strings out of the bitmap of a key, and returns how many were in it. They keep their ids. See
// SetNames.
func (c *Client) ClearNames(ctx context.Context, ns, key string, names ...string) (changed int, err error) {
	return c.editNames(ctx, ns, key, ebbv1.BitOp_BIT_OP_CLEAR, names)
}

// FlipNames takes out those strings that are in the bitmap of a key, and puts in the others. A string that is named
// twice is flipped once. See SetNames.
func (c *Client) FlipNames(ctx context.Context, ns, key string, names ...string) (changed int, err error) {
	return c.editNames(ctx, ns, key, ebbv1.BitOp_BIT_OP_FLIP, names)
}

func (c *Client) editNames(
	ctx context.Context, ns, key string, op ebbv1.BitOp, names []string,
) (changed int, err error) {
	list := once(names)
	for made := false; len(list) > 0; made = true {
		n, size := 0, 0
		for n < len(list) && n < proto.NamesMax && (n == 0 || size+len(list[n]) <= proto.BatchBytesMax) {
			size += len(list[n])
			n++
		}
		more, err := c.changeBits(ctx, ns, &ebbv1.BitChange{Key: []byte(key), Op: op, Names: list[:n]})
		if changed += more; err != nil {
			return changed, madeInPart(made, err)
		}
		list = list[n:]
	}
	return changed, nil
}

// once returns texts without repetitions.
func once(texts []string) [][]byte {
	out, seen := make([][]byte, 0, len(texts)), make(map[string]bool, len(texts))
	for _, text := range texts {
		if !seen[text] {
			seen[text] = true
			out = append(out, []byte(text))
		}
	}
	return out
}

// SetNamesIn puts strings into the bitmaps of several keys, and returns how many were not in them. Many small bitmaps
// share requests: that is faster than SetNames for each. An error may come after some bitmaps were changed.
func (c *Client) SetNamesIn(ctx context.Context, ns string, sets map[string][]string) (changed int, err error) {
	var some []*ebbv1.BitChange
	count, size := 0, 0
	flush := func() error {
		if len(some) == 0 {
			return nil
		}
		done, errs := c.changeTogether(ctx, ns, some)
		changed += done.sum()
		err := error(nil)
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			err = errs[i]
		}
		some, count, size = nil, 0, 0
		return madeInPart(changed > 0, err)
	}
	for _, key := range slices.Sorted(maps.Keys(sets)) {
		for list := once(sets[key]); len(list) > 0; {
			n := 0
			// a string that is too large goes alone, and is refused
			for n < len(list) && count < proto.NamesMax && (count == 0 || size+len(list[n]) <= proto.BatchBytesMax) {
				size += len(list[n])
				count++
				n++
			}
			if n > 0 {
				some = append(some, &ebbv1.BitChange{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET, Names: list[:n]})
				list = list[n:]
			}
			if len(list) > 0 || len(some) == proto.BitChangesMax {
				if err := flush(); err != nil {
					return changed, err
				}
			}
		}
	}
	return changed, flush()
}

// changeBits makes one change through any node, once.
func (c *Client) changeBits(ctx context.Context, ns string, change *ebbv1.BitChange) (changed int, err error) {
	done, errs := c.changeTogether(ctx, ns, []*ebbv1.BitChange{change})
	return done.sum(), errs[0]
}

// changeCounts are, by change, how many ids were put in or taken out.
type changeCounts []uint64

func (n changeCounts) sum() (sum int) {
	for _, changed := range n {
		sum += int(changed)
	}
	return sum
}

// changeTogether makes changes through any node, each once, and returns the error of each. The changes share commands,
// because a shard remembers few idempotency keys. So only the sum of done is right. While some changes are refused that
// may be made later, all are sent again.
func (c *Client) changeTogether(
	ctx context.Context, ns string, changes []*ebbv1.BitChange,
) (done changeCounts, errs []error) {
	req := &ebbv1.BitsRequest{
		Namespace: ns, Changes: changes, IdempotencyKey: c.idempotencyKey(), Together: len(changes) > 1,
	}
	a := attempt{op: "bits"}
	if len(changes) == 1 {
		a.key = string(changes[0].GetKey())
	}
	errs = make([]error, len(changes))
	if err := proto.CheckBits(req); err != nil {
		return nil, alike(errs, c.fail(a, err))
	}
	var last *ebbv1.BitsResponse
	err := c.anywhere(ctx, a, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) error {
		resp, err := ebbv1grpc.NewEbbClient(cc).Bits(ctx, req)
		if err != nil {
			return err
		}
		last = resp
		for _, refused := range resp.GetRefused() {
			if e := proto.FromWire(refused.GetError()); req.GetTogether() && worthAnotherTry(e.Code) {
				return e
			}
		}
		return nil
	})
	if last == nil {
		return nil, alike(errs, err)
	}
	done = last.GetChanged()
	for _, refused := range last.GetRefused() {
		i, e := int(refused.GetIndex()), proto.FromWire(refused.GetError())
		if err != nil && worthAnotherTry(e.Code) {
			errs[i] = err // of the try after it
			continue
		}
		errs[i] = madeInPart(done[i] > 0, c.fail(attempt{op: "bits", key: string(changes[i].GetKey())}, e))
	}
	return done, errs
}

// alike sets all errors to err.
func alike(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// HasDictionary reports whether ids of the bitmaps of a namespace stand for strings.
func (c *Client) HasDictionary(ctx context.Context, ns string) bool {
	return proto.HasDictionary(c.settings(ctx, ns))
}

// NameID is a string with its id in the dictionary of a namespace.
type NameID struct {
	Name  string
	ID    uint64
	Found bool // false: the string has no id, or the id stands for no string
}

// NameIDs asks for the ids of strings, in the order of names. It assigns none: a string gets an id when it is put into
// a bitmap.
func (c *Client) NameIDs(ctx context.Context, ns string, names ...string) ([]NameID, error) {
	out := make([]NameID, 0, len(names))
	for len(names) > 0 {
		n := min(len(names), proto.BatchBytesMax/proto.NameLenMax)
		q := &ebbv1.NamesQuestion{}
		for _, name := range names[:n] {
			q.Names = append(q.Names, []byte(name))
		}
		w, err := c.lookUp(ctx, ns, q)
		if err != nil {
			return nil, err
		}
		for i, name := range names[:n] {
			out = append(out, NameID{Name: name, ID: w.GetIds()[i], Found: w.GetFound()[i]})
		}
		names = names[n:]
	}
	return out, nil
}

// IDNames asks for the strings of ids, in the order of ids.
func (c *Client) IDNames(ctx context.Context, ns string, ids ...uint64) ([]NameID, error) {
	out := make([]NameID, 0, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), proto.MessageBytesMax/2/proto.NameLenMax)
		w, err := c.lookUp(ctx, ns, &ebbv1.NamesQuestion{Ids: ids[:n]})
		if err != nil {
			return nil, err
		}
		for i, id := range ids[:n] {
			out = append(out, NameID{Name: string(w.GetNames()[i]), ID: id, Found: len(w.GetNames()[i]) > 0})
		}
		ids = ids[n:]
	}
	return out, nil
}

func (c *Client) lookUp(ctx context.Context, ns string, q *ebbv1.NamesQuestion) (*ebbv1.NamesAnswer, error) {
	a, err := c.askOne(ctx, "names", "", &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Names{Names: q}}, nil)
	if err != nil {
		return nil, err
	}
	w := a.GetNames()
	if len(w.GetIds()) != len(q.GetNames()) || len(w.GetFound()) != len(q.GetNames()) ||
		len(w.GetNames()) != len(q.GetIds()) {
		return nil, c.fail(attempt{op: "names"},
			proto.ErrInternal.Errorf("an answer about %d strings and %d ids to a question about %d and %d",
				len(w.GetIds()), len(w.GetNames()), len(q.GetNames()), len(q.GetIds())))
	}
	return w, nil
}

// ContainsNames asks which of up to 10,000 strings are in the bitmap, in their order. A string without an id is not in
// it, and gets no id.
func (b Bitmap) ContainsNames(ctx context.Context, names ...string) ([]bool, error) {
	list := &ebbv1.BitmapIds{}
	for _, name := range names {
		list.Names = append(list.Names, []byte(name))
	}
	w, _, err := b.ask(ctx, &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Contains{Contains: list}})
	return w.GetContains(), err
}

// Names lists the strings of the ids, in the order of the ids. That is the order in which strings got them, shard by
// shard. An id without a string is left out. See IDs.
func (b Bitmap) Names(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for from, more := uint64(0), true; more; {
			page, err := b.Page(ctx, from, b.client.cfg.limits.IDsPage)
			if err != nil {
				yield("", err)
				return
			}
			for _, name := range page.Names {
				if name != "" && !yield(name, nil) {
					return
				}
			}
			from, more = page.Next, page.More
		}
	}
}
