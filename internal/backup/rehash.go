package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/shard"
)

// Rehash makes a backup with another number of shards from a backup, and writes it to the store to. It keeps keys with
// all that they hold, and strings with their ids. It keeps no sessions and no idempotency keys, because they belong to
// the old shards. A backup with ordered sources is refused, unless forget says that no import will continue with them.
// Rehash holds all of the backup in memory.
func Rehash(ctx context.Context, from Store, m *Manifest, shards uint32, forget bool, to Store) (*Manifest, error) {
	if shards == 0 || shards > proto.ShardsMax {
		return nil, proto.ErrBadRequest.Errorf("%d shards: there are 1 to %d", shards, proto.ShardsMax)
	}
	namespaces, err := m.namespaces()
	if err != nil {
		return nil, err
	}
	old, err := readAll(ctx, from, m)
	if err != nil {
		return nil, err
	}
	sources := 0
	for _, s := range old {
		sources = max(sources, s.Sources())
	}
	if sources > 0 && !forget {
		return nil, proto.ErrBadRequest.Errorf("the backup knows ordered sources (%d), of imports, whose offsets are those of %d shards: with %d, an import that continues would count rows twice or leave some out", sources, len(m.Shards), shards).
			WithHint("if none of them will go on, add --forget-sources; else restore into a cluster of as many shards")
	}
	out := *m
	out.Shards = make([]Shard, shards)
	b := &backupRun{store: to, stored: map[string]bool{}}
	for i := range out.Shards {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		state, err := shard.Rehash(shard.ID(i+1), shards, shard.Heap{}, old, namespaces)
		if err != nil {
			return nil, fmt.Errorf("make shard %d of %d: %w", i+1, shards, err)
		}
		if out.Shards[i], err = b.write(ctx, uint32(i)+1, state); err != nil {
			return nil, err
		}
	}
	return &out, b.putManifest(ctx, &out)
}

// readAll reads the states of all shards.
func readAll(ctx context.Context, store Store, m *Manifest) ([]*shard.State, error) {
	states := make([]*shard.State, len(m.Shards))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i := range m.Shards {
		g.Go(func() (err error) {
			if states[i], err = readShard(gctx, store, &m.Shards[i], new(counter)); err != nil {
				return fmt.Errorf("backup %s: shard %d: %w", m.ID, i+1, err)
			}
			return nil
		})
	}
	return states, g.Wait()
}

// write writes a state to the store.
func (b *backupRun) write(ctx context.Context, number uint32, state *shard.State) (Shard, error) {
	s := Shard{Shard: number, Applied: state.Applied(), ClockUS: int64(state.Now()), Keys: state.Keys()}
	chunks := &shard.Chunks{Each: func(data []byte) error {
		chunk := Chunk{sha256.Sum256(data), uint32(len(data))}
		s.Chunks = append(s.Chunks, chunk)
		return b.putChunk(ctx, &chunk, bytes.Clone(data))
	}}
	sum := xxh3.New()
	n, err := state.WriteTo(io.MultiWriter(sum, chunks))
	if err == nil {
		err = chunks.Close()
	}
	s.Bytes, s.Checksum = uint64(n), Sum64(sum.Sum64())
	return s, err
}
