package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// watchIdleMax is how long a watch may send nothing at all.
const watchIdleMax = 15 * time.Second

// Watches are the open watches of a node, over all its interfaces: proto.WatchesMax at most.
type Watches struct {
	open    atomic.Int64
	gauge   prometheus.Gauge
	events  prometheus.Counter
	closing chan struct{}
	once    sync.Once
}

// NewWatches returns Watches without any watch, and registers their number as a metric; r may be nil.
func NewWatches(r prometheus.Registerer) *Watches {
	w := &Watches{
		closing: make(chan struct{}),
		gauge:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "ebb_watches_open", Help: "Watches that are open, over all doors."}),
		events:  prometheus.NewCounter(prometheus.CounterOpts{Name: "ebb_watch_events_total", Help: "Events sent by watches, signs of life included."}),
	}
	if r != nil {
		w.gauge, w.events = registered(r, w.gauge), registered(r, w.events)
	}
	return w
}

// Close ends all watches with SHUTTING_DOWN, and allows no new ones. It does not wait for them.
func (w *Watches) Close() { w.once.Do(func() { close(w.closing) }) }

// enter adds a watch to the count; leave removes it.
func (w *Watches) enter() (leave func(), err error) {
	if w.open.Add(1) > proto.WatchesMax {
		w.open.Add(-1)
		return nil, proto.ErrOverloaded.Errorf("%d watches are open on this node, which is the limit", proto.WatchesMax).WithHint("watch on another node, or end some")
	}
	w.gauge.Inc()
	return func() {
		w.open.Add(-1)
		w.gauge.Dec()
	}, nil
}

// Watch implements service Ebb.
func (s *ebbServer) Watch(req *ebbv1.WatchRequest, stream grpc.ServerStreamingServer[ebbv1.WatchEvent]) error {
	return ebbv1grpc.Status(s.watch(stream.Context(), req, func(ctx context.Context, e *ebbv1.WatchEvent) error {
		if e == nil {
			return nil // the transport detects by itself that the client has gone
		}
		sent := s.Answers.Begin(0)
		m, err := s.leaving(ctx, ebbv1grpc.Ebb_Watch_FullMethodName, sent, e)
		if err != nil {
			return err
		}
		return stream.SendMsg(m)
	}))
}

// watch asks again and again, and sends the answers that are news, until ctx ends or send fails. It sends nil when
// there was no news for long. While send waits for a slow reader, watch asks nothing, so that the next event is
// current. A slow question is asked less often than its interval: the pause is at least as long as the last answer
// took.
func (s *ebbServer) watch(ctx context.Context, req *ebbv1.WatchRequest, send func(context.Context, *ebbv1.WatchEvent) error) error {
	if err := proto.CheckWatch(req); err != nil {
		return err
	}
	if err := checkStanding(req); err != nil {
		return err
	}
	if err := checkConsistency(req.GetConsistency(), req.GetMaxStalenessUs()); err != nil {
		return err
	}
	leave, err := s.Watches.enter()
	if err != nil {
		return err
	}
	defer leave()
	w, last := newWatcher(req), &kept{pool: s.Kept}
	defer last.close()
	interval := time.Duration(orElse(req.GetMinIntervalUs(), proto.DefaultWatchIntervalUS)) * time.Microsecond
	sent := time.Now()
	for {
		asked := time.Now()
		took, began, err := s.inspectOnce(ctx, req, w, last, sent, send)
		if err != nil {
			return err
		}
		sent = began
		if err := s.rest(ctx, req, max(interval-time.Since(asked), took)); err != nil {
			return err
		}
	}
}

// recheckEvery is how long a watch may continue for a caller that is no longer allowed to watch.
const recheckEvery = 5 * time.Second

// rest waits for d. If the watch ends before that, it returns why.
func (s *ebbServer) rest(ctx context.Context, req *ebbv1.WatchRequest, d time.Duration) error {
	for {
		timer := time.NewTimer(min(d, recheckEvery))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-s.Watches.closing:
			timer.Stop()
			return proto.ErrShuttingDown.Errorf("node %s is stopping", s.Node)
		case <-timer.C:
		}
		if err := s.still(ctx, ebbv1grpc.Ebb_Watch_FullMethodName, req); err != nil {
			return err
		}
		if d -= recheckEvery; d <= 0 {
			return nil
		}
	}
}

// inspectOnce asks the question of a watch once, and sends the answer if it is news. It returns how long the question
// took, and when the watch last sent something.
func (s *ebbServer) inspectOnce(
	ctx context.Context, req *ebbv1.WatchRequest, w *watcher, last *kept, sent time.Time,
	send func(context.Context, *ebbv1.WatchEvent) error,
) (took time.Duration, lastSent time.Time, err error) {
	asking, answers := s.begin(ctx, answersMax)
	defer answers.Close()
	asked := time.Now()
	answer, err := s.inspect(asking, req)
	if err != nil {
		return 0, sent, err
	}
	took = time.Since(asked)
	event := w.next(answer)
	if w.last == answer {
		if err := last.hold(ctx, answer); err != nil {
			return took, sent, err
		}
	}
	// What is sent is charged as the last answer by now: a client that does not read holds nothing else.
	answers.Close()
	if event == nil && time.Since(sent) < watchIdleMax {
		return took, sent, nil
	}
	ctx, encoded := s.begin(ctx, answersMax)
	defer encoded.Close()
	if err := send(ctx, event); err != nil {
		return took, sent, err
	}
	s.Watches.events.Inc()
	return took, time.Now(), nil
}

// inspect asks the question of a watch once. A failure that may pass is returned as an answer; an error ends the watch.
func (s *ebbServer) inspect(ctx context.Context, req *ebbv1.WatchRequest) (*ebbv1.Answer, error) {
	asking, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	answer, err := s.askWatched(asking, req)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		answer = &ebbv1.Answer{Error: proto.ErrDeadline.Errorf("no answer in %v", DefaultTimeout).Wire()}
	case err != nil:
		answer = &ebbv1.Answer{Error: proto.AsError(err).Wire()}
	}
	if e := answer.GetError(); e != nil && e.GetCode()/1000 == 2 {
		return nil, proto.FromWire(e) // the question is wrong, and stays so
	}
	return answer, nil
}

func orElse(v, otherwise int64) int64 {
	if v == 0 {
		return otherwise
	}
	return v
}
