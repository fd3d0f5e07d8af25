package transport

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
)

func install(g *Group, to raft.ServerAddress, data io.Reader, size int64) error {
	var resp raft.InstallSnapshotResponse
	args := &raft.InstallSnapshotRequest{RPCHeader: header("a", 11), SnapshotVersion: 1, Term: 3, Size: size, Configuration: configuration(3)}
	if err := g.InstallSnapshot("", to, args, &resp, data); err != nil {
		return err
	}
	if !resp.Success {
		return errors.New("not installed")
	}
	return nil
}

// receiver answers snapshots with f, which reads them.
func receiver(t *testing.T, w *world, f func(r io.Reader) error) *Group {
	g := w.nodes["b"].Group(1, "b/12")
	t.Cleanup(respond(g, func(rpc raft.RPC) any {
		if rpc.Reader == nil {
			return echoed(rpc)
		}
		return &raft.InstallSnapshotResponse{Success: f(rpc.Reader) == nil}
	}))
	return w.nodes["a"].Group(1, "a/11")
}

func TestSnapshotsArriveWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		var h hash.Hash
		g := receiver(t, w, func(r io.Reader) error {
			h = sha256.New()
			_, err := io.Copy(h, iotest.HalfReader(r))
			return err
		})
		for _, size := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3*chunkBytes + 7, 5 << 20} {
			data := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(data)
			if err := install(g, "b/12", iotest.OneByteReader(bytes.NewReader(data[:min(size, 5000)])), int64(min(size, 5000))); err != nil {
				t.Fatalf("%d bytes one by one: %v", size, err)
			}
			if err := install(g, "b/12", bytes.NewReader(data), int64(size)); err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if want := sha256.Sum256(data); !bytes.Equal(h.Sum(nil), want[:]) {
				t.Errorf("%d bytes arrived as others", size)
			}
		}
	})
}

// A sender that fails in the middle must not look like one that is done.
func TestBrokenSnapshotIsNotTakenForWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		outcome := make(chan error, 1)
		g := receiver(t, w, func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			outcome <- err
			return err
		})
		boom := errors.New("disk on fire")
		err := install(g, "b/12", io.MultiReader(io.LimitReader(slowly(10*time.Millisecond), 4<<20), iotest.ErrReader(boom)), 8<<20)
		if !errors.Is(err, boom) {
			t.Errorf("the sender got %v", err)
		}
		if err := <-outcome; err == nil {
			t.Error("the receiver took half a snapshot for a whole one")
		}
		time.AfterFunc(50*time.Millisecond, func() { w.net.reset("b") })
		if err := install(g, "b/12", slowly(10*time.Millisecond), 1<<30); err == nil {
			t.Error("the sender took a broken connection for success")
		}
		if err := <-outcome; err == nil {
			t.Error("the receiver took a broken connection for the end")
		}
	})
}

// slowly is an endless reader that waits before each read.
type slowly time.Duration

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(time.Duration(s))
	return len(p), nil
}

// A snapshot may take any time as long as it moves, and fails soon when it does not.
func TestSnapshotDeadlineIsForProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		var pause atomic.Int64
		g := receiver(t, w, func(r io.Reader) error {
			buf := make([]byte, chunkBytes)
			for {
				time.Sleep(time.Duration(pause.Load()))
				if _, err := io.ReadFull(r, buf); err != nil {
					if errors.Is(err, io.EOF) {
						err = nil
					}
					return err
				}
			}
		})
		pause.Store(int64(2 * time.Second))
		start := time.Now()
		if err := install(g, "b/12", io.LimitReader(zeros{}, 20*chunkBytes), 20*chunkBytes); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 40*time.Second {
			t.Fatalf("it took %s only", d)
		}
		pause.Store(int64(time.Minute))
		start = time.Now()
		isCode(t, install(g, "b/12", zeros{}, 1<<40), proto.ErrDeadline)
		if d := time.Since(start); d > 2*w.nodes["a"].cfg.ChunkTimeout {
			t.Errorf("a stalled snapshot failed after %s", d)
		}
		time.Sleep(2 * time.Minute) // the receiver is done with it
	})
}

// A snapshot whose session is given up says why.
func TestSnapshotOfALostSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		release := make(chan struct{})
		defer close(release)
		g := receiver(t, w, func(r io.Reader) error {
			<-release
			_, err := io.Copy(io.Discard, r)
			return err
		})
		errs := make(chan error, 1)
		go func() { errs <- install(g, "b/12", zeros{}, 1<<40) }()
		time.Sleep(time.Second)
		w.net.isolate("b", true, "a")
		start := time.Now()
		err := <-errs
		isCode(t, err, proto.ErrUnreachable)
		cfg := w.nodes["a"].cfg
		if d := time.Since(start); d > cfg.PingTimeout+2*cfg.PingInterval || !strings.Contains(err.Error(), "silent") {
			t.Errorf("after %s: %v", d, err)
		}
	})
}

