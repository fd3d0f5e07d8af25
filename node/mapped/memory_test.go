package mapped

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/ebbdb/ebb/shard"
)

// What is handed out is zero and has no other owner. It keeps what is written as long as a hold may see it.
func TestMemory(t *testing.T) {
	type piece struct {
		words []uint64
		stamp uint64
	}
	rng := rand.New(rand.NewPCG(1, 2))
	m := New()
	var live []piece
	var release func()
	var seen []piece // by the hold
	stamp := uint64(0)
	check := func(p piece) {
		t.Helper()
		for i, w := range p.words {
			if w != p.stamp {
				t.Fatalf("word %d of %d is %#x, not %#x", i, len(p.words), w, p.stamp)
			}
		}
	}
	for range 20_000 {
		switch n := rng.IntN(100); {
		case n < 52:
			words := m.Run(1 + min(rng.IntN(20), rng.IntN(20)))
			check(piece{words, 0})
			stamp++
			for i := range words {
				words[i] = stamp
			}
			live = append(live, piece{words, stamp})
		case n < 99 && len(live) > 0:
			i := rng.IntN(len(live))
			check(live[i])
			m.FreeRun(live[i].words)
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		case release == nil:
			release = m.Hold()
			seen = append(seen[:0], live...)
		default:
			for _, p := range seen {
				check(p)
			}
			release()
			release = nil
		}
	}
	for _, p := range live {
		check(p)
	}
	if m.Mapped() == 0 || Total() < m.Mapped() {
		t.Fatalf("%d bytes mapped, %d in all", m.Mapped(), Total())
	}
}

// What is given back is handed out again: memory does not grow by writing in place.
func TestReuse(t *testing.T) {
	m := New()
	for range 1000 {
		release := m.Hold()
		pages := [100]*shard.Page{}
		for i := range pages {
			pages[i] = m.Page()
		}
		for _, p := range pages {
			m.Free(p)
		}
		run := m.Run(100)
		run[0]++
		m.FreeRun(run)
		release()
	}
	if m.Mapped() != chunkBytes {
		t.Fatalf("%d bytes are mapped", m.Mapped())
	}
	runtime.KeepAlive(m)
}

// Two holds that end in another order than they began.
func TestHolds(t *testing.T) {
	m := New()
	first := m.Hold()
	page := m.Page()
	page[0] = 1
	second := m.Hold()
	m.Free(page)
	first()
	if p := m.Page(); p == page || page[0] != 1 {
		t.Fatal("a page that the second hold sees was handed out")
	}
	second()
	if p := m.Page(); p != page || p[0] != 0 {
		t.Fatal("a page that nobody sees any more was not handed out, or is not zero")
	}
}

// A memory that nothing refers to any more is unmapped.
func TestForgotten(t *testing.T) {
	maps := func() *mappings {
		m := New()
		m.Page()[0] = 1
		m.Run(100)[0] = 1
		return m.maps
	}()
	for range 1000 {
		runtime.GC()
		if maps.size.Load() == 0 {
			return
		}
		runtime.Gosched()
	}
	t.Fatalf("%d bytes are still mapped", maps.size.Load())
}
