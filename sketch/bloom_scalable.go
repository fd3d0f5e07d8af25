package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
)

// BloomGenerationsMax is the most generations of a BloomScalable.
const BloomGenerationsMax = 24

// BloomScalable is a Bloom filter that grows (Almeida, Baquero, Preguiça, Hutchison 2007). When its last generation is
// full, it adds a generation for twice the keys, at a lower rate of false positives. So all generations together stay
// below the requested rate. The rates decrease as 1/i^2, whose sum is finite. Halving them instead would take 9 bits a
// key more in the tenth generation:
//
//	generation i: Capacity * 2^i keys at 0.6 FalseRate / (i+1)^2      0.6 sum 1/i^2 < 1
//
// It grows up to BloomBytesMax or BloomGenerationsMax. Beyond that it puts keys into the last generation, and answers
// with Over. A key that was added is always found.
//
// The order of additions decides which generation has a key. Merge describes the contents of a union. It is a value
// with one owner: Clone makes an independent copy.
type BloomScalable struct {
	params      BloomParams
	generations []Bloom // at least one

	// sides and shared are set by Merge.
	sides  []BloomScalable // of other parameters, in the order of compareSides; they have no sides of their own
	shared uint64          // the most keys that are in two generations
}

// NewBloomScalable makes an empty filter, or returns ErrParams.
func NewBloomScalable(p BloomParams) (BloomScalable, error) {
	p.Hash = p.Hash.orDefault()
	s := BloomScalable{params: p}
	first, err := s.generation(0)
	if err != nil {
		return BloomScalable{}, err
	}
	s.generations = []Bloom{first}
	return s, nil
}

// generation makes the i-th generation, empty.
func (s *BloomScalable) generation(i int) (Bloom, error) {
	p := s.params
	if err := p.check(); err != nil {
		return Bloom{}, err
	}
	p.FalseRate = float64(p.FalseRate*0.6) / float64((i+1)*(i+1))
	p.Capacity <<= i
	if p.Capacity>>i != s.params.Capacity {
		return Bloom{}, fmt.Errorf("%w: bloom: capacity overflows", ErrParams)
	}
	return newBloom(p)
}

// Params are the parameters of the constructor.
func (s *BloomScalable) Params() BloomParams { return s.params }

// Generations is the number of generations.
func (s *BloomScalable) Generations() int { return len(s.generations) }

// rehash derives different hashes for each generation, so that their errors are independent.
func rehash(hash uint64, generation int) uint64 { return remix(hash, 1+generation) }

// Add adds a key by its hash, and reports whether a bit changed. If not, the key, or keys with the same bits, were
// there.
func (s *BloomScalable) Add(hash uint64) (changed bool) {
	if s.has(hash) {
		return false
	}
	last := len(s.generations) - 1
	if s.generations[last].ones >= s.generations[last].full && s.grow() {
		last++
	}
	return s.generations[last].Add(rehash(hash, last))
}

// grow adds a generation if there is room, and reports whether it did.
func (s *BloomScalable) grow() bool {
	next, err := s.generation(len(s.generations))
	if err != nil || len(s.generations) == BloomGenerationsMax ||
		s.bitBytes()+next.blocks*(blockBits/8) > BloomBytesMax {
		return false
	}
	s.generations = append(s.generations, next)
	return true
}

// Has says whether a key was added. It never writes.
func (s *BloomScalable) Has(hash uint64) BloomAnswer {
	a := BloomAnswer{Found: s.has(hash)}
	for f := range s.families() {
		for i := range f.generations {
			a.Over = a.Over || f.generations[i].ones > f.generations[i].over
		}
	}
	return a
}

func (s *BloomScalable) has(hash uint64) bool {
	for i := len(s.generations) - 1; i >= 0; i-- { // the last generation has most keys
		g, h := &s.generations[i], rehash(hash, i)
		if g.has(h) || g.hasFew(h) {
			return true
		}
	}
	for i := range s.sides {
		if s.sides[i].has(hash) {
			return true
		}
	}
	return false
}

