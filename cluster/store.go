package cluster

import (
	"cmp"
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// storeRoom is how many bytes a bitmap may take that a command carries from one shard to another.
const storeRoom = proto.ImageBytesMax

// StoreBitmap stores an expression as a bitmap. If all keys are in the shard of the new bitmap, the command carries the
// expression, and the shard evaluates it. Otherwise the command carries the ids, from one read. In both cases it is one
// command: it is applied completely or not at all, and at most once. The same holds for bitmaps placed by slice, in
// more steps: see storeSliced.
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

// storable returns the expression of a bitmap to store, expanded by the settings of the namespace. It refuses
// expressions that no shard would store.
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
