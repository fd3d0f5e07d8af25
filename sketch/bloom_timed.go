package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

const (
	// BloomTimedParts is the number of generations in a window of a BloomTimed. Reads cover one more, because the
	// latest generation is not complete.
	BloomTimedParts = 8
	// bloomTimedLeast is the least capacity of the first layer of a generation.
	bloomTimedLeast = 64
)

// BloomTimedParams decide the shape of a BloomTimed.
type BloomTimedParams struct {
	// Capacity is the expected number of keys in a window. More keys only take more memory.
	Capacity uint64
	// FalseRate is the largest rate of false positives: in 1e-6..0.5.
	FalseRate float64
	// Window, in microseconds, is how long a key is found at least: BloomTimedParts to HalfLifeMax.
	Window Tick
	Hash   Hash
}

// BloomTimed is a Bloom filter that forgets, and grows with bursts. NewBloomTimed makes one. Time is split into
// generations of an eighth of Window, which begin at whole multiples of that since the Unix epoch. A key goes into the
// generation of its event, and is found as long as this is one of the last nine:
//
//	generation   ... | n-8 | n-7 | ... | n-1 |  n  |        n is that of now
//	              no | all of these are found      |
//
// So a key is found for at least Window, and for less than 9/8 of it. Then its whole generation is dropped at once.
//
// Each generation is a chain of layers (Almeida, Baquero, Preguiça, Hutchison 2007). After a full layer comes a layer
// for twice the keys, at a lower rate. All layers of all generations that are found stay below the requested rate,
// however many keys come and however they are spread over time:
//
//	layer i: max(64, Capacity/8) * 2^i keys at FalseRate/9 * 0.6/(i+1)^2     0.6 sum 1/i^2 < 1
//
// At 1% it takes about 20 bits a key when keys come evenly, and up to twice that while a layer fills. It grows up to
// BloomBytesMax. Beyond that it puts keys into the last layer, and answers with Over.
//
// Merging is an OR of layers with the same number in the same generation. It commutes, associates and is idempotent. A
// union of full filters has more keys than its layers are for, and answers with Over. It is a value with one owner:
// Clone makes an independent copy.
type BloomTimed struct {
	params      BloomTimedParams
	latest      int64 // the generation of the latest now; 0 while unused
	generations []timedGeneration
}

// timedGeneration is the keys of one generation. It has at least one layer.
type timedGeneration struct {
	number int64
	layers []Bloom
}

// NewBloomTimed makes an empty filter, or returns ErrParams.
func NewBloomTimed(p BloomTimedParams) (BloomTimed, error) {
	p.Hash = p.Hash.orDefault()
	common := BloomParams{Capacity: p.Capacity, FalseRate: p.FalseRate, Hash: p.Hash}
	if err := common.check(); err != nil {
		return BloomTimed{}, err
	}
	if p.Window < BloomTimedParts || p.Window > HalfLifeMax {
		return BloomTimed{}, fmt.Errorf("%w: bloom: window of %d microseconds is not in %d..%d",
			ErrParams, p.Window, BloomTimedParts, HalfLifeMax)
	}
	f := BloomTimed{params: p}
	first, err := f.layer(0)
	if err != nil {
		return BloomTimed{}, err
	}
	if bytes := first.blocks * (blockBits / 8) * (BloomTimedParts + 1); bytes > BloomBytesMax {
		return BloomTimed{}, fmt.Errorf("%w: bloom: %d expiring keys at %v take %d bytes, more than %d",
			ErrParams, p.Capacity, p.FalseRate, bytes, BloomBytesMax)
	}
	return f, nil
}

// layer makes the i-th layer of a generation, empty.
func (f *BloomTimed) layer(i int) (Bloom, error) {
	least := max(bloomTimedLeast, (f.params.Capacity-1)/BloomTimedParts+1)
	if least<<i>>i != least {
		return Bloom{}, fmt.Errorf("%w: bloom: capacity overflows", ErrParams)
	}
	rate := f.params.FalseRate / (BloomTimedParts + 1)
	return newBloom(BloomParams{
		Capacity: least << i, FalseRate: float64(rate*0.6) / float64((i+1)*(i+1)), Hash: f.params.Hash,
	})
}

