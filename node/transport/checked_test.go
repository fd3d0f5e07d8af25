package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
)

// spoiler is a network's connection on which a bit of what is sent is inverted, counted from its first byte.
type spoiler struct {
	net.Conn
	mu   sync.Mutex
	sent int
	bit  int // -1: none
}

func (s *spoiler) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p = bytes.Clone(p)
	if at := s.bit/8 - s.sent; s.bit >= 0 && at >= 0 && at < len(p) {
		p[at] ^= 1 << (s.bit % 8)
	}
	s.sent += len(p)
	return s.Conn.Write(p)
}

// spoiled is both ends of a connection; what one of them sends is damaged in a bit.
func spoiled(t *testing.T, askerBit, answererBit int) (asker, answerer net.Conn) {
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return &spoiler{Conn: a, bit: askerBit}, &spoiler{Conn: b, bit: answererBit}
}

func quietChecks() *Checks { return NewChecks(slog.New(slog.DiscardHandler)) }

// exchange is the result of a handshake and of the bytes that the client then sends.
type exchange struct {
	client, server error
	received       []byte
	damaged        uint64
}

// runExchange opens a checked connection, says said in pieces, and damages a bit of what one of the ends sends.
func runExchange(t *testing.T, askerBit, answererBit int, said ...[]byte) (m exchange) {
	checks := quietChecks()
	a, b := spoiled(t, askerBit, answererBit)
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := checks.accept(b)
		if m.server = err; err == nil {
			m.received, m.server = io.ReadAll(conn)
		}
		_ = b.Close()
	})
	redialled := false
	conn, err := checks.Dial(t.Context(), func(context.Context) (net.Conn, error) {
		if redialled {
			t.Fatal("damage was taken for an older build")
		}
		redialled = true
		return a, nil
	})
	m.client = err
	for _, piece := range said {
		if m.client == nil {
			_, m.client = conn.Write(piece)
		}
	}
	_ = a.Close()
	wg.Wait()
	m.damaged = checks.Damaged()
	return m
}

func TestCheckedConnection(t *testing.T) {
	said := [][]byte{[]byte("a"), bytes.Repeat([]byte("entries "), 100_000), []byte("z")}
	m := runExchange(t, -1, -1, said...)
	if m.client != nil || m.server != nil || !bytes.Equal(m.received, bytes.Join(said, nil)) || m.damaged != 0 {
		t.Fatalf("%v, %v, %d damaged, %d bytes", m.client, m.server, m.damaged, len(m.received))
	}
}

// Each bit of a greeting, a record's head and its payload is inverted, one at a time. Nothing that was damaged is
// handed on, and no side waits.
func TestEveryInvertedBitIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := []byte("one entry of a log"), []byte("another")
		first := 8 * (len(checkedPreface) + recordHead + len(one))
		for bit := range 8 * (len(checkedPreface) + 2*recordHead + len(one) + len(two)) {
			m := runExchange(t, bit, -1, one, two)
			whole := []byte(nil)
			if bit >= first {
				whole = one
			}
			if m.server == nil || !bytes.Equal(m.received, whole) {
				t.Fatalf("bit %d: %q was handed on, and %v", bit, m.received, m.server)
			}
			if greeting := bit < 8*len(checkedPreface); (m.damaged == 0) != greeting {
				t.Fatalf("bit %d: %d damages were counted", bit, m.damaged)
			}
		}
		for bit := range 8 * len(checkedPreface) {
			if m := runExchange(t, -1, bit, one); m.client == nil || len(m.received) > 0 {
				t.Fatalf("bit %d of the answer: %q was handed on, and %v", bit, m.received, m.client)
			}
		}
	})
}

// checkedWorld is two nodes whose servers hear nodes that check. Node a damages a bit of what it sends on some
// connections.
func checkedWorld(t *testing.T, server func(*Checks) []grpc.ServerOption, checks *Checks, bit func(dial int) int) *world {
	w := &world{t: t, net: newNetwork(), nodes: map[string]*testNode{}, names: []string{"a", "b"}, server: server(checks)}
	var mu sync.Mutex
	dials := 0
	for _, name := range w.names {
		raw := w.net.dialer(name)
		w.start(name, func(c *Config) {
			c.Dial = func(ctx context.Context, node string) (net.Conn, error) {
				return checks.Dial(ctx, func(ctx context.Context) (net.Conn, error) {
					conn, err := raw(ctx, node)
					mu.Lock()
					defer mu.Unlock()
					dials++
					return &spoiler{Conn: conn, bit: bit(dials)}, err
				})
			}
		})
	}
	t.Cleanup(w.close)
	return w
}

func checking(c *Checks) []grpc.ServerOption { return []grpc.ServerOption{grpc.Creds(c.Credentials())} }

