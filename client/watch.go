package client

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// WatchOptions configure a watch: a question that is asked again and again.
type WatchOptions struct {
	// Interval between two answers at least: 100 ms to 1 h; 1 s if 0.
	Interval time.Duration
	// Every makes each answer an event, also one that equals the last one.
	Every bool
	// Tolerance is by how much two numbers may differ and still count as the same, as a part of the larger one, up to
	// 1. It is 0.01 if 0, and none at all if negative.
	Tolerance float64
	// Alert limits the events of a question about surprise to the answers that raise or clear the alert.
	Alert *Alert
}

// Alert is raised when a comparison passes all of its thresholds. It has at least one.
type Alert struct {
	PValue        float64 // this or below; 0 for any
	JensenShannon float64 // this many bits or more; 0 for any
	// The alert stays raised while these are passed; ten times PValue and four fifths of JensenShannon if 0.
	ClearPValue, ClearJensenShannon float64
}

// Event is one answer of a watch.
type Event struct {
	// Answer is in wire format; see Distribution, Surprise and Trend. It carries an error during a failure that may
	// pass.
	Answer *ebbv1.Answer
	// Raised reports whether the alert of the watch is raised. Crossed reports whether that has changed since the event
	// before.
	Raised, Crossed bool
	// Unsent counts the answers since the event before that became no event. They differed too little, or a newer
	// answer replaced them before the loop read them.
	Unsent uint64
}

// Distribution is the answer to a question about a distribution.
func (e Event) Distribution() Distribution { return distributionOf(e.Answer) }

// Surprise is the answer to a question about surprise.
func (e Event) Surprise() Surprise { return surpriseOf(e.Answer) }

// Trend is the answer to a question about a trend.
func (e Event) Trend() Trend { return trendOf(e.Answer) }

// Err returns the error at the time of the event; nil if there is none.
func (e Event) Err() error {
	if err := proto.FromWire(e.Answer.GetError()); err != nil {
		return err
	}
	return nil
}

// Watch asks a question again and again, on the node that leads its key. It yields the first answer and then what
// changes, until the loop is left or ctx ends. It has no deadline of its own. A loop that is slower than the answers
// gets only the latest.
//
// If its node fails, the watch continues on another. An error ends it: the question is wrong, or ctx is over.
func (c *Client) Watch(ctx context.Context, q *ebbv1.Question, o WatchOptions, opts ...AskOption) iter.Seq2[Event, error] {
	return watch(ctx, func(ctx context.Context, put func(Event)) error {
		a := askingOf(opts)
		return c.follow(ctx, o.request(a.fill(q), a), keyOf(q), c.home(q), put)
	})
}

// watch yields the events that follow puts, until follow ends.
func watch(ctx context.Context, follow func(context.Context, func(Event)) error) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		latest := &latestEvent{arrived: make(chan struct{}, 1)}
		var reader sync.WaitGroup
		reader.Go(func() { latest.end(follow(ctx, latest.set)) })
		defer reader.Wait()
		defer cancel()
		raised := false
		for {
			<-latest.arrived
			e, err := latest.next()
			if err != nil {
				yield(Event{}, err)
				return
			}
			if e.Answer == nil {
				continue
			}
			e.Crossed, raised = e.Raised != raised, e.Raised
			if !yield(e, nil) {
				return
			}
		}
	}
}

// WatchTop watches the n most probable bins of a key.
func (c *Client) WatchTop(ctx context.Context, ns, key string, n int, o WatchOptions, opts ...AskOption) iter.Seq2[Event, error] {
	return c.Watch(ctx, &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: bytesOf(key), Select: &ebbv1.DistributionQuestion_Top{Top: clampCount(n)},
	}}}, o, opts...)
}

// WatchSurprise watches how a distribution differs from a baseline. With an alert it yields only the answers that raise
// or clear the alert.
func (c *Client) WatchSurprise(ctx context.Context, ns string, query SurpriseQuery, o WatchOptions, opts ...AskOption) iter.Seq2[Event, error] {
	return c.Watch(ctx, query.question(ns), o, opts...)
}

