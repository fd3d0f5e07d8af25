package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// coalescedMax bounds the questions of a shared request, so that it fits a message.
	coalescedMax = 256
	// coalesceWaitMax is how long a question waits for the request before its
	// own to come back, so that a slow one does not delay the others longer.
	coalesceWaitMax = 2 * time.Millisecond
	// sharedWaitMax is how long a caller waits for a shared request before it asks
	// alone: one shard without a leader holds the whole request until it is given
	// up. It is long enough that mere load does not undo the sharing.
	sharedWaitMax = 250 * time.Millisecond
	// coalescedTop and coalescedBins are the most that a question of a shared
	// request may ask for, so that no answer delays the others of its request.
	coalescedTop  = 100
	coalescedBins = 16
)

// coalescer lets the single questions of many callers to one node share
// requests. A question that finds none in flight leaves at once; those that
// come before it is back leave together then. So the busier the node, the
// fewer requests it gets for as many questions, and the idle pay nothing.
type coalescer struct {
	life  context.Context // ends with the client
	send  func(context.Context, requestOptions, []*ebbv1.Question) ([]*ebbv1.Answer, error)
	spawn func(func()) bool // runs it in a goroutine; false when the client is closed
	most  int               // questions of one request

	mu       sync.Mutex // guards all below, and what sharedRequest says
	inFlight int        // requests in flight
	forming  map[requestOptions]*sharedRequest
	slow     map[uint32]int // shards, with how many callers ask about them apart
}

// requestOptions are the options that the questions of one request have in common.
type requestOptions struct {
	consistency ebbv1.Consistency
	staleness   time.Duration
	partial     bool
	strict      bool
}

// sharedRequest is one request with questions of several callers.
type sharedRequest struct {
	options   requestOptions
	questions []*ebbv1.Question
	waiting   int         // callers; guarded by coalescer.mu
	late      *time.Timer // runs until it leaves, and then until it is slow
	ctx       context.Context
	cancel    context.CancelFunc // of ctx, when no caller waits any more

	slow    chan struct{} // closed when it takes long
	done    chan struct{} // closed when what follows is set
	answers []*ebbv1.Answer
	err     error
}

// coalescible reports whether a question may share a request: it and its answer
// are small, and of the caller's context nothing but the end matters.
func coalescible(ctx context.Context, q *ebbv1.Question) bool {
	if len(proto.QuestionKeys(q)) != 1 || proto.Everywhere(q) || !light(q) {
		return false
	}
	_, has := metadata.FromOutgoingContext(ctx)
	return !has
}

// light reports whether a question asks for little.
func light(q *ebbv1.Question) bool {
	if s := q.GetSummary(); s != nil {
		return len(s.GetBins())+len(s.GetQuantiles()) <= coalescedBins && s.GetTop() <= coalescedTop && !s.GetMembers()
	}
	switch s := q.GetDistribution().GetSelect().(type) {
	case *ebbv1.DistributionQuestion_Top:
		return s.Top <= coalescedTop
	case *ebbv1.DistributionQuestion_Bins:
		return len(s.Bins.GetBins()) <= coalescedBins
	}
	return false // all bins, also if nothing is said
}

// ask returns the answer to a question about a shard, and whether it was the
// first of its response, which has all the room there is.
func (co *coalescer) ask(
	ctx context.Context, shard uint32, t requestOptions, q *ebbv1.Question,
) (a *ebbv1.Answer, first bool, err error) {
	j, place, suspect := co.enter(shard, t, q)
	switch {
	case suspect:
		return co.askSeparately(ctx, shard, t, q)
	case j == nil:
		defer co.returned()
		return co.askAlone(ctx, t, q)
	}
	select {
	case <-j.done:
	case <-j.slow:
		co.abandon(j)
		return co.askSeparately(ctx, shard, t, q)
	case <-ctx.Done():
		co.abandon(j)
		return nil, false, context.Cause(ctx)
	}
	switch {
	case j.err == nil:
		return j.answers[place], place == 0, nil
	case len(j.questions) > 1 && !worthAnotherTry(coded(j.err).Code) && co.life.Err() == nil:
		return co.askAlone(ctx, t, q) // it may not have been this one's fault
	}
	return nil, false, j.err
}

