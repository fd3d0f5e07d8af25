package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// SnapshotChunk is a consecutive part of the bytes of a shard's snapshot.
type SnapshotChunk = ebbv1.SnapshotChunk

// SnapshotSummary describes the state that a snapshot holds.
type SnapshotSummary = ebbv1.SnapshotSummary

// Snapshot reads the state of a shard, 1 to Shards of the table, from its leader. The state includes every write that
// was acknowledged before the call. The shard continues to work during that time. Snapshot calls each with every chunk,
// in order. A chunk whose hash is in have comes without its bytes. Snapshot does not retry after a failure. The caller
// may call it again; have then contains more chunks.
func (c *Client) Snapshot(ctx context.Context, shard uint32, have [][]byte, each func(*SnapshotChunk) error) (*SnapshotSummary, error) {
	a := attempt{op: "snapshot", start: c.now(), tries: 1}
	node, p := c.peerFor(shard, 0, "")
	a.node = node
	summary, err := c.snapshot(ctx, p, &ebbv1.SnapshotRequest{Shard: shard, Have: have}, each)
	if err == nil {
		return summary, nil
	}
	if e := coded(err); e.Code == ErrNotLeader.Code {
		c.routing.learn(shard, node, e.Leader)
	} else if classify(e.Code) == ambiguous {
		c.routing.lost(shard, node, c.now())
	}
	return nil, c.fail(a, err)
}

func (c *Client) snapshot(ctx context.Context, p *peer, req *ebbv1.SnapshotRequest, each func(*SnapshotChunk) error) (*SnapshotSummary, error) {
	conn, err := p.connection()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := ebbv1grpc.NewShardsClient(conn).Snapshot(ctx, req)
	if err != nil {
		return nil, c.assess(ctx, ctx, 0, p, err)
	}
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, proto.ErrInternal.Errorf("%s: a snapshot without an end", p.addr)
		case err != nil:
			return nil, c.assess(ctx, ctx, 0, p, err)
		case part.GetSummary() != nil:
			return part.GetSummary(), nil
		}
		if err := each(part.GetChunk()); err != nil {
			return nil, err
		}
	}
}

// RestoreStep applies one step of a restore through a shard's log. It retries until ctx ends, so a step may be applied
// twice; that changes nothing.
func (c *Client) RestoreStep(ctx context.Context, shard uint32, step *ebbv1.RestoreShard) (*ebbv1.RestoreProgress, error) {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	req := &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{
		Shard: shard, Command: marshal(&ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: step}}),
	}}}
	a := attempt{op: "restore", start: c.now()}
	for a.tries = 1; ; a.tries++ {
		node, p := c.peerFor(shard, a.tries-1, a.node)
		a.node = node
		result, err := c.applyOne(ctx, p, req)
		if err == nil {
			return result.GetRestore(), nil
		}
		e := coded(err)
		if e.Code == ErrNotLeader.Code {
			c.routing.learn(shard, node, e.Leader)
		}
		if classify(e.Code) == final || e.Code == proto.ErrCorrupt.Code || ctx.Err() != nil {
			return nil, c.fail(a, err)
		}
		if end := c.sleep(ctx, c.backoff(a.tries-1, err)); end != nil {
			return nil, c.fail(a, &contextEnded{err: err, end: end})
		}
	}
}

func (c *Client) applyOne(ctx context.Context, p *peer, req *ebbv1.ApplyRequest) (*ebbv1.CommandResult, error) {
	var resp *ebbv1.ApplyResponse
	_, err := c.try(ctx, p, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		resp, err = ebbv1grpc.NewShardsClient(conn).Apply(ctx, req)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case len(resp.GetResults()) != 1:
		return nil, proto.ErrInternal.Errorf("%d results for a command", len(resp.GetResults()))
	}
	if e := proto.FromWire(resp.Results[0].GetError()); e != nil {
		return nil, e
	}
	return resp.Results[0], nil
}

// RestoreNamespaces writes the namespaces of a backup to the cluster. They replace namespaces of the same names.
// Namespaces that do not fit into one message are sent in several messages, and each message is applied as a whole.
// After a failure the messages before it stay applied, and may be sent again. droppedVersion is the dropped version of
// the backup's table.
func (c *Client) RestoreNamespaces(ctx context.Context, namespaces []*ebbv1.Namespace, droppedVersion uint64) error {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	defer c.renewal()
	for some := range proto.InBatches(namespaces, namespaceBytesMax) {
		req := &ebbv1.RestoreNamespacesRequest{
			Namespaces: some, DroppedVersion: droppedVersion, IdempotencyKey: c.idempotencyKey(),
		}
		err := c.anywhere(ctx, attempt{op: "restore namespaces"}, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) error {
			_, err := ebbv1grpc.NewShardsClient(cc).RestoreNamespaces(ctx, req)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// namespaceBytesMax is how many bytes of namespaces one request carries. It is as large as possible, because a node
// checks a whole request before it applies the first namespace.
const namespaceBytesMax = proto.MessageBytesMax * 3 / 4
