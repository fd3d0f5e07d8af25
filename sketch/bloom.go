package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// Limits of Bloom filters of all sorts.
const (
	BloomBytesMax     = 64 << 20
	BloomFalseRateMin = 1e-6
	BloomFalseRateMax = 0.5
)

// bloomMargin is the part of the target rate that filters are sized for, so that measured rates stay below the target.
const bloomMargin = 0.97

// BloomParams decide the shape of a filter.
type BloomParams struct {
	// Capacity is the number of keys that the filter is for; of a BloomScalable, the capacity of its first generation.
	Capacity uint64
	// FalseRate is the largest rate of false positives, with Capacity keys: in 1e-6..0.5.
	FalseRate float64
	Hash      Hash
}

func (p *BloomParams) check() error {
	if p.Capacity == 0 {
		return fmt.Errorf("%w: bloom: capacity of 0", ErrParams)
	}
	if !(p.FalseRate >= BloomFalseRateMin && p.FalseRate <= BloomFalseRateMax) {
		return fmt.Errorf("%w: bloom: rate %v of false positives is not in %v..%v", ErrParams, p.FalseRate, BloomFalseRateMin, BloomFalseRateMax)
	}
	if !p.Hash.known() {
		return fmt.Errorf("%w: bloom: hash id %d is unknown", ErrParams, p.Hash.ID)
	}
	return nil
}

// Bloom is a split-block Bloom filter (Putze, Sanders, Singler 2007; as in Apache Parquet). It consists of blocks of
// 256 bits. A key sets one bit in each of the 8 lanes of one block, so an operation reads one cache line:
//
//	hash -> block (its upper bits), and from a remixed hash 5 bits a lane
//	| lane 0, 32 bits | lane 1 | ... | lane 7 |
//
// A key that was added is always found. Other keys are found at a rate of at most FalseRate, as long as there are no
// more than Capacity keys: 10.6 bits a key at 1%. Beyond Capacity the filter still takes keys, and answers with Over.
//
// The state is a set of bits: adding and merging commute, associate and are idempotent, to the byte. It is a value with
// one owner: Clone makes an independent copy. It takes memory for the blocks that have keys, and for all blocks once a
// sixth to a third have keys.
type Bloom struct {
	params BloomParams
	blocks int
	bits   bitCells[[4]uint64] // a cell is a block; sparse up to bits.most blocks
	ones   int                 // bits set
	full   int                 // bits set at capacity
	over   int                 // with more bits set the filter is over: beyond capacity by 4 standard deviations
}

const blockBits = 256

// NewBloom makes an empty filter, or returns ErrParams.
func NewBloom(p BloomParams) (Bloom, error) {
	p.Hash = p.Hash.orDefault()
	if err := p.check(); err != nil {
		return Bloom{}, err
	}
	return newBloom(p)
}

// newBloom takes any rate: generations have rates below BloomFalseRateMin.
func newBloom(p BloomParams) (Bloom, error) {
	blocks := math.Ceil(float64(p.Capacity) / splitBlockLoad(float64(p.FalseRate*bloomMargin)))
	if blocks > BloomBytesMax*8/blockBits {
		return Bloom{}, fmt.Errorf("%w: bloom: %d keys at %v take %.0f bytes, more than %d",
			ErrParams, p.Capacity, p.FalseRate, float64(blocks*(blockBits/8)), BloomBytesMax)
	}
	f := Bloom{params: p, blocks: int(blocks)}
	f.bits = newBits[[4]uint64](f.size())
	n := float64(p.Capacity)
	lane := float64(blocks * (blockBits / 8))
	f.full = f.onesOf(n)
	f.over = f.onesOf(n + float64(4*math.Sqrt(linearVariance(n, lane))) + 1)
	return f, nil
}

// size is the number of bits.
func (f *Bloom) size() int { return blockBits * f.blocks }

// onesOf is the average number of bits that n keys set.
func (f *Bloom) onesOf(n float64) int {
	lane := float64(f.blocks) * (blockBits / 8)
	return int(float64(8*lane) * (1 - exp2Float(float64(-n/lane*math.Log2E))))
}

// splitBlockRate is the rate of false positives when a block has a Poisson number of keys with this mean:
// E (1 - (31/32)^j)^8.
func splitBlockRate(mean float64) float64 { return splitBlockMoment(mean, 1) }

