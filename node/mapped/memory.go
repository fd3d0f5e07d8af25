package mapped

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ebbdb/ebb/shard"
)

const (
	chunkBytes = 4 << 20
	// hugeFrom is from how many mapped bytes on chunks are placed in huge pages. With pages of 4 KiB, each access to
	// one key among millions also waits for the page tables. A small memory would only grow by the unused rest of its
	// chunk.
	hugeFrom = 32 << 20
	hugePage = 2 << 20
	// warmLeast is the least number of free pages that are kept for later callers, without returning their memory. In a
	// large memory the number is one in warmShare of the mapped pages. During a snapshot, each page that is written
	// takes another page and frees one.
	warmLeast = 128
	warmShare = 16
	// discardRunsMax is how many runs are checked, or returned to the system, at a time.
	discardRunsMax = 128
	// runMax is the largest run, in pages, that is cut from a chunk; larger runs are mapped and unmapped one by one.
	runMax = 16
)

var total, used atomic.Int64

// Used returns how many bytes of Total are handed out. The unused rest of a chunk, and free pages that are kept for
// reuse, do not count.
func Used() int64 { return used.Load() }

// Total returns how many bytes all Memories of the process have mapped, without those that returned to the system.
func Total() int64 { return total.Load() }

// Memory implements shard.Memory. It is safe for concurrent use.
type Memory struct {
	maps *mappings

	mu      sync.Mutex           // guards what follows
	warm    int                  // pages in free
	rest    []byte               // unused part of the newest chunk
	ahead   []byte               // the next chunk; nil: not made yet
	making  bool                 // the next chunk is being made
	touched bool                 // rest or ahead already takes memory: it is in huge pages
	free    [runMax + 1][][]byte // by pages: free runs that still take memory
	cold    [runMax + 1][][]byte // more free runs, whose memory returned to the system: zeros that take none
	holds   []uint64             // numbers of the holds that are not released, in order
	begun   uint64
	waiting []returned
}

// returned is a run that was freed when hold was the newest hold.
type returned struct {
	hold uint64
	run  []byte
}

// mappings are unmapped when their Memory is no longer reachable.
type mappings struct {
	mu   sync.Mutex // guards all
	all  map[*byte][]byte
	size atomic.Int64
	left atomic.Int64 // bytes of these that are not handed out
}

// New returns a Memory that has mapped nothing yet.
func New() *Memory {
	m := &Memory{maps: &mappings{all: map[*byte][]byte{}}}
	runtime.AddCleanup(m, (*mappings).close, m.maps)
	return m
}

// Mapped returns how many bytes are mapped, without those that returned to the system.
func (m *Memory) Mapped() int64 { return m.maps.size.Load() }

// Page implements shard.Memory.
func (m *Memory) Page() *shard.Page { return (*shard.Page)(m.take(1)) }

// Free implements shard.Memory.
func (m *Memory) Free(p *shard.Page) { m.give(p[:]) }

// FreeAll implements shard.Memory. Pages that are not kept for reuse wait for a hold that another goroutine releases.
// So the goroutine that applies an entry does not return them to the system itself: that takes a microsecond for each
// page, and 80 while other goroutines ask for memory.
func (m *Memory) FreeAll(pages []*shard.Page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unseen(m.begun) {
		for len(pages) > 0 && m.reuse(pages[0][:]) {
			pages = pages[1:]
		}
	}
	if len(pages) == 0 {
		return
	}
	release := m.hold()
	m.waiting = slices.Grow(m.waiting, len(pages))
	for _, p := range pages {
		m.waiting = append(m.waiting, returned{m.begun, p[:]})
	}
	go release()
}

// Run implements shard.Memory.
func (m *Memory) Run(pages int) []uint64 { return wordsOf(m.take(pages)) }

// FreeRun implements shard.Memory.
func (m *Memory) FreeRun(run []uint64) { m.give(bytesOf(run)) }

// Another implements shard.Memory.
func (m *Memory) Another() shard.Memory { return New() }

// Hold implements shard.Memory.
func (m *Memory) Hold() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hold()
}

