package cluster

import (
	"cmp"
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Bits is the friendly door to bitmaps: each change becomes a command, so that each says what it has changed. Like Increment it waits, within the context's
// deadline, for shards that are electing a leader. Changes that were not applied are listed; if none was, that is the error.
func (r *Router) Bits(ctx context.Context, req *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error) {
	req, refused := proto.UnpackBits(req)
	if refused == nil {
		refused = proto.CheckBits(req)
	}
	if refused != nil {
		return nil, refused
	}
	table, err := r.ask.confirmed(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	if table.Shards() == 0 {
		return nil, errStarting()
	}
	namespace := cmp.Or(req.GetNamespace(), proto.DefaultNamespace)
	if err := checkNamespaceExists(table, namespace); err != nil {
		return nil, err
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	req, err = r.numbered(ctx, table, namespace, req)
	if err != nil {
		return nil, err
	}
	if proto.BySlice(table.Namespace(namespace)) {
		return r.slicedBits(ctx, table, namespace, req)
	}
	apply, of := &ebbv1.ApplyRequest{}, []int(nil)
	for i, change := range req.GetChanges() {
		if len(change.GetIds()) == 0 && change.GetRange() == nil {
			continue // strings to be taken out that have no ids
		}
		edits := &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{proto.EditOf(change)}}
		cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: edits}}, namespace, partKey(req.GetIdempotencyKey(), uint64(i)))
		if err != nil {
			return nil, err
		}
		apply.Commands = append(apply.Commands, &ebbv1.ShardCommand{Shard: table.ShardOf(namespace, change.GetKey()), Command: cmd})
		of = append(of, i)
	}
	merged := &ebbv1.ApplyResponse{Results: make([]*ebbv1.CommandResult, len(req.GetChanges()))}
	for j, result := range r.apply(ctx, table, apply, untilLeader).GetResults() {
		merged.Results[of[j]] = result
	}
	return mergeBits(merged)
}

// mergeBits makes an answer of what became of each change.
func mergeBits(applied *ebbv1.ApplyResponse) (*ebbv1.BitsResponse, error) {
	resp := &ebbv1.BitsResponse{}
	var worst *ebbv1.Error
	settled := 0 // changes that were made in part and refused for good: no error of the request, which callers would send again
	for i, result := range applied.GetResults() {
		resp.Changed = append(resp.Changed, result.GetChanged())
		e := errorIn(result)
		if e == nil {
			continue
		}
		if result.GetChanged() > 0 && e.GetCode() != ebbv1.Code_CODE_UNKNOWN_OUTCOME {
			part := madeInPart(e)
			if e = part.Wire(); !part.Is(proto.ErrUnknownOutcome) {
				settled++
			}
		}
		if worst == nil || e.GetCode() == ebbv1.Code_CODE_UNKNOWN_OUTCOME {
			worst = e
		}
		resp.Refused = append(resp.Refused, &ebbv1.Refusal{Index: uint32(i), Error: e})
	}
	if worst != nil && len(resp.Refused) == len(resp.Changed) && settled == 0 {
		return nil, proto.FromWire(worst)
	}
	return resp, nil
}

// madeInPart is the error of a change that was refused when something of it had been made. If the rest may be made later its outcome is unknown, for any other
// code says that the change was not made; what is refused for good stays what it is, beside how much was changed.
func madeInPart(refused *ebbv1.Error) *proto.Error {
	e := proto.FromWire(refused)
	if mayBeLater(refused) {
		was := e
		e = proto.ErrUnknownOutcome.Errorf("something of the change has been made, and the rest has not: %v", was)
		e.Shard, e.RetryAfterUS = was.Shard, was.RetryAfterUS
	}
	return e.WithHint("look which ids are in, or send it again under the same idempotency key: under another, ids would be flipped twice")
}

// mayBeLater says whether what was refused may be taken if it is sent again.
func mayBeLater(e *ebbv1.Error) bool {
	switch code := e.GetCode(); code / 1000 {
	case 1, 4:
		return true
	default:
		return code == ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS
	}
}
