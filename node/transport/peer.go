package transport

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// snapshotStreamsMax is how many snapshots are sent to a peer at the same time, and how many more to prioritized
// replicas there: see Group.Prioritize.
const snapshotStreamsMax = 2

// peer is another node, to which this node sends requests.
type peer struct {
	mux         *Mux
	node        string
	ctx         context.Context // ends with the Mux, or with Forget
	cancel      context.CancelFunc
	used        atomic.Int64 // when a caller last needed it, on the monotonic clock
	clock       clock
	full        atomic.Bool  // its last report
	pressed     atomic.Bool  // its last report
	diskFull    atomic.Bool  // its last report
	contacted   atomic.Bool  // one of its replicas has sent us a request, or answered one
	lastRequest atomic.Int64 // when its last frame arrived (monotonic clock); 0: no replica of it sent a request yet
	reads       readQueue
	snapshots   chan struct{} // a token for each snapshot under way
	urgent      chan struct{} // likewise, for prioritized replicas

	mu      sync.Mutex // guards what follows
	sess    *session
	refused error         // why the peer refuses us; nil if it does not
	last    error         // why there is no session
	changed chan struct{} // closed, and replaced, when sess or refused changes
}

func newPeer(m *Mux, node string) *peer {
	ctx, cancel := context.WithCancel(m.ctx)
	return &peer{
		mux: m, node: node, ctx: ctx, cancel: cancel, reads: newReadQueue(), changed: make(chan struct{}),
		snapshots: make(chan struct{}, snapshotStreamsMax), urgent: make(chan struct{}, snapshotStreamsMax),
	}
}

// recordContact records durably that a replica of the peer has sent something, before it is used.
func (p *peer) recordContact(ctx context.Context, atMost time.Duration) error {
	if p.contacted.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	if err := p.mux.cfg.RecordContact(ctx, p.node); err != nil {
		return proto.ErrUnreachable.Errorf("node %s speaks for the first time, which cannot be written down: %v", p.node, err)
	}
	p.contacted.Store(true)
	return nil
}

// session returns the live session, or waits for one until the caller's timer
// fires or the caller is done.
func (p *peer) session(timer <-chan time.Time, done <-chan struct{}) (*session, error) {
	for {
		p.mu.Lock()
		s, refused, last, changed := p.sess, p.refused, p.last, p.changed
		p.mu.Unlock()
		if s != nil {
			return s, nil
		}
		if refused != nil {
			return nil, refused
		}
		select {
		case <-changed:
		case <-timer:
			if last == nil {
				last = proto.ErrUnreachable.Errorf("node %s: no connection yet", p.node)
			}
			return nil, last
		case <-done:
			return nil, raft.ErrTransportShutdown
		case <-p.ctx.Done():
			return nil, raft.ErrTransportShutdown
		}
	}
}

// forgetAfter is how long a peer must be idle before Forget drops it. Calls that take longer, such as snapshots, are
// between nodes of the table; they may fail when one was removed.
const forgetAfter = time.Minute

// idle returns how long no caller has used the peer, and nothing has arrived from its replicas.
func (p *peer) idle() time.Duration {
	return p.mux.mono() - time.Duration(max(p.used.Load(), p.lastRequest.Load()))
}

// run keeps a session to the peer until Forget drops the peer, or the Mux closes.
func (p *peer) run() {
	pause := p.mux.cfg.BackoffMin
	for {
		since := p.mux.mono()
		err := p.hold()
		if p.mux.mono()-since > p.mux.cfg.BackoffMax {
			pause = p.mux.cfg.BackoffMin
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-p.ctx.Done():
			return
		}
		pause = min(2*pause, p.mux.cfg.BackoffMax)
		if isRefusal(err) {
			pause = p.mux.cfg.BackoffMax
		}
	}
}

// hold opens a session and returns when it breaks.
func (p *peer) hold() error {
	s, err := p.open()
	if err == nil {
		p.mux.cfg.Logger.Info("session opened", slog.String("peer", p.node))
		p.set(s, nil)
		<-s.broken // the peer's context ends the session's
		err = s.err
	}
	p.set(nil, err)
	if s != nil {
		s.close()
	}
	return err
}

// set publishes the session, or why there is none.
func (p *peer) set(s *session, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == nil && err != nil && (p.sess != nil || p.last == nil || p.last.Error() != err.Error()) && p.ctx.Err() == nil {
		p.mux.cfg.Logger.Warn("no session", slog.String("peer", p.node), slog.Any("error", err))
	}
	p.sess, p.last, p.refused = s, err, nil
	if isRefusal(err) {
		p.refused = err
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// isRefusal reports whether an error will last, so that callers need not wait for a retry.
func isRefusal(err error) bool {
	return errors.Is(err, proto.ErrWrongCluster) || errors.Is(err, proto.ErrNewerVersion) || errors.Is(err, proto.ErrDuplicateNode)
}

func (p *peer) status() PeerStatus {
	p.mu.Lock()
	s, last := p.sess, p.last
	p.mu.Unlock()
	st := PeerStatus{Node: p.node, Connected: s != nil, Err: last}
	st.Offset, st.RTT, _ = p.clock.offset(p.mux.mono(), p.mux.cfg.Now(), anytime)
	if s != nil {
		st.InFlight = p.mux.cfg.InFlightBytesMax - s.budget.left()
	}
	return st
}
