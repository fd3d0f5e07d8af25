package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Importer writes the rows of a Reader into a namespace, each exactly once: it holds an ordered source, whose shards
// remember how far they are. Run again with the same Source it continues where it was interrupted, if the file begins
// as it did. Otherwise the error is ErrOtherFile. By then nothing has been written of a file that can be read twice; of
// a stream, what came before the difference.
type Importer struct {
	Client    *client.Client
	Namespace string // "default" when empty
	// Source names the import; Reader.SourceName proposes one. Two imports of
	// one name are one: rows that the first has written are skipped by the second.
	Source string
	// Rate is how many rows a second are written at most; no limit when 0.
	Rate float64
	// MaxBatch is how many rows one command carries at most; 1,000 when 0.
	MaxBatch int
	// Timeout is how long a command is tried before the import gives up; 2 min when 0.
	Timeout time.Duration
	// Recheck sends again what an earlier run has written, so that rows which a
	// shard refused then are reported again. Rate does not hold them back.
	Recheck bool
	// Changed makes the import continue where the source is, by the numbers of lines alone, although the file is not
	// the one that was imported: see ErrOtherFile.
	Changed bool
	// OnResume is called with the last line that an earlier run has decided, if any.
	OnResume func(line uint64)
	// Progress is called every ProgressEvery (200 ms when 0), and at the end.
	Progress      func(Progress)
	ProgressEvery time.Duration
	// OnRefused is called with each line that is refused, by the reader or by a
	// shard; from several goroutines.
	OnRefused func(Refused)
}

// Progress says how far an import is.
type Progress struct {
	Rows    uint64 // read, those refused and skipped included
	Resumed uint64 // of Rows: decided by an earlier run, which counted or refused them
	Refused uint64 // of Rows
	Empty   uint64 // left out because their key, bin, value or amount is empty; not in Rows
	Applied uint64 // acknowledged
	Faded   uint64 // of Applied: so old, or of so small an amount, that they weigh less than the namespace keeps
	Bytes   int64  // read from the file, before decompression
	Size    int64  // of the file; 0 if not known
	Elapsed time.Duration
	Rate    float64 // rows a second, since the last Progress
	Done    bool

	EventClock bool // the namespace lives by the times of the rows
	// Ahead is the latest time of rows that were refused since they are dated too far ahead of the event clock; zero
	// without such a row.
	Ahead time.Time
	// Future is the latest time of rows that were refused since it is still to come; zero without such a row. From then
	// on they count.
	Future time.Time
	// Floor is what keeps the bins of Faded in the namespace. It is unspecified where the rows make no bins that a
	// floor is for.
	Floor client.Floor
}

// interruptedMax is how long an interrupted import takes to write what it has read.
const interruptedMax = 5 * time.Second

// Run imports until the end of r, an error that ends it, or the end of ctx; what
// has been read by then is still written if that takes no longer than 5 s. The
// Progress says how far it came in any case.
func (im *Importer) Run(ctx context.Context, r *Reader) (Progress, error) {
	if im.Source == "" {
		return Progress{}, errors.New("import: the source has no name")
	}
	ns, err := findNamespace(ctx, im.Client, im.Namespace)
	if err != nil {
		return Progress{}, fmt.Errorf("import: %w", err)
	}
	run := &run{importer: im, reader: r, floor: floorOf(ns, r.opts.Kind), start: time.Now(), shown: time.Now()}
	source, err := im.open(ctx, run)
	if err != nil {
		return Progress{}, fmt.Errorf("import: %w", err)
	}
	run.source = source
	asking, cancel := im.withTimeout(ctx)
	run.filter, err = newJumpFilter(asking, im.Client, ns, r, source)
	cancel()
	if err != nil {
		return Progress{}, errors.Join(fmt.Errorf("import: %w", err), run.finish(ctx))
	}
	if newest := source.Resume().Newest; newest > 0 && im.OnResume != nil {
		im.OnResume(newest >> markBits)
	}
	run.identity = identity{salt: r.salt(im.Namespace), points: checkpoints(source.Resume().Shards), lax: im.Changed}
	if r.foundHeader != 0 {
		_, err = run.identity.reach(1, r.foundHeader) // an earlier version may have counted it as a row
	}
	if err == nil {
		err = run.identity.verify(ctx, r)
	}
	if err == nil {
		err = run.rows(ctx)
	}
	if errors.Is(err, ErrOtherFile) {
		err = fmt.Errorf("%s: %w", r.Name(), err)
	}
	err = errors.Join(err, run.finish(ctx))
	p := run.progress(true)
	if source.Resume().Newest == 0 && run.countedNothing() {
		run.discardSource(ctx)
	}
	if im.Progress != nil {
		im.Progress(p)
	}
	return p, err
}

// open takes the source over, for as long as a command is tried.
func (im *Importer) open(ctx context.Context, run *run) (*client.Source, error) {
	ctx, cancel := im.withTimeout(ctx)
	defer cancel()
	return im.Client.Source(ctx, im.Source, client.SourceOptions{
		Namespace: im.Namespace, MaxBatch: im.MaxBatch, Timeout: im.Timeout, Recheck: im.Recheck,
		OnRefused: run.refusedByShard,
	})
}