// splitBlockMoment is the mean of what one block contributes to that rate, raised to power: 1 or 2.
func splitBlockMoment(mean float64, power int) float64 {
	p := exp2Float(float64(-mean * math.Log2E)) // of j keys
	clear, rate := 1.0, 0.0
	for j := 1.0; j < mean+float64(9*math.Sqrt(mean))+30; j++ { // all but 1e-15
		p = float64(p*mean) / j
		clear = float64(clear * (31.0 / 32))
		x := 1 - clear
		x = float64(x * x)
		x = float64(x * x)
		x = float64(x * x)
		if power == 2 {
			x = float64(x * x)
		}
		rate += float64(p * x)
	}
	return rate
}

// splitBlockLoad is the average number of keys in a block at which the rate of false positives is rate.
func splitBlockLoad(rate float64) float64 {
	low, high := 0.0, 128.0
	for range 32 {
		middle := float64((low + high) * 0.5)
		if splitBlockRate(middle) > rate {
			high = middle
		} else {
			low = middle
		}
	}
	return low
}

// Params are the parameters of the constructor.
func (f *Bloom) Params() BloomParams { return f.params }

// block is where the words of a key begin; lanes is the hash whose bits pick one of the 32 bits of each lane.
func (f *Bloom) block(hash uint64) (at int, lanes uint64) {
	return 4 * int(mulHigh(hash, uint64(f.blocks))), remix(hash, 0)
}

// laneMask is the mask of the two bits that a key sets in the k-th word of its block.
func laneMask(lanes uint64, k int) uint64 {
	return 1<<(lanes>>(10*k)&31) | 1<<(32+lanes>>(10*k+5)&31)
}

// Add adds a key by its hash, and reports whether a bit changed. If not, the key, or keys with the same bits, were
// there.
func (f *Bloom) Add(hash uint64) (changed bool) {
	if f.bits.words == nil && !f.bits.begin(f.size()) {
		return f.addFew(hash)
	}
	at, lanes := f.block(hash)
	words := f.bits.words
	for k, w := range words[at : at+4] {
		set := w | laneMask(lanes, k)
		if set != w {
			words[at+k] = set
			f.ones += bits.OnesCount64(set ^ w)
			changed = true
		}
	}
	return changed
}

// addFew is Add while the filter is sparse.
func (f *Bloom) addFew(hash uint64) (changed bool) {
	at, lanes := f.block(hash)
	block := f.bits.few.cell(at / 4)
	for k, w := range block {
		set := w | laneMask(lanes, k)
		if set != w {
			block[k] = set
			f.ones += bits.OnesCount64(set ^ w)
			changed = true
		}
	}
	f.settle()
	return changed
}

// settle makes the filter dense when it has too many blocks for the sparse form. A filter never loses blocks.
func (f *Bloom) settle() {
	if f.bits.used() > f.bits.most {
		f.bits.spread(f.size())
	}
}

// BloomAnswer says whether a key is there.
type BloomAnswer struct {
	// Found is always true for a key that was added, and for other keys at the rate of false positives.
	Found bool
	// Over says that more keys were added than the filter is for: the rate is above FalseRate.
	Over bool
}

// Has says whether a key was added. It never writes.
func (f *Bloom) Has(hash uint64) BloomAnswer {
	if f.bits.few != nil {
		return BloomAnswer{Found: f.inTable(hash), Over: f.ones > f.over}
	}
	return BloomAnswer{Found: f.has(hash), Over: f.ones > f.over}
}

// has is Has for a dense filter; it is false while the filter is sparse.
func (f *Bloom) has(hash uint64) bool {
	if f.bits.words == nil {
		return false
	}
	at, lanes := f.block(hash)
	missing := uint64(0)
	for k, w := range f.bits.words[at : at+4] {
		missing |= laneMask(lanes, k) &^ w
	}
	return missing == 0
}

// hasFew is Has for a sparse filter; it is false unless the filter is sparse.
func (f *Bloom) hasFew(hash uint64) bool { return f.bits.few != nil && f.inTable(hash) }

func (f *Bloom) inTable(hash uint64) bool {
	at, lanes := f.block(hash)
	block := f.bits.few.find(at / 4)
	if block == nil {
		return false
	}
	missing := uint64(0)
	for k, w := range block {
		missing |= laneMask(lanes, k) &^ w
	}
	return missing == 0
}

