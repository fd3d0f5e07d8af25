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
	// coalesceWaitMax is how long a question waits for the request in flight to return, so that a slow request does not
	// delay other questions longer.
	coalesceWaitMax = 2 * time.Millisecond
	// sharedWaitMax is how long a caller waits for a shared request before it asks alone. One shard without a leader
	// delays the whole request until the request is given up. The limit is long enough that load alone does not end the
	// sharing.
	sharedWaitMax = 250 * time.Millisecond
	// coalescedTop and coalescedBins are the most that a question of a shared
	// request may ask for, so that no answer delays the others of its request.
	coalescedTop  = 100
	coalescedBins = 16
)

// coalescer lets single questions of many callers to one node share requests. A question is sent at once if no request
// is in flight. Questions that come before that request returns are sent together when it returns. So a busier node
// gets fewer requests for the same number of questions, and questions to an idle node do not wait.
type coalescer struct {
	life  context.Context // ends with the client
	send  func(context.Context, requestOptions, []*ebbv1.Question) ([]*ebbv1.Answer, error)
	spawn func(func()) bool // runs it in a goroutine; false when the client is closed
	most  int               // questions of one request

	mu       sync.Mutex // guards all below, and sharedRequest.waiting
	inFlight int        // requests in flight
	forming  map[requestOptions]*sharedRequest
	slow     map[uint32]int // by shard: how many callers ask about it separately
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
	late      *time.Timer // sends the request when it is due; then closes slow
	ctx       context.Context
	cancel    context.CancelFunc // of ctx, when no caller waits any more

	slow    chan struct{} // closed when it takes long
	done    chan struct{} // closed when what follows is set
	answers []*ebbv1.Answer
	err     error
}

// coalescible reports whether a question may share a request: the question and its answer are small, and the caller's
// context carries no metadata.
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
	return false // all bins, which is also the default
}

// ask returns the answer to a question about a shard. first reports whether it was the first answer of its response,
// which had the whole response as its space.
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
		return co.askAlone(ctx, t, q) // another question may have caused the error
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

// askSeparately asks in a request of its own about a shard that may have slowed a shared request. Until the answer
// arrives, other questions about that shard are also sent alone.
func (co *coalescer) askSeparately(
	ctx context.Context, shard uint32, t requestOptions, q *ebbv1.Question,
) (*ebbv1.Answer, bool, error) {
	co.suspect(shard, 1)
	defer co.suspect(shard, -1)
	return co.askAlone(ctx, t, q)
}

// enter adds the question to the forming request of these options, and returns that request and the question's place in
// it. It returns nil if the question is to be sent alone. If its shard is suspect, it is sent separately. Otherwise no
// request is in flight: the caller sends it at once, and calls returned afterwards.
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

// returned notes that a request has returned, and sends the requests that waited for it.
func (co *coalescer) returned() {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.inFlight--
	for _, j := range co.forming {
		co.dispatch(j)
	}
}

// abandon notes that one caller no longer waits. After the last one, the request is cancelled, and no caller can join
// it.
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

// suspect adds to the number of callers that ask about a shard separately.
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
