package node

import (
	"context"
	"sync/atomic"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// roomStep is the factor by which the room of a question with patterns grows when it was too small.
const roomStep = 4

// longQuestion is a question that is answered on a view.
type longQuestion struct {
	at    int // its position in the request
	needs int // bytes of memory
}

// taker charges the answers of one request to its budget. It is for concurrent use.
type taker struct {
	budget *budget.Request
	most   int64 // bytes of encoded answers that the caller accepts in this call; 0: as many as a call carries

	sent atomic.Int64 // bytes of the answers that were built, about
}

// refused returns the answer to a question that is not computed, because the answers before it leave no room; nil if
// there is room.
func (t *taker) refused() *ebbv1.ShardAnswer {
	if t.most > 0 && t.sent.Load() > t.most {
		return errAskAgain(t.most)
	}
	if err := t.budget.Full(); err != nil {
		return &ebbv1.ShardAnswer{Error: err.Wire()}
	}
	return nil
}

// errAskAgain returns an error without a retry time: the caller asks again at once, with room for more.
func errAskAgain(most int64) *ebbv1.ShardAnswer {
	err := proto.ErrOverloaded.Errorf("the answers of one call take more than %d bytes", most).WithHint("ask for the others again")
	return &ebbv1.ShardAnswer{Error: err.Wire()}
}

// charged charges what a question needs, and asks it. As long as the room was too small, it charges more and asks
// again.
func (t *taker) charged(
	ctx context.Context, q *ebbv1.ShardQuestion, needs int, ask func(room int) *ebbv1.ShardAnswer,
) *ebbv1.ShardAnswer {
	for {
		if err := t.budget.Charge(ctx, needs); err != nil {
			return &ebbv1.ShardAnswer{Error: err.WithShard(q.GetShard()).Wire()}
		}
		if a := ask(needs); a != nil {
			return t.built(q, a, needs)
		}
		t.budget.Refund(needs)
		needs *= roomStep
	}
}

// built refunds the part of the charge that an answer does not use. If there is no room for the answer, it returns an
// error instead.
func (t *taker) built(q *ebbv1.ShardQuestion, a *ebbv1.ShardAnswer, needs int) *ebbv1.ShardAnswer {
	if t.budget == nil && t.most == 0 {
		return a
	}
	holds := min(shard.AnswerHeld(a), needs)
	if t.most > 0 && a.GetError() == nil && t.sent.Add(int64(encodedAbout(a, holds))) > t.most {
		t.budget.Refund(needs)
		return errAskAgain(t.most)
	}
	if !q.GetPartial() {
		if err := t.budget.Finished(holds); err != nil {
			t.budget.Refund(needs)
			return &ebbv1.ShardAnswer{Error: err.WithShard(q.GetShard()).Wire()}
		}
	}
	t.budget.Refund(needs - holds)
	return a
}

// encodedAbout estimates the encoded size of an answer in bytes. The estimate is not too low unless the answer is very
// small.
func encodedAbout(a *ebbv1.ShardAnswer, holds int) int {
	if a.GetAnswer() == nil {
		return len(a.GetPart()) + 64
	}
	return holds
}