// Params are the parameters of the constructor.
func (f *BloomTimed) Params() BloomTimedParams { return f.params }

// Span is the length of a generation in microseconds.
func (f *BloomTimed) Span() Tick { return (f.params.Window-1)/BloomTimedParts + 1 }

// generationAt is the generation of a time: the number of generations since the epoch.
func (f *BloomTimed) generationAt(t Tick) int64 { return int64(max(t, 0) / f.Span()) }

// Add adds a key by its hash at time t, and reports whether a bit changed. now is the namespace's clock: not before t,
// and not before the now of any earlier call. A late key expires as if it had come in time.
func (f *BloomTimed) Add(now, t Tick, hash uint64) (changed bool) {
	f.advance(f.generationAt(now))
	number := min(f.generationAt(t), f.latest)
	if number < f.latest-BloomTimedParts {
		return false
	}
	g := f.generation(number)
	if g.has(hash) {
		return false
	}
	if last := len(g.layers) - 1; last < 0 || g.layers[last].ones >= g.layers[last].full {
		f.grow(g)
	}
	last := len(g.layers) - 1
	return g.layers[last].Add(rehash(hash, last))
}

// generation is the generation with a number, made if there is none. The pointer is valid until the next call.
func (f *BloomTimed) generation(number int64) *timedGeneration {
	i, found := f.place(number)
	if !found {
		f.generations = slices.Insert(f.generations, i, timedGeneration{number: number})
	}
	return &f.generations[i]
}

// place is the position of a generation, or the position where it belongs.
func (f *BloomTimed) place(number int64) (i int, found bool) {
	i = len(f.generations)
	for i > 0 && f.generations[i-1].number >= number {
		i--
	}
	return i, i < len(f.generations) && f.generations[i].number == number
}

// grow adds a layer to a generation, if there is room. There is always room for the first layer.
func (f *BloomTimed) grow(g *timedGeneration) {
	next, err := f.layer(len(g.layers))
	if err != nil || len(g.layers) > 0 && (len(g.layers) == BloomGenerationsMax || !f.fits(&next)) {
		return
	}
	g.layers = append(g.layers, next)
}

// fits says whether there is room for a layer, in addition to first layers of all generations to come.
func (f *BloomTimed) fits(next *Bloom) bool {
	blocks, first := next.blocks, next.blocks
	for i := range f.generations {
		for j := range f.generations[i].layers {
			blocks += f.generations[i].layers[j].blocks
			first = min(first, f.generations[i].layers[j].blocks)
		}
	}
	blocks += first * (BloomTimedParts + 1 - len(f.generations))
	return blocks*(blockBits/8) <= BloomBytesMax
}

// advance makes a generation the latest, and drops the generations that are no longer found.
func (f *BloomTimed) advance(to int64) {
	if to <= f.latest {
		return
	}
	f.latest = to
	i, _ := f.place(f.oldest(to))
	if f.generations = slices.Delete(f.generations, 0, i); len(f.generations) == 0 {
		f.generations = nil
	}
}

// oldest is the oldest generation that is still found when another is the latest.
func (f *BloomTimed) oldest(generation int64) int64 { return generation - BloomTimedParts }

// has says whether a layer has the key.
func (g *timedGeneration) has(hash uint64) bool {
	for i := len(g.layers) - 1; i >= 0; i-- { // the last layer has most keys
		l, h := &g.layers[i], rehash(hash, i)
		if l.has(h) || l.hasFew(h) {
			return true
		}
	}
	return false
}

// seen are the generations that are found at a time.
func (f *BloomTimed) seen(at Tick) []timedGeneration {
	i, _ := f.place(f.oldest(max(f.generationAt(at), f.latest)))
	return f.generations[i:]
}

// Has says whether a key is found at a time; a time before the latest now reads as the latest now. It never writes.
func (f *BloomTimed) Has(at Tick, hash uint64) (a BloomAnswer) {
	seen := f.seen(at)
	for i := len(seen) - 1; i >= 0; i-- {
		a.Found = a.Found || seen[i].has(hash)
		a.Over = a.Over || seen[i].over()
	}
	return a
}

func (g *timedGeneration) over() bool {
	return slices.ContainsFunc(g.layers, func(l Bloom) bool { return l.ones > l.over })
}

