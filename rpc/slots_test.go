package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/internal/cores"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// batchAsSent makes a batch as a message, a document and a form.
func batchAsSent(t *testing.T, n int) (message []byte, document, form string) {
	t.Helper()
	req := &ebbv1.IncrementRequest{}
	var elements []string
	form = "distribution=k"
	for range n {
		one := &ebbv1.Increment{Key: []byte("k"), Bin: []byte("a bin of several words")}
		req.Increments = append(req.Increments, one)
		elements = append(elements, `{"key":"k","bin":"a bin of several words"}`)
		form += "&field=a+bin+of+several+words"
	}
	message, err := protobuf.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return message, fmt.Sprintf(`{"increments":[%s]}`, strings.Join(elements, ",")), form
}

// takeSlots takes all slots, and returns what gives each back.
func takeSlots(t *testing.T, b *Budget) (taken []func()) {
	t.Helper()
	for b.slots.Used()+slotBytes <= b.slots.Size() {
		done, err := b.slot(t.Context(), slotFree+1)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, done)
	}
	return taken
}

// slotDoors are the ways in, each with its answer to a batch: nil if it was decoded.
func slotDoors(t *testing.T, b *Budget, n int) map[string]func() error {
	t.Helper()
	f := &fake{}
	f.increment = func(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
		return &ebbv1.IncrementResponse{Applied: 1}, nil
	}
	s := f.services()
	s.Budget = b
	h := NewHTTP(s)
	message, document, form := batchAsSent(t, n)
	post := func(path, content, body string) func() error {
		return func() error {
			r := httptest.NewRequest("POST", path, strings.NewReader(body))
			r.Header.Set("Content-Type", content)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			switch said := w.Body.String() + w.Header().Get("Ebb-Error"); {
			case strings.Contains(said, "EBB-1004"):
				return proto.ErrOverloaded
			case w.Code != 200:
				return fmt.Errorf("%d: %s", w.Code, said)
			}
			return nil
		}
	}
	grpc := func(forced bool) func() error {
		return func() error {
			c := &charge{budget: b, ctx: t.Context(), forced: forced}
			defer c.end()
			a := &arrival{message: &ebbv1.IncrementRequest{}, charge: c}
			return a.decode(mem.BufferSlice{mem.SliceBuffer(message)})
		}
	}
	return map[string]func() error{
		"JSON": post("/v1/increment", "application/json", document),
		"form": post("/incr", "application/x-www-form-urlencoded", form),
		"gRPC": grpc(false), "gRPC of a node": grpc(true),
	}
}

// A large message waits while all slots are taken, and is refused after a second; what nodes send is not refused. A
// small one never waits.
func TestLargeMessagesWaitForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(512<<20, nil)
		taken := takeSlots(t, b)
		for name, door := range slotDoors(t, b, 10) {
			began := time.Now()
			if err := door(); err != nil || time.Since(began) > 0 {
				t.Errorf("%s: a small message: after %v: %v", name, time.Since(began), err)
			}
		}
		const large = 9_000
		for name, door := range slotDoors(t, b, large) {
			began := time.Now()
			err := door()
			if refused := errors.Is(err, proto.ErrOverloaded); refused == strings.HasSuffix(name, "node") {
				t.Errorf("%s: a large message without a slot: %v", name, err)
			}
			if took := time.Since(began); took != time.Second {
				t.Errorf("%s: a large message waits for %v", name, took)
			}
			time.AfterFunc(300*time.Millisecond, taken[0])
			began = time.Now()
			if err := door(); err != nil || time.Since(began) != 300*time.Millisecond {
				t.Errorf("%s: with a slot after 300ms: after %v: %v", name, time.Since(began), err)
			}
			if taken[0], err = b.slot(t.Context(), slotFree+1); err != nil {
				t.Fatalf("%s did not give its slot back: %v", name, err)
			}
		}
		for _, done := range taken {
			done()
		}
		if b.slots.Used() != 0 || b.used.Load() != 0 {
			t.Errorf("%d bytes of slots and %d of the budget are left", b.slots.Used(), b.used.Load())
		}
	})
}

