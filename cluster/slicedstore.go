package cluster

import (
	"context"
	"math"
	"math/rand/v2"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// storedIDsMax is how many ids a stored bitmap may have: as many as the result of a command can report.
const storedIDsMax = math.MaxUint32

// storeSliced stores an expression as a bitmap that is placed by slice. No question sees a part of it before all of it
// is stored:
//
//	home         reserve generation ------------------------------------> put generation in place of the old one
//	all shards                   each evaluates its slices and stores
//	                             them under the generation
//
// If storing stops in between, the generation is orphaned and swept; so is the generation of a bitmap that is replaced.
// The last step has the request's idempotency key. A repeated request stores parts again, which no question sees, and
// gets the result of the first.
func (k *Keys) storeSliced(ctx context.Context, table *Table, namespace string, req *ebbv1.StoreBitmapRequest) (*ebbv1.StoreBitmapResponse, error) {
	keys := proto.ExprKeys(req.GetExpr())
	s := &slicedStore{
		Keys: k, table: table, namespace: namespace, until: k.router.lease(),
		home:   table.ShardOf(namespace, req.GetKey()),
		number: &ebbv1.HomeNumber{Key: req.GetKey(), Number: max(1, rand.Uint64())},
	}
	id := req.GetIdempotencyKey()
	if id == nil {
		id = s.step(0)
	}
	generations, err := k.coordinator.homeGenerations(ctx, table, namespace, keys)
	if err != nil {
		return nil, err
	}
	if _, err := s.atHome(ctx, s.step(1), &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Reserve{Reserve: s.number}}); err != nil {
		return nil, err
	}
	count, err := s.parts(ctx, partsOf(keys, generations, table.Shards()).expr(req.GetExpr()))
	if err != nil {
		return nil, err
	}
	result, err := s.atHome(ctx, id, &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: s.number, Count: count}}})
	if err != nil {
		return nil, err
	}
	return &ebbv1.StoreBitmapResponse{Count: result.GetChanged()}, nil
}

// slicedStore is a bitmap that is being stored under a new generation.
type slicedStore struct {
	*Keys
	table     *Table
	namespace string
	home      uint32
	number    *ebbv1.HomeNumber
	until     int64
}

// step returns the idempotency key of one of its commands. Each command has another key.
func (s *slicedStore) step(which uint64) *ebbv1.IdempotencyKey {
	return &ebbv1.IdempotencyKey{IssuedAtUs: s.until - proto.SliceLeaseUS, Hi: s.number.GetNumber(), Lo: which}
}

// parts stores the expression's part in each shard, and returns the number of ids.
func (s *slicedStore) parts(ctx context.Context, x *ebbv1.BitmapExpr) (count uint64, err error) {
	store := &ebbv1.StoreBitmap{Key: proto.PartName(s.number.GetNumber(), s.number.GetKey()), Expr: x, UntilUs: s.until}
	apply := &ebbv1.ApplyRequest{}
	for number := uint32(1); number <= s.table.Shards(); number++ {
		cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_StoreBitmap{StoreBitmap: store}}, s.namespace, s.step(2))
		if err != nil {
			return 0, err
		}
		apply.Commands = append(apply.Commands, &ebbv1.ShardCommand{Shard: number, Command: cmd})
	}
	resp := s.router.insist(ctx, s.table, apply)
	if err := refusedIn(resp); err != nil {
		return 0, err
	}
	for _, result := range resp.GetResults() {
		count += result.GetChanged()
	}
	if count > storedIDsMax {
		return 0, proto.ErrQueryTooCostly.Errorf("the expression has more than %d ids, which is the limit of what is stored", uint64(storedIDsMax))
	}
	return count, nil
}

// atHome applies a command in the shard of the key.
func (s *slicedStore) atHome(ctx context.Context, id *ebbv1.IdempotencyKey, h *ebbv1.HomeCommand) (*ebbv1.CommandResult, error) {
	cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Home{Home: h}}, s.namespace, id)
	if err != nil {
		return nil, err
	}
	resp := s.router.insist(ctx, s.table, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: s.home, Command: cmd}}})
	return resp.GetResults()[0], refusedIn(resp)
}

// insist applies commands that have idempotency keys. It sends those with an unknown outcome again, as long as the
// context lasts.
func (r *Router) insist(ctx context.Context, table *Table, req *ebbv1.ApplyRequest) *ebbv1.ApplyResponse {
	resp := r.apply(ctx, table, req, retryUntilLeader)
	for try := 1; pause(ctx, try+1); try++ {
		var open []int
		again := &ebbv1.ApplyRequest{}
		for i, result := range resp.GetResults() {
			if result.GetError().GetCode() == ebbv1.Code_CODE_UNKNOWN_OUTCOME {
				open, again.Commands = append(open, i), append(again.Commands, req.GetCommands()[i])
			}
		}
		if len(open) == 0 {
			break
		}
		for j, result := range r.apply(ctx, table, again, retryUntilLeader).GetResults() {
			// Otherwise the first try may still be applied.
			if e := proto.FromWire(result.GetError()); e == nil || e.Code/1000 != 1 {
				resp.Results[open[j]] = result
			}
		}
	}
	return resp
}
