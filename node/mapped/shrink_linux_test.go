//go:build !race

package mapped

import (
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebbdb/ebb/shard"
)

// A memory that was large and is small keeps no more free pages than a small one, and what it has touched ahead takes
// no memory any more, whether that was made before it shrank or is made afterwards.
func TestAMemoryThatShrinksKeepsLittle(t *testing.T) {
	m := New()
	pages := make([]*shard.Page, 3*hugeFrom/shard.PageBytes)
	for i := range pages {
		pages[i] = m.Page()
		pages[i][0] = 1
	}
	for m.isMaking() {
		runtime.Gosched()
	}
	if resident(t, m.ahead) == 0 {
		t.Skip("the system has no huge pages to spare")
	}
	release := m.Hold()
	for _, p := range pages {
		m.Free(p)
	}
	release()
	check := func() {
		t.Helper()
		if m.warm > warmLeast {
			t.Errorf("%d free pages are kept, of %d", m.warm, warmLeast)
		}
		if n := resident(t, m.rest) + resident(t, m.ahead); n != 0 {
			t.Errorf("%d pages that have not been handed out take memory", n)
		}
	}
	check()
	m.make() // as if it had been begun before
	check()
	for range 2 * chunkBytes / shard.PageBytes {
		if p := m.Page(); *p != (shard.Page{}) {
			t.Fatal("a page is not empty")
		}
	}
}

func (m *Memory) isMaking() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.making
}

// resident is how many pages of b the system has in memory.
func resident(t *testing.T, b []byte) (n int) {
	t.Helper()
	if len(b) == 0 {
		return 0
	}
	in := make([]byte, len(b)/shard.PageBytes)
	_, _, e := syscall.Syscall(syscall.SYS_MINCORE,
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&in[0])))
	if e != 0 {
		t.Fatal(e)
	}
	for _, page := range in {
		n += int(page & 1)
	}
	return n
}
