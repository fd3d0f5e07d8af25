package shard

import (
	"slices"
	"sync"
)

// wiping is memory that counts its pages. It overwrites what it gets back as soon as no view may see it. A reader that
// looks at it all the same sees rubbish.
type wiping struct {
	mu      sync.Mutex // guards what follows: views are released by anybody
	out     int        // pages
	taken   int        // pages that were ever handed out
	holds   []int      // numbers of those not released, in order
	begun   int
	waiting []waiting
}

// waiting is what is wiped when no hold up to a number is left.
type waiting struct {
	hold  int
	pages int
	wipe  func()
}

func (m *wiping) Another() Memory { return new(wiping) }

func (m *wiping) Page() *Page {
	m.take(1)
	return new(Page)
}

func (m *wiping) Run(pages int) []uint64 {
	m.take(pages)
	return make([]uint64, pages*PageWords)
}

func (m *wiping) take(pages int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out += pages
	m.taken += pages
}

func (m *wiping) Free(p *Page) {
	m.give(1, func() {
		for i := range p {
			p[i] = 0xee
		}
	})
}

func (m *wiping) FreeAll(pages []*Page) {
	for _, p := range pages {
		m.Free(p)
	}
}

func (m *wiping) FreeRun(run []uint64) {
	m.give(len(run)/PageWords, func() {
		for i := range run {
			run[i] = 0xeeeeeeeeeeeeeeee
		}
	})
}

func (m *wiping) give(pages int, wipe func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, waiting{m.begun, pages, wipe})
	m.wipe()
}

func (m *wiping) wipe() {
	for len(m.waiting) > 0 && (len(m.holds) == 0 || m.holds[0] > m.waiting[0].hold) {
		m.waiting[0].wipe()
		m.out -= m.waiting[0].pages
		m.waiting = m.waiting[1:]
	}
}

func (m *wiping) Hold() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun++
	number := m.begun
	m.holds = append(m.holds, number)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		i := slices.Index(m.holds, number)
		m.holds = slices.Delete(m.holds, i, i+1)
		m.wipe()
	}
}

// pagesTaken is how many pages were handed out so far.
func (m *wiping) pagesTaken() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken
}
