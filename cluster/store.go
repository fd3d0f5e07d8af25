package cluster

import (
	"cmp"
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// storeRoom is how many bytes a bitmap takes at most that goes from one shard to another in a command.
const storeRoom = proto.ImageBytesMax

// StoreBitmap makes a bitmap of an expression. When all keys are in the shard of the one that is made, the command
// carries the expression, and the shard evaluates it; otherwise the command carries the ids, as gathered in one read.
// Either way it is one command: it is applied as a whole or not at all, and no more than once. So it is where bitmaps
// are placed by slice, in more steps: see storeSliced.
func (k *Keys) StoreBitmap(ctx context.Context, req *ebbv1.StoreBitmapRequest) (*ebbv1.StoreBitmapResponse, error) {
	if err := proto.CheckStoreBitmap(req); err != nil {
		return nil, err
	}
	table, namespace, err := k.known(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	x, err := storable(table, req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	if proto.BySlice(table.Namespace(namespace)) {
		return k.storeSliced(ctx, table, namespace, &ebbv1.StoreBitmapRequest{Key: req.GetKey(), Expr: x, IdempotencyKey: req.GetIdempotencyKey()})
	}
	home := table.ShardOf(namespace, req.GetKey())
	if !allOn(table, namespace, proto.ExprKeys(x), home) {
		read := &askPlan{req: &ebbv1.AskRequest{}, consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE}
		if x, err = k.coordinator.spreadAsk(ctx, table, read, namespace).whole(req.GetKey(), x, storeRoom); err != nil {
			return nil, err
		}
	}
	cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_StoreBitmap{StoreBitmap: &ebbv1.StoreBitmap{Key: req.GetKey(), Expr: x}}}, namespace, req.GetIdempotencyKey())
	if err != nil {
		return nil, err
	}
	applied := k.router.apply(ctx, table, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: home, Command: cmd}}}, retryUntilLeader)
	result := applied.GetResults()[0]
	if e := result.GetError(); e != nil {
		return nil, proto.FromWire(e)
	}
	return &ebbv1.StoreBitmapResponse{Count: result.GetChanged()}, nil
}

// storable is what a bitmap is to be made of, with all that the namespace says of it spelled out. It refuses what no
// shard would store.
func storable(table *Table, req *ebbv1.StoreBitmapRequest) (*ebbv1.BitmapExpr, error) {
	namespace, room := cmp.Or(req.GetNamespace(), proto.DefaultNamespace), rollupsMax
	if err := checkNamespaceExists(table, namespace); err != nil {
		return nil, err
	}
	x, refused := expandExpr(req.GetExpr(), table.Namespace(namespace), &room)
	if refused != nil {
		return nil, refused
	}
	if err := proto.CheckStored(req.GetKey(), x); err != nil {
		return nil, err
	}
	return x, checkSliceKeys(table, namespace, append([][]byte{req.GetKey()}, proto.ExprKeys(x)...))
}