// hold is Hold with m.mu held.
func (m *Memory) hold() (release func()) {
	m.begun++
	number := m.begun
	m.holds = append(m.holds, number)
	return func() { m.release(number) }
}

func (m *Memory) release(number uint64) {
	m.mu.Lock()
	if i := slices.Index(m.holds, number); i >= 0 {
		m.holds = slices.Delete(m.holds, i, i+1)
	}
	m.mu.Unlock()
	excess := make([][]byte, 0, discardRunsMax)
	for more := true; more; {
		excess, more = m.seen(excess[:0])
		m.discardRuns(excess)
	}
	for more := true; more; {
		excess, more = m.shrink(excess[:0])
		more = m.discardRuns(excess) && more
	}
}

// shrink appends to excess some free runs of a memory that was larger before and now keeps fewer. more reports whether
// there may be others. Chunks that were touched ahead are returned to the system if the memory is small now.
func (m *Memory) shrink(excess [][]byte) (_ [][]byte, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.untouch()
	for pages := range m.free {
		for m.warm > m.warmMost() && len(m.free[pages]) > 0 && len(excess) < discardRunsMax {
			last := len(m.free[pages]) - 1
			excess = append(excess, m.free[pages][last])
			m.free[pages] = m.free[pages][:last]
			m.warm -= pages
			m.maps.count(0, -int64(pages*shard.PageBytes)) // discardRuns expects that it was not free
		}
	}
	return excess, len(excess) == discardRunsMax
}

// untouch returns the memory of rest and ahead to the system, unless the Memory is large or may soon be large again.
// Pages are still cut from them later. m.mu is held.
func (m *Memory) untouch() {
	if !m.touched || m.Mapped() >= hugeFrom/2 {
		return
	}
	m.touched = false
	for _, b := range [][]byte{m.rest, m.ahead} {
		if len(b) > 0 {
			discard(b)
		}
	}
}

// warmMost returns how many free pages are kept without returning their memory.
func (m *Memory) warmMost() int { return max(warmLeast, int(m.Mapped()/shard.PageBytes/warmShare)) }

// seen processes some waiting runs that no hold can see any more. It appends to excess those that are not kept, and
// more reports whether runs still wait. After a snapshot under load hundreds of thousands of pages wait, while the
// goroutine that applies entries asks for others.
func (m *Memory) seen(excess [][]byte) (_ [][]byte, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range discardRunsMax {
		if len(m.waiting) == 0 {
			m.waiting = nil // release the memory of a long list
			return excess, false
		}
		if !m.unseen(m.waiting[0].hold) {
			return excess, false
		}
		if run := m.waiting[0].run; !m.reuse(run) {
			excess = append(excess, run)
		}
		m.waiting = m.waiting[1:]
	}
	return excess, true
}

// unseen reports whether every hold that began up to the given one has been released.
func (m *Memory) unseen(hold uint64) bool { return len(m.holds) == 0 || m.holds[0] > hold }

func (m *Memory) give(run []byte) {
	m.mu.Lock()
	kept := true
	if m.unseen(m.begun) {
		kept = m.reuse(run)
	} else {
		m.waiting = append(m.waiting, returned{m.begun, run})
	}
	m.mu.Unlock()
	if !kept {
		m.discardRuns([][]byte{run})
	}
}

// reuse keeps a run for reuse. It reports false if enough are kept.
func (m *Memory) reuse(run []byte) bool {
	pages := len(run) / shard.PageBytes
	if pages > runMax || m.warm+pages > m.warmMost() {
		return false
	}
	m.keep(run)
	return true
}

func (m *Memory) keep(run []byte) {
	pages := len(run) / shard.PageBytes
	m.free[pages] = append(m.free[pages], run)
	m.warm += pages
	m.maps.count(0, int64(len(run)))
}

