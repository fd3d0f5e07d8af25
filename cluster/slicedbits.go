package cluster

import (
	"context"
	"math/rand/v2"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// A write to bitmaps that are placed by slice first asks the homes of the keys for the generations of the bitmaps, and
// creates missing ones. Then it edits all parts under these generations in parallel. So an edit takes effect if the
// bitmap had that generation at some time during the write. If a delete comes first, the edit changes only parts that
// the delete removed.

//
// A command under a generation carries the time until which it is valid. Parts that no home names any more are swept
// after no valid command can use their generation (see Sweep).

// lease returns until when a command that begins now is valid.
func (r *Router) lease() int64 { return r.cfg.Now().UnixMicro() + proto.SliceLeaseUS }

// homeGenerations asks the homes of bitmaps for their generations; 0 stands for a missing bitmap.
func (c *Coordinator) homeGenerations(ctx context.Context, table *Table, namespace string, keys [][]byte) ([]uint64, error) {
	p := &askPlan{req: &ebbv1.AskRequest{}, consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE}
	for _, key := range keys {
		p.parts = append(p.parts, askPart{question: &ebbv1.ShardQuestion{Shard: table.ShardOf(namespace, key), Question: homeQuestion(namespace, key)}})
	}
	if len(keys) > 0 {
		c.scatter(ctx, table, p)
	}
	out := make([]uint64, len(keys))
	for i := range p.parts {
		generation, err := homeGeneration(p.parts[i].answer)
		if err != nil {
			return nil, err.WithShard(p.parts[i].question.Shard)
		}
		out[i] = generation
	}
	return out, nil
}

// slicedBits changes bitmaps that are placed by slice. Each change becomes a command in every shard that has one of its
// slices, or a part of one. If it fails in some shards, the change is reported as refused, but may be done in the
// others.
func (r *Router) slicedBits(ctx context.Context, table *Table, namespace string, req *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error) {
	for _, change := range req.GetChanges() {
		if err := proto.CheckSliceKey(change.GetKey()); err != nil {
			return nil, err
		}
	}
	until := r.lease()
	generations, err := r.createGenerations(ctx, table, namespace, req)
	if err != nil {
		return nil, err
	}
	commands := newBitCommands(namespace, req)
	for i, change := range req.GetChanges() {
		generation := generations[string(change.GetKey())]
		if generation == 0 {
			continue // nothing to clear
		}
		name := proto.PartName(generation, change.GetKey())
		for _, piece := range proto.EditPieces(namespace, change, table.Shards()) {
			for chunk, edits := range cutEdits(piece.Edits(name, change.GetOp())) {
				edits.UntilUs = until
				// Under another generation it must be another command: an edit of a bitmap that was deleted must not
				// count as done for the bitmap after it.
				part := max(1, generation^uint64(i)<<40^uint64(piece.Shard)<<20^uint64(chunk))
				commands.add(piece.Shard, i, part, edits)
			}
		}
	}
	return commands.make(ctx, r, table)
}

// cutEdits divides edits into commands that fit a log entry.
func cutEdits(all *ebbv1.BitEdits) (out []*ebbv1.BitEdits) {
	size := 0
	for _, e := range all.GetEdits() {
		n := pb.Size(e)
		if len(out) == 0 || size+n > commandBytesSoft {
			out, size = append(out, &ebbv1.BitEdits{}), 0
		}
		last := out[len(out)-1]
		last.Edits, size = append(last.Edits, e), size+n
	}
	return out
}

// addResult adds the result of one shard to the result of a change. Of several errors it keeps an unknown outcome, or
// else an error after which a retry may succeed.
func addResult(to, result *ebbv1.CommandResult) {
	to.Changed += result.GetChanged()
	open := func(e *ebbv1.Error) int {
		switch {
		case e.GetCode() == ebbv1.Code_CODE_UNKNOWN_OUTCOME:
			return 2
		case mayBeLater(e):
			return 1
		}
		return 0
	}
	if e := errorIn(result); e != nil && (to.Error == nil || open(e) > open(to.Error)) {
		to.Error = e
	}
}

// errorIn returns the error of a command that makes one change, or of that change.
func errorIn(result *ebbv1.CommandResult) *ebbv1.Error {
	if e := result.GetError(); e != nil || len(result.GetRefused()) == 0 {
		return e
	}
	return result.GetRefused()[0].GetError()
}

// createGenerations returns the generations of the bitmaps that a request changes, by key. It creates missing bitmaps,
// unless they are only to be cleared.
func (r *Router) createGenerations(ctx context.Context, table *Table, namespace string, req *ebbv1.BitsRequest) (map[string]uint64, error) {
	var keys [][]byte
	filled := map[string]bool{} // by key: an id is set or flipped
	for _, change := range req.GetChanges() {
		key := string(change.GetKey())
		if _, seen := filled[key]; !seen {
			keys = append(keys, change.GetKey())
		}
		filled[key] = filled[key] || change.GetOp() != ebbv1.BitOp_BIT_OP_CLEAR
	}
	generations, err := r.ask.homeGenerations(ctx, table, namespace, keys)
	if err != nil {
		return nil, err
	}
	make := &ebbv1.ApplyRequest{}
	for i, key := range keys {
		if generations[i] != 0 || !filled[string(key)] {
			continue
		}
		born := &ebbv1.BitEdit{Key: key, Op: ebbv1.BitOp_BIT_OP_SET, Ids: proto.AppendBitIDs(nil, []uint64{max(1, rand.Uint64())}), Fresh: true}
		cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{born}}}}, namespace, nil)
		if err != nil {
			return nil, err
		}
		make.Commands = append(make.Commands, &ebbv1.ShardCommand{Shard: table.ShardOf(namespace, key), Command: cmd})
	}
	if len(make.Commands) > 0 {
		if err := refusedIn(r.apply(ctx, table, make, retryUntilLeader)); err != nil {
			return nil, err
		}
		// Another writer may have been faster.
		if generations, err = r.ask.homeGenerations(ctx, table, namespace, keys); err != nil {
			return nil, err
		}
	}
	out := map[string]uint64{}
	for i, key := range keys {
		if out[string(key)] = generations[i]; generations[i] == 0 && filled[string(key)] {
			return nil, proto.ErrKeyBusy.Errorf("bitmap %q was forgotten while it was made", key).WithHint("try again")
		}
	}
	return out, nil
}

