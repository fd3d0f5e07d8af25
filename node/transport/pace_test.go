package transport

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
)

// paced is two nodes, and one replica on b that takes snapshots. Node a sends so many bytes of snapshots a second.
func paced(t *testing.T, rate int64) (w *world, g *Group, to *snap.Store) {
	w = newWorld(t, func(c *Config) { c.SnapshotRate = rate }, "a", "b")
	to = openStore(t)
	return w, installer(t, w, to, func() {}), to
}

// Snapshots go at the rate that is set, all together, and nothing else waits for them.
func TestSnapshotsKeepToARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g, to := paced(t, 1<<20)
		content := snapshotOf(t, openStore(t), 10)
		size := int64(len(bytes.Join(chunked(10), nil)))
		done := make(chan error, 1)
		start := time.Now()
		go func() { done <- w.send(g, 10, content) }()
		beats, longest := 0, time.Duration(0)
		for len(done) == 0 {
			asked := time.Now()
			if err := heartbeat(g, "b/12"); err != nil {
				t.Fatal(err)
			}
			if err := appendTo(g, "b/12", 1000); err != nil {
				t.Fatal(err)
			}
			beats, longest = beats+1, max(longest, time.Since(asked))
			time.Sleep(10 * time.Millisecond)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		holds(t, to, 10)
		least := time.Duration(float64(size-chunkBytes) / (1 << 20) * float64(time.Second))
		if took := time.Since(start); took < least || took > least+time.Second {
			t.Errorf("%d bytes at 1 MiB a second took %v, want %v and a little", size, took, least)
		}
		if waited := w.nodes["a"].Installs().Waited; waited < least*9/10 || waited > least+time.Second {
			t.Errorf("it says that it waited for %v of %v", waited, least)
		}
		if beats < 10 || longest > 100*time.Millisecond {
			t.Errorf("meanwhile %d heartbeats and entries were answered, one after %v", beats, longest)
		}
	})
}

// A replica that is needed gets its snapshot as fast as it takes it, also while that of another waits.
func TestTheNeededDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g, to := paced(t, 1<<10)
		other := w.nodes["b"].Group(2, "b/22")
		t.Cleanup(respond(other, echoed))
		patient := make(chan error, 1)
		go func() {
			patient <- install(w.nodes["a"].Group(2, "a/21"), "b/22", bytes.NewReader(make([]byte, 2<<20)), 2<<20)
		}()
		time.Sleep(time.Second)
		g.Prioritize(func(replica uint64) bool { return replica == 12 })
		start := time.Now()
		if err := w.send(g, 10, snapshotOf(t, openStore(t), 10)); err != nil {
			t.Fatal(err)
		}
		holds(t, to, 10)
		if took := time.Since(start); took > time.Second || len(patient) > 0 {
			t.Errorf("it took %v; the other was sent before: %v", took, len(patient) > 0)
		}
		if err := <-patient; err != nil {
			t.Fatal(err)
		}
	})
}

// A replica that is needed does not wait either when as many snapshots go to its node as may at a time. The same limit
// holds among those that are needed.
func TestTheNeededPassTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		release := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(release) })
		defer goOn()
		send := func(group uint32, needed bool) <-chan error {
			replica := uint64(group)
			b := w.nodes["b"].Group(group, Address("b", replica))
			t.Cleanup(respond(b, func(rpc raft.RPC) any {
				if group <= 2*snapshotStreamsMax {
					<-release
				}
				return echoed(rpc)
			}))
			g := w.nodes["a"].Group(group, Address("a", replica))
			g.Prioritize(func(uint64) bool { return needed })
			done := make(chan error, 1)
			go func() { done <- install(g, Address("b", replica), strings.NewReader("snap"), 4) }()
			return done
		}
		var patient []<-chan error
		sent := func() { // when those that wait have their places
			for start := time.Now(); int(w.nodes["a"].Installs().Out) < len(patient); time.Sleep(time.Millisecond) {
				if time.Since(start) > time.Minute {
					t.Fatalf("%d snapshots are on their way, want %d", w.nodes["a"].Installs().Out, len(patient))
				}
			}
		}
		for i := range snapshotStreamsMax {
			patient = append(patient, send(uint32(i+1), false))
		}
		sent()
		if err := <-send(100, true); err != nil {
			t.Errorf("one that is needed: %v", err)
		}
		for i := range snapshotStreamsMax {
			patient = append(patient, send(uint32(snapshotStreamsMax+i+1), true))
		}
		sent()
		isCode(t, <-send(101, true), proto.ErrOverloaded)
		goOn()
		for _, done := range patient {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// However low the rate is, a snapshot gets on before the other side gives it up.
func TestTheLowestRateIsStillProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g, to := paced(t, 1)
		if err := w.send(g, 10, snapshotOf(t, openStore(t), 10)); err != nil {
			t.Fatal(err)
		}
		holds(t, to, 10)
	})
}

// A frame that goes before its turn takes no turn from others.
func TestAFrameBeforeItsTurnIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(1000, 5*time.Second)
		for i, c := range []struct {
			bytes int
			want  time.Duration
		}{
			{wordBytes + chunkBytes, 0}, // all that may go at once
			{2000, 2 * time.Second},
			{100_000, 5 * time.Second},
			{7000, 2 * time.Second}, // 5000 bytes have become free since
		} {
			start := time.Now()
			if err := p.wait(t.Context(), c.bytes); err != nil {
				t.Fatal(err)
			}
			if took := (time.Since(start) - c.want).Abs(); took > time.Millisecond {
				t.Errorf("frame %d, of %d bytes, waits for %s, want %s", i, c.bytes, time.Since(start), c.want)
			}
		}
	})
}

// A snapshot that waits for its turn ends with the replica that sends it.
func TestWhoWaitsIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g, _ := paced(t, 1<<10)
		content := snapshotOf(t, openStore(t), 10)
		time.AfterFunc(7*time.Second, func() { _ = g.Close() })
		start := time.Now()
		if err := w.send(g, 10, content); !errors.Is(err, raft.ErrTransportShutdown) {
			t.Errorf("it ended with %v", err)
		}
		if took := time.Since(start); took != 7*time.Second {
			t.Errorf("it ended after %v, and its replica after 7s", took)
		}
	})
}

// A replica that is dropped lets go of the snapshot that comes, and of its file, at once: it may be made again.
func TestDroppedReplicaTakesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g, to := paced(t, 1<<10)
		content := snapshotOf(t, openStore(t), 10)
		time.AfterFunc(7*time.Second, func() { _ = w.nodes["b"].group(1).Close() })
		start := time.Now()
		isCode(t, w.send(g, 10, content), proto.ErrUnreachable)
		if took := time.Since(start); took > 13*time.Second { // a frame every 5 s finds out
			t.Errorf("the sender goes on for %v", took)
		}
		a, err := to.Arrive(11, 3, []snap.Item{{Length: 1}})
		if err != nil {
			t.Fatalf("its file is held on to: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}