// withTimeout bounds a call by how long a command is tried, which may be longer than the client's own timeout.
func (im *Importer) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if im.Timeout <= 0 {
		return context.WithTimeout(ctx, client.SourceTimeout)
	}
	return context.WithTimeout(ctx, im.Timeout)
}

// namespaceWait is how long a namespace that was just created may be unknown to
// the node that is asked.
const namespaceWait = 2 * time.Second

// CheckNamespace finds out that a namespace, "" being the default one, does not exist or is deleted, before every row
// is refused for it. One that was just made has some time to come up.
func CheckNamespace(ctx context.Context, c *client.Client, name string) error {
	_, err := findNamespace(ctx, c, name)
	return err
}

// findNamespace is CheckNamespace, and returns the namespace.
func findNamespace(ctx context.Context, c *client.Client, name string) (client.Namespace, error) {
	if name == "" {
		name = proto.DefaultNamespace
	}
	for waited := time.Duration(0); ; waited += namespaceWait / 10 {
		all, deleted, err := c.AllNamespaces(ctx)
		if err != nil {
			return client.Namespace{}, err
		}
		named := func(n client.Namespace) bool { return n.Name == name }
		if i := slices.IndexFunc(all, named); i >= 0 {
			return all[i], nil
		}
		if i := slices.IndexFunc(deleted, named); i >= 0 {
			d := deleted[i].Deletion
			return client.Namespace{}, proto.ErrDeleted(&ebbv1.Namespace{Name: name, Deletion: &ebbv1.NamespaceDeletion{
				DeletedUs: d.Deleted.UnixMicro(), PurgeUs: d.Purge.UnixMicro(), Purging: d.Purging,
			}})
		}
		if waited >= namespaceWait {
			return client.Namespace{}, proto.ErrNamespaceNotFound.Errorf("namespace %q does not exist", name).
				WithHint("create it with: ebb namespace create " + name)
		}
		select {
		case <-time.After(namespaceWait / 10):
		case <-ctx.Done():
			return client.Namespace{}, context.Cause(ctx)
		}
	}
}

// floorOf is the floor of distributions, where the rows of an import are counted in them.
func floorOf(ns client.Namespace, kind client.Kind) client.Floor {
	if kind = cmp.Or(kind, ns.Kind, client.KindDistribution); kind != client.KindDistribution {
		return ebbv1.Floor_FLOOR_UNSPECIFIED
	}
	return ns.Floor
}

// run is one Run.
type run struct {
	importer *Importer
	reader   *Reader
	source   *client.Source
	filter   *jumpFilter
	identity identity
	floor    client.Floor
	start    time.Time
	paced    time.Time // when the first row that counts for Rate was written

	read, refused, resumed, written uint64
	shown                           time.Time // when Progress was called last
	shownRead                       uint64
	shardRefused                    atomic.Uint64
	jumps                           pendingJumps
	future                          latestTime
}