// Sweep deletes the parts of orphaned generations that the shard home lists, and then reports this to that shard. It
// may stop at any point, and any node may repeat it: deleting twice has no other effect. A shard refuses to delete the
// parts until its clock is past the validity of all commands under the generation.
func (r *Router) Sweep(ctx context.Context, home uint32, list []shard.Orphan) error {
	table := r.cfg.Table()
	for len(list) > 0 {
		n := 1
		for n < len(list) && n < sweepKeys && list[n].Namespace == list[0].Namespace {
			n++
		}
		if err := r.sweep(ctx, table, home, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func (r *Router) sweep(ctx context.Context, table *Table, home uint32, list []shard.Orphan) error {
	parts, done := &ebbv1.DeleteKeys{}, &ebbv1.HomeSwept{}
	for _, of := range list {
		parts.Keys = append(parts.Keys, proto.PartName(of.Generation, of.Key))
		parts.AfterUs = max(parts.AfterUs, int64(of.After))
		done.Numbers = append(done.Numbers, of.Generation)
	}
	cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: parts}}, list[0].Namespace, nil)
	if err != nil {
		return err
	}
	apply := &ebbv1.ApplyRequest{}
	for number := uint32(1); number <= table.Shards(); number++ {
		apply.Commands = append(apply.Commands, &ebbv1.ShardCommand{Shard: number, Command: cmd})
	}
	if err := refusedIn(r.apply(ctx, table, apply, retryUntilLeader)); err != nil {
		return err
	}
	body := &ebbv1.Command{Body: &ebbv1.Command_Home{Home: &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Swept{Swept: done}}}}
	if cmd, err = encoded(body, list[0].Namespace, nil); err != nil {
		return err
	}
	return refusedIn(r.apply(ctx, table, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: home, Command: cmd}}}, retryUntilLeader))
}

// refusedIn returns the error of commands that are useful only if all are applied. It prefers the error of a command
// whose outcome is unknown.
func refusedIn(resp *ebbv1.ApplyResponse) error {
	sum := &ebbv1.CommandResult{}
	for _, result := range resp.GetResults() {
		addResult(sum, result)
	}
	if sum.Error != nil {
		return proto.FromWire(sum.Error)
	}
	return nil
}

// sweepKeys is how many keys one command deletes, so that the command fits a log entry.
const sweepKeys = commandBytesSoft / (proto.KeyLenMax + keyRoom)
