package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
)

func openStore(t testing.TB) *snap.Store {
	t.Helper()
	s, err := snap.Open(snap.Config{FS: fs.NewMem(), Dir: "/snap"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// chunked is a state of some chunks. A few of them change from one index to the next.
func chunked(index uint64) (chunks [][]byte) {
	for i := range uint64(600) {
		chunk := make([]byte, 2000+i)
		version := uint64(0)
		if i%50 == 0 {
			version = index
		}
		_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(version)}).Read(chunk)
		chunks = append(chunks, chunk)
	}
	return chunks
}

// snapshotOf returns a snapshot of an index as Raft would be given it.
func snapshotOf(t *testing.T, s *snap.Store, index uint64) *snap.Content {
	t.Helper()
	k, err := s.Create(1, index, 3, configurationOf(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range chunked(index) {
		if _, err := k.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	_, r, err := s.Open(k.ID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r.(*snap.Content)
}

func configurationOf() raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{ID: "12", Address: "b/12"}}}
}

// place is a shelf that decodes nothing.
type place struct {
	*snap.Store
	ready func()
}

func (p place) Arrive(index, term uint64, items []snap.Item) (Arrival, error) {
	a, err := p.Store.Arrive(index, term, items)
	return &placed{a, p.ready}, err
}

type placed struct {
	*snap.Arrival
	ready func()
}

func (p *placed) Ready(context.Context) ([]byte, error) {
	p.ready()
	content, err := p.Whole()
	if err != nil {
		return nil, err
	}
	return p.Arrival.Ready(), content.Close()
}

// installer is a replica on node b whose Raft does with snapshots what Raft does.
func installer(t *testing.T, w *world, to *snap.Store, ready func()) (from *Group) {
	g := w.nodes["b"].Group(1, "b/12")
	g.Receive(place{to, ready})
	t.Cleanup(respond(g, func(rpc raft.RPC) any {
		args, ok := rpc.Command.(*raft.InstallSnapshotRequest)
		if !ok {
			return echoed(rpc)
		}
		k, err := to.Create(1, args.LastLogIndex, args.LastLogTerm, configurationOf(), 1, nil)
		if err != nil {
			t.Error(err)
			return &raft.InstallSnapshotResponse{}
		}
		n, err := io.Copy(k, rpc.Reader)
		if err == nil && n == args.Size {
			err = k.Close()
		} else {
			_ = k.Cancel()
		}
		return &raft.InstallSnapshotResponse{Term: 3, Success: err == nil && n == args.Size}
	}))
	return w.nodes["a"].Group(1, "a/11")
}

func (w *world) send(g *Group, index uint64, c *snap.Content) error {
	var resp raft.InstallSnapshotResponse
	args := &raft.InstallSnapshotRequest{
		RPCHeader: header("a", 11), SnapshotVersion: 1, Term: 3, LastLogIndex: index, LastLogTerm: 3,
		Size: int64(len(bytes.Join(chunked(index), nil))), Configuration: configuration(3),
	}
	if err := g.InstallSnapshot("", "b/12", args, &resp, c); err != nil {
		return err
	}
	if !resp.Success {
		return errors.New("not installed")
	}
	return nil
}

// holds checks what a store has of an index.
func holds(t *testing.T, s *snap.Store, index uint64) {
	t.Helper()
	l, err := s.List()
	if err != nil || len(l) == 0 || l[0].Index != index {
		t.Fatalf("snapshots %v, want one of %d: %v", l, index, err)
	}
	_, r, err := s.Open(l[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, bytes.Join(chunked(index), nil)) {
		t.Fatalf("%d bytes arrived, and others: %v", len(got), err)
	}
}

// Of a snapshot only those chunks travel that the other side does not have, of an older one or of an attempt that broke
// off.
func TestOnlyMissingChunksTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		from, to := openStore(t), openStore(t)
		g := installer(t, w, to, func() {})
		size := func(index uint64) uint64 { return uint64(len(bytes.Join(chunked(index), nil))) }
		install := func(index uint64, fails bool) (sent, skipped uint64) {
			t.Helper()
			before := w.nodes["a"].Installs()
			if err := w.send(g, index, snapshotOf(t, from, index)); (err != nil) != fails {
				t.Fatal(err)
			}
			now := w.nodes["a"].Installs()
			if now.Out != 0 {
				t.Errorf("%d are still under way", now.Out)
			}
			return now.Sent - before.Sent, now.Skipped - before.Skipped
		}
		if sent, skipped := install(10, false); sent != size(10) || skipped != 0 {
			t.Errorf("the first: %d bytes sent, %d skipped", sent, skipped)
		}
		holds(t, to, 10)
		if sent, skipped := install(11, false); sent+skipped != size(11) || sent > size(11)/40 {
			t.Errorf("the second: %d bytes sent, %d skipped, of a 50th that changed", sent, skipped)
		}
		holds(t, to, 11)
	})
}

func TestInstallsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		from, to := openStore(t), openStore(t)
		breaks := true
		g := installer(t, w, to, func() {
			if breaks {
				w.net.reset("b")
				time.Sleep(time.Second)
			}
		})
		content := snapshotOf(t, from, 10)
		if err := w.send(g, 10, content); err == nil {
			t.Fatal("an install that broke off was taken for done")
		}
		time.Sleep(time.Minute) // both sides have noticed
		breaks = false
		before := w.nodes["a"].Installs()
		if err := w.send(g, 10, snapshotOf(t, from, 10)); err != nil {
			t.Fatal(err)
		}
		if now := w.nodes["a"].Installs(); now.Sent != before.Sent || now.Skipped == before.Skipped {
			t.Errorf("%d bytes are sent again, %d not", now.Sent-before.Sent, now.Skipped-before.Skipped)
		}
		holds(t, to, 10)
	})
}

// Raft answers others while a snapshot arrives and is decoded; it is asked to take it when that is done.
func TestRaftIsFreeMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		from, to := openStore(t), openStore(t)
		var g *Group
		var met error
		in := int64(0)
		g = installer(t, w, to, func() {
			time.Sleep(time.Minute) // of decoding
			met, in = heartbeat(g, "b/12"), w.nodes["b"].Installs().In
		})
		if err := w.send(g, 10, snapshotOf(t, from, 10)); err != nil {
			t.Fatal(err)
		}
		if met != nil || in != 1 {
			t.Errorf("a heartbeat meanwhile: %v; %d snapshots arrived", met, in)
		}
		holds(t, to, 10)
	})
}

// A refusal of the other side reaches the sender, and what is wrong on the way never becomes a snapshot.
func TestChunksAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		from, to := openStore(t), openStore(t)
		g := installer(t, w, to, func() {})
		items := []snap.Item{{Hash: snap.HashOf([]byte("x")), Length: 1}}
		busy, err := to.Arrive(1, 1, items)
		if err != nil {
			t.Fatal(err)
		}
		content := snapshotOf(t, from, 10)
		isCode(t, w.send(g, 10, content), proto.ErrOverloaded)
		if err := busy.Close(); err != nil {
			t.Fatal(err)
		}
		isCode(t, installListed(g, &liar{items: items}), proto.ErrCorrupt)
		if l, err := to.List(); len(l) > 0 || err != nil {
			t.Fatal(l, err)
		}
		if err := w.send(g, 11, snapshotOf(t, from, 11)); err != nil {
			t.Fatal(err)
		}
		holds(t, to, 11)
	})
}

func installListed(g *Group, data io.Reader) error {
	args := &raft.InstallSnapshotRequest{RPCHeader: header("a", 11), SnapshotVersion: 1, Term: 3, LastLogIndex: 5, LastLogTerm: 3, Size: 1, Configuration: configuration(3)}
	return g.InstallSnapshot("", "b/12", args, &raft.InstallSnapshotResponse{}, data)
}

// liar lists one chunk and sends another.
type liar struct {
	io.Reader
	items []snap.Item
}

func (l *liar) Items() []snap.Item    { return l.items }
func (l *liar) Next() ([]byte, error) { return []byte("y"), nil }
func (l *liar) Skip() error           { return nil }