// A few messages that wait for a slot do not change the scheduler: any load of large batches has some.
func TestManyWaitersGetSpareProcessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for waiters, want := range map[int]bool{spareFrom - 1: false, spareFrom: true, 64: true} {
			b := NewBudget(512<<20, nil)
			taken := takeSlots(t, b)
			for range waiters {
				go func() {
					done, err := b.slot(t.Context(), slotFree+1)
					if err != nil {
						t.Error(err)
						return
					}
					done()
				}()
				synctest.Wait()
			}
			if got := runtime.GOMAXPROCS(0) > cores.Count(); got != want {
				t.Errorf("%d waiters: spare processors %v, want %v", waiters, got, want)
			}
			for _, done := range taken {
				done()
			}
			time.Sleep(time.Minute) // until they are gone
		}
	})
}

// Answers are encoded in slots, and without one when there is none for a second. While one waits for memory, others
// have its slot.
func TestLargeAnswersTakeASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(512<<20, nil)
		var most int64
		a := largeAnswer(1 << 20)
		ctx, held := b.charged(t.Context())
		defer held.end()
		encodings := map[string]func() error{
			"JSON": func() error { _, err := chargedJSON(ctx, nil, a); return err },
			"gRPC": func() error {
				o := &outgoing{Message: a, size: protobuf.Size(a), door: b}
				_, err := answerCodec{}.Marshal(o)
				return err
			},
		}
		for name, encode := range encodings {
			b.slots.Acquire(t.Context(), b.slots.Size())
			began := time.Now()
			if err := encode(); err != nil || time.Since(began) != time.Second {
				t.Errorf("%s: without a slot: after %v: %v", name, time.Since(began), err)
			}
			time.AfterFunc(100*time.Millisecond, func() { b.slots.Release(b.slots.Size()) })
			began = time.Now()
			if err := encode(); err != nil || time.Since(began) != 100*time.Millisecond {
				t.Errorf("%s: with a slot after 100ms: after %v: %v", name, time.Since(began), err)
			}
			most = max(most, b.slots.Used())
		}
		pool := budget.New("answers", 64<<20)
		one, other := pool.Begin(0), pool.Begin(0)
		if one.Charge(ctx, 32<<20) != nil || other.Charge(ctx, 32<<20) != nil {
			t.Fatal("there is memory for both")
		}
		time.AfterFunc(50*time.Millisecond, func() {
			most = max(most, b.slots.Used())
			one.Close()
		})
		began := time.Now()
		if _, err := chargedJSON(budget.With(ctx, pool.Begin(0)), nil, a); err != nil || time.Since(began) == 0 {
			t.Errorf("with memory after 50ms: after %v: %v", time.Since(began), err)
		}
		if most = max(most, b.slots.Used()); most != 0 {
			t.Errorf("%d bytes of slots are taken at the end, or while an answer waits for memory", most)
		}
	})
}

// Large requests get spare processors once there are many, before any is decoded. Smaller ones never do, nor
// do large ones one after the other.
func TestManyLargeRequestsGetSpareProcessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		grow := map[string]func(*charge, int64) error{
			"HTTP": func(c *charge, n int64) error {
				defer c.arrived(n)
				return c.arrives(n)
			},
			"gRPC": (*charge).add,
		}
		for name, grow := range grow {
			b := NewBudget(512<<20, nil)
			requests := func(n int, size int64) (end func()) {
				list := make([]*charge, n)
				for i := range list {
					_, list[i] = b.charged(t.Context())
					for at := int64(0); at < size; at += size / 4 {
						if err := grow(list[i], size/4); err != nil {
							t.Fatal(err)
						}
					}
				}
				return func() {
					for _, c := range list {
						c.end()
					}
				}
			}
			spare := func() bool { return runtime.GOMAXPROCS(0) > cores.Count() }
			requests(8, largeRequest/2)()
			for range spareFrom {
				requests(spareFrom-1, largeRequest)()
			}
			if spare() {
				t.Errorf("%s: spare processors for few", name)
			}
			end := requests(spareFrom, largeRequest)
			if !spare() {
				t.Errorf("%s: no spare processors for many", name)
			}
			end()
			if b.large.Load() != 0 || b.used.Load() != 0 {
				t.Errorf("%s: %d large requests and %d bytes are left", name, b.large.Load(), b.used.Load())
			}
			time.Sleep(time.Minute) // until they are gone
		}
	})
}
