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
	// hugeFrom is from how many mapped bytes on chunks lie in huge pages. With pages of 4 KiB, each look at one key among millions also
	// waits for the tables that say where its page is; a small memory would only grow by the rest of its chunk.
	hugeFrom = 32 << 20
	hugePage = 2 << 20
	// warmLeast is how many free pages are kept as they are for those who ask next, at the least; else it is one in warmShare of
	// those mapped. Beside a snapshot each page that is written takes another and gives one back.
	warmLeast = 128
	warmShare = 16
	// runMax is the largest run, in pages, that is cut from a chunk; larger ones are mapped and unmapped one by one.
	runMax = 16
)

var total atomic.Int64

// Total is how many bytes all Memories of the process have mapped, less those that went back to the system.
func Total() int64 { return total.Load() }

// Memory implements shard.Memory. Its methods may be called by several goroutines at once.
type Memory struct {
	maps *mappings

	mu      sync.Mutex           // guards what follows
	warm    int                  // pages in free
	rest    []byte               // of the newest chunk
	free    [runMax + 1][][]byte // by pages: some to be handed out again
	cold    [runMax + 1][][]byte // more of them, whose memory went back to the system: zeros that take none
	holds   []uint64             // those that have not been released, in order
	begun   uint64
	waiting []returned
}

// returned is what was given back after so many holds had begun.
type returned struct {
	hold uint64
	run  []byte
}

// mappings are unmapped when nothing refers to their Memory any more.
type mappings struct {
	mu   sync.Mutex // guards all
	all  map[*byte][]byte
	size atomic.Int64
}

// New returns memory that maps nothing yet.
func New() *Memory {
	m := &Memory{maps: &mappings{all: map[*byte][]byte{}}}
	runtime.AddCleanup(m, (*mappings).close, m.maps)
	return m
}

// Mapped is how many bytes are mapped, less those that went back to the system.
func (m *Memory) Mapped() int64 { return m.maps.size.Load() }

// Page implements shard.Memory.
func (m *Memory) Page() *shard.Page { return (*shard.Page)(m.take(1)) }

// Free implements shard.Memory.
func (m *Memory) Free(p *shard.Page) { m.give(p[:]) }

// Run implements shard.Memory.
func (m *Memory) Run(pages int) []uint64 { return wordsOf(m.take(pages)) }

// FreeRun implements shard.Memory.
func (m *Memory) FreeRun(run []uint64) { m.give(bytesOf(run)) }

// Hold implements shard.Memory.
func (m *Memory) Hold() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	var excess [][]byte
	done := 0
	for done < len(m.waiting) && m.unseen(m.waiting[done].hold) {
		if run := m.waiting[done].run; !m.reuse(run) {
			excess = append(excess, run)
		}
		done++
	}
	m.waiting = slices.Delete(m.waiting, 0, done)
	if len(m.waiting) == 0 {
		m.waiting = nil // a snapshot under load leaves a long one
	}
	m.mu.Unlock()
	m.letGo(excess...)
}

// unseen: whatever might see what was given back after so many holds has been released.
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
		m.letGo(run)
	}
}

// reuse keeps a run for the next who asks. It reports false when there are enough.
func (m *Memory) reuse(run []byte) bool {
	pages := len(run) / shard.PageBytes
	if pages > runMax || m.warm+pages > max(warmLeast, int(m.Mapped()/shard.PageBytes/warmShare)) {
		return false
	}
	m.keep(run)
	return true
}

func (m *Memory) keep(run []byte) {
	pages := len(run) / shard.PageBytes
	m.free[pages] = append(m.free[pages], run)
	m.warm += pages
}

// letGo gives the memory of runs back to the system. That takes a microsecond for each, in which nobody waits for the lock.
func (m *Memory) letGo(runs ...[]byte) {
	for _, run := range runs {
		pages := len(run) / shard.PageBytes
		if pages > runMax {
			m.maps.unmap(run)
			continue
		}
		gone := discard(run)
		m.mu.Lock()
		if gone {
			m.cold[pages] = append(m.cold[pages], run)
			m.maps.count(-int64(len(run)))
		} else {
			m.keep(run)
		}
		m.mu.Unlock()
	}
	runtime.KeepAlive(m) // or all of it might be unmapped meanwhile
}

// take returns pages of zeros that follow each other.
func (m *Memory) take(pages int) []byte {
	size := pages * shard.PageBytes
	if pages > runMax {
		return m.maps.mapped(size)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if free := m.free[pages]; len(free) > 0 {
		run := free[len(free)-1]
		m.free[pages] = free[:len(free)-1]
		m.warm -= pages
		clear(run)
		return run
	}
	if cold := m.cold[pages]; len(cold) > 0 {
		m.cold[pages] = cold[:len(cold)-1]
		m.maps.count(int64(size))
		return cold[len(cold)-1]
	}
	if len(m.rest) < size {
		for rest := m.rest; len(rest) > 0; rest = rest[shard.PageBytes:] {
			m.cold[1] = append(m.cold[1], rest[:shard.PageBytes:shard.PageBytes]) // not touched yet
			m.maps.count(-shard.PageBytes)
		}
		m.rest = m.maps.chunk(m.Mapped() >= hugeFrom)
	}
	run := m.rest[:size:size]
	m.rest = m.rest[size:]
	return run
}

// chunk maps what pages are cut from.
func (s *mappings) chunk(huge bool) []byte {
	if !huge {
		return s.mapped(chunkBytes)
	}
	all := s.mapped(chunkBytes + hugePage) // of which the part between two boundaries is used
	s.count(-hugePage)
	b := aligned(all, hugePage)[:chunkBytes:chunkBytes]
	inHugePages(all, b, hugePage)
	return b
}

// mapped maps zeros. Out of memory is the end of the process, as it is for Go's heap.
func (s *mappings) mapped(size int) []byte {
	b, err := mmap(size)
	if err != nil {
		panic("map " + err.Error() + ": out of memory")
	}
	s.mu.Lock()
	s.all[&b[0]] = b
	s.mu.Unlock()
	s.count(int64(size))
	return b
}

func (s *mappings) unmap(b []byte) {
	s.mu.Lock()
	delete(s.all, &b[0])
	s.mu.Unlock()
	s.count(-int64(len(b)))
	munmap(b)
}

func (s *mappings) count(bytes int64) {
	s.size.Add(bytes)
	total.Add(bytes)
}

// close unmaps everything. What is cold then has been counted already.
func (s *mappings) close() {
	for _, b := range s.all {
		munmap(b)
	}
	s.all = nil
	s.count(-s.size.Load())
}