func (r *run) rows(ctx context.Context) error {
	done := r.source.Resume().Offset
	for {
		row, err := r.filter.Next(ctx)
		var refused *Refused
		switch {
		case err == io.EOF:
			return r.identity.end()
		case errors.As(err, &refused):
			r.refused++
			r.refuse(*refused)
		case err != nil:
			return err
		default:
			offset, err := r.identity.reach(row.last, row.sum)
			if err != nil {
				return err
			}
			if offset <= done && !r.importer.Recheck {
				r.resumed++
			} else if err := r.write(ctx, row, offset); err != nil {
				return err
			}
		}
		if r.read++; r.read%256 == 0 {
			r.show()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
}

func (r *run) write(ctx context.Context, row Row, offset uint64) error {
	if err := r.pace(ctx); err != nil {
		return err
	}
	r.written++
	if r.importer.Recheck || !r.source.Decided(offset, row.Key) {
		r.jumps.add(offset, row.aheadOf)
	}
	return r.source.Add(ctx, offset, client.Increment{Key: row.Key, Bin: row.Bin, Amount: row.Amount, Time: row.Time, Kind: r.reader.opts.Kind, Value: row.Value})
}

// pace waits until the next row may be written.
func (r *run) pace(ctx context.Context) error {
	rate := r.importer.Rate
	if rate <= 0 {
		return nil
	}
	if r.written == 0 {
		r.paced = time.Now()
	}
	s := r.source.Stats()
	sent := float64(r.written - uint64(s.Skipped+s.Rechecked))
	ahead := time.Until(r.paced.Add(time.Duration(sent / rate * float64(time.Second))))
	if ahead < paceMin {
		return nil
	}
	r.show()
	select {
	case <-time.After(ahead):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// paceMin is the shortest wait: rows go in small bursts.
const paceMin = 2 * time.Millisecond

func (r *run) refuse(refused Refused) {
	if r.importer.OnRefused != nil {
		r.importer.OnRefused(refused)
	}
}

func (r *run) refusedByShard(offset uint64, in client.Increment, err error) {
	r.shardRefused.Add(1)
	var coded *client.Error
	if errors.As(err, &coded) {
		err = coded.Err
	}
	clock, jumped := r.jumps.take(offset), errors.Is(err, proto.ErrTimeJump)
	future := errors.Is(err, proto.ErrBadTime) && in.Time.UnixMicro() > 0
	switch {
	case future: // the shard judges it each time
		r.future.add(in.Time)
	case !jumped && r.source.Decided(offset, in.Key): // the shard knows the code alone
		err = refusedEarlier(in, proto.AsError(err).Code)
	case jumped:
		r.jumps.most.add(in.Time)
		if !clock.IsZero() {
			err = r.filter.refusal(in.Time, clock, proto.AsError(err).Hint)
		}
	}
	r.refuse(Refused{Line: offset >> markBits, Reason: err})
}

// pendingJumps holds the clocks that rows were too far ahead of, until a shard has answered. It also has the latest
// time of those that were refused.
type pendingJumps struct {
	mu     sync.Mutex // guards clocks
	clocks map[uint64]time.Time
	most   latestTime
}

// latestTime is the latest of some times.
type latestTime struct {
	mu   sync.Mutex // guards time
	time time.Time
}

func (l *latestTime) add(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.After(l.time) {
		l.time = t
	}
}

func (l *latestTime) get() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.time
}

func (j *pendingJumps) add(offset uint64, clock time.Time) {
	if clock.IsZero() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.clocks == nil {
		j.clocks = make(map[uint64]time.Time)
	}
	j.clocks[offset] = clock
}

// take returns the zero time for any other row.
func (j *pendingJumps) take(offset uint64) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	clock := j.clocks[offset]
	delete(j.clocks, offset)
	return clock
}

// ErrRefusedEarlier says that an earlier run of an import refused a row, for another reason than its time. It is not
// judged again.
var ErrRefusedEarlier = errors.New("refused by an earlier run")

// refusedEarlier says why a row was refused then. What the limits are now is left out: they may be others.
func refusedEarlier(in client.Increment, code client.Code) error {
	why := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(code.String(), "CODE_"), "_", " "))
	why += fmt.Sprintf(" (EBB-%d)", int32(code))
	if in.Bin != "" {
		return fmt.Errorf("%w: %s, key %q, bin %q", ErrRefusedEarlier, why, in.Key, in.Bin)
	}
	return fmt.Errorf("%w: %s, key %q", ErrRefusedEarlier, why, in.Key)
}

// finish writes what was read, and ends the source.
func (r *run) finish(ctx context.Context) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), interruptedMax)
		defer cancel()
	}
	return r.source.Close(ctx)
}

// countedNothing reports whether no row of this run was counted, for certain. What was refused may be sent again.
func (r *run) countedNothing() bool {
	s := r.source.Stats()
	return s.Applied+s.Duplicates+s.Skipped+s.Unknown+s.Buffered == 0
}

// discardSource drops a source that this run has begun and that has counted nothing, so that no import that was refused
// takes the room of another. Shards keep it where another import has opened it since. If that fails it stays, which
// `ebb source list` shows.
func (r *run) discardSource(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptedMax)
	defer cancel()
	_ = r.source.Discard(ctx) // it takes a place, and no more
}

func (r *run) show() {
	every := r.importer.ProgressEvery
	if every <= 0 {
		every = 200 * time.Millisecond
	}
	if r.importer.Progress == nil || time.Since(r.shown) < every {
		return
	}
	r.importer.Progress(r.progress(false))
	r.shown, r.shownRead = time.Now(), r.read
}

// decided tells what this run has had counted from what an earlier one had decided. A shard that has decided a row
// before may have done so at a try of this run whose answer did not come; rows of earlier runs are those that were
// skipped, or sent again to be checked.
func decided(s client.SourceStats) (now, before uint64) {
	earlier := min(s.Duplicates, s.Rechecked)
	return uint64(s.Applied + s.Duplicates - earlier), uint64(s.Skipped + earlier)
}

func (r *run) progress(done bool) Progress {
	s := r.source.Stats()
	now, before := decided(s)
	p := Progress{
		Rows: r.read, Resumed: r.resumed + before, Refused: r.refused + r.shardRefused.Load(),
		Empty: r.reader.Empty(), Applied: now, Faded: uint64(s.Faded), Bytes: r.reader.Bytes(), Size: r.reader.Size(),
		Elapsed: time.Since(r.start), Done: done, EventClock: r.filter.event,
		Floor: r.floor, Ahead: r.jumps.most.get(), Future: r.future.get(),
	}
	since := time.Since(r.shown)
	rows := r.read - r.shownRead
	if done {
		since, rows = p.Elapsed, r.read
	}
	if since > 0 {
		p.Rate = float64(rows) / since.Seconds()
	}
	return p
}
