package rpc

import (
	"bytes"
	"io"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// beginner begins requests on a connection of its own.
type beginner struct {
	*http2.Framer
	next uint32
}

func (b *beginner) begin(message []byte) error {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", ebbv1grpc.Ebb_Increment_FullMethodName},
		{":authority", "ebb-0"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	stream := b.next
	b.next += 2
	err := b.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	if err == nil && message != nil {
		err = b.WriteData(stream, false, message)
	}
	return err
}

// A connection that only begins requests gets its share of the budget. Beyond it requests are refused without a
// goroutine, and none that arrives elsewhere is ended for them. In the end the connection is cut off. One that sends
// messages is not.
func TestFloodOfHeaders(t *testing.T) {
	s := (&fake{}).services()
	s.Budget = NewBudget(512<<20, nil)
	s.Budget.arrivals = 64 * receiptBytes
	l := bufconn.Listen(1 << 20)
	srv := NewGRPC(s)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	dial := func(closed func()) *beginner {
		t.Helper()
		conn, err := l.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		f := http2.NewFramer(conn, conn)
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			closed()
		}()
		return &beginner{f, 1}
	}

	const floods = 4
	ended := make(chan struct{})
	waits := dial(func() { close(ended) }) // begins one request, and waits
	if err := waits.begin(nil); err != nil {
		t.Fatal(err)
	}
	honest := ebbv1grpc.NewEbbClient(serveOn(t, srv))
	one := &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}}}
	ask := func() {
		t.Helper()
		if _, err := honest.Increment(t.Context(), one); err != nil {
			t.Errorf("an honest caller: %v", err)
		}
	}
	ask()
	for range floods {
		closed := make(chan struct{})
		b := dial(func() { close(closed) })
		for i := 0; ; i++ {
			if err := b.begin(nil); err != nil {
				break // cut off
			}
			if i > 100_000 {
				t.Fatal("a connection that sends no message is not cut off")
			}
		}
		<-closed
		ask()
	}
	if n := s.Budget.cutOff.Load(); n != floods {
		t.Errorf("%d connections were cut off: it should be %d", n, floods)
	}
	select {
	case <-ended:
		t.Error("the connection with one request was closed")
	default:
	}

	// With a byte of a message between them, as many are refused without an end.
	s.Budget.overGRPC.Add(s.Budget.arrivals)
	defer s.Budget.overGRPC.Add(-s.Budget.arrivals)
	b := dial(func() {})
	for range 5 * unreadMax {
		if err := b.begin([]byte{0}); err != nil {
			t.Fatalf("a connection that sends messages is closed: %v", err)
		}
	}
	if n := s.Budget.cutOff.Load(); n != floods {
		t.Errorf("%d connections were cut off: it should be %d", n, floods)
	}
}
