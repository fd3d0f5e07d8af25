package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A backup of three nodes is restored into one node and into five. All replicas have equal checksums, and hold byte for
// byte what the backup has: summaries, bitmaps by key and by slice, dictionaries, strings, sessions, sources and
// idempotency keys. The new clusters keep their ids, and go on.
func TestRestoreIntoOtherNumbersOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, from := newCluster(t, 3, shards)
		fillCluster(t, from)
		m, _ := take(t, from, store)
		if err := Verify(t.Context(), store, m, nil); err != nil {
			t.Fatal(err)
		}
		for _, nodes := range []int{1, 5} {
			cluster, to := newCluster(t, nodes, shards)
			p, err := Restore(t.Context(), to, store, m, nil)
			if err != nil {
				t.Fatal(err)
			}
			if p.Sent != m.Bytes() {
				t.Errorf("%d bytes sent of %d", p.Sent, m.Bytes())
			}
			checkReplicas(t, cluster)
			again, _ := take(t, to, directory(t.TempDir()))
			if !reflect.DeepEqual(contents(again), contents(m)) {
				t.Errorf("%d nodes hold something else than the backup", nodes)
			}
			if again.ClusterID == m.ClusterID {
				t.Error("the new cluster has the id of the old one")
			}
			same(t, from, to)
			checkWritable(t, to)
			checkReplicas(t, cluster)
			if _, err := Restore(t.Context(), to, store, m, nil); !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), "already") {
				t.Errorf("restored once more: %v", err)
			}
		}
	})
}

// same asks two clusters the same questions.
func same(t *testing.T, from, to *client.Client) {
	t.Helper()
	ctx := t.Context()
	for _, c := range []struct {
		what string
		ask  func(*client.Client) (any, error)
	}{
		{"a string's id", func(c *client.Client) (any, error) { return c.NameIDs(ctx, "users", "user 7", "nobody") }},
		{"ids by slice", func(c *client.Client) (any, error) {
			n, err := c.Bitmap("people", client.Bits("cohort/1")).Count(ctx)
			return n.Count, err
		}},
		{"ids by key", func(c *client.Client) (any, error) {
			n, err := c.Bitmap("plain", client.Bits("bits/7")).Count(ctx)
			return n.Count, err
		}},
	} {
		want, err := c.ask(from)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.ask(to); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, not %v: %v", c.what, got, want, err)
		}
	}
}

// checkWritable writes to namespaces of the backup, in all shards.
func checkWritable(t *testing.T, c *client.Client) {
	t.Helper()
	for i := range 20 {
		if err := c.Increment(t.Context(), "clicks", client.One(fmt.Sprint("new/", i), "us")); err != nil {
			t.Fatal(err)
		}
		if err := c.Increment(t.Context(), "default", client.One(fmt.Sprint("new/", i), "us")); err != nil {
			t.Fatal(err)
		}
	}
}

// The second backup sends what has changed, and nothing when nothing has.
func TestSecondBackupSendsWhatHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, c := newCluster(t, 1, 2)
		if _, err := c.CreateNamespace(t.Context(), client.Namespace{Name: "plain", Decay: client.DecayNone}); err != nil {
			t.Fatal(err)
		}
		w := c.Writer(client.WriterOptions{Namespace: "plain"})
		defer w.Close(context.Background())
		for i := range 12_000 {
			if err := w.Add(t.Context(), fmt.Sprintf("link/%0500d", i), "us", 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		first, p := take(t, c, store)
		if p.Sent != first.Bytes() || p.ChunksSent < 10 {
			t.Fatalf("%+v of %d bytes", p, first.Bytes())
		}
		if _, p := take(t, c, store); p.Sent != 0 {
			t.Fatalf("nothing has changed: %+v", p)
		}
		if err := w.Add(t.Context(), fmt.Sprintf("link/%0500d", 77), "de", 1); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The header, the new bin, the key and the session: four blocks. Where chunks end is up to the blocks' CRCs:
		// one that has changed may end a chunk that went on before, which makes two of it. A chunk is of 100 KiB or so,
		// and of at most 512 and a block.
		third, p := take(t, c, store)
		if p.ChunksSent > 8 || p.Sent > first.Bytes()/2 {
			t.Fatalf("one increment: %+v of %d bytes", p, first.Bytes())
		}
		if ids, err := IDs(t.Context(), store); err != nil || len(ids) != 3 {
			t.Fatal(ids, err)
		}
		pruned, err := Prune(t.Context(), store, 1)
		if err != nil || len(pruned.Backups) != 2 || pruned.Chunks == 0 {
			t.Fatal(pruned, err)
		}
		if err := Verify(t.Context(), store, third, nil); err != nil {
			t.Fatal(err)
		}
	})
}

