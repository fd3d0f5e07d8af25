package cluster

import (
	"context"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// The memory that the coordinator needs for answers is charged to the request's budget, which the context carries. A
// stage is charged for the answers of the shards, and refunds the charge when it has merged them:
//
//	local call     the node charges what each answer needs before it builds it
//	remote call    room for the call is charged before it is sent, and the call says how much that is
//	fold           the memory to merge the parts of a question is charged before they are merged
//
// The first try of a remote call has room for small answers. Answers that do not fit are asked for again with more
// room.
const (
	// roomFirst is how many bytes of answers the first try of a remote call may return, and roomPart how many more for
	// each question.
	roomFirst = 32 << 10
	roomPart  = 4 << 10
	// roomGrowth is the factor by which each further try has more room, up to roomMost.
	roomGrowth = 16
	roomMost   = 32 << 20
	// roomFactor is how many bytes of memory one encoded byte of an answer may take once it is decoded.
	roomFactor = 3
)

// charge charges the budget for the answers of a remote call, and puts the limit of their size into the request. The
// rest of the budget is divided among share calls.
func (call *askCall) charge(ctx context.Context, try, share int) *proto.Error {
	b := budget.From(ctx)
	if b == nil {
		return nil
	}
	room := roomFirst + roomPart*len(call.req.GetQuestions())
	for range try - 1 {
		room = min(room*roomGrowth, roomMost)
	}
	if most := b.Left() / (roomFactor * share); room > most {
		room, call.capped = most, true
	}
	if room <= 0 {
		return budget.TooLarge(budget.RequestMax)
	}
	call.room = room
	call.req.AnswerBytes = uint64(room)
	return b.Charge(ctx, roomFactor*room)
}

// settle reduces the charge to what the answers hold. If a node sent more than its limit and the budget has no room, it
// drops the node's answers.
func (call *askCall) settle(ctx context.Context) {
	b := budget.From(ctx)
	if b == nil || call.room == 0 {
		return
	}
	held := 0
	for _, a := range call.resp.GetAnswers() {
		held += shard.AnswerHeld(a)
	}
	charged := roomFactor * call.room
	if held <= charged {
		b.Refund(charged - held)
		return
	}
	if err := b.Charge(ctx, held-charged); err != nil {
		b.Refund(charged)
		call.resp, call.err = nil, err
	}
}

// stuck reports whether no answer of a call fits into the rest of the request's budget.
func (call *askCall) stuck() bool {
	if !call.capped {
		return false
	}
	for _, a := range call.resp.GetAnswers() {
		if !asksAgain(a.GetError()) {
			return false
		}
	}
	return true
}

// asksAgain reports whether the error means that the same node can be asked again at once, with more room.
func asksAgain(e *ebbv1.Error) bool {
	return e.GetCode() == ebbv1.Code_CODE_OVERLOADED && e.GetRetryAfterUs() == 0
}

// overloaded reports whether the error means that a node has no memory for the answer now. Such a node is not asked
// again for this request.
func overloaded(e *ebbv1.Error) bool {
	return e.GetCode() == ebbv1.Code_CODE_OVERLOADED && e.GetRetryAfterUs() > 0
}

// keep charges the budget for a finished answer, for as long as the request lasts.
func keep(ctx context.Context, a *ebbv1.Answer) *proto.Error {
	b := budget.From(ctx)
	if b == nil || a == nil {
		return nil
	}
	n := shard.AnswerSize(a)
	if err := b.Charge(ctx, n); err != nil {
		return err
	}
	if err := b.Finished(n); err != nil {
		b.Refund(n)
		return err
	}
	return nil
}

// distinctRequest returns a request without repeated questions. For each original question, the indices give the
// question of the new request that answers it; nil if no question is repeated.
func distinctRequest(req *ebbv1.AskRequest) (*ebbv1.AskRequest, []int) {
	firsts := proto.RepeatedQuestions(req.GetQuestions())
	if firsts == nil {
		return req, nil
	}
	var once []int
	at := make([]int, len(firsts))
	for i, first := range firsts {
		if first == i {
			at[i] = len(once)
			once = append(once, i)
		} else {
			at[i] = at[first]
		}
	}
	return withQuestions(req, once, nil), at
}

// spread copies the answers of distinct questions to all questions of the original request. Equal questions share one
// answer.
func spread(answers []*ebbv1.Answer, at []int) []*ebbv1.Answer {
	if at == nil {
		return answers
	}
	out := make([]*ebbv1.Answer, len(at))
	for i, j := range at {
		out[i] = answers[j]
	}
	return out
}

// AnswerSize returns approximately how many bytes of memory an answer holds.
func AnswerSize(a *ebbv1.Answer) int { return shard.AnswerSize(a) }