// BloomState describes a filter as a whole.
type BloomState struct {
	// Keys is an estimate of the number of keys, from the bits that are set, and KeysError its standard error. For a
	// filter that was merged or expires, KeysError is an upper bound.
	Keys, KeysError float64
	// KeysLeast and KeysMost are bounds of the truth, up to some KeysError. For a BloomExpiring they hold however often
	// and when the keys came; for a merged filter, however many keys were in several filters. Bloom leaves them at 0.
	KeysLeast, KeysMost float64
	// FalseRate is the expected rate of false positives with Keys keys.
	FalseRate float64
	Over      bool
}

// State estimates the number of keys and the rate of false positives. It never writes.
func (f *Bloom) State() BloomState {
	s := BloomState{Over: f.ones > f.over}
	if f.ones == 0 {
		return s
	}
	lane := float64(f.blocks) * (blockBits / 8)
	zeros := max(float64(8*lane)-float64(f.ones), 1)
	s.Keys = float64(float64(lane*math.Ln2) * (Log2(float64(8*lane)) - Log2(zeros)))
	if f.ones == blockBits*f.blocks {
		s.KeysError, s.FalseRate = math.Inf(1), 1
		return s
	}
	s.KeysError = math.Sqrt(blockVariance(s.Keys, f.blocks))
	s.FalseRate = splitBlockRate(s.Keys / float64(f.blocks))
	return s
}

// Merge makes the receiver the union with o; o does not change. It returns ErrIncompatible, and then nothing has
// changed.
func (f *Bloom) Merge(o *Bloom) error {
	if f.params != o.params {
		return &mismatch{kind: "bloom", a: f.params, b: o.params}
	}
	if o.bits.empty() {
		return nil
	}
	f.bits.merge(&o.bits, f.size())
	f.settle()
	f.ones = f.bits.ones()
	return nil
}

// Clone is a copy that shares no memory with the original.
func (f *Bloom) Clone() Bloom {
	c := *f
	c.bits = f.bits.clone()
	return c
}

// Size is the memory in bytes, the struct itself included.
func (f *Bloom) Size() int { return bloomOwn + f.bits.size() }

// bloomOwn is the size of a Bloom without its bits.
const bloomOwn = 104

// A Bloom in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'b', 1
//	hash             9 bytes, see Hash
//	capacity         uvarint
//	false rate       8 bytes, a little endian double
//	used             1 byte: 0 when no bit is set, and that is the end; else 1
//	bitmap           see appendBitmap

const bloomKind = 'b'

func (p *BloomParams) append(b []byte, kind byte) []byte {
	b = p.Hash.append(append(b, kind, codecVersion))
	return appendFloat(binary.AppendUvarint(b, p.Capacity), p.FalseRate)
}

func (r *reader) bloomParams(kind byte) BloomParams {
	r.header(kind)
	return BloomParams{Hash: r.hash(), Capacity: r.uvarint(), FalseRate: r.plainFloat()}
}

// AppendBinary appends the encoding to b.
func (f *Bloom) AppendBinary(b []byte) []byte { return f.appendBits(f.params.append(b, bloomKind)) }

func (f *Bloom) appendBits(b []byte) []byte {
	if f.ones == 0 {
		return append(b, 0)
	}
	return f.bits.append(append(b, 1), f.size(), f.ones)
}

// Decode replaces the filter by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change. The encoding of a
// nearly empty filter is short, but the filter may grow to BloomBytesMax of memory.
func (f *Bloom) Decode(b []byte) (rest []byte, err error) {
	r := reading(b, BloomBytesMax)
	p := r.bloomParams(bloomKind)
	if !r.ok {
		return nil, ErrCorrupt
	}
	n, err := NewBloom(p)
	if err != nil || !n.decodeBits(&r) {
		return nil, ErrCorrupt
	}
	*f = n
	return r.b, nil
}

// narrow makes a dense filter sparse if it has few blocks with keys.
func (f *Bloom) narrow() {
	if f.bits.words == nil || f.bits.most == 0 {
		return
	}
	used := 0
	for i := 0; i < len(f.bits.words); i += 4 {
		if countOnes(f.bits.words[i:i+4]) > 0 {
			used++
		}
	}
	if used <= f.bits.most {
		f.bits.narrow()
	}
}

func (f *Bloom) decodeBits(r *reader) (ok bool) {
	switch r.byte() {
	case 0:
		return r.ok
	case 1:
		f.bits, f.ones, ok = bitmapOf[[4]uint64](r, f.size())
		if ok = ok && r.ok; ok {
			f.narrow()
		}
		return ok
	}
	return false
}