// State estimates the number of keys and the rate of false positives at a time. Keys and KeysMost count a key once in
// each generation in which it came; KeysLeast is that of the generation with most keys. It never writes.
func (f *BloomTimed) State(at Tick) BloomState {
	all, misses := BloomState{}, 1.0
	for _, g := range f.seen(at) {
		l := layersOf(g.layers, 1)
		least, keys := l.most, l.most
		if l.merged { // layers may have the same keys
			least, keys = l.greatest, l.keys
		}
		all.Keys += keys
		all.KeysLeast = max(all.KeysLeast, least)
		all.KeysMost += l.most
		all.KeysError += l.variance
		all.Over = all.Over || l.over
		misses = float64(misses * l.misses)
	}
	all.KeysError = math.Sqrt(all.KeysError)
	all.FalseRate = 1 - misses
	return all
}

// Last is the tick at which the latest generation began, 0 while nothing is stored.
func (f *BloomTimed) Last() Tick { return Tick(f.latest) * f.Span() }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (f *BloomTimed) Reached() Tick { return f.Last() }

// Death is the tick from which on no key is found, as long as nothing is added; 0 when no key is found now.
func (f *BloomTimed) Death() Tick {
	if len(f.generations) == 0 {
		return 0
	}
	last := f.generations[len(f.generations)-1].number
	if last >= int64(MaxTick/f.Span())-BloomTimedParts-1 {
		return MaxTick
	}
	return Tick(last+BloomTimedParts+1) * f.Span()
}

// Merge makes the receiver the union with o; o does not change. Of the two latest times, the later is kept. Merge
// returns ErrIncompatible, or ErrOverflow for a union of more than BloomBytesMax, and then nothing has changed.
func (f *BloomTimed) Merge(o *BloomTimed) error {
	if f.params != o.params {
		return &mismatch{kind: "expiring bloom", a: f.params, b: o.params}
	}
	if bytes := f.unionBytes(o); bytes > BloomBytesMax {
		return fmt.Errorf("%w: expiring bloom: a union of %d bytes, more than %d", ErrOverflow, bytes, BloomBytesMax)
	}
	f.advance(o.latest)
	for i := range o.generations {
		theirs := &o.generations[i]
		if theirs.number < f.oldest(f.latest) {
			continue
		}
		mine := f.generation(theirs.number)
		for j := range theirs.layers {
			if j == len(mine.layers) {
				mine.layers = append(mine.layers, theirs.layers[j].Clone())
			} else if err := mine.layers[j].Merge(&theirs.layers[j]); err != nil {
				return err // never: layers of one number have the same parameters
			}
		}
	}
	return nil
}

// unionBytes is the memory of the layers of a union with o when they are full.
func (f *BloomTimed) unionBytes(o *BloomTimed) int {
	blocks, oldest := 0, f.oldest(max(f.latest, o.latest))
	add := func(g *timedGeneration, from int) {
		for i := from; i < len(g.layers) && g.number >= oldest; i++ {
			blocks += g.layers[i].blocks
		}
	}
	for i := range f.generations {
		add(&f.generations[i], 0)
	}
	for i := range o.generations {
		theirs, from := &o.generations[i], 0
		if at, found := f.place(theirs.number); found {
			from = len(f.generations[at].layers)
		}
		add(theirs, from)
	}
	return blocks * (blockBits / 8)
}

// Clone is a copy that shares no memory with the original.
func (f *BloomTimed) Clone() BloomTimed {
	c := *f
	c.generations = slices.Clone(f.generations)
	for i := range c.generations {
		c.generations[i].layers = slices.Clone(f.generations[i].layers)
		for j := range c.generations[i].layers {
			c.generations[i].layers[j] = f.generations[i].layers[j].Clone()
		}
	}
	return c
}

// Sizes of a BloomTimed and of a generation, without the memory that they point to.
const (
	bloomTimedOwn      = 80
	timedGenerationOwn = 32
)

// Size is the memory in bytes, the struct itself included.
func (f *BloomTimed) Size() int {
	n := bloomTimedOwn + timedGenerationOwn*cap(f.generations)
	for i := range f.generations {
		layers := f.generations[i].layers
		n += bloomOwn * (cap(layers) - len(layers))
		for j := range layers {
			n += layers[j].Size()
		}
	}
	return n
}

