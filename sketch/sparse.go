package sketch

import (
	"math/bits"
	"slices"
)

// cell is an element of a sparse array: a counter, a word of bits, or a block of a Bloom filter.
type cell interface {
	[1]float64 | [1]uint64 | [4]uint64
}

// sparseCells is an array with few used cells: a hash table from the index of a cell to the cell. A cell that is not in
// the table is zero. Owners enter no cell that stays zero, and remove cells that become zero. So the number of used
// cells is a function of the contents.
//
// The number of slots is a function of the number of used cells: the least power of two that is at most 3/4 used. So
// the memory is a function of the contents, too, whatever the history, and it is bounded:
//
//	64 + slots * (4 + bytes of a cell)     slots < max(5, 8/3 * used)
//
// An owner becomes dense once used > sparseMost, when the table would take more than half of the memory of all cells.
// A dense array then takes at most 6 times as much as the table that it replaces.
//
// Probing is triangular. Indexes can come from outside (see Decode), and an attacker could choose them to collide in
// one run of slots. A probe leaves a run of n slots after sqrt(2n) steps, and few indexes have exactly the same home.
type sparseCells[T cell] struct {
	keys  []uint32 // by slot: the index of a cell + 1; 0: free
	cells []T      // by slot
	used  int
}

// roomier returns v with room for at least one more element: a quarter more than it has, but at most most in all.
func roomier[T any](v []T, most int) []T {
	if n := len(v); n == cap(v) {
		return enlarged(v, max(n+1, min(most, n+n/4+4)))
	}
	return v
}

// trimmed returns v without the memory of removed elements.
func trimmed[T any](v []T) []T {
	if cap(v) <= 12 || 3*len(v) >= 2*cap(v) {
		return v
	}
	return enlarged(v, len(v))
}

const (
	sparseSlotsLeast = 4
	sparseOwn        = 64 // bytes of a sparseCells itself
)

// sparseSlots is the number of slots of a table with used cells.
func sparseSlots(used int) int {
	return max(sparseSlotsLeast, 1<<bits.Len(uint((4*used+2)/3-1)))
}

// cellBytes is the size of a cell.
func cellBytes[T cell]() int {
	var c T
	return 8 * len(c)
}

// sparseBytes is the memory of a table with used cells.
func sparseBytes[T cell](used int) int { return sparseOwn + sparseSlots(used)*(4+cellBytes[T]()) }

// sparseMost is the most used cells, of n, that are kept in a table.
func sparseMost[T cell](n int) (used int) {
	for slots := sparseSlotsLeast; 2*(sparseOwn+slots*(4+cellBytes[T]())) <= n*cellBytes[T](); slots *= 2 {
		used = slots * 3 / 4
	}
	return used
}

// newSparse makes a table for a number of used cells.
func newSparse[T cell](used int) *sparseCells[T] {
	s := new(sparseCells[T])
	s.make(used)
	return s
}

func (s *sparseCells[T]) make(used int) {
	slots := sparseSlots(used)
	s.keys, s.cells, s.used = make([]uint32, slots), make([]T, slots), 0
}

// slot is the slot of a key, or the free slot where it belongs.
func (s *sparseCells[T]) slot(key uint32) int {
	mask := len(s.keys) - 1
	at := int(uint64(key)*0x9e3779b97f4a7c15>>32) & mask
	for step := 1; s.keys[at] != key && s.keys[at] != 0; step++ {
		at = (at + step) & mask
	}
	return at
}

// find returns a cell, or nil if it is zero. The pointer is valid until the next write.
func (s *sparseCells[T]) find(i int) *T {
	if at := s.slot(uint32(i) + 1); s.keys[at] != 0 {
		return &s.cells[at]
	}
	return nil
}

// cell returns a cell to write to; the caller must leave it nonzero. The pointer is valid until the next call.
func (s *sparseCells[T]) cell(i int) *T {
	key := uint32(i) + 1
	at := s.slot(key)
	if s.keys[at] == key {
		return &s.cells[at]
	}
	if 4*(s.used+1) > 3*len(s.keys) {
		s.rebuild(s.used + 1)
		at = s.slot(key)
	}
	s.keys[at] = key
	s.used++
	return &s.cells[at]
}

// rebuild moves the nonzero cells to a table for a number of used cells.
func (s *sparseCells[T]) rebuild(used int) {
	var zero T
	old := *s
	s.make(used)
	for at, key := range old.keys {
		if key != 0 && old.cells[at] != zero {
			to := s.slot(key)
			s.keys[to], s.cells[to] = key, old.cells[at]
			s.used++
		}
	}
}

// change calls f with every used cell, in no order, and removes cells that are zero afterwards.
func (s *sparseCells[T]) change(f func(i int, c *T)) {
	var zero T
	left := s.used
	for at, key := range s.keys {
		if key == 0 {
			continue
		}
		if f(int(key-1), &s.cells[at]); s.cells[at] == zero {
			left--
		}
	}
	if left < s.used {
		s.rebuild(left)
	}
}

// each calls f with every used cell, in no order.
func (s *sparseCells[T]) each(f func(i int, c *T)) {
	for at, key := range s.keys {
		if key != 0 {
			f(int(key-1), &s.cells[at])
		}
	}
}

// ordered calls f with every used cell, in the order of indexes.
func (s *sparseCells[T]) ordered(f func(i int, c *T)) {
	order := make([]uint64, 0, s.used)
	for at, key := range s.keys {
		if key != 0 {
			order = append(order, uint64(key)<<32|uint64(at))
		}
	}
	slices.Sort(order)
	for _, o := range order {
		f(int(o>>32)-1, &s.cells[uint32(o)])
	}
}

// clone is a copy that shares no memory with the original.
func (s *sparseCells[T]) clone() *sparseCells[T] {
	if s == nil {
		return nil
	}
	return &sparseCells[T]{keys: slices.Clone(s.keys), cells: slices.Clone(s.cells), used: s.used}
}

// size is the memory of a table, 0 for nil. It is sparseBytes of the used cells.
func (s *sparseCells[T]) size() int {
	if s == nil {
		return 0
	}
	return sparseOwn + len(s.keys)*(4+cellBytes[T]())
}