// A group that has no shelf gives Raft all chunks, in order.
func TestChunksWithoutShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		var got []byte
		g := receiver(t, w, func(r io.Reader) (err error) {
			got, err = io.ReadAll(r)
			return err
		})
		if err := w.send(g, 10, snapshotOf(t, openStore(t), 10)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, bytes.Join(chunked(10), nil)) {
			t.Errorf("%d bytes, and others", len(got))
		}
	})
}

func TestListsAndWants(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 1000, 3*chunkBytes/itemBytesMax + 1, 200_000} {
		for _, share := range []float64{0, 0.5, 0.999, 1} {
			items, has := make([]snap.Item, n), make([]bool, n)
			for i := range items {
				items[i] = snap.Item{Hash: snap.HashOf(fmt.Append(nil, i)), Length: rng.Uint32()}
				has[i] = rng.Float64() < share
			}
			var back []snap.Item
			for left, more := items, true; more; {
				b, n := appendList(nil, left)
				var err error
				if back, more, err = decodeList(only(t, b, kindList), back); err != nil || more != (n < len(left)) || len(b) > FrameBytesMax {
					t.Fatal(n, more, err)
				}
				left = left[n:]
			}
			at := 0
			for from, more := 0, true; more; {
				b, end := appendWant(nil, from, n, func(i int) bool { return has[i] })
				got, again, err := decodeWant(only(t, b, kindWant), from, n, func(wanted bool, run int) error {
					for range run {
						if has[at] == wanted || back[at] != items[at] {
							t.Fatalf("item %d of %d", at, n)
						}
						at++
					}
					return nil
				})
				if err != nil || got != end || len(b) > FrameBytesMax {
					t.Fatal(err, got, end)
				}
				from, more = end, again
			}
			if at != n || len(back) != n {
				t.Fatalf("%d of %d items, %d are spoken of", len(back), n, at)
			}
		}
	}
}

// A list that ends within an item is refused.
func TestListThatIsCut(t *testing.T) {
	b, _ := appendList(nil, []snap.Item{{Length: 1000}, {Length: 1000}})
	payload := only(t, b, kindList)
	whole := map[int]int{1: 0, 23: 1, 45: 2} // items, by bytes
	for n := range len(payload) + 1 {
		items, _, err := decodeList(payload[:n], nil)
		if want, ok := whole[n]; ok != (err == nil) || len(items) != want {
			t.Errorf("%d of %d bytes: %d items, %v", n, len(payload), len(items), err)
		}
	}
}

// spoken is a stream on which these messages come.
type spoken struct {
	grpc.ClientStream
	messages [][]byte
}

func (s *spoken) RecvMsg(m any) error {
	if len(s.messages) == 0 {
		return io.EOF
	}
	*m.(*frame) = *frameOf(s.messages[0])
	s.messages = s.messages[1:]
	return nil
}

// The sender of a snapshot learns, behind a welcome, what is wanted, or why nothing is. It takes nothing else for that.
func TestSenderTakesOnlyWants(t *testing.T) {
	var w welcome
	hi := w.append(nil)
	want, _ := appendWant(nil, 0, 2, func(int) bool { return false })
	answer := func(err error) []byte {
		return appendAnswer(nil, "b", 1, kindInstall, &raft.InstallSnapshotResponse{Success: true}, err)
	}
	for name, c := range map[string]struct {
		said [][]byte
		want error
	}{
		"what is wanted":            {[][]byte{want}, nil},
		"behind a welcome":          {[][]byte{hi, want}, nil},
		"a refusal":                 {[][]byte{hi, answer(proto.ErrOverloaded.Errorf("busy"))}, proto.ErrOverloaded},
		"it is done without chunks": {[][]byte{hi, answer(nil)}, errMalformed},
		"a message of another kind": {[][]byte{hi, appendEnd(nil, 5)}, errMalformed},
		"no message":                {[][]byte{{1}}, errMalformed},
		"nothing":                   {[][]byte{hi}, proto.ErrUnreachable},
	} {
		o := &outgoing{session: &session{peer: &peer{node: "b"}}, stream: &spoken{messages: c.said}}
		if got, err := o.receive(kindWant); !errors.Is(err, c.want) || (got != nil) != (c.want == nil) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
	}
}