// While increments run, backups are taken. Each holds all that was acknowledged before it began, and nothing that was
// sent after it had ended.
func TestBackupWhileIncrementsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, c := newCluster(t, 3, 3)
		if _, err := c.CreateNamespace(t.Context(), client.Namespace{Name: "plain", Decay: client.DecayNone}); err != nil {
			t.Fatal(err)
		}
		var sent, acknowledged atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		written := make(chan error, 1)
		go func() {
			for ctx.Err() == nil {
				sent.Add(1)
				if err := c.Increment(context.WithoutCancel(ctx), "plain", client.One("k", "a")); err != nil {
					written <- err
					return
				}
				acknowledged.Add(1)
			}
			written <- nil
		}()
		for round := range int64(3) {
			for acknowledged.Load() < 10*(round+1) && len(written) == 0 {
				time.Sleep(time.Millisecond)
			}
			low := acknowledged.Load()
			m, _ := take(t, c, store)
			high := sent.Load()
			_, to := newCluster(t, 1, 3)
			if _, err := Restore(t.Context(), to, store, m, nil); err != nil {
				t.Fatal(err)
			}
			got, err := to.Top(t.Context(), "plain", "k", 1)
			if err != nil {
				t.Fatal(err)
			}
			if n := int64(got.Z); n < low || n > high || low == 0 {
				t.Errorf("%d increments: %d were acknowledged before, %d sent after", n, low, high)
			}
		}
		stop()
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	})
}

// What cannot be restored is refused with what is wrong, and the cluster is as empty as before.
func TestRefusedRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := t.TempDir()
		store := directory(place)
		_, from := newCluster(t, 1, shards)
		fillCluster(t, from)
		m, _ := take(t, from, store)
		_, to := newCluster(t, 1, shards)
		_, smaller := newCluster(t, 1, shards-1)
		chunk := m.Shards[2].Chunks[1]
		path := store.path(chunk.Name())
		sound, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		flipped := append([]byte{sound[0] ^ 1}, sound[1:]...)
		write := func(data []byte) func() error { return func() error { return os.WriteFile(path, data, 0o600) } }
		for _, c := range []struct {
			what string
			to   Target
			do   func() error
			want error
			says string
		}{
			{"another number of shards", smaller, func() error { return nil }, proto.ErrBadRequest, "of 5 shards, and this one has 4"},
			{"a missing chunk", to, func() error { return os.Remove(path) }, proto.ErrCorrupt, chunk.Name() + " is missing"},
			{"an altered chunk", to, write(flipped), proto.ErrCorrupt, "was altered"},
			{"a cut chunk", to, write(sound[:9]), proto.ErrCorrupt, fmt.Sprintf("has 9 bytes and should have %d", len(sound))},
			{"a chunk that is too long", to, write(make([]byte, 2<<20)), proto.ErrCorrupt, "was cut or altered"},
			{"no chunk of the store", to, func() error { return os.RemoveAll(store.path("chunks")) }, proto.ErrCorrupt, "is missing"},
		} {
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
			_, err := Restore(t.Context(), c.to, store, m, nil)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.what, err)
			}
			writable(t, to)
			writable(t, smaller)
		}
		full, _ := take(t, to, store) // of a cluster with keys, as writable left it
		_, err = Restore(t.Context(), to, store, full, nil)
		if !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), "is not empty") {
			t.Errorf("over a cluster with keys: %v", err)
		}
		writable(t, to)
	})
}

// writable says whether no shard waits for the rest of a restore; it leaves keys.
func writable(t *testing.T, c *client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i := range 30 {
		if err := c.Increment(ctx, "default", client.One(fmt.Sprint("k/", i), "a")); err != nil {
			t.Errorf("the cluster waits: %v", err)
			return
		}
	}
}

// flaky is a cluster that fails at the nth piece of a restore, and a source that breaks off.
type flaky struct {
	*client.Client
	steps, failAt int64
}

func (f *flaky) RestoreStep(ctx context.Context, shard uint32, step *ebbv1.RestoreShard) (*ebbv1.RestoreProgress, error) {
	if atomic.AddInt64(&f.steps, 1) == f.failAt {
		return nil, errTest
	}
	return f.Client.RestoreStep(ctx, shard, step)
}

// A restore that is interrupted at any step continues when it is repeated, and ends with the same. Until then the
// cluster takes no writes; given up, it does.
func TestInterruptedRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, from := newCluster(t, 1, 2)
		fillCluster(t, from)
		m, _ := take(t, from, store)
		steps := &flaky{failAt: -1}
		_, steps.Client = newCluster(t, 1, 2)
		if _, err := Restore(t.Context(), steps, store, m, nil); err != nil {
			t.Fatal(err)
		}
		for failAt := int64(1); failAt <= steps.steps; failAt++ {
			_, to := newCluster(t, 1, 2)
			_, err := Restore(t.Context(), &flaky{Client: to, failAt: failAt}, store, m, nil)
			if !errors.Is(err, errTest) {
				t.Fatal(err)
			}
			if _, err := Restore(t.Context(), to, store, m, nil); err != nil {
				t.Fatalf("after step %d: %v", failAt, err)
			}
			again, _ := take(t, to, directory(t.TempDir()))
			if !reflect.DeepEqual(contents(again), contents(m)) {
				t.Errorf("interrupted at step %d, it holds something else than the backup", failAt)
			}
		}
		_, to := newCluster(t, 1, 2)
		if _, err := Restore(t.Context(), &flaky{Client: to, failAt: 5}, store, m, nil); !errors.Is(err, errTest) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := to.Increment(ctx, "default", client.One("k", "a")); err == nil {
			t.Error("the cluster takes writes in the middle of a restore")
		}
		if err := Cancel(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		writable(t, to)
	})
}
