package backup

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// stepTimeout is how long one step of a restore may take. The last step decodes a shard's snapshot.
const stepTimeout = 2 * time.Minute

// Target is the cluster into which a backup is restored.
type Target interface {
	Table(ctx context.Context) (*ebbv1.Table, error)
	RestoreStep(ctx context.Context, shard uint32, step *ebbv1.RestoreShard) (*ebbv1.RestoreProgress, error)
	RestoreNamespaces(ctx context.Context, namespaces []*ebbv1.Namespace, droppedVersion uint64) error
}

// restorer restores one backup.
type restorer struct {
	target Target
	store  Store
	m      *Manifest
	count  *counter
}

// Restore restores a backup into an empty cluster. It reads and checks the whole backup before it writes anything. Then
// each shard receives its state through its log. A restore that was interrupted continues where it stopped.
func Restore(ctx context.Context, target Target, store Store, m *Manifest, progress func(Progress)) (Progress, error) {
	namespaces, err := m.namespaces()
	if err != nil {
		return Progress{}, err
	}
	r := &restorer{target: target, store: store, m: m, count: &counter{tell: progress, now: Progress{ShardsTotal: len(m.Shards), BytesTotal: m.Bytes()}}}
	if err := r.fits(ctx); err != nil {
		return Progress{}, err
	}
	if err := Verify(ctx, store, m, nil); err != nil {
		return Progress{}, err
	}
	done, err := r.begin(ctx)
	if err != nil {
		return Progress{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(shardsAtOnce)
	for i := range m.Shards {
		if done[i] {
			continue
		}
		g.Go(func() error { return r.shard(gctx, &m.Shards[i]) })
	}
	if err := g.Wait(); err != nil {
		return r.count.now, err
	}
	return r.count.now, target.RestoreNamespaces(ctx, namespaces, m.DroppedVersion)
}

// fits checks that the cluster has as many shards as the backup.
func (r *restorer) fits(ctx context.Context) error {
	table, err := r.target.Table(ctx)
	if err != nil {
		return err
	}
	if int(table.GetShards()) != len(r.m.Shards) {
		return proto.ErrBadRequest.Errorf("the backup is of a cluster of %d shards, and this one has %d", len(r.m.Shards), table.GetShards()).
			WithHint(fmt.Sprintf("restore into a new cluster that is started with --shards %d, or give ebb restore --shards %d to move keys to other shards", len(r.m.Shards), table.GetShards()))
	}
	return nil
}

// begin prepares all shards, or none. It reports which shards are restored already.
func (r *restorer) begin(ctx context.Context) (done []bool, err error) {
	done = make([]bool, len(r.m.Shards))
	over, begun := 0, 0
	for i := range r.m.Shards {
		s := &r.m.Shards[i]
		var p *ebbv1.RestoreProgress
		p, err = r.step(ctx, s, &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Begin{Begin: &ebbv1.RestoreBegin{Bytes: s.Bytes, Checksum: uint64(s.Checksum)}}})
		if err != nil {
			break
		}
		if p.GetDone() {
			done[i] = true
			over++
			continue
		}
		if p.GetStaged() > 0 {
			begun++
		}
	}
	if err == nil && over == len(done) {
		return nil, proto.ErrBadRequest.Errorf("this cluster has been restored from backup %s already", r.m.ID).WithHint("restore into a new cluster")
	}
	if err != nil && over+begun == 0 {
		// No shard had a part of this restore before, so the shards that have begun are emptied again.
		if cancelErr := r.cancel(context.WithoutCancel(ctx)); cancelErr != nil {
			return nil, fmt.Errorf("%w (and it is not taken back everywhere: %w)", err, cancelErr)
		}
	}
	return done, err
}

func (r *restorer) cancel(ctx context.Context) error {
	for i := range r.m.Shards {
		if _, err := r.step(ctx, &r.m.Shards[i], &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Cancel{Cancel: &ebbv1.RestoreCancel{}}}); err != nil {
			return err
		}
	}
	return nil
}

func (r *restorer) step(ctx context.Context, s *Shard, step *ebbv1.RestoreShard) (*ebbv1.RestoreProgress, error) {
	return restoreStep(ctx, r.target, s.Shard, r.m.ID, step)
}

func restoreStep(ctx context.Context, target Target, shard uint32, name string, step *ebbv1.RestoreShard) (*ebbv1.RestoreProgress, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	step.Name = name
	return target.RestoreStep(ctx, shard, step)
}

// shard restores one shard.
func (r *restorer) shard(ctx context.Context, s *Shard) error {
	begin, err := r.step(ctx, s, &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Begin{Begin: &ebbv1.RestoreBegin{Bytes: s.Bytes, Checksum: uint64(s.Checksum)}}})
	if err != nil {
		return err
	}
	from := &chunkReader{ctx: ctx, store: r.store, chunks: s.Chunks, count: r.count}
	if _, err := io.CopyN(io.Discard, from, int64(begin.GetStaged())); err != nil {
		return err
	}
	buf := make([]byte, proto.RestorePieceBytesMax)
	for at := begin.GetStaged(); at < s.Bytes; {
		n, err := io.ReadFull(from, buf[:min(uint64(len(buf)), s.Bytes-at)])
		if err != nil {
			return err
		}
		piece := &ebbv1.RestorePiece{Offset: at, Data: buf[:n]}
		if _, err := r.step(ctx, s, &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Piece{Piece: piece}}); err != nil {
			return err
		}
		at += uint64(n)
		r.count.add(func(p *Progress) { p.Sent += uint64(n) })
	}
	p, err := r.step(ctx, s, &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Commit{Commit: &ebbv1.RestoreCommit{}}})
	if err != nil {
		return err
	}
	if !p.GetDone() {
		return proto.ErrInternal.Errorf("shard %d does not say that it is restored", s.Shard)
	}
	r.count.add(func(p *Progress) { p.Shards++ })
	return nil
}

// Cancel gives up an interrupted restore. Shards that are not fully restored are empty again; those that are restored
// keep their state.
func Cancel(ctx context.Context, target Target) error {
	table, err := target.Table(ctx)
	if err != nil {
		return err
	}
	for shard := range table.GetShards() {
		if _, err := restoreStep(ctx, target, shard+1, "any", &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Cancel{Cancel: &ebbv1.RestoreCancel{Any: true}}}); err != nil {
			return err
		}
	}
	return nil
}