// counted is a stream that counts what is sent, and fails after so many.
type counted struct {
	grpc.ServerStream
	sent, most int
}

func (s *counted) SendMsg(any) error {
	if s.sent++; s.sent > s.most {
		return io.ErrClosedPipe
	}
	return nil
}

// What is wanted is said to the end, or until that fails.
func TestAllThatIsWantedIsSaid(t *testing.T) {
	for most, want := range map[int]error{3: nil, 2: io.ErrClosedPipe} {
		s := &counted{most: most}
		err := (&arriving{stream: s}).ask(600_000, func(i int) bool { return i%2 == 0 })
		if !errors.Is(err, want) || s.sent != 3 {
			t.Errorf("%d frames, of which %d can be sent: %v", s.sent, most, err)
		}
	}
}

// A frame of a listed snapshot holds one message, of whole chunks or the end.
func TestFramesOfChunks(t *testing.T) {
	end := appendEnd(nil, 0)
	for name, b := range map[string][]byte{
		"two messages":      appendEnd(end, 0),
		"less than one":     {1},
		"of another kind":   finish([]byte{0, 0, 0, 0}, 0, kindPing),
		"an end too early":  nil,
		"chunks not wanted": finish([]byte{0, 0, 0, 0, 7}, 0, kindChunk),
	} {
		var wanted []uint32
		if b == nil {
			b, wanted = end, []uint32{5}
		}
		if _, done, err := new(arriving).put(nil, wanted, frameOf(b)); err == nil || done {
			t.Errorf("%s: done %v, %v", name, done, err)
		}
	}
	if left, done, err := new(arriving).put(nil, nil, frameOf(end)); err != nil || !done || len(left) > 0 {
		t.Errorf("the end: %v, %v, %v", left, done, err)
	}
}

// Runs that do not fit into a frame go in several.
func TestWantsOfManyFrames(t *testing.T) {
	const n = 600_000
	has := func(i int) bool { return i%2 == 0 } // a byte for each
	at, frames := 0, 0
	for more := true; more; frames++ {
		b, end := appendWant(nil, at, n, has)
		if len(b) > chunkBytes || end < n && len(b) < chunkBytes-2*runBytesMax {
			t.Fatalf("frame %d has %d bytes", frames, len(b))
		}
		next := at
		got, again, err := decodeWant(only(t, b, kindWant), at, n, func(wanted bool, run int) error {
			for range run {
				if has(next) == wanted {
					t.Fatalf("item %d", next)
				}
				next++
			}
			return nil
		})
		if err != nil || got != end || next != end || again != (end < n) {
			t.Fatalf("frame %d: to %d of %d, more %v: %v", frames, got, end, again, err)
		}
		at, more = end, again
	}
	if at != n || frames != 3 {
		t.Errorf("%d of %d items in %d frames", at, n, frames)
	}
}

// FuzzLists: lists and wants of any bytes are refused, or say no more than they have room for.
func FuzzLists(f *testing.F) {
	list, _ := appendList(nil, []snap.Item{{Hash: snap.HashOf([]byte("x")), Length: 1}, {Length: 1 << 20}})
	want, _ := appendWant(nil, 3, 40, func(i int) bool { return i%7 > 2 })
	f.Add(list[wordBytes:])
	f.Add(want[wordBytes:])
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if items, _, err := decodeList(payload, nil); err == nil && len(items)*(len(snap.Hash{})+1) > len(payload) {
			t.Errorf("%d items of %d bytes", len(items), len(payload))
		}
		sum := 0
		if end, more, err := decodeWant(payload, 3, 40, func(_ bool, n int) error { sum += n; return nil }); err == nil && (end != 3+sum || more == (end == 40)) {
			t.Errorf("runs of %d items from 3 end at %d", sum, end)
		}
	})
}
