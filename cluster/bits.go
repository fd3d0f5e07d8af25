package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Bits changes bitmaps. Each change becomes a command of its own, so the response says for each what it changed. Like
// Increment, Bits waits within the context's deadline for shards that are electing a leader. The response lists changes
// that were not applied; if none was applied, Bits returns an error.
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
	commands := newBitCommands(namespace, req)
	for i, change := range req.GetChanges() {
		if len(change.GetIds()) == 0 && change.GetRange() == nil {
			continue // the strings to be removed have no ids
		}
		edits := &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{proto.EditOf(change)}}
		commands.add(table.ShardOf(namespace, change.GetKey()), i, uint64(i), edits)
	}
	return commands.make(ctx, r, table)
}

// bitCommands collects the commands for the changes of a request.
type bitCommands struct {
	namespace string
	request   *ebbv1.BitsRequest
	list      []*bitCommand
	open      map[uint32]*bitCommand // by shard: commands that take more edits
}

type bitCommand struct {
	shard uint32
	part  uint64 // which command of the request it is
	edits *ebbv1.BitEdits
	of    []int // for each edit, the position of its change
	size  int
}

func newBitCommands(namespace string, req *ebbv1.BitsRequest) *bitCommands {
	return &bitCommands{namespace: namespace, request: req, open: map[uint32]*bitCommand{}}
}

// add puts edits of a change into a command. If the request asks for it, several changes share one command. If a bitmap
// is created anew between two tries, such a command has another key and is applied again. To set or clear twice has the
// effect of once, but to flip does not, so flips never share a command.
func (b *bitCommands) add(shard uint32, change int, part uint64, edits *ebbv1.BitEdits) {
	size, c := pb.Size(edits), b.open[shard]
	alone := !b.request.GetTogether() || b.request.GetChanges()[change].GetOp() == ebbv1.BitOp_BIT_OP_FLIP
	if c == nil || alone || c.size+size > commandBytesSoft {
		c = &bitCommand{shard: shard, part: part, edits: &ebbv1.BitEdits{UntilUs: edits.GetUntilUs()}}
		b.list = append(b.list, c)
		b.open[shard] = c
	} else {
		c.part = xxh3.Hash(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, c.part), part))
	}
	if alone {
		delete(b.open, shard) // later edits must come after this command
	}
	c.size += size
	c.edits.Edits = append(c.edits.Edits, edits.GetEdits()...)
	for range edits.GetEdits() {
		c.of = append(c.of, change)
	}
}

// make applies the commands and collects the results of the changes.
func (b *bitCommands) make(ctx context.Context, r *Router, table *Table) (*ebbv1.BitsResponse, error) {
	apply := &ebbv1.ApplyRequest{}
	for _, c := range b.list {
		body := &ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: c.edits}}
		cmd, err := encoded(body, b.namespace, partKey(b.request.GetIdempotencyKey(), c.part))
		if err != nil {
			return nil, err
		}
		apply.Commands = append(apply.Commands, &ebbv1.ShardCommand{Shard: c.shard, Command: cmd})
	}
	merged := &ebbv1.ApplyResponse{Results: make([]*ebbv1.CommandResult, len(b.request.GetChanges()))}
	for i := range merged.Results {
		merged.Results[i] = &ebbv1.CommandResult{}
	}
	if len(apply.Commands) > 0 {
		for j, result := range r.apply(ctx, table, apply, retryUntilLeader).GetResults() {
			b.list[j].share(result, merged.Results)
		}
	}
	return mergeBits(merged)
}

// share adds the result of a command to the results of its changes. What the command changed is credited to the first
// change that it did not refuse.
func (c *bitCommand) share(result *ebbv1.CommandResult, results []*ebbv1.CommandResult) {
	refused := map[int]bool{}
	for _, refusal := range result.GetRefused() {
		change := c.of[min(int(refusal.GetIndex()), len(c.of)-1)]
		refused[change] = true
		addResult(results[change], &ebbv1.CommandResult{Error: refusal.GetError()})
	}
	first := c.of[0]
	if i := slices.IndexFunc(c.of, func(change int) bool { return !refused[change] }); i >= 0 {
		first = c.of[i]
	}
	results[first].Changed += result.GetChanged()
	if result.GetError() == nil {
		return
	}
	for _, change := range slices.Compact(slices.Clone(c.of)) {
		addResult(results[change], &ebbv1.CommandResult{Error: result.GetError()})
	}
}

// mergeBits makes a response from the results of all changes.
func mergeBits(applied *ebbv1.ApplyResponse) (*ebbv1.BitsResponse, error) {
	resp := &ebbv1.BitsResponse{}
	var worst *ebbv1.Error
	settled := 0 // changes made in part and refused for good: not an error of the request, or callers would repeat it
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

// madeInPart returns the error of a change that was refused after a part of it was made. If a retry may make the rest,
// the outcome is unknown, since any other code says that nothing was changed. If the rest is refused for good, the
// error keeps its code, and the response also says how much was changed.
func madeInPart(refused *ebbv1.Error) *proto.Error {
	e := proto.FromWire(refused)
	if mayBeLater(refused) {
		was := e
		e = proto.ErrUnknownOutcome.Errorf("something of the change has been made, and the rest has not: %v", was)
		e.Shard, e.RetryAfterUS = was.Shard, was.RetryAfterUS
	}
	return e.WithHint("look which ids are in, or send it again under the same idempotency key: under another, ids would be flipped twice")
}

// mayBeLater reports whether a refused change may be accepted if it is sent again.
func mayBeLater(e *ebbv1.Error) bool {
	switch code := e.GetCode(); code / 1000 {
	case 1, 4:
		return true
	default:
		return code == ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS
	}
}
