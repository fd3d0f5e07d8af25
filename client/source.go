package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Defaults of SourceOptions.
const (
	SourceLinger  = 20 * time.Millisecond
	SourceTimeout = 2 * time.Minute
)

// SourceOptions configure a Source. The zero value is useful.
type SourceOptions struct {
	// Namespace of all keys, and of the name of the source; "default" when empty.
	Namespace string
	// MaxBatch is how many increments a shard's command carries at most; 1,000 when 0.
	MaxBatch int
	// Linger is how long an increment may wait for others to share its command; 20 ms when 0.
	Linger time.Duration
	// MaxBuffered is how many increments may be unacknowledged before Add waits;
	// 100,000 when 0.
	MaxBuffered int
	// Timeout is how long a command is tried before the source gives up; 2 min when 0. The next import that resumes
	// delivers what was given up. Of each pause of the process only the first second counts.
	Timeout time.Duration
	// Recheck sends rows again that were decided before the source was opened, instead of skipping them. No row counts
	// twice. A refused row is refused again, unless its time was too far ahead and has come since. A shard remembers
	// the last 10,000 rows that it refused. It takes earlier ones for duplicates.
	Recheck bool
	// OnRefused is called with each increment that a shard refused, and why. It
	// must not block. Without it refusals are returned by Flush and Close.
	OnRefused func(offset uint64, in Increment, err error)
}

// Source imports one ordered stream, each row once, over any number of interruptions: every shard remembers the largest
// offset that it has applied. Use it from one goroutine. Call Close at the end.
type Source struct {
	out    *outbox
	opts   WriterOptions
	resume Resume

	mu      sync.Mutex // guards last
	last    uint64     // offset given to Add
	recheck bool

	skipped, rechecked atomic.Int64
}

// Resume is what the shards had decided, row by row, to apply or to refuse, when
// the source was opened.
type Resume struct {
	// Offset is the smallest of Shards: everything up to it is decided.
	Offset uint64
	// Newest is the largest of Shards.
	Newest uint64
	// Shards holds the last offset decided, by shard; 0 is unused.
	Shards []uint64
}

// SourceStats counts what happened to the increments that a Source was given.
type SourceStats struct {
	WriterStats
	// Skipped had been decided (applied or refused) before the source was opened.
	// They are not in Added.
	Skipped int64
	// Rechecked had also been decided before, and were sent again. They are in Added, and end as Duplicates or Refused.
	Rechecked int64
}

// Source takes over the ordered source of that name, at most 256 bytes, in all shards. Every earlier holder is fenced:
// it gets ErrSourceFenced. If several writers open it at the same time, one holds it, and the others get
// ErrSourceFenced.
func (c *Client) Source(ctx context.Context, name string, opts SourceOptions) (*Source, error) {
	start := c.now()
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	if name == "" || len(name) > proto.SourceNameLenMax {
		return nil, c.fail(attempt{op: "open source", key: name},
			proto.ErrBadRequest.Errorf("source name of %d bytes: it has 1 to %d", len(name), proto.SourceNameLenMax))
	}
	s := &Source{recheck: opts.Recheck, opts: WriterOptions{
		Namespace: opts.Namespace, MaxBatch: opts.MaxBatch, MaxBuffered: opts.MaxBuffered, Window: 1,
		Linger: orDefault(opts.Linger, SourceLinger), Timeout: orDefault(opts.Timeout, SourceTimeout),
	}}
	s.opts.fill()
	if err := proto.CheckNamespaceName(s.opts.Namespace); err != nil {
		return nil, c.fail(attempt{op: "open source", key: name}, err)
	}
	p := c.newProducer(s.opts.Namespace, 1)
	p.source, p.room = name, roomSource
	if err := s.takeOver(ctx, p); err != nil {
		p.cancel(ErrClosed)
		failed := c.fail(attempt{op: "open source", key: name, start: start}, err)
		failed.Op, failed.Key = "open source", name
		return nil, failed
	}
	s.out = newOutbox(c, p, &s.opts)
	s.out.onRefused = opts.OnRefused
	s.out.open()
	return s, nil
}

// takeOver raises the source's epoch in every shard, the arbiter first, and collects the last offset of each.
func (s *Source) takeOver(ctx context.Context, p *producer) (err error) {
	token, last := newSecret(), make([]uint64, len(p.streams))
	defer func() {
		if errors.Is(err, ErrTooManySources) { // it is in no other shard, and takes the room of another
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeSessionsMax)
			defer cancel()
			_ = p.discard(ctx, last) // what is left takes a place, and no more
		}
	}()
	first, err := p.client.applyTo(ctx, arbiter, p.openSource(token))
	if err != nil {
		return err
	}
	p.streams[arbiter].hold(first)
	last[arbiter] = first.GetLastOffset()
	err = p.client.applyIn(ctx, arbiter+1, same(p.openSource(token)), func(shard uint32, result *ebbv1.CommandResult) {
		p.streams[shard].hold(result)
		last[shard] = result.GetLastOffset()
	})
	if err != nil {
		return err
	}
	s.resume = resumeOf(last)
	return p.holds(ctx)
}

func resumeOf(last []uint64) Resume {
	r := Resume{Shards: last, Offset: last[1]}
	for _, o := range last[1:] {
		r.Offset = min(r.Offset, o)
		r.Newest = max(r.Newest, o)
	}
	return r
}

// resultCollector collects the results of commands in several shards.
type resultCollector struct {
	mu    sync.Mutex // guards all below
	heard func(shard uint32, result *ebbv1.CommandResult)
	open  int
	err   error // the first
	done  chan struct{}
}