// discardRuns returns the memory of runs to the system. Each run takes a microsecond, in which m.mu is not held. One
// call takes all runs, since each applied entry may free many pages. It reports whether the system took any.
func (m *Memory) discardRuns(runs [][]byte) bool {
	gone := runs[:0]
	var stay [][]byte
	for _, run := range runs {
		switch {
		case len(run) > runMax*shard.PageBytes:
			m.maps.unmap(run)
		case discard(run):
			gone = append(gone, run)
		default:
			stay = append(stay, run)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock() // at the end only: otherwise m might become unreachable and be unmapped before
	for _, run := range gone {
		pages := len(run) / shard.PageBytes
		m.cold[pages] = append(m.cold[pages], run)
		m.maps.count(-int64(len(run)), 0)
	}
	for _, run := range stay {
		m.keep(run)
	}
	return len(stay) < len(runs)
}

// take returns consecutive pages of zeros.
func (m *Memory) take(pages int) []byte {
	size := pages * shard.PageBytes
	if pages > runMax {
		run := m.maps.mapped(size)
		m.maps.count(int64(size), 0)
		return run
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if free := m.free[pages]; len(free) > 0 {
		run := free[len(free)-1]
		m.free[pages] = free[:len(free)-1]
		m.warm -= pages
		m.maps.count(0, -int64(size))
		clear(run)
		return run
	}
	if cold := m.cold[pages]; len(cold) > 0 {
		m.cold[pages] = cold[:len(cold)-1]
		m.maps.count(int64(size), 0)
		return cold[len(cold)-1]
	}
	if len(m.rest) < size {
		for rest := m.rest; len(rest) > 0; rest = rest[shard.PageBytes:] {
			m.cold[1] = append(m.cold[1], rest[:shard.PageBytes:shard.PageBytes]) // not touched yet
			m.maps.count(-shard.PageBytes, -shard.PageBytes)
		}
		m.rest = m.fresh()
	}
	m.maps.count(0, -int64(size))
	run := m.rest[:size:size]
	m.rest = m.rest[size:]
	return run
}

// fresh returns a new chunk. A large memory keeps one chunk ahead, since the system takes a millisecond or more to make
// it. Otherwise the goroutine that applies entries would wait for it during a snapshot, when each page that is written
// takes a new one. m.mu is held.
func (m *Memory) fresh() []byte {
	b := m.ahead
	m.ahead = nil
	huge := m.Mapped() >= hugeFrom
	if huge && !m.making {
		m.making = true
		go m.make()
	}
	if b == nil {
		b = m.maps.chunk(huge)
		m.touched = m.touched || huge
	}
	return b
}

// make makes the next chunk ahead.
func (m *Memory) make() {
	b := m.maps.chunk(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ahead, m.making, m.touched = b, false, true
	m.untouch()
}

// chunk maps a chunk, from which pages are cut.
func (s *mappings) chunk(huge bool) (b []byte) {
	if huge {
		all := s.mapped(chunkBytes + hugePage) // only the part between two boundaries is used
		b = aligned(all, hugePage)[:chunkBytes:chunkBytes]
		inHugePages(all, b, hugePage)
	} else {
		b = s.mapped(chunkBytes)
	}
	s.count(chunkBytes, chunkBytes)
	return b
}

// mapped maps zeros; the caller must count them. If the system has no memory, the process ends, as with Go's heap.
func (s *mappings) mapped(size int) []byte {
	b, err := mmap(size)
	if err != nil {
		panic("map " + err.Error() + ": out of memory")
	}
	s.mu.Lock()
	s.all[&b[0]] = b
	s.mu.Unlock()
	return b
}

func (s *mappings) unmap(b []byte) {
	s.mu.Lock()
	delete(s.all, &b[0])
	s.mu.Unlock()
	s.count(-int64(len(b)), 0)
	munmap(b)
}

// count adds to the mapped bytes, and to those that are not handed out. It updates both together: a goroutine that
// calls Used at the same time must not count a new chunk as used.
func (s *mappings) count(mapped, left int64) {
	s.size.Add(mapped)
	s.left.Add(left)
	total.Add(mapped)
	if mapped != left {
		used.Add(mapped - left)
	}
}

// close unmaps everything. Discarded runs were subtracted before.
func (s *mappings) close() {
	for _, b := range s.all {
		munmap(b)
	}
	s.all = nil
	s.count(-s.size.Load(), -s.left.Load())
}
