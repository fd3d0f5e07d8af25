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

// Importer writes the rows of a Reader into a namespace, each exactly once. It uses an ordered source, for which each
// shard remembers the last offset. A second run with the same Source continues where the first one was interrupted, if
// the file begins with the same lines. Otherwise the error is ErrOtherFile. In that case nothing has been written if
// the file can be read twice; of a stream, the rows before the difference have been written.
type Importer struct {
	Client    *client.Client
	Namespace string // "default" when empty
	// Source names the import; Reader.SourceName proposes a name. Two imports with the same name are one: the second
	// skips the rows that the first has written.
	Source string
	// Rate is how many rows a second are written at most; 0 is no limit.
	Rate float64
	// MaxBatch is how many rows one command carries at most; 0 means 1,000.
	MaxBatch int
	// Timeout is how long a command is retried before the import gives up; 0 means 2 minutes.
	Timeout time.Duration
	// Recheck sends the rows of an earlier run again, so that OnRefused gets those that a shard refused then. Rate does
	// not limit such rows.
	Recheck bool
	// Changed lets the import continue by line numbers alone, although the file differs from the imported one: see
	// ErrOtherFile.
	Changed bool
	// OnResume is called with the last line that an earlier run has decided, if there is one.
	OnResume func(line uint64)
	// Progress is called once in ProgressEvery (0 means 200 ms), and at the end.
	Progress      func(Progress)
	ProgressEvery time.Duration
	// OnRefused is called with each line that the reader or a shard refuses. Calls come from several goroutines.
	OnRefused func(Refused)
}

// Progress is the progress of an import.
type Progress struct {
	Rows    uint64 // rows read, including refused and skipped ones
	Resumed uint64 // of Rows: decided by an earlier run, which counted or refused them
	Refused uint64 // of Rows
	Empty   uint64 // left out because their key, bin, value or amount is empty; not in Rows
	Applied uint64 // acknowledged
	Faded   uint64 // of Applied: too old, or of too small an amount, to reach the threshold of the namespace
	Bytes   int64  // read from the file, before decompression
	Size    int64  // of the file; 0 if not known
	Elapsed time.Duration
	Rate    float64 // rows a second, since the last call of Progress
	Done    bool

	EventClock bool // the namespace has an event clock
	// Ahead is the latest time of the rows that were refused because they are too far ahead of the event clock. It is
	// zero without such a row.
	Ahead time.Time
	// Future is the latest time of the rows that were refused because their time has not come yet. It is zero without
	// such a row. An import after that time counts them.
	Future time.Time
	// Floor is the setting of the namespace that may keep the bins of Faded rows. It is unspecified if the rows make no
	// bins to which a floor applies.
	Floor client.Floor
}

// interruptedMax is how long an interrupted import may take to write what it has read.
const interruptedMax = 5 * time.Second

// Run imports until the end of r, an error that ends the import, or the end of ctx. Rows that were read by then are
// still written, if that takes no longer than 5 s. Run returns the Progress also with an error.
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
		_, err = run.identity.reach(1, r.foundHeader) // an earlier version may have counted the header as a row
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

// open takes over the source. It is bounded by how long a command is retried.
func (im *Importer) open(ctx context.Context, run *run) (*client.Source, error) {
	ctx, cancel := im.withTimeout(ctx)
	defer cancel()
	return im.Client.Source(ctx, im.Source, client.SourceOptions{
		Namespace: im.Namespace, MaxBatch: im.MaxBatch, Timeout: im.Timeout, Recheck: im.Recheck,
		OnRefused: run.refusedByShard,
	})
}

// withTimeout bounds a call by how long a command is retried, which may be longer than the client's own timeout.
func (im *Importer) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if im.Timeout <= 0 {
		return context.WithTimeout(ctx, client.SourceTimeout)
	}
	return context.WithTimeout(ctx, im.Timeout)
}

// namespaceWait is how long a node may not know a namespace that was just created.
const namespaceWait = 2 * time.Second

// CheckNamespace returns an error if a namespace does not exist or is deleted; "" is the default one. Otherwise the
// shards would refuse every row. It waits up to 2 s for a namespace that was just created.
func CheckNamespace(ctx context.Context, c *client.Client, name string) error {
	_, err := findNamespace(ctx, c, name)
	return err
}

// findNamespace does what CheckNamespace does, and returns the namespace.
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

// floorOf returns the floor of the namespace if the rows of an import are counted in distributions, and otherwise
// unspecified.
func floorOf(ns client.Namespace, kind client.Kind) client.Floor {
	if kind = cmp.Or(kind, ns.Kind, client.KindDistribution); kind != client.KindDistribution {
		return ebbv1.Floor_FLOOR_UNSPECIFIED
	}
	return ns.Floor
}

// run is the state of one call of Run.
type run struct {
	importer *Importer
	reader   *Reader
	source   *client.Source
	filter   *jumpFilter
	identity identity
	floor    client.Floor
	start    time.Time
	paced    time.Time // when the first row to which Rate applies was written

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

// pace waits until Rate allows the next row.
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

// paceMin is the shortest wait. Rows are sent in small bursts instead of shorter waits.
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
	case future: // the shard judges such a row anew each time
		r.future.add(in.Time)
	case !jumped && r.source.Decided(offset, in.Key): // the shard remembers only the code of the error
		err = refusedEarlier(in, proto.AsError(err).Code)
	case jumped:
		r.jumps.most.add(in.Time)
		if !clock.IsZero() {
			err = r.filter.refusal(in.Time, clock, proto.AsError(err).Hint)
		}
	}
	r.refuse(Refused{Line: offset >> markBits, Reason: err})
}

// pendingJumps holds, for each row that is too far ahead, the event clock at that point, until a shard has answered. It
// also holds the latest time of the rows that were refused for it.
type pendingJumps struct {
	mu     sync.Mutex // guards clocks
	clocks map[uint64]time.Time
	most   latestTime
}

// latestTime is the latest of the times that were added.
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

// take removes and returns the clock of a row that is too far ahead; the zero time for any other row.
func (j *pendingJumps) take(offset uint64) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	clock := j.clocks[offset]
	delete(j.clocks, offset)
	return clock
}

// ErrRefusedEarlier says that an earlier run of an import refused a row for another reason than its time. Such a row is
// not judged again.
var ErrRefusedEarlier = errors.New("refused by an earlier run")

// refusedEarlier makes the error of a row that was refused then. It leaves out the limits, which may have changed.
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

// countedNothing reports whether certainly no row of this run was counted. Refused rows may be sent again.
func (r *run) countedNothing() bool {
	s := r.source.Stats()
	return s.Applied+s.Duplicates+s.Skipped+s.Unknown+s.Buffered == 0
}

// discardSource drops a source that this run has begun and that has counted nothing. Otherwise a refused import would
// use up a place for sources. Shards keep the source if another import has opened it since. If dropping fails, the
// source stays, and `ebb source list` shows it.
func (r *run) discardSource(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptedMax)
	defer cancel()
	_ = r.source.Discard(ctx) // a source that stays only takes a place
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

// decided returns how many rows this run has counted, and how many an earlier run had decided. A duplicate may be of
// this run, if the answer to its first try was lost. Rows of earlier runs were skipped, or were sent again to be
// checked.
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