// State estimates the number of keys and the rate of false positives. It never writes. Keys includes the keys that an
// earlier generation seemed to have, which were not added to any (see bloomLayers). In a merged filter, Keys counts a
// key once for each generation that has it; KeysLeast and KeysMost bound the true number, up to some KeysError.
func (s *BloomScalable) State() BloomState {
	if !s.Merged() {
		l := layersOf(s.generations, 1)
		return BloomState{
			Keys: l.most, KeysError: math.Sqrt(l.variance), KeysLeast: l.most, KeysMost: l.most,
			FalseRate: 1 - l.misses, Over: l.over,
		}
	}
	return s.stateMerged()
}

// stateMerged is State of a merged filter. Any of its families may have been checked before a key was added to another.
func (s *BloomScalable) stateMerged() BloomState {
	all, misses, families := BloomState{}, 1.0, make([]float64, 0, 1+len(s.sides))
	for f := range s.families() {
		own := layersOf(f.generations, 1).misses
		families = append(families, own)
		misses = float64(misses * own)
	}
	i := 0
	for f := range s.families() {
		l := layersOf(f.generations, min(1, misses/max(families[i], math.SmallestNonzeroFloat64)))
		all.Keys += l.keys
		all.KeysLeast += l.least
		all.KeysMost += l.most
		all.KeysError += l.variance
		all.Over = all.Over || l.over
		i++
	}
	all.KeysError = math.Sqrt(all.KeysError)
	all.FalseRate = 1 - misses
	all.Over = all.Over || all.FalseRate > s.params.FalseRate
	all.KeysLeast = max(all.KeysLeast-float64(s.shared), 0)
	return all
}

// Clone is a copy that shares no memory with the original.
func (s *BloomScalable) Clone() BloomScalable {
	c := BloomScalable{params: s.params, generations: s.clonedGenerations(), shared: s.shared}
	for i := range s.sides {
		c.sides = append(c.sides, s.sides[i].Clone())
	}
	return c
}

func (s *BloomScalable) clonedGenerations() (c []Bloom) {
	for i := range s.generations {
		c = append(c, s.generations[i].Clone())
	}
	return c
}

// Size is the memory in bytes, the struct itself included.
func (s *BloomScalable) Size() int {
	n := 88 + bloomOwn*(cap(s.generations)-len(s.generations))
	for i := range s.generations {
		n += s.generations[i].Size()
	}
	for i := range s.sides {
		n += s.sides[i].Size()
	}
	return n
}

// A BloomScalable in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 's', 1
//	hash             9 bytes, see Hash
//	capacity         uvarint
//	false rate       8 bytes, a little endian double
//	generations      uvarint of how many; each as in Bloom, from `used` on

const bloomScalableKind = 's'

// AppendBinary appends the encoding to b.
func (s *BloomScalable) AppendBinary(b []byte) []byte {
	if s.Merged() {
		return s.appendMerged(b)
	}
	return s.appendOwn(b)
}

// appendOwn appends the encoding of the own generations.
func (s *BloomScalable) appendOwn(b []byte) []byte {
	b = binary.AppendUvarint(s.params.append(b, bloomScalableKind), uint64(len(s.generations)))
	for i := range s.generations {
		b = s.generations[i].appendBits(b)
	}
	return b
}

// Decode replaces the filter by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change. See Bloom.Decode
// about memory.
func (s *BloomScalable) Decode(b []byte) (rest []byte, err error) {
	return s.DecodeWithin(b, BloomBytesMax)
}

// DecodeWithin is Decode that also refuses sparse encodings whose generations would need more memory than room, in
// bytes, once they are full.
func (s *BloomScalable) DecodeWithin(b []byte, room int) (rest []byte, err error) {
	r := reading(b, room)
	read := r.ownBloom
	if len(b) > 0 && b[0] == bloomMergedKind {
		read = r.mergedBloom
	}
	n, ok := read()
	if !ok || !r.ok {
		return nil, ErrCorrupt
	}
	*s = n
	return r.b, nil
}

// ownBloom reads what appendOwn wrote.
func (r *reader) ownBloom() (BloomScalable, bool) {
	p := r.bloomParams(bloomScalableKind)
	generations := r.int(BloomGenerationsMax)
	if !r.ok || generations == 0 {
		return BloomScalable{}, false
	}
	n, err := NewBloomScalable(p)
	if err != nil {
		return BloomScalable{}, false
	}
	for i := range generations {
		if i > 0 && (n.generations[i-1].ones < n.generations[i-1].full || !n.grow()) ||
			!n.generations[i].decodeBits(r) {
			return BloomScalable{}, false
		}
	}
	return n, true
}
