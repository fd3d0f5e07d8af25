package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

const (
	// shardsAtOnce is how many shards are read or written at a time.
	shardsAtOnce = 4
	// snapshotTries is how often a shard's snapshot is tried before the backup gives up, with tryPause between tries.
	snapshotTries = 30
	tryPause      = 200 * time.Millisecond
)

// Source is the cluster that is backed up. Snapshot passes the chunks of a shard to each, in order; chunks whose hashes
// are in have come without their data.
type Source interface {
	Table(ctx context.Context) (*ebbv1.Table, error)
	Snapshot(ctx context.Context, shard uint32, have [][]byte, each func(*client.SnapshotChunk) error) (*client.SnapshotSummary, error)
}

// Progress is the progress of a backup, a verification or a restore.
type Progress struct {
	Shards, ShardsTotal int
	Bytes, BytesTotal   uint64 // of snapshots; the total is 0 where it is not known
	Sent                uint64 // bytes of chunks that went to the store or the cluster
	Chunks, ChunksSent  int
}

// counter reports progress that several goroutines make.
type counter struct {
	mu   sync.Mutex // guards now; also held while tell runs
	now  Progress
	tell func(Progress)
}

func (c *counter) add(change func(*Progress)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.now)
	if c.tell != nil {
		c.tell(c.now)
	}
}

// Options are the options of Take.
type Options struct {
	Version  string // of the program, for the manifest
	Now      func() time.Time
	Progress func(Progress) // may be nil; one call at a time
}

// backupRun takes one backup.
type backupRun struct {
	source Source
	store  Store
	count  counter

	mu     sync.Mutex // guards stored
	stored map[string]bool
	last   *Manifest // the newest backup of this cluster; nil if there is none
}

