package node

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// counting says how much was read of what raft wraps.
type counting struct {
	*snap.Content
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Content.Read(p)
	c.n += n
	return n, err
}

// wrapped is what raft hands to Restore.
type wrapped struct {
	*counting
}

func (w wrapped) WrappedReadCloser() io.ReadCloser { return w.Content }

// A state is made of a snapshot where it arrives, and Restore, on which Raft waits, only takes it: that of this
// snapshot, once, and of no other.
func TestRestoreTakesWhatWasPrepared(t *testing.T) {
	machine := func() *shardMachine {
		return newShardMachine(1, func() shard.Memory { return shard.Heap{} }, make(chan struct{}, 1), new(applyMetrics), nil, nil)
	}
	from := machine()
	raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}})
	must(t, err)
	entry := protowire.AppendBytes(protowire.AppendTag(protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), 1), 2, protowire.BytesType), raw)
	from.Apply(&raft.Log{Index: 1, Term: 1, Type: raft.LogCommand, Data: entry})
	chunks := func() (chunks [][]byte, items []snap.Item) {
		view := from.freeze()
		defer view.Release()
		_, err := view.WriteTo(writerFunc(func(p []byte) (int, error) {
			chunks = append(chunks, bytes.Clone(p))
			items = append(items, snap.Item{Hash: snap.HashOf(p), Length: uint32(len(p))})
			return len(p), nil
		}))
		must(t, err)
		return chunks, items
	}
	store, err := snap.Open(snap.Config{FS: fs.NewMem(), Dir: "/snap"})
	must(t, err)
	to := machine()
	a := &arrivals{store: store, machine: to, count: new(snapshotMetrics)}
	arrive := func(index uint64) (sign []byte, done func() error, err error) {
		all, items := chunks()
		before, size := a.came.Load()+a.held.Load(), uint64(0)
		d, err := a.Arrive(index, 1, items)
		must(t, err)
		for i, c := range all {
			if size += uint64(len(c)); !d.Has(i) {
				must(t, d.Put(c))
			}
		}
		if n := a.came.Load() + a.held.Load() - before; n != size || a.left.Load() != 0 {
			t.Errorf("of %d bytes %d came or were here, and %d are to come", size, n, a.left.Load())
		}
		sign, err = d.Ready(t.Context())
		return sign, d.Close, err
	}
	restored := func(index uint64, sign []byte) (read int) {
		k, err := store.Create(1, index, 1, raft.Configuration{}, 1, nil)
		must(t, err)
		_, err = k.Write(sign)
		must(t, errors.Join(err, k.Close()))
		_, r, err := store.Open(k.ID())
		must(t, err)
		defer r.Close()
		w := wrapped{&counting{Content: r.(*snap.Content)}}
		must(t, to.Restore(w))
		return w.n
	}
	sign, done, err := arrive(1)
	must(t, err)
	if n := restored(1, sign); n != 0 || to.index() != 1 {
		t.Errorf("%d bytes were decoded while Raft waited, up to entry %d", n, to.index())
	}
	must(t, done())

	from.Apply(&raft.Log{Index: 2, Term: 1, Type: raft.LogCommand, Data: entry})
	_, done, err = arrive(2)
	must(t, err)
	must(t, done()) // Raft does not want it
	if to.prepared != nil {
		t.Error("a state is kept that nobody wants")
	}
	sign, done, err = arrive(2)
	must(t, err)
	to.forget(to.preparedKey)
	if n := restored(2, sign); n == 0 || to.index() != 2 {
		t.Errorf("%d bytes of a snapshot were read that was not prepared, up to entry %d", n, to.index())
	}
	must(t, done())

	if a.came.Load() == 0 || a.held.Load() == 0 || a.count.came.Load() != a.came.Load() || a.count.held.Load() != a.held.Load() {
		t.Errorf("%d bytes came and %d were here; the node counts %d and %d", a.came.Load(), a.held.Load(), a.count.came.Load(), a.count.held.Load())
	}

	other := machine()
	other.id = 7
	a.machine = other
	if _, done, err := arrive(3); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("a snapshot of another shard: %v, want CORRUPT before Raft hears of it", err)
	} else {
		must(t, done())
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
