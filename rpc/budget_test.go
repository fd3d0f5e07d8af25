package rpc

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// allocated are the bytes that f allocates, garbage included.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// A batch of 3.9 MB of nothing is refused before it is decoded: it took 230 to 280 MB.
func TestManyLargeRequestsTakeNoMemory(t *testing.T) {
	const allocatedMax = 32 << 20 // the text of 4 MB, read into a buffer that grows, and 10,000 elements
	for name, document := range map[string]string{
		"/v1/increment": `{"increments":[{}` + strings.Repeat(",{}", 1_300_000) + `]}`,
		"/v1/bits":      `{"changes":[{}` + strings.Repeat(",{}", 1_300_000) + `]}`,
		"/v1/ask":       `{"questions":[{}` + strings.Repeat(",{}", 1_300_000) + `]}`,
		"/v1/delete":    `{"keys":[""` + strings.Repeat(`,""`, 1_300_000) + `]}`,
		"/v1/tokens":    `{"grants":[{}` + strings.Repeat(",{}", 1_300_000) + `]}`,
		"/v1/query":     `{"plan":{"overlap":{"sets":[{}` + strings.Repeat(",{}", 1_300_000) + `]}}}`,
	} {
		h := NewHTTP((&fake{}).services())
		w := httptest.NewRecorder()
		took := allocated(func() { h.ServeHTTP(w, jsonRequest("POST", name, strings.NewReader(document))) })
		if w.Code != 413 && w.Code != 400 || !strings.Contains(w.Body.String(), "limit") {
			t.Errorf("%s: %d: %s", name, w.Code, w.Body)
		}
		t.Logf("%s: %d bytes took %d", name, len(document), took)
		if took > allocatedMax {
			t.Errorf("%s: %d bytes took %d: the limit is %d", name, len(document), took, allocatedMax)
		}
	}
	conn := serve(t, (&fake{}).services())
	raw := bytes.Repeat([]byte{2<<3 | 2, 0}, 1_900_000)
	req := new(ebbv1.TableRequest) // bytes that it does not know travel as they are
	req.ProtoReflect().SetUnknown(raw)
	var err error
	took := allocated(func() {
		err = conn.Invoke(t.Context(), ebbv1grpc.Ebb_Increment_FullMethodName, req, new(ebbv1.IncrementResponse))
	})
	if err := ebbv1grpc.FromStatus(err); !proto.AsError(err).Is(proto.ErrBatchTooLarge) {
		t.Errorf("got %v", err)
	}
	t.Logf("gRPC: %d bytes took %d, with those of the client", len(raw), took)
	if took > allocatedMax {
		t.Errorf("%d bytes took %d: the limit is %d", len(raw), took, allocatedMax)
	}
}

// heldBody gives what a body begins with, and then nothing until it is let go.
type heldBody struct {
	start   *bytes.Reader
	waits   func()
	release chan struct{}
}

func (b *heldBody) Read(p []byte) (int, error) {
	if b.start.Len() > 0 {
		return b.start.Read(p)
	}
	b.waits()
	<-b.release
	return 0, io.ErrUnexpectedEOF
}

// Bodies that are held open at the HTTP doors take their share of the budget together, and not a body each.
func TestBodiesShareABudget(t *testing.T) {
	s := (&fake{}).services()
	s.Budget = NewBudget(512<<20, nil)
	h := NewHTTP(s)
	const bodies, size = 100, proto.MessageBytesMax - 1
	start := make([]byte, size)
	release := make(chan struct{})
	var waiting, refused atomic.Int32
	var wg sync.WaitGroup
	runtime.GC()
	var before, during runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range bodies {
		wg.Go(func() {
			target, content := "/v1/increment", "application/json"
			if i%2 == 1 {
				target, content = "/incr", "application/x-www-form-urlencoded"
			}
			held := &heldBody{bytes.NewReader(start), func() { waiting.Add(1) }, release}
			r := httptest.NewRequest("POST", target, held)
			r.Header.Set("Content-Type", content)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if said := w.Body.String() + w.Header().Get("Ebb-Error"); strings.Contains(said, "EBB-1004") {
				refused.Add(1)
				if w.Header().Get("Retry-After") == "" {
					t.Error("who is refused is not told when to come again")
				}
			}
		})
	}
	await(t, func() bool { return waiting.Load()+refused.Load() == bodies })
	runtime.GC()
	runtime.ReadMemStats(&during)
	took := int64(during.HeapAlloc) - int64(before.HeapAlloc)
	used := s.Budget.used.Load()
	t.Logf("%d bodies are held, %d are refused: %d bytes of heap, %d charged", waiting.Load(), refused.Load(), took, used)
	if used > s.Budget.arrivals || refused.Load() == 0 {
		t.Errorf("%d bytes are charged, of %d that may arrive; %d are refused", used, s.Budget.arrivals, refused.Load())
	}
	if most := s.Budget.limit; took > most {
		t.Errorf("they take %d bytes of heap: the limit is %d", took, most)
	}
	close(release)
	wg.Wait()
	if used, arriving := s.Budget.used.Load(), s.Budget.overHTTP.Load(); used != 0 || arriving != 0 {
		t.Errorf("%d bytes are charged for nothing, %d of them arrive", used, arriving)
	}
}