// Take backs up a cluster, and returns the manifest that it has written. It does not send chunks again that the store
// has, from earlier backups or from an interrupted attempt.
func Take(ctx context.Context, source Source, store Store, opts Options) (*Manifest, Progress, error) {
	b := &backupRun{source: source, store: store, count: counter{tell: opts.Progress}, stored: map[string]bool{}}
	table, err := source.Table(ctx)
	if err != nil {
		return nil, b.count.now, err
	}
	if err := b.readStore(ctx, table); err != nil {
		return nil, b.count.now, err
	}
	m := &Manifest{
		Format: formatFirst, ClusterID: table.GetClusterId(), Time: opts.Now().UTC(), Version: opts.Version, Replication: table.GetReplication(),
		Shards: make([]Shard, table.GetShards()),
	}
	b.count.now.ShardsTotal = len(m.Shards)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(shardsAtOnce)
	for i := range m.Shards {
		g.Go(func() (err error) {
			m.Shards[i], err = b.shard(gctx, uint32(i)+1)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, b.count.now, err
	}
	// This table is read after all shards, so no shard has a newer version of a namespace.
	after, err := source.Table(ctx)
	if err != nil {
		return nil, b.count.now, err
	}
	if after.GetClusterId() != m.ClusterID {
		return nil, b.count.now, proto.ErrWrongCluster.Errorf("the addresses were of cluster %s and now are of cluster %s",
			m.ClusterID, after.GetClusterId())
	}
	var held []*ebbv1.Namespace
	if after.GetDroppedVersion() > table.GetDroppedVersion() {
		if held, err = b.namespacesHeld(ctx, m); err != nil {
			return nil, b.count.now, err
		}
	}
	if err := m.setTable(table, after, held); err != nil {
		return nil, b.count.now, err
	}
	return m, b.count.now, b.putManifest(ctx, m)
}

// namespacesHeld reads the namespaces of each shard from the beginning of its snapshot in the backup.
func (b *backupRun) namespacesHeld(ctx context.Context, m *Manifest) (held []*ebbv1.Namespace, err error) {
	for i := range m.Shards {
		s := &m.Shards[i]
		from := &chunkReader{ctx: ctx, store: b.store, chunks: s.Chunks, count: &counter{}}
		namespaces, err := shard.SnapshotNamespaces(shard.ID(s.Shard), from)
		if err != nil {
			return nil, err
		}
		held = append(held, namespaces...)
	}
	return held, nil
}

// readStore lists the chunks of the store, and loads its newest backup of this cluster.
func (b *backupRun) readStore(ctx context.Context, table *ebbv1.Table) error {
	ids, err := IDs(ctx, b.store)
	if err != nil {
		return err
	}
	chunks, err := b.store.List(ctx, chunksPrefix)
	if err != nil {
		return fmt.Errorf("list chunks in %s: %w", b.store, err)
	}
	for _, name := range chunks {
		b.stored[name] = true
	}
	for _, id := range slices.Backward(ids) {
		m, err := Load(ctx, b.store, id)
		if errors.Is(err, proto.ErrCorrupt) || errors.Is(err, proto.ErrNewerVersion) {
			continue // this backup cannot be used here; ebb backup verify reports it
		}
		if err != nil {
			return err
		}
		if m.ClusterID == table.GetClusterId() {
			b.last = m
			return nil
		}
	}
	return nil
}

// shard backs up one shard. After a transient error it tries again, perhaps with another leader.
func (b *backupRun) shard(ctx context.Context, number uint32) (Shard, error) {
	for try := 1; ; try++ {
		s, err := b.tryShard(ctx, number)
		if err == nil {
			b.count.add(func(p *Progress) { p.Shards++ })
			return s, nil
		}
		var refusal *client.Error
		if ctx.Err() != nil || try == snapshotTries || !errors.As(err, &refusal) || !isTransient(refusal) {
			return Shard{}, fmt.Errorf("back up shard %d: %w", number, err)
		}
		select {
		case <-time.After(tryPause):
		case <-ctx.Done():
			return Shard{}, ctx.Err()
		}
		_, _ = b.source.Table(ctx) // finds the present leader; on an error the next try finds it
	}
}

// isTransient reports whether a retry may succeed after this error.
func isTransient(e *client.Error) bool {
	return e.Code/1000 == 1 || e.Code == ebbv1.Code_CODE_UNKNOWN_OUTCOME || e.Code == ebbv1.Code_CODE_INTERNAL || e.Code == ebbv1.Code_CODE_UNSPECIFIED
}

func (b *backupRun) tryShard(ctx context.Context, number uint32) (Shard, error) {
	s := Shard{Shard: number}
	summary, err := b.source.Snapshot(ctx, number, b.have(number), func(c *client.SnapshotChunk) error {
		chunk := Chunk{Length: c.GetLength()}
		if copy(chunk.Hash[:], c.GetHash()) != len(chunk.Hash) {
			return proto.ErrInternal.Errorf("a chunk with a hash of %d bytes", len(c.GetHash()))
		}
		s.Chunks = append(s.Chunks, chunk)
		return b.putChunk(ctx, &chunk, c.GetData())
	})
	if err != nil {
		return s, err
	}
	s.Applied, s.Term, s.ClockUS = summary.GetApplied(), summary.GetTerm(), summary.GetClockUs()
	s.Keys, s.Bytes, s.Checksum = summary.GetKeys(), summary.GetBytes(), Sum64(summary.GetChecksum())
	return s, nil
}

// have returns the hashes of the chunks that a shard need not send: those of the last backup that the store still has.
func (b *backupRun) have(number uint32) [][]byte {
	if b.last == nil || int(number) > len(b.last.Shards) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out [][]byte
	for _, c := range b.last.Shards[number-1].Chunks {
		if b.stored[c.Name()] && len(out) < proto.SnapshotHaveMax {
			out = append(out, c.Hash[:])
		}
	}
	return out
}

// putChunk writes a chunk to the store, unless the store has it.
func (b *backupRun) putChunk(ctx context.Context, c *Chunk, data []byte) error {
	name := c.Name()
	b.mu.Lock()
	stored := b.stored[name]
	b.mu.Unlock()
	if !stored {
		if err := c.check(data); err != nil {
			return proto.ErrInternal.Errorf("as it came from the cluster, %v", err)
		}
		if err := b.store.Put(ctx, name, data); err != nil {
			return fmt.Errorf("write %s in %s: %w", name, b.store, err)
		}
		b.mu.Lock()
		b.stored[name] = true
		b.mu.Unlock()
	}
	b.count.add(func(p *Progress) {
		p.Chunks++
		p.Bytes += uint64(c.Length)
		if !stored {
			p.ChunksSent++
			p.Sent += uint64(c.Length)
		}
	})
	return nil
}

// putManifest writes the manifest. Only then is the backup complete.
func (b *backupRun) putManifest(ctx context.Context, m *Manifest) error {
	if err := m.check(); err != nil {
		return err
	}
	raw, err := m.encode()
	if err != nil {
		return err
	}
	if err := b.store.Put(ctx, manifestsPrefix+m.ID+manifestSuffix, raw); err != nil {
		return fmt.Errorf("write the manifest in %s: %w", b.store, err)
	}
	return nil
}

// Pruned is what Prune has removed.
type Pruned struct {
	Backups []string
	Chunks  int
}

// Prune removes all but the newest keep backups of a store, and the chunks that only those had. No backup may be taken
// at the same time.
func Prune(ctx context.Context, store Store, keep int) (Pruned, error) {
	var out Pruned
	ids, err := IDs(ctx, store)
	if err != nil || len(ids) <= keep {
		return out, err
	}
	used := map[string]bool{}
	for _, id := range ids[len(ids)-keep:] {
		m, err := Load(ctx, store, id) // a backup that cannot be read may need any chunk
		if err != nil {
			return out, err
		}
		for i := range m.Shards {
			for _, c := range m.Shards[i].Chunks {
				used[c.Name()] = true
			}
		}
	}
	for _, id := range ids[:len(ids)-keep] {
		if err := store.Delete(ctx, manifestsPrefix+id+manifestSuffix); err != nil {
			return out, err
		}
		out.Backups = append(out.Backups, id)
	}
	chunks, err := store.List(ctx, chunksPrefix)
	if err != nil {
		return out, err
	}
	for _, name := range chunks {
		if used[name] || !strings.HasPrefix(name, chunksPrefix) {
			continue
		}
		if err := store.Delete(ctx, name); err != nil {
			return out, err
		}
		out.Chunks++
	}
	return out, nil
}