// Held counts the blocks with a bit, or all blocks of a dense layer.
func (f *BloomTimed) Held() int { return f.held((*Bloom).Held) }

// Reserved is the size with all bits of its layers.
func (f *BloomTimed) Reserved() int { return f.held((*Bloom).Reserved) }

func (f *BloomTimed) held(of func(*Bloom) int) int {
	n := bloomTimedOwn + timedGenerationOwn*len(f.generations)
	for i := range f.generations {
		for j := range f.generations[i].layers {
			n += of(&f.generations[i].layers[j])
		}
	}
	return n
}

// ReservedMost is Reserved of a filter that has a first layer in every generation.
func (f *BloomTimed) ReservedMost() int {
	first, err := f.layer(0)
	if err != nil {
		return bloomTimedOwn
	}
	return bloomTimedOwn + (BloomTimedParts+1)*(timedGenerationOwn+first.Reserved())
}

// A BloomTimed in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 't', 1
//	hash             9 bytes, see Hash
//	capacity         uvarint
//	false rate       8 bytes, a little endian double
//	window           uvarint
//	latest           uvarint
//	generations      uvarint of how many; each
//	  age            uvarint, how many generations before the one that follows, less 1 (the last: before the latest)
//	  layers         uvarint of how many; each as in Bloom, from `used` on

const bloomTimedKind = 't'

// AppendBinary appends the encoding to b.
func (f *BloomTimed) AppendBinary(b []byte) []byte {
	p := BloomParams{Capacity: f.params.Capacity, FalseRate: f.params.FalseRate, Hash: f.params.Hash}
	b = binary.AppendUvarint(p.append(b, bloomTimedKind), uint64(f.params.Window))
	b = binary.AppendUvarint(b, uint64(f.latest))
	b = binary.AppendUvarint(b, uint64(len(f.generations)))
	after := f.latest + 1
	for i := len(f.generations) - 1; i >= 0; i-- { // the latest first
		g := &f.generations[i]
		b = binary.AppendUvarint(b, uint64(after-g.number-1))
		b = binary.AppendUvarint(b, uint64(len(g.layers)))
		for j := range g.layers {
			b = g.layers[j].appendBits(b)
		}
		after = g.number
	}
	return b
}

// Decode replaces the filter by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change. See Bloom.Decode
// about memory.
func (f *BloomTimed) Decode(b []byte) (rest []byte, err error) {
	return f.DecodeWithin(b, BloomBytesMax)
}

// DecodeWithin is Decode that also refuses sparse encodings whose layers would need more memory than room, in bytes,
// once they are full.
func (f *BloomTimed) DecodeWithin(b []byte, room int) (rest []byte, err error) {
	r := reading(b, room)
	p := r.bloomParams(bloomTimedKind)
	window, latest, count := r.uvarint(), r.uvarint(), r.int(BloomTimedParts+1)
	if !r.ok || window > uint64(HalfLifeMax) {
		return nil, ErrCorrupt
	}
	n, err := NewBloomTimed(BloomTimedParams{
		Capacity: p.Capacity, FalseRate: p.FalseRate, Window: Tick(window), Hash: p.Hash,
	})
	if err != nil || latest > uint64(MaxTick/n.Span()) {
		return nil, ErrCorrupt
	}
	n.latest = int64(latest)
	if !n.decodeGenerations(&r, count) {
		return nil, ErrCorrupt
	}
	*f = n
	return r.b, nil
}

func (f *BloomTimed) decodeGenerations(r *reader, count int) bool {
	after := f.latest + 1
	for range count {
		g := timedGeneration{number: after - 1 - int64(r.int(BloomTimedParts))}
		layers := r.int(BloomGenerationsMax)
		if !r.ok || g.number < max(0, f.oldest(f.latest)) || layers == 0 {
			return false
		}
		for i := range layers {
			l, err := f.layer(i)
			if err != nil || !l.decodeBits(r) || l.ones == 0 || i > 0 && g.layers[i-1].ones < g.layers[i-1].full {
				return false
			}
			g.layers = append(g.layers, l)
		}
		f.generations = append(f.generations, g)
		after = g.number
	}
	slices.Reverse(f.generations)
	return r.ok
}
