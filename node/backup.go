package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// snapshotStreamsMax is how many snapshots a node sends at a time. Each holds a view, whose pages are copied when they
// are written.
const snapshotStreamsMax = 4

// backups serves requests for backups and restores.
type backups struct {
	node *Node
	open chan struct{} // holds a token for each snapshot that is being sent
}

func newBackups(n *Node) *backups {
	return &backups{node: n, open: make(chan struct{}, snapshotStreamsMax)}
}

// Snapshot sends the state of a shard that this node leads, chunk by chunk. It reads from a view, so the shard applies
// entries at the same time. It returns OVERLOADED if the node already sends snapshotStreamsMax snapshots.
func (b *backups) Snapshot(ctx context.Context, req *ebbv1.SnapshotRequest, send func(*ebbv1.SnapshotPart) error) error {
	select {
	case b.open <- struct{}{}:
		defer func() { <-b.open }()
	default:
		return proto.ErrOverloaded.Errorf("node %s sends %d snapshots already, which is the limit", b.node.cfg.Name, snapshotStreamsMax).WithShard(req.GetShard())
	}
	read := b.node.backend.beginReads(ctx, &ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: req.GetShard()}}}).of(req.GetShard())
	if read.err != nil {
		return read.err
	}
	term, leads := read.replica.leading()
	if !leads {
		return read.replica.notLeader()
	}
	view := read.replica.state.freeze()
	defer view.Release()
	return b.write(ctx, view, have(req), &ebbv1.SnapshotSummary{Applied: view.Applied(), Term: term, ClockUs: int64(view.Now()), Keys: view.Keys()}, send)
}

// have returns the hashes of the chunks that the caller has.
func have(req *ebbv1.SnapshotRequest) map[[sha256.Size]byte]bool {
	out := make(map[[sha256.Size]byte]bool, len(req.GetHave()))
	for _, hash := range req.GetHave() {
		out[[sha256.Size]byte(hash)] = true
	}
	return out
}

func (b *backups) write(ctx context.Context, view *shard.View, have map[[sha256.Size]byte]bool, summary *ebbv1.SnapshotSummary, send func(*ebbv1.SnapshotPart) error) error {
	chunks := &shard.Chunks{Each: func(data []byte) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case b.node.ctx.Err() != nil:
			return errShuttingDown(0)
		}
		hash := sha256.Sum256(data)
		chunk := &ebbv1.SnapshotChunk{Hash: hash[:], Length: uint32(len(data))}
		if !have[hash] {
			chunk.Data = bytes.Clone(data)
		}
		return send(&ebbv1.SnapshotPart{Part: &ebbv1.SnapshotPart_Chunk{Chunk: chunk}})
	}}
	sum := xxh3.New()
	n, err := view.WriteTo(io.MultiWriter(sum, chunks))
	if err == nil {
		err = chunks.Close()
	}
	if err != nil {
		return err
	}
	summary.Bytes, summary.Checksum = uint64(n), sum.Sum64()
	return send(&ebbv1.SnapshotPart{Part: &ebbv1.SnapshotPart_Summary{Summary: summary}})
}

// RestoreNamespaces adds the namespaces of a backup to the cluster. If another node leads the control group, the
// request is forwarded to it, once. The namespaces may not fit into one entry, so all are checked before the first is
// proposed. If a restore is interrupted between entries, the next one leaves out what is there already. So where syncs
// are slow, each restore gets further than the one before.
func (b *backups) RestoreNamespaces(ctx context.Context, req *ebbv1.RestoreNamespacesRequest) (*ebbv1.RestoreNamespacesResponse, error) {
	err := b.node.asControlLeader(ctx, func(c *control) error {
		if err := b.fit(req.GetNamespaces()); err != nil {
			return err
		}
		if err := c.state.control.Table().CheckRestore(req.GetNamespaces()); err != nil {
			return err
		}
		now, err := c.timeOfDeletion(ctx, b.node.keeper)
		if err != nil {
			return err
		}
		var parts []*ebbv1.ControlCommand
		table := c.state.control.Table()
		left := cluster.DeletedAnew(table.Unrestored(req.GetNamespaces()), now)
		for some := range proto.InBatches(left, proto.EntryBytesSoft) {
			parts = append(parts, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RestoreNamespaces{
				RestoreNamespaces: &ebbv1.RestoreNamespacesRequest{Namespaces: some, DroppedVersion: req.GetDroppedVersion(), NowUs: now},
			}})
		}
		if len(left) == 0 && req.GetDroppedVersion() > table.DroppedVersion() {
			parts = append(parts, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RestoreNamespaces{
				RestoreNamespaces: &ebbv1.RestoreNamespacesRequest{DroppedVersion: req.GetDroppedVersion(), NowUs: now},
			}})
		}
		if len(parts) == 1 { // a retry may have other parts: each is applied as often as it comes
			parts[0].IdempotencyKey = req.GetIdempotencyKey()
		}
		_, err = c.proposeAll(ctx, parts...)
		return err
	}, func(ctx context.Context, leader controlPeer) error {
		_, err := leader.RestoreNamespaces(ctx, req)
		return err
	})
	return new(ebbv1.RestoreNamespacesResponse), err
}

// fit refuses a namespace that has keys which do not fit the backup's definition of it. Shards keep the definition that
// they know; shards that do not know the namespace yet would take the backup's. Keys that a restore has brought do fit.
// A node can check only its own replicas, which in most clusters include every shard.
func (b *backups) fit(namespaces []*ebbv1.Namespace) error {
	for _, ns := range namespaces {
		for _, r := range b.node.groups.Load().replicas {
			have := r.state.inhabited(ns.GetName())
			if have == nil || have.GetHashSeed() == ns.GetHashSeed() && proto.BySlice(have) == proto.BySlice(ns) && have.GetDictionary().GetParts() == ns.GetDictionary().GetParts() {
				continue
			}
			return proto.ErrBadNamespace.Errorf("namespace %s has keys in shard %d, which are hashed or laid out otherwise than those of the backup", ns.GetName(), r.group).
				WithHint("restore into a new cluster")
		}
	}
	return nil
}
