package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// incrementTimeout is the time limit of an Increment whose context has no deadline.
const incrementTimeout = 5 * time.Second

// Increment adds to any keys of one namespace. It divides the increments into commands for their shards and waits,
// within the context's deadline, for shards that are electing a leader.
//
// Limits, and all else that does not depend on state, are checked first: one invalid increment refuses the whole
// request. After that each shard decides for itself. The response lists increments that were not applied, with their
// position in the request. If no shard could apply its part, Increment returns an error.
func (r *Router) Increment(ctx context.Context, req *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
	table, err := r.ask.confirmed(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	if table.Shards() == 0 {
		return nil, errStarting()
	}
	if err := checkIncrementRequest(table, req); err != nil {
		return nil, err
	}
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, incrementTimeout)
		defer cancel()
	}
	split, err := splitIncrements(table, req)
	if err != nil {
		return nil, err
	}
	resp := r.apply(ctx, table, split.request, retryUntilLeader)
	return split.merge(resp)
}

func checkIncrementRequest(table *Table, req *ebbv1.IncrementRequest) error {
	if n := len(req.GetIncrements()); n > proto.BatchOpsMax {
		return proto.ErrBatchTooLarge.Errorf("batch of %d increments: the limit is %d", n, proto.BatchOpsMax)
	}
	if n := pb.Size(req); n > proto.BatchBytesMax {
		return proto.ErrBatchTooLarge.Errorf("batch of %d bytes: the limit is %d", n, proto.BatchBytesMax)
	}
	for i, in := range req.GetIncrements() {
		if err := proto.CheckIncrement(in); err != nil {
			err.Message = fmt.Sprintf("increment %d: %s", i, err.Message)
			return err
		}
		if in.GetOffset() != 0 {
			return proto.ErrBadRequest.Errorf("increment %d has an offset: only the rows of a source have one", i)
		}
	}
	return checkNamespaceExists(table, req.GetNamespace())
}

func checkNamespaceExists(table *Table, name string) error {
	if table.Namespace(name) != nil {
		return nil
	}
	if err := proto.CheckNamespaceName(name); err != nil {
		return err
	}
	return table.NamespaceNotFound(name)
}

// commandBytesSoft keeps the increments of one command, and so one log entry, near the size at which entries are split
// anyway.
const commandBytesSoft = proto.EntryBytesSoft

// split is a request divided into commands: one for each shard, or several if a shard's part is large.
type split struct {
	request *ebbv1.ApplyRequest
	at      [][]uint32 // for each command, the positions of its increments in the original request
}

func splitIncrements(table *Table, req *ebbv1.IncrementRequest) (*split, error) {
	namespace := cmp.Or(req.GetNamespace(), proto.DefaultNamespace)
	s := &split{request: new(ebbv1.ApplyRequest)}
	order := byShard(table, namespace, req.GetIncrements())
	for len(order) > 0 {
		shard := order[0].shard
		for part := uint64(0); len(order) > 0 && order[0].shard == shard; part++ {
			n := cut(order, req.GetIncrements())
			if err := s.add(namespace, shard, partKey(req.GetIdempotencyKey(), part), order[:n], req.GetIncrements()); err != nil {
				return nil, err
			}
			order = order[n:]
		}
	}
	return s, nil
}

type placed struct{ shard, at uint32 }

// byShard orders the increments by shard; within one they keep their order.
func byShard(table *Table, namespace string, increments []*ebbv1.Increment) []placed {
	order := make([]placed, len(increments))
	for i, in := range increments {
		order[i] = placed{proto.ShardOf(namespace, in.GetKey(), table.Shards()), uint32(i)}
	}
	slices.SortFunc(order, comparePlaced)
	return order
}

func comparePlaced(a, b placed) int {
	return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.at, b.at))
}

// cut returns how many of the first shard's increments go into one command.
func cut(order []placed, increments []*ebbv1.Increment) int {
	size := 0
	for i, p := range order {
		if p.shard != order[0].shard {
			return i
		}
		const framing = 40 // tags, lengths, amount, time and offset at their longest
		size += framing + len(increments[p.at].GetKey()) + len(increments[p.at].GetBin()) + len(increments[p.at].GetText())
		if size > commandBytesSoft && i > 0 {
			return i
		}
	}
	return len(order)
}

// partKey gives every command of one shard its own key, the same at each retry of the same request. A second command
// with the first one's key would be taken for its duplicate.
func partKey(key *ebbv1.IdempotencyKey, part uint64) *ebbv1.IdempotencyKey {
	if key == nil || part == 0 {
		return key
	}
	var b [24]byte
	binary.LittleEndian.PutUint64(b[0:], key.GetHi())
	binary.LittleEndian.PutUint64(b[8:], key.GetLo())
	binary.LittleEndian.PutUint64(b[16:], part)
	h := xxh3.Hash128(b[:])
	return &ebbv1.IdempotencyKey{IssuedAtUs: key.GetIssuedAtUs(), Hi: h.Hi, Lo: h.Lo}
}

func (s *split) add(namespace string, shard uint32, key *ebbv1.IdempotencyKey, order []placed, increments []*ebbv1.Increment) error {
	list := make([]*ebbv1.Increment, len(order))
	at := make([]uint32, len(order))
	for i, p := range order {
		list[i], at[i] = increments[p.at], p.at
	}
	cmd := &ebbv1.Command{
		Namespace: namespace,
		Body:      &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: list}},
	}
	if key != nil {
		cmd.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: key}
	}
	raw, err := pb.Marshal(cmd)
	if err != nil {
		return fmt.Errorf("encode command for shard %d: %w", shard, err)
	}
	s.request.Commands = append(s.request.Commands, &ebbv1.ShardCommand{Shard: shard, Command: raw})
	s.at = append(s.at, at)
	return nil
}

// merge adds up the results of the commands. A command that failed as a whole refuses each of its increments; if all
// commands failed, merge returns an error.
func (s *split) merge(resp *ebbv1.ApplyResponse) (*ebbv1.IncrementResponse, error) {
	merged := new(ebbv1.IncrementResponse)
	var worst *ebbv1.Error
	failed := 0
	for i, result := range resp.GetResults() {
		if e := result.GetError(); e != nil {
			failed++
			if worst == nil || e.GetCode() == ebbv1.Code_CODE_UNKNOWN_OUTCOME {
				worst = e
			}
		}
		s.fold(merged, i, result)
	}
	if failed > 0 && failed == len(s.at) {
		return nil, proto.FromWire(worst)
	}
	slices.SortFunc(merged.Refused, func(a, b *ebbv1.Refusal) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	return merged, nil
}

func (s *split) fold(merged *ebbv1.IncrementResponse, command int, result *ebbv1.CommandResult) {
	at := s.at[command]
	if e := result.GetError(); e != nil {
		for _, index := range at {
			merged.Refused = append(merged.Refused, &ebbv1.Refusal{Index: index, Error: e})
		}
		return
	}
	merged.Applied += result.GetApplied()
	merged.Duplicates += result.GetDuplicates()
	merged.Faded += result.GetFaded()
	for _, refusal := range result.GetRefused() {
		if int(refusal.GetIndex()) < len(at) {
			merged.Refused = append(merged.Refused, &ebbv1.Refusal{Index: at[refusal.GetIndex()], Error: refusal.GetError()})
		}
	}
}
