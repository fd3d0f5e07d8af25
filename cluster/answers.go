package cluster

import (
	"context"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// What the coordinator holds of answers is charged to the budget of the request, which its context carries. A stage is
// charged for what comes from the shards, and gives it back when it has made answers of it:
//
//	local call     the node charges what each answer needs before it builds it
//	remote call    room for the call is charged before it is sent, and the call says how much that is
//	fold           what it takes to merge the parts of a question is charged before they are merged
//
// A remote call begins with room for small answers. Those that do not fit are asked for again with more.
const (
	// roomFirst is how many bytes of answers a remote call takes at first, and roomPart how many more for each
	// question.
	roomFirst = 32 << 10
	roomPart  = 4 << 10
	// roomGrowth is how many times more each further try takes, up to roomMost.
	roomGrowth = 16
	roomMost   = 32 << 20
	// roomFactor is how many bytes of memory a byte of an answer may take, once it is decoded.
	roomFactor = 3
)

// charge charges for what the answers of a remote call may take, and tells the other node how much that is. share is
// into how many calls what is left of the budget is divided.
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

// settle keeps of what was charged what the answers hold. It drops the answers of a node that sends more than it was
// told to, if there is no room.
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

// stuck reports whether no answer of a call fits into what is left of the request's budget.
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

// asksAgain says of an error that the same node is to be asked again at once, with room for more.
func asksAgain(e *ebbv1.Error) bool {
	return e.GetCode() == ebbv1.Code_CODE_OVERLOADED && e.GetRetryAfterUs() == 0
}

// overloaded says of an error that a node has no memory for the answer now. It is not asked again for this request.
func overloaded(e *ebbv1.Error) bool {
	return e.GetCode() == ebbv1.Code_CODE_OVERLOADED && e.GetRetryAfterUs() > 0
}

// keep charges for a finished answer, for as long as the request lasts.
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

// distinctRequest is a request in which no question asks what another does, and for each of the given ones which of its
// questions it is; nil when they all are different.
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

// spread gives every question the answer of the one that was asked for it. Equal questions share it.
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

// AnswerSize returns about how many bytes of memory an answer holds.
func AnswerSize(a *ebbv1.Answer) int { return shard.AnswerSize(a) }