// latestEvent holds the latest event, until next takes it.
type latestEvent struct {
	arrived chan struct{} // one deep: something has changed

	mu   sync.Mutex // guards all below
	last Event
	err  error
}

func (m *latestEvent) set(e Event) {
	m.mu.Lock()
	if m.last.Answer != nil {
		e.Unsent += m.last.Unsent + 1
	}
	m.last = e
	m.mu.Unlock()
	m.notify()
}

// end puts the error that ends the watch.
func (m *latestEvent) end(err error) {
	m.mu.Lock()
	m.err = err
	m.mu.Unlock()
	m.notify()
}

func (m *latestEvent) notify() {
	select {
	case m.arrived <- struct{}{}:
	default:
	}
}

// next returns the latest event. When there is none left, it returns the error.
func (m *latestEvent) next() (Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.last
	if e.Answer == nil {
		return e, m.err
	}
	m.last = Event{}
	if m.err != nil {
		m.notify()
	}
	return e, nil
}

// follow watches on one node after another, and passes each event to put. It returns why it ends, which is never nil.
func (c *Client) follow(ctx context.Context, req *ebbv1.WatchRequest, key string, shard uint32, put func(Event)) error {
	start := c.now()
	if err := proto.CheckWatch(req); err != nil {
		return c.fail(attempt{op: "watch", key: key, start: start}, err)
	}
	last := ""
	for tries := 0; ; tries++ {
		node, p := c.peerFor(shard, tries, last)
		last = node
		err := c.followPeer(ctx, p, req, func(e *ebbv1.WatchEvent) {
			tries = 0
			if req.Alert != nil {
				req.Alert.Raised = e.GetRaised()
			}
			put(Event{Answer: e.GetAnswer(), Raised: e.GetRaised(), Unsent: e.GetUnsent()})
		})
		if end := endOf(ctx, c); end != nil {
			return end
		}
		if !worthAnotherTry(coded(err).Code) {
			return c.fail(attempt{op: "watch", key: key, shard: shard, node: node, tries: tries + 1, start: start}, err)
		}
		if tries == blindAfter {
			put(Event{Answer: &ebbv1.Answer{Error: coded(err).Wire()}, Raised: req.GetAlert().GetRaised()})
		}
		if end := c.sleep(ctx, c.backoff(tries, err)); end != nil {
			return end
		}
	}
}

// blindAfter is how many nodes in a row, after the first, may fail a watch before its loop gets an error. Without the
// error the loop would take a failure for a time without changes.
const blindAfter = 4

// followPeer watches on one node until that fails.
func (c *Client) followPeer(ctx context.Context, p *peer, req *ebbv1.WatchRequest, take func(*ebbv1.WatchEvent)) error {
	conn, err := p.connection()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	stream, err := ebbv1grpc.NewEbbClient(conn).Watch(ctx, req)
	if err != nil {
		return c.assess(ctx, ctx, 0, p, err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return c.assess(ctx, ctx, 0, p, err)
		}
		take(e)
	}
}

func (o *WatchOptions) request(q *ebbv1.Question, a asking) *ebbv1.WatchRequest {
	req := &ebbv1.WatchRequest{
		Question: q, Consistency: a.consistency, MaxStalenessUs: a.staleness.Microseconds(),
		AllowPartial: a.partial, Strict: a.strict,
		MinIntervalUs: o.Interval.Microseconds(), Every: o.Every,
	}
	if o.Tolerance != 0 {
		req.Tolerance = new(max(o.Tolerance, 0))
	}
	if w := o.Alert; w != nil {
		req.Alert = &ebbv1.Alert{PValue: w.PValue, JensenShannonBits: w.JensenShannon}
		if w.ClearPValue != 0 {
			req.Alert.ClearPValue = &w.ClearPValue
		}
		if w.ClearJensenShannon != 0 {
			req.Alert.ClearJensenShannonBits = &w.ClearJensenShannon
		}
	}
	return req
}