// await polls until done, for a minute at most.
func await(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

// Messages that arrive over gRPC, in frames of any size, take their share together. A request that is ended for it gets
// OVERLOADED, and small requests of others get through all the time.
func TestMessagesShareABudget(t *testing.T) {
	s := (&fake{}).services()
	s.Budget = NewBudget(512<<20, nil)
	const conns, streams, size = 4, 24, proto.MessageBytesMax - 1
	honest := ebbv1grpc.NewEbbClient(serve(t, s))
	var wg sync.WaitGroup
	var most atomic.Int64
	var refused atomic.Int32
	over := make(chan struct{})
	for range conns {
		client := rawHTTP2(t, s)
		for range streams {
			wg.Go(func() {
				body, send := io.Pipe()
				go func() {
					defer send.Close()
					_, err := send.Write(binary.BigEndian.AppendUint32([]byte{0}, size+1))
					for sent := 0; err == nil && sent < size; sent += 16 << 10 {
						_, err = send.Write(make([]byte, min(16<<10, size-sent)))
						used := s.Budget.used.Load()
						for m := most.Load(); used > m && !most.CompareAndSwap(m, used); m = most.Load() {
						}
					}
					if err == nil {
						<-over // the last byte does not come
					}
				}()
				resp, err := client.Do(grpcRequest(t, ebbv1grpc.Ebb_Increment_FullMethodName, body))
				if err != nil {
					return // the connection was told off while it sent
				}
				defer resp.Body.Close()
				_, _ = io.Copy(io.Discard, resp.Body)
				said := resp.Header.Get("Grpc-Message") + resp.Trailer.Get("Grpc-Message")
				if strings.Contains(said, "EBB-1004") {
					refused.Add(1)
				}
			})
		}
	}
	one := &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}}}
	for range 100 {
		_, err := honest.Increment(t.Context(), one)
		if err != nil && !proto.AsError(ebbv1grpc.FromStatus(err)).Is(proto.ErrOverloaded) {
			t.Errorf("an honest caller: %v", err)
		}
	}
	await(t, func() bool { return s.Budget.ended.Load() > 0 })
	close(over)
	wg.Wait()
	ended := s.Budget.ended.Load()
	t.Logf("at most %d bytes were charged; %d requests were ended, %d heard it", most.Load(), ended, refused.Load())
	if most.Load() > s.Budget.limit {
		t.Errorf("%d bytes were charged: the limit is %d", most.Load(), s.Budget.limit)
	}
	if refused.Load() == 0 {
		t.Error("none that was ended hears why")
	}
	await(t, func() bool { return s.Budget.used.Load() == 0 && s.Budget.overGRPC.Load() == 0 })
}

// However the bytes of a connection come apart, the same DATA is found in them.
func TestFramesInPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	stream := make([]byte, prefaceLen)
	want := int64(0)
	for range 500 {
		size, kind := r.IntN(300), byte(r.IntN(3))
		if kind == 0 {
			want += int64(size) + frameBytes
		}
		stream = append(stream, byte(size>>16), byte(size>>8), byte(size), kind, 0, 0, 0, 0, 1)
		stream = append(stream, make([]byte, size)...)
	}
	for range 50 {
		f, got := frames{left: prefaceLen}, int64(0)
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+r.IntN(40))
			got += f.read(rest[:n])
			rest = rest[n:]
		}
		if got != want {
			t.Fatalf("%d bytes of DATA are found in %d", got, want)
		}
	}
}

// Whatever requests begin, arrive, end and are refused, in any order, the budget is charged with what the connection
// holds, with no less than what has arrived of requests that arrive, and with nothing when there are none.
func TestGenerationsGiveBackWhatTheyTake(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := NewBudget(0, nil)
		c := &meteredConn{budget: b}
		b.enter(c)
		var all []*receipt
		bytes := make(map[*receipt]int64)
		for range 300 {
			switch i := r.IntN(6); {
			case i == 0 || len(all) == 0:
				one := &receipt{budget: b}
				c.begin(one)
				all = append(all, one)
			case i == 1:
				k := r.IntN(len(all))
				c.end(all[k])
				delete(bytes, all[k])
				all = append(all[:k], all[k+1:]...)
			case i == 2 && r.IntN(20) == 0:
				c.refuse() // they end one by one
			default:
				n := int64(r.IntN(50_000))
				c.count(n)
				bytes[all[r.IntN(len(all))]] += n
			}
			least := int64(len(all)) * receiptBytes
			for _, n := range bytes {
				least += n
			}
			if got := b.used.Load(); got < least || got != b.overGRPC.Load() || got != c.held.Load() {
				t.Fatalf("seed %d: %d bytes are charged, and %d have come", seed, got, least)
			}
		}
		for _, one := range all {
			c.end(one)
			c.end(one)
		}
		if got := b.used.Load() + b.ending.Load(); got != 0 {
			t.Fatalf("seed %d: %d bytes are charged for nothing", seed, got)
		}
	}
}

// A second message of a request that has one is not decoded.
func TestOneMessageARequest(t *testing.T) {
	s := (&fake{}).services()
	one, err := protobuf.Marshal(&ebbv1.IncrementRequest{Namespace: "a"})
	if err != nil {
		t.Fatal(err)
	}
	framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(one))), one...)
	twice := bytes.NewReader(append(framed, framed...))
	resp, err := rawHTTP2(t, s).Do(grpcRequest(t, ebbv1grpc.Ebb_Increment_FullMethodName, twice))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	got := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status")
	if got == "0" || resp.StatusCode != http.StatusOK {
		t.Errorf("status %q", got)
	}
}

// Requests get an eighth of the memory of a process, within bounds.
func TestBudgetFollowsTheMemoryLimit(t *testing.T) {
	for limit, want := range map[int64]int64{
		0: 256 << 20, 100 << 20: 64 << 20, 512 << 20: 64 << 20, 4 << 30: 512 << 20, 1 << 40: 1 << 30,
	} {
		if b := NewBudget(limit, nil); b.limit != want || b.arrivals != want/8*3 {
			t.Errorf("of %d bytes requests get %d, and %d arrive: they should get %d", limit, b.limit, b.arrivals, want)
		}
	}
}