// The request of a snapshot comes behind the whole list, and nothing else in its place.
func TestHeadOfASnapshot(t *testing.T) {
	args := &raft.InstallSnapshotRequest{
		RPCHeader: header("a", 11), SnapshotVersion: 1, Configuration: configuration(3),
	}
	payload := only(t, appendRequest(nil, "a", envelope{group: 1, replica: 12}, args), kindInstall)
	for _, c := range []struct {
		k    kind
		more bool
		want error
	}{
		{kindInstall, false, nil},
		{kindInstall, true, errMalformed},
		{kindChunk, false, errMalformed},
		{kindVote, true, errMalformed},
	} {
		st := started{listed: c.more, more: c.more}
		if err := st.request(c.k, payload); !errors.Is(err, c.want) || (st.command != nil) != (c.want == nil) {
			t.Errorf("kind %d, more of the list is to come: %v: got %v", c.k, c.more, err)
		}
	}
}

// A receiver is not held up by a sender that stalls: its Raft could not even
// answer heartbeats.
func TestStalledSenderIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) {
			if c.Node == "a" {
				c.ChunkTimeout = time.Hour
			}
		}, "a", "b")
		held := make(chan time.Duration, 1)
		g := receiver(t, w, func(r io.Reader) error {
			start := time.Now()
			_, err := io.Copy(io.Discard, r)
			held <- time.Since(start)
			return err
		})
		if err := install(g, "b/12", slowly(20*time.Minute), 1<<40); err == nil {
			t.Error("a snapshot that never ended was installed")
		}
		if d := <-held; d > w.nodes["b"].cfg.ChunkTimeout+time.Second {
			t.Errorf("Raft was held for %s", d)
		}
	})
}

// A snapshot stream buffers a bounded part of the snapshot, however slow the receiver.
func TestSnapshotBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		release := make(chan struct{})
		g := receiver(t, w, func(r io.Reader) error {
			<-release
			_, err := io.Copy(io.Discard, r)
			return err
		})
		sent := &counter{r: io.LimitReader(zeros{}, 64<<20)}
		errs := make(chan error, 1)
		go func() { errs <- install(g, "b/12", sent, 64<<20) }()
		time.Sleep(5 * time.Second)
		if n := sent.n.Load(); n > 4<<20 {
			t.Errorf("%d bytes were read ahead of the receiver", n)
		}
		if err := heartbeat(g, "b/12"); !errors.Is(err, proto.ErrDeadline) {
			t.Errorf("a heartbeat to a raft that reads a snapshot: %v", err)
		}
		for range 3 { // other groups go on
			id := Address("b", 77)
			stop := echo(w.nodes["b"].Group(7, id))
			if err := appendTo(w.nodes["a"].Group(7, "a/71"), id, 1000); err != nil {
				t.Error(err)
			}
			stop()
		}
		close(release)
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	})
}

type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func TestFewSnapshotsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		release := make(chan struct{})
		errs := make(chan error, 3)
		for i := range 3 {
			id := uint32(i + 1)
			b := w.nodes["b"].Group(id, Address("b", uint64(id)))
			t.Cleanup(respond(b, func(rpc raft.RPC) any {
				<-release
				return echoed(rpc)
			}))
			g := w.nodes["a"].Group(id, Address("a", uint64(id)))
			go func() { errs <- install(g, Address("b", uint64(id)), strings.NewReader("snap"), 4) }()
		}
		isCode(t, <-errs, proto.ErrOverloaded)
		close(release)
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// An install that is done is reported as done, even if its replica is closed or
// the session ends before the answer is on its way.
func TestInstallThatIsDoneIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		g := w.nodes["b"].Group(1, "b/12")
		_ = g.Close()
		over := &incoming{done: make(chan struct{})}
		close(over.done)
		for range 100 { // each would be a toss of the dice
			s := &lastWords{ctx: t.Context()}
			a := &arriving{mux: w.nodes["b"].Mux, stream: s}
			responses := make(chan raft.RPCResponse, 1)
			responses <- raft.RPCResponse{Response: &raft.InstallSnapshotResponse{Term: 3, Success: true}}
			if err := a.conclude(g, over, 7, responses); err != nil {
				t.Fatal(err)
			}
			var resp raft.InstallSnapshotResponse
			if err := decodeAnswer(only(t, s.said, kindAnswer), "b", kindInstall, &resp); err != nil || !resp.Success {
				t.Fatalf("the sender hears %+v, %v", resp, err)
			}
		}
		// Without an answer it hears that the replica is closed.
		s := &lastWords{ctx: t.Context()}
		a := &arriving{mux: w.nodes["b"].Mux, stream: s}
		if err := a.conclude(g, &incoming{done: make(chan struct{})}, 7, nil); err != nil {
			t.Fatal(err)
		}
		isCode(t, decodeAnswer(only(t, s.said, kindAnswer), "b", kindInstall, &raft.InstallSnapshotResponse{}), proto.ErrUnreachable)
	})
}

// lastWords is a stream that keeps what was sent last.
type lastWords struct {
	grpc.ServerStream
	ctx  context.Context
	said []byte
}

func (s *lastWords) Context() context.Context { return s.ctx }

func (s *lastWords) SendMsg(m any) error {
	s.said = bytes.Clone(m.(*frame).body)
	return nil
}