func (a *resultCollector) handleResult(p *pendingCommand, result *ebbv1.CommandResult, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if a.err == nil {
			a.err = err
		}
	} else if a.heard != nil {
		a.heard(p.shard, result)
	}
	if a.open--; a.open == 0 {
		close(a.done)
	}
}

// cause ends the wait: heard is not called after it. It returns end, with the first error if there is one.
func (a *resultCollector) cause(end error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard = nil
	if a.err != nil {
		return &contextEnded{err: a.err, end: end}
	}
	return end
}

// Resume returns what had been decided when the source was opened. Rows up to its Offset need not be given to Add
// again. Later rows may be: Add skips those that were decided, unless the source rechecks.
func (s *Source) Resume() Resume { return s.resume }

// Add adds the row at an offset, from 1. Offsets grow from call to call; gaps are allowed. Add waits while the buffer
// is full. After an error of the source itself (it is fenced, or a command was given up), every later Add returns that
// error.
func (s *Source) Add(ctx context.Context, offset uint64, in Increment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset <= s.last {
		return s.out.client.fail(attempt{op: "add", key: in.Key},
			proto.ErrBadRequest.Errorf("offset %d after %d: offsets grow, from 1", offset, s.last))
	}
	it := in.item()
	it.offset = offset
	if err := checkItem(&it); err != nil {
		return s.out.client.fail(attempt{op: "add", key: in.Key}, err)
	}
	decided := s.Decided(offset, in.Key)
	if decided && !s.recheck {
		s.last = offset
		s.skipped.Add(1)
		return nil
	}
	if err := s.out.add(ctx, &it); err != nil {
		return err
	}
	s.last = offset
	if decided {
		s.rechecked.Add(1)
	}
	return nil
}

// Decided reports whether a row of a key had been decided, to be applied or refused, when the source was opened.
func (s *Source) Decided(offset uint64, key string) bool {
	return offset <= s.resume.Shards[s.out.producer.stream(key).shard]
}

// Flush sends all that is buffered. It waits until every row that was added before is acknowledged or given up. It
// returns an *Undelivered for what went wrong since the last Flush, or the end of ctx.
func (s *Source) Flush(ctx context.Context) error { return s.out.flush(ctx) }

// Close flushes and ends the Source. The shards keep its offsets.
func (s *Source) Close(ctx context.Context) error { return s.out.close(ctx) }

// Stats returns the counts so far.
func (s *Source) Stats() SourceStats {
	return SourceStats{WriterStats: s.out.stats(), Skipped: s.skipped.Load(), Rechecked: s.rechecked.Load()}
}

// Advance moves the event clock of the namespace to t in all shards. They then accept rows that are dated up to
// max_jump later. Use it only if a gap in the times of rows is real. Flush first: rows that were added and not flushed
// may arrive after the clock has moved.
func (s *Source) Advance(ctx context.Context, t time.Time) error {
	c := s.out.client
	clock, err := c.EventClock(ctx, s.opts.Namespace)
	if err != nil || clock == nil {
		return err
	}
	err = c.applyEverywhere(ctx, &ebbv1.Command{
		Namespace: s.opts.Namespace,
		Body:      &ebbv1.Command_EventClock{EventClock: &ebbv1.EventClock{Epoch: clock.Epoch, NowUs: t.UnixMicro()}},
	})
	if err != nil {
		return c.fail(attempt{op: "advance event clock"}, err)
	}
	return nil
}

// DropSource removes an ordered source of a namespace ("default" when empty) from all shards. The next import of that
// name counts everything again. A writer that has the source open is fenced.
func (c *Client) DropSource(ctx context.Context, namespace, name string) error {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	command := &ebbv1.Command{
		Namespace: namespace,
		Body:      &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: name}},
	}
	_, err := c.applyTo(ctx, arbiter, command)
	if err == nil {
		err = c.applyIn(ctx, arbiter+1, same(command), nil)
	}
	if err != nil {
		return c.fail(attempt{op: "drop source", key: name}, err)
	}
	return nil
}

// applyEverywhere applies a command in all shards and waits for the results. It returns the first error.
func (c *Client) applyEverywhere(ctx context.Context, command *ebbv1.Command) error {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	return c.applyIn(ctx, 1, same(command), nil)
}

// same returns a function that gives every shard the same command.
func same(command *ebbv1.Command) func(uint32) []byte {
	raw := marshal(command)
	return func(uint32) []byte { return raw }
}

// applyIn applies a command in each shard from number from on, except where command returns nil, and waits for all. It
// returns the first error. heard may be nil; it is called with each result, one call at a time.
func (c *Client) applyIn(
	ctx context.Context, from uint32, command func(shard uint32) []byte,
	heard func(shard uint32, result *ebbv1.CommandResult),
) error {
	deadline, _ := ctx.Deadline()
	all := &resultCollector{heard: heard, done: make(chan struct{})}
	var commands []*pendingCommand
	for shard := from; shard <= c.routing.shards(); shard++ {
		if raw := command(shard); raw != nil {
			commands = append(commands, &pendingCommand{
				shard: shard, buf: raw, ctx: ctx, deadline: deadline, made: c.now(), handler: all,
			})
		}
	}
	if len(commands) == 0 {
		return nil
	}
	all.open = len(commands)
	c.dispatch(commands)
	select {
	case <-all.done:
		return all.err
	case <-ctx.Done():
		return all.cause(context.Cause(ctx))
	}
}
