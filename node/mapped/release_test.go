package mapped

import (
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/shard"
)

// heap of pages is what a snapshot under load leaves: all of them can be let go when its hold is released.
func heap(m *Memory, pages int) (release func()) {
	all := make([]*shard.Page, pages)
	for i := range all {
		all[i] = m.Page()
		all[i][0] = 1
	}
	release = m.Hold()
	for _, p := range all {
		m.Free(p)
	}
	return release
}

// Whatever waits for a hold is handed out again when that is released, some of it warm and the rest cold: nothing is
// lost, and nothing comes twice.
func TestALongReleaseLosesNothing(t *testing.T) {
	const pages = 10*128 + 7
	m := New()
	release := heap(m, pages)
	mapped := m.Mapped()
	release()
	if m.waiting != nil || m.warm+len(m.cold[1]) < pages {
		t.Fatalf("%d wait, %d are warm and %d cold, of %d", len(m.waiting), m.warm, len(m.cold[1]), pages)
	}
	seen := make(map[*shard.Page]bool)
	for range pages {
		p := m.Page()
		if seen[p] || *p != (shard.Page{}) {
			t.Fatal("a page came twice, or is not empty")
		}
		seen[p] = true
	}
	if m.Mapped() > mapped {
		t.Errorf("%d bytes are mapped, and before %d", m.Mapped(), mapped)
	}
}

// Many pages are given back at once, by another goroutine. All of them go back, and a view that was there before sees
// them until it is released.
func TestManyPagesAreGivenBackAtOnce(t *testing.T) {
	const pages = 256 << 20 / shard.PageBytes
	m := New()
	all := make([]*shard.Page, pages)
	for i := range all {
		all[i] = m.Page()
		all[i][0] = 1
	}
	view := m.Hold()
	before, began := Used(), time.Now()
	m.FreeAll(all)
	t.Logf("%d MiB are given back in %v", pages*shard.PageBytes>>20, time.Since(began))
	runtime.Gosched()
	if all[0][0] != 1 || all[pages-1][0] != 1 {
		t.Fatal("a view does not see its pages any more")
	}
	view()
	for start := time.Now(); Used() > before-pages*shard.PageBytes; runtime.Gosched() {
		if time.Since(start) > time.Minute {
			t.Fatalf("%d bytes are used, and before %d", Used(), before)
		}
	}
}

// BenchmarkPagesBesideARelease measures how long who applies an entry waits for its 50 pages while 800 MiB that a
// snapshot held go back to the system.
func BenchmarkPagesBesideARelease(b *testing.B) {
	var took []time.Duration
	var longest, all time.Duration
	waited := lockWait()
	for b.Loop() {
		m := New()
		release := heap(m, 200_000)
		done := make(chan struct{})
		began := time.Now()
		go func() { release(); all += time.Since(began); close(done) }()
		for open := true; open; {
			select {
			case <-done:
				open = false
			default:
			}
			start := time.Now()
			for range 50 {
				m.Page()[0] = 1
			}
			took = append(took, time.Since(start))
			longest = max(longest, took[len(took)-1])
			time.Sleep(500 * time.Microsecond) // of other work
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(float64(longest.Microseconds()), "max-us")
	b.ReportMetric(1e3*(lockWait()-waited)/float64(b.N), "lock-ms")
	b.ReportMetric(float64(all.Milliseconds())/float64(b.N), "release-ms")
}

// lockWait is how many seconds goroutines have waited for locks.
func lockWait() float64 {
	s := []metrics.Sample{{Name: "/sync/mutex/wait/total:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64()
}

// What is given back together, as by an index that grows, is handed out again at once. Nothing of it goes to the
// system, which would take it out of a huge page and put it back at the next request.
func TestPagesOfAnIndexThatGrowsAreKept(t *testing.T) {
	m := New()
	var old []*shard.Page
	for n := 1; n <= warmLeast; n++ {
		grown := make([]*shard.Page, n)
		for i := range grown {
			grown[i] = m.Page()
		}
		m.FreeAll(old)
		old = grown
		if len(m.waiting) > 0 || len(m.cold[1]) > 0 {
			t.Fatalf("of %d pages %d wait, and %d went back to the system", n, len(m.waiting), len(m.cold[1]))
		}
	}
}
