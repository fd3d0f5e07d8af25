package cluster

import (
	"context"
	"math/rand/v2"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// store builds the stage that stores an expression as a bitmap, after its patterns are resolved.
func (x *queryExecution) store(s *ebbv1.PlanStore) (*queryStage, *proto.Error) {
	const step = "store an expression"
	terms := append([]*ebbv1.PlanTerm{s.GetTo()}, termsOf(nil, s.GetOf())...)
	return x.resolved(step, terms, func(
		namespace string, f found, c *ebbv1.Coverage,
	) (*queryStage, *ebbv1.Answer, *proto.Error) {
		expr, err := f.expr(s.GetOf())
		if err != nil {
			return nil, nil, err
		}
		to := s.GetTo().GetKey()
		stored := func(*ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
			req := &ebbv1.StoreBitmapRequest{Namespace: namespace, Key: to, Expr: expr}
			return &queryStage{step: step, store: req}, nil, nil
		}
		if expr == nil { // the empty set, whatever the key holds
			expr = without(keyExpr(to), keyExprs([][]byte{to}))
			return x.keysOfNothing(namespace, s.GetOf(), c, stored)
		}
		return stored(c)
	})
}

// store stores a bitmap once, under a new idempotency key: the router may send the command again.
func (q *Queries) store(ctx context.Context, req *ebbv1.StoreBitmapRequest) (*ebbv1.Answer, error) {
	now := q.coordinator.cfg.Now().UnixMicro()
	req.IdempotencyKey = &ebbv1.IdempotencyKey{IssuedAtUs: now, Hi: rand.Uint64(), Lo: rand.Uint64()}
	resp, err := q.keys.StoreBitmap(ctx, req)
	if err != nil {
		return nil, err
	}
	return &ebbv1.Answer{
		Value:    &ebbv1.Answer_Bitmap{Bitmap: &ebbv1.BitmapAnswer{Count: resp.GetCount(), AsOfUs: now}},
		Coverage: &ebbv1.Coverage{ShardsTotal: 1, ShardsAnswered: 1, AsOfMinUs: now, AsOfMaxUs: now},
	}, nil
}
