package backup

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"github.com/ebbdb/ebb/shard"
)

// check compares the bytes of a chunk with its length and hash.
func (c *Chunk) check(data []byte) error {
	switch {
	case len(data) != int(c.Length):
		return corruptf("%s has %d bytes and should have %d: it was cut or altered", c.Name(), len(data), c.Length)
	case sha256.Sum256(data) != c.Hash:
		return corruptf("%s has another hash: it was altered", c.Name())
	}
	return nil
}

// fetch reads a chunk and checks it.
func fetch(ctx context.Context, store Store, c *Chunk) ([]byte, error) {
	data, err := store.Get(ctx, c.Name(), chunkBytesMax)
	switch {
	case errors.Is(err, ErrMissing):
		return nil, corruptf("%s is missing in %s", c.Name(), store)
	case err != nil && !errors.Is(err, errLong):
		return nil, fmt.Errorf("read %s from %s: %w", c.Name(), store, err)
	}
	return data, c.check(data)
}

// chunkReader reads a shard's snapshot from its chunks.
type chunkReader struct {
	ctx    context.Context
	store  Store
	chunks []Chunk
	rest   []byte
	count  *counter
}

// Read implements io.Reader.
func (r *chunkReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if len(r.chunks) == 0 {
			return 0, io.EOF
		}
		data, err := fetch(r.ctx, r.store, &r.chunks[0])
		if err != nil {
			return 0, err
		}
		r.rest, r.chunks = data, r.chunks[1:]
		r.count.add(func(p *Progress) { p.Chunks++; p.Bytes += uint64(len(data)) })
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Verify reads a whole backup. It checks the hash of each chunk and the checksum of each shard, and that the state of
// each shard decodes.
func Verify(ctx context.Context, store Store, m *Manifest, progress func(Progress)) error {
	count := &counter{tell: progress, now: Progress{ShardsTotal: len(m.Shards), BytesTotal: m.Bytes()}}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2) // decoding states takes memory, and does not wait for the store
	for i := range m.Shards {
		g.Go(func() error {
			if _, err := readShard(gctx, store, &m.Shards[i], count); err != nil {
				return fmt.Errorf("backup %s: shard %d: %w", m.ID, m.Shards[i].Shard, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// readShard reads the state of a shard.
func readShard(ctx context.Context, store Store, s *Shard, count *counter) (*shard.State, error) {
	sum := xxh3.New()
	chunks := &chunkReader{ctx: ctx, store: store, chunks: s.Chunks, count: count}
	state, err := shard.Restore(shard.ID(s.Shard), shard.Heap{}, io.TeeReader(chunks, sum))
	if err != nil {
		return nil, err
	}
	if sum.Sum64() != uint64(s.Checksum) || state.Applied() != s.Applied || int64(state.Now()) != s.ClockUS {
		return nil, corruptf("its checksum is %016x and should be %016x, or it is of another moment", sum.Sum64(), uint64(s.Checksum))
	}
	count.add(func(p *Progress) { p.Shards++ })
	return state, nil
}