// Sessions whose connections are damaged, wherever it is, end, and the next one brings what was asked: no entry arrives
// with another bit.
func TestDamagedSessionsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := quietChecks()
		const damaged = 40
		w := checkedWorld(t, checking, checks, func(dial int) int {
			if dial > damaged {
				return -1
			}
			return 8*len(checkedPreface) + 61*dial
		})
		g := w.nodes["a"].Group(1, Address("a", 1))
		to := w.nodes["b"].Group(1, Address("b", 1))
		entry := bytes.Repeat([]byte("what was acknowledged "), 20)
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case rpc := <-to.Consumer():
					if e := rpc.Command.(*raft.AppendEntriesRequest).Entries; len(e) != 1 || !bytes.Equal(e[0].Data, entry) {
						t.Errorf("an entry arrived as %v", e)
					}
					rpc.Respond(echoed(rpc), nil)
				case <-done:
					return
				}
			}
		})
		request := appendOf("a", 1, 1, 0)
		request.Entries[0].Data = entry
		within(t, time.Minute, "an answer", func() bool {
			var resp raft.AppendEntriesResponse
			return g.AppendEntries("", Address("b", 1), request, &resp) == nil
		})
		close(done)
		wg.Wait()
		if checks.Damaged() < damaged/4 {
			t.Errorf("%d damages were counted", checks.Damaged())
		}
	})
}

// Damage names who is at the other end, what was found, and the code of a broken connection.
func TestDamageSaysWhat(t *testing.T) {
	m := runExchange(t, 8*(len(checkedPreface)+recordHead), -1, []byte("entries"))
	isCode(t, m.server, proto.ErrUnreachable)
	for _, words := range []string{"connection with pipe", "a record of 7 bytes has the checksum", "it was damaged on its way"} {
		if !strings.Contains(m.server.Error(), words) {
			t.Errorf("%q does not say %q", m.server, words)
		}
	}
}

// A node of an older build, whose server does not know the preface, gets unchecked connections as before; so does a
// newer one from an older node.
func TestUncheckedPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older := func(*Checks) []grpc.ServerOption { return nil }
		for _, server := range []func(*Checks) []grpc.ServerOption{older, checking} {
			w := checkedWorld(t, server, quietChecks(), func(int) int { return -1 })
			w.start("older", nil) // which asks without
			defer echo(w.nodes["b"].Group(1, Address("b", 1)))()
			for i, name := range []string{"a", "older"} {
				g := w.nodes[name].Group(1, Address(name, uint64(i+2)))
				within(t, 10*time.Second, name+" is answered", func() bool {
					var resp raft.AppendEntriesResponse
					return g.AppendEntries("", Address("b", 1), appendOf(name, i+2, 1, 100), &resp) == nil
				})
			}
			w.close()
		}
	})
}

// FuzzChecked: whatever comes on a connection is refused, or is what records say, and a reader never has more than was
// sent.
func FuzzChecked(f *testing.F) {
	for _, b := range [][]byte{
		[]byte(checkedPreface), []byte(http2Preface + "and a frame"), appendRecord([]byte(checkedPreface), []byte("x")),
		appendRecord(appendRecord([]byte(checkedPreface), []byte("one")), bytes.Repeat([]byte("two"), 100)),
		append([]byte(checkedPreface), make([]byte, recordHead)...), // a record of nothing
		appendRecord([]byte(checkedPreface), []byte("cut"))[:len(checkedPreface)+recordHead+1],
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		conn, err := quietChecks().accept(&said{Reader: bytes.NewReader(raw)})
		if err != nil {
			return
		}
		got, err := io.ReadAll(conn)
		want, whole := raw, true
		if bytes.HasPrefix(raw, []byte(checkedPreface)) {
			want, whole = payloads(raw[len(checkedPreface):])
		}
		if !bytes.Equal(got, want) || (err == nil) != whole {
			t.Fatalf("%q became %q, %v", raw, got, err)
		}
	})
}

// payloads are what the records say that stand there whole, and whether nothing else does.
func payloads(raw []byte) (said []byte, whole bool) {
	for len(raw) > 0 {
		if len(raw) < recordHead {
			return said, false
		}
		n := int(binary.LittleEndian.Uint32(raw))
		if n == 0 || n > min(recordBytesMax, len(raw)-recordHead) || !bytes.Equal(appendRecord(nil, raw[recordHead:recordHead+n]), raw[:recordHead+n]) {
			return said, false
		}
		said, raw = append(said, raw[recordHead:recordHead+n]...), raw[recordHead+n:]
	}
	return said, true
}

// http2Preface is how HTTP/2 begins.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// A client that speaks neither HTTP/2 nor as a node is answered by gRPC, as it always was: by that clients see that
// there is no TLS.
func TestOthersAreAnsweredByGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := checkedWorld(t, checking, quietChecks(), func(int) int { return -1 })
		conn, err := w.net.dial(t.Context(), "c", "b")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(append([]byte{22, 3, 1, 2, 0, 1}, make([]byte, 100)...)); err != nil { // TLS
			t.Fatal(err)
		}
		var answer [settingsHead]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil || answer[3] != settingsKind {
			t.Errorf("%q, %v", answer, err)
		}
	})
}

// said is a connection on which all was said.
type said struct {
	io.Reader
	net.Conn
}

func (s *said) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s *said) Write(p []byte) (int, error) { return len(p), nil }
func (s *said) Close() error                { return nil }
func (s *said) RemoteAddr() net.Addr        { return address("said") }