func (co *coalescer) askAlone(ctx context.Context, t requestOptions, q *ebbv1.Question) (*ebbv1.Answer, bool, error) {
	answers, err := co.send(ctx, t, []*ebbv1.Question{q})
	if err != nil {
		return nil, false, err
	}
	return answers[0], true, nil
}

// askSeparately asks alone about a shard that may be what made a shared request slow.
// Until it has its answer, all others about the shard go alone as well.
func (co *coalescer) askSeparately(
	ctx context.Context, shard uint32, t requestOptions, q *ebbv1.Question,
) (*ebbv1.Answer, bool, error) {
	co.suspect(shard, 1)
	defer co.suspect(shard, -1)
	return co.askAlone(ctx, t, q)
}

// enter joins the forming request of these options and returns it with the
// question's place in it; nil if the question shall leave at once, alone, and
// call returned after that, or go apart since its shard is suspect.
func (co *coalescer) enter(
	shard uint32, t requestOptions, q *ebbv1.Question,
) (j *sharedRequest, place int, suspect bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if co.slow[shard] > 0 {
		return nil, 0, true
	}
	if co.inFlight == 0 {
		co.inFlight++
		return nil, 0, false
	}
	j = co.forming[t]
	if j == nil {
		j = &sharedRequest{options: t, slow: make(chan struct{}), done: make(chan struct{})}
		j.ctx, j.cancel = context.WithCancel(co.life)
		j.late = time.AfterFunc(coalesceWaitMax, func() { co.overdue(j) })
		if co.forming == nil {
			co.forming = map[requestOptions]*sharedRequest{}
		}
		co.forming[t] = j
	}
	place = len(j.questions)
	j.questions = append(j.questions, protobuf.CloneOf(q)) // a caller that gives up may change its own
	j.waiting++
	if len(j.questions) >= co.most {
		co.dispatch(j)
	}
	return j, place, false
}

// dispatch sends a forming request. The caller holds co.mu.
func (co *coalescer) dispatch(j *sharedRequest) {
	delete(co.forming, j.options)
	j.late.Stop()
	j.late = time.AfterFunc(sharedWaitMax, func() { close(j.slow) })
	co.inFlight++
	if !co.spawn(func() { co.sendShared(j) }) {
		co.inFlight--
		j.end(nil, ErrClosed)
	}
}

func (co *coalescer) sendShared(j *sharedRequest) {
	j.end(co.send(j.ctx, j.options, j.questions))
	co.returned()
}

func (j *sharedRequest) end(answers []*ebbv1.Answer, err error) {
	j.answers, j.err = answers, err
	j.late.Stop()
	j.cancel()
	close(j.done)
}

// overdue sends a request that has waited long enough.
func (co *coalescer) overdue(j *sharedRequest) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if co.forming[j.options] == j {
		co.dispatch(j)
	}
}

// returned notes that a request is back: those that waited for it leave.
func (co *coalescer) returned() {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.inFlight--
	for _, j := range co.forming {
		co.dispatch(j)
	}
}

// abandon notes that a caller waits no longer. With the last, the request ends,
// and no caller joins it any more.
func (co *coalescer) abandon(j *sharedRequest) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if j.waiting--; j.waiting > 0 {
		return
	}
	j.cancel()
	if co.forming[j.options] == j {
		delete(co.forming, j.options)
		j.late.Stop()
	}
}

// suspect counts the callers that ask about a shard apart.
func (co *coalescer) suspect(shard uint32, callers int) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if co.slow == nil {
		co.slow = map[uint32]int{}
	}
	if co.slow[shard] += callers; co.slow[shard] == 0 {
		delete(co.slow, shard)
	}
}
