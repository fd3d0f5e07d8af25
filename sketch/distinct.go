package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Precisions of a Distinct: it has 2^p registers of 4 bytes.
const (
	DistinctPrecisionMin     = 2
	DistinctPrecisionMax     = 18
	DistinctPrecisionDefault = 11 // 8 KiB, 0.76%
)

// DistinctParams say how a Distinct is made.
type DistinctParams struct {
	// Precision p, 2 to 18; 0 means 11. With 2^p registers the memory is 4 * 2^p bytes at most and the relative
	// standard error 0.3437 / sqrt(2^p): 2.2% in 1 KiB (p = 8), 0.76% in 8 KiB (p = 11), 0.07% in 1 MiB (p = 18).
	Precision int
	// Hash is the hash function and seed of the caller's hashes.
	Hash Hash
}

// Distinct counts distinct things by their 64-bit hashes, up to 2^63 things. NewDistinct makes one.
//
// Up to 3/4 * 2^p things, a Distinct keeps a token of 32 bits for each. Nearly all things have different tokens: of n
// things, n^2/2^29 are expected to share a token, and the estimate corrects for that. With more things it becomes an
// ExaLogLog with t = 2 and d = 24 (O. Ertl, "ExaLogLog: Space-Efficient and Practical Approximate Distinct Counting up
// to the Exa-Scale", EDBT 2025, arXiv:2402.13726), estimated by maximum likelihood. Tokens hold all that registers
// need, so it makes no difference when tokens become registers.
//
//	hash       | 62 - p bits: z leading zeros | p bits: register i | 2 bits: s |
//	update     k = 4z + s + 1, which has probability 2^-(3 + (k-1)/4) (the last four 2^-(p-64))
//	register   | 8 bits: u, the largest k so far | 24 bits: which of u-1 ... u-24 were seen, u-1 first |
//	token      | the low 26 bits of the hash | 6 bits: 1 + leading zeros of the upper 38 |
//
// The state is a function of the set of hashes alone. The order, repetition and grouping of Add and Merge make no
// difference.
//
// It is a value with one owner: Clone makes an independent copy.
type Distinct struct {
	words  []uint32 // tokens (see insertToken) or registers
	tokens uint32   // the number of words that hold a token
	p      uint8
	dense  bool // words are 2^p registers
	hash   Hash
}

const (
	ellD       = 24
	ellMask    = 1<<ellD - 1
	tokenBits  = 26
	tokenZeros = 64 - tokenBits // the most leading zeros that a token can store
)

// NewDistinct is an empty Distinct. It returns ErrParams for a precision out of range or an unknown hash.
func NewDistinct(p DistinctParams) (Distinct, error) {
	if p.Precision == 0 {
		p.Precision = DistinctPrecisionDefault
	}
	h := p.Hash.orDefault()
	if p.Precision < DistinctPrecisionMin || p.Precision > DistinctPrecisionMax {
		return Distinct{}, fmt.Errorf("distinct: precision %d is not in %d to %d: %w", p.Precision, DistinctPrecisionMin, DistinctPrecisionMax, ErrParams)
	}
	if !h.known() {
		return Distinct{}, fmt.Errorf("distinct: hash %d: %w", h.ID, ErrParams)
	}
	return Distinct{p: uint8(p.Precision), hash: h}, nil
}

// Params are the present parameters: those of the constructor, unless a merge has changed them.
func (d *Distinct) Params() DistinctParams { return DistinctParams{Precision: int(d.p), Hash: d.hash} }

// tokensMax is the largest number of tokens; with one more, they become registers.
func (d *Distinct) tokensMax() int { return 3 << d.p / 4 }

// Add adds the thing with this hash, and reports whether that changed the state.
func (d *Distinct) Add(hash uint64) bool {
	if d.dense {
		r := &d.words[hash>>2&(1<<d.p-1)]
		old := *r
		now := ellUpdate(old, ellValue(hash, d.p))
		if now == old {
			return false
		}
		*r = now
		return true
	}
	return d.addToken(tokenOf(hash))
}

// ellValue is the update k that a hash makes to its register.
func ellValue(hash uint64, p uint8) uint32 {
	zeros := uint32(bits.LeadingZeros64(hash | (1<<(p+2) - 1)))
	return zeros<<2 + uint32(hash&3) + 1
}

// ellUpdate is the register r after the update k.
func ellUpdate(r, k uint32) uint32 {
	u := r >> ellD
	if k > u {
		return k<<ellD | (1<<ellD|r&ellMask)>>(k-u)
	}
	if k < u && u-k <= ellD {
		return r | 1<<(ellD-(u-k))
	}
	return r
}

// ellMerge is the register after all updates of a and b.
func ellMerge(a, b uint32) uint32 {
	if a>>ellD < b>>ellD {
		a, b = b, a
	}
	if delta := a>>ellD - b>>ellD; delta > 0 {
		return a | (1<<ellD|b&ellMask)>>delta
	}
	return a | b
}

func tokenOf(hash uint64) uint32 {
	zeros := uint32(bits.LeadingZeros64(hash | (1<<tokenBits - 1)))
	return uint32(hash)<<6 | zeros + 1
}

// hashOfToken is a hash with this token: it updates all registers as the original hash does.
func hashOfToken(token uint32) uint64 {
	h := uint64(token >> 6)
	if zeros := token&63 - 1; zeros < tokenZeros {
		h |= 1 << (63 - zeros)
	}
	return h
}

// Tokens are kept in ascending order; 0 marks a gap. The home of a token is its share of 2^32 in the first 7/8 of the
// words; a token stands there or after its lesser neighbours (ordered linear probing; Amble and Knuth 1974).

func tokenHome(token uint32, words int) int { return int(uint64(token) * uint64(words-words/8) >> 32) }

func (d *Distinct) addToken(token uint32) bool {
	if len(d.words) == 0 {
		d.growTokens()
	}
	i := tokenHome(token, len(d.words))
	for i < len(d.words) && d.words[i] != 0 && d.words[i] < token {
		i++
	}
	if i < len(d.words) && d.words[i] == token {
		return false
	}
	if int(d.tokens) >= d.tokensMax() {
		d.densify(d.p)
		d.Add(hashOfToken(token))
		return true
	}
	if int(d.tokens) >= len(d.words)*3/4 || !d.insertAt(i, token) {
		d.growTokens()
		return d.addToken(token)
	}
	d.tokens++
	return true
}

// insertAt moves the tokens from i on into the next gap. It returns false, and changes nothing, when there is no gap.
func (d *Distinct) insertAt(i int, token uint32) bool {
	end := i
	for end < len(d.words) && d.words[end] != 0 {
		end++
	}
	if end == len(d.words) {
		return false
	}
	copy(d.words[i+1:end+1], d.words[i:end])
	d.words[i] = token
	return true
}

func (d *Distinct) growTokens() {
	d.setTokens(d.words, int(d.tokens), len(d.words)+max(len(d.words)*3/8, 4))
}

// setTokens stores sorted, a list of tokens with possible gaps, in a table of at least this many words.
func (d *Distinct) setTokens(sorted []uint32, tokens, words int) {
	for ; ; words += words/8 + 1 {
		table := slices.Grow([]uint32(nil), words)
		table = table[:cap(table)]
		if placeTokens(table, sorted) {
			d.words, d.tokens = table, uint32(tokens)
			return
		}
	}
}

func placeTokens(table, sorted []uint32) bool {
	next := 0
	for _, token := range sorted {
		if token == 0 {
			continue
		}
		i := max(tokenHome(token, len(table)), next)
		if i >= len(table) {
			return false
		}
		table[i] = token
		next = i + 1
	}
	return true
}

// appendTokens appends the tokens in order.
func (d *Distinct) appendTokens(dst []uint32) []uint32 {
	for _, token := range d.words {
		if token != 0 {
			dst = append(dst, token)
		}
	}
	return dst
}

// densify turns tokens into registers.
func (d *Distinct) densify(p uint8) {
	old := d.words
	d.words, d.tokens, d.dense, d.p = make([]uint32, 1<<p), 0, true, p
	for _, token := range old {
		if token != 0 {
			d.Add(hashOfToken(token))
		}
	}
}

// Merge adds all that o counted; o does not change. Of two precisions, the lower is kept. Merge returns ErrIncompatible
// for different hashes, and then nothing has changed.
func (d *Distinct) Merge(o *Distinct) error {
	if d.hash != o.hash {
		return fmt.Errorf("distinct: hash %d with seed %#x and hash %d with seed %#x: %w", d.hash.ID, d.hash.Seed, o.hash.ID, o.hash.Seed, ErrIncompatible)
	}
	d.reduce(o.p)
	if !o.dense {
		d.mergeTokens(o)
		return nil
	}
	if !d.dense {
		d.densify(d.p)
	}
	if o.p > d.p {
		o.eachReduced(d.p, func(i, r uint32) { d.words[i] = ellMerge(d.words[i], r) })
		return nil
	}
	for i, r := range o.words {
		d.words[i] = ellMerge(d.words[i], r)
	}
	return nil
}

func (d *Distinct) mergeTokens(o *Distinct) {
	if d.dense || int(max(d.tokens, o.tokens)) > d.tokensMax()/2 || d.tokens > 8*o.tokens {
		for _, token := range o.words {
			if token != 0 {
				d.Add(hashOfToken(token))
			}
		}
		return
	}
	if o.tokens == 0 {
		return
	}
	union := o.appendTokens(d.appendTokens(make([]uint32, 0, d.tokens+o.tokens)))
	slices.Sort(union)
	union = slices.Compact(union)
	d.setTokens(union, len(union), len(union)*3/2)
}

// reduce lowers the precision to at most p. The upper bits of an old register number then belong to the leading zeros
// of the hash.
func (d *Distinct) reduce(p uint8) {
	if p >= d.p {
		return
	}
	if !d.dense {
		d.p = p
		if int(d.tokens) > d.tokensMax() {
			d.densify(p)
		}
		return
	}
	words := make([]uint32, 1<<p)
	d.eachReduced(p, func(i, r uint32) { words[i] = ellMerge(words[i], r) })
	d.words, d.p = words, p
}

// eachReduced calls f with each register converted to a lower precision.
func (d *Distinct) eachReduced(p uint8, f func(i, r uint32)) {
	last := uint32(62-d.p) << 2 // a later update means that all bits before the register number were 0
	for i, r := range d.words {
		to := uint32(i) & (1<<p - 1)
		if r>>ellD <= last {
			f(to, r)
			continue
		}
		more := uint32(bits.LeadingZeros32(uint32(i)>>p)) - uint32(32-(d.p-p))
		moved := uint32(0)
		for k := last + 1; k <= (last>>2+1)<<2; k++ {
			if ellSeen(r, k) {
				moved = ellUpdate(moved, k+more<<2)
			}
		}
		for k := last; k >= 1 && r>>ellD-k <= ellD; k-- {
			if ellSeen(r, k) {
				moved = ellUpdate(moved, k)
			}
		}
		f(to, moved)
	}
}

// ellSeen says whether a register is known to have seen the update k.
func ellSeen(r, k uint32) bool {
	u := r >> ellD
	return k == u || k < u && u-k <= ellD && r>>(ellD-(u-k))&1 == 1
}

// Estimate is the number of distinct things, and its standard error. Small numbers are exact, unless two things share a
// token. It does not write, and takes about 10 ns a register.
func (d *Distinct) Estimate() (n, stdErr float64) {
	var l likelihood
	if !d.dense {
		d.tokensSeen(&l)
		n, variance := l.solve()
		return math.Round(n), spread(n, variance)
	}
	d.registersSeen(&l)
	m := float64(int(1) << d.p)
	rate, variance := l.solve()
	n = float64(rate*m) / (1 + ellBias/m)
	return n, spread(n, float64(float64(variance*m)*m))
}

// spread is the standard error of an estimate whose likelihood is that of a Poisson variable. The true number is fixed,
// so the variance of the Poisson variable is subtracted.
func spread(n, variance float64) float64 { return math.Sqrt(max(0, variance-n)) }

// ellBias is the first-order bias of the maximum likelihood, times m: ln b (1 + 2x) zeta(3, 1+x) / zeta(2, 1+x)^2 with
// b = 2^(1/4) and x = b^-24 / (b-1) (Ertl 2025; Hurwitz zeta functions).
const ellBias = 0.0911936

// tokensSeen collects the likelihood of the tokens: a token of zeros z has probability 2^-(27+z), the last one 2^-64.
func (d *Distinct) tokensSeen(l *likelihood) {
	seen := uint64(0) // in 2^-64
	for _, token := range d.words {
		if token == 0 {
			continue
		}
		level := min(tokenBits+token&63, 64)
		l.seen[level]++
		seen += 1 << (64 - level)
	}
	l.unseen = float64(float64(-seen) * 0x1p-64) // 1 - seen
	if seen == 0 {
		l.unseen = 1
	}
}

// registersSeen sums the known updates over the registers. Level 3 + g holds the updates 4g+1 to 4g+4; level 64-p also
// holds the last four.
func (d *Distinct) registersSeen(l *likelihood) {
	const pad = 7
	var largest [256]uint32     // how many registers have this u
	var groups [pad + 80]uint32 // how many updates of a group were seen
	for _, r := range d.words {
		u := r >> ellD
		largest[u]++
		if u == 0 {
			continue
		}
		field := r&ellMask | 1<<ellD // update u at bit 24, u-1 at bit 23
		if u <= ellD {
			field = field >> (ellD + 1 - u) << (ellD + 1 - u) // there is no update 0
		}
		first := u - 25 + 4*pad // the lowest bit's update, less 1, shifted to be positive
		field <<= first & 3
		field -= field >> 1 & 0x55555555
		field = field&0x33333333 + field>>2&0x33333333
		g := groups[first>>2:][:7]
		g[0] += field & 15
		g[1] += field >> 4 & 15
		g[2] += field >> 8 & 15
		g[3] += field >> 12 & 15
		g[4] += field >> 16 & 15
		g[5] += field >> 20 & 15
		g[6] += field >> 24
	}
	top := 64 - uint32(d.p)
	unseen := uint64(largest[0]) << top // in 2^-top
	for u := uint32(1); u < 256; u++ {
		n := uint64(largest[u])
		if n == 0 {
			continue
		}
		unseen += n * ellBeyond(u, top)
		for k := uint32(max(1, int(u)-ellD)); k <= u; k++ {
			unseen += n << (top - ellLevel(k, top))
		}
	}
	for g, n := range groups[pad:] {
		if n == 0 {
			continue
		}
		level := ellLevel(uint32(4*g+1), top)
		l.seen[level] += uint64(n)
		unseen -= uint64(n) << (top - level)
	}
	l.unseen = float64(float64(unseen) * Exp2(-int64(top), 0))
}

// ellLevel is the level of an update: its probability is 2^-level. top is 64 - p.
func ellLevel(k, top uint32) uint32 { return min(3+(k-1)>>2, top) }

// ellBeyond is the probability of an update larger than u, in units of 2^-top.
func ellBeyond(u, top uint32) uint64 {
	g := (u - 1) >> 2
	rest := uint64(3-(u-1)&3) << (top - ellLevel(u, top))
	if g+2 < top {
		rest += 1 << (top - g - 1)
	}
	return rest
}

// Clone is a copy that shares no memory with the original.
func (d *Distinct) Clone() Distinct {
	c := *d
	c.words = slices.Clone(d.words)
	return c
}

// Size is the memory in bytes, the struct itself included.
func (d *Distinct) Size() int { return 48 + 4*cap(d.words) }

// A Distinct in bytes. Every state has one encoding.
//
//	version    1 byte, 1
//	form       1 byte: 0 tokens, 1 registers
//	precision  1 byte
//	hash       9 bytes, see Hash
//	count      uvarint, of tokens only
//	words      4 bytes each, little endian: the tokens in order, or 2^p registers

const distinctVersion = 1

// AppendBinary appends the encoding to b.
func (d *Distinct) AppendBinary(b []byte) []byte {
	form := byte(0)
	if d.dense {
		form = 1
	}
	b = append(b, distinctVersion, form, d.p)
	b = d.hash.append(b)
	if !d.dense {
		b = binary.AppendUvarint(b, uint64(d.tokens))
	}
	for _, w := range d.words {
		if d.dense || w != 0 {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
	}
	return b
}

// Decode replaces d by the one encoded at the start of b, and returns the bytes that follow. It returns ErrCorrupt for
// bytes that AppendBinary cannot have written, and then the receiver does not change.
func (d *Distinct) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version, form, p := r.byte(), r.byte(), r.byte()
	n := Distinct{p: p, dense: form == 1, hash: r.hash()}
	if !r.ok || version != distinctVersion || form > 1 || p < DistinctPrecisionMin || p > DistinctPrecisionMax {
		return nil, ErrCorrupt
	}
	if n.dense && !n.decodeRegisters(&r) || !n.dense && !n.decodeTokens(&r) {
		return nil, ErrCorrupt
	}
	*d = n
	return r.b, nil
}

func (d *Distinct) decodeRegisters(r *reader) bool {
	raw := r.take(4 << d.p)
	if !r.ok {
		return false
	}
	d.words = make([]uint32, 1<<d.p)
	any := uint32(0)
	for i := range d.words {
		w := binary.LittleEndian.Uint32(raw[4*i:])
		if !ellValid(w, d.p) {
			return false
		}
		d.words[i] = w
		any |= w
	}
	return any != 0
}

// ellValid says whether a register is possible. Below the bit of the first update it must have a 1 at the bit of update
// 0, and only zeros below that.
func ellValid(r uint32, p uint8) bool {
	u := r >> ellD
	if u == 0 {
		return r == 0
	}
	if u > 4*(63-uint32(p)) {
		return false
	}
	return u > ellD || r&(1<<(ellD+1-u)-1) == 1<<(ellD-u)
}

func (d *Distinct) decodeTokens(r *reader) bool {
	count := r.uvarint()
	if !r.ok || count > uint64(d.tokensMax()) {
		return false
	}
	raw := r.take(4 * int(count))
	if !r.ok {
		return false
	}
	sorted := make([]uint32, count)
	for i := range sorted {
		t := binary.LittleEndian.Uint32(raw[4*i:])
		if z := t & 63; z == 0 || z > tokenZeros+1 || i > 0 && t <= sorted[i-1] {
			return false
		}
		sorted[i] = t
	}
	if count > 0 {
		d.setTokens(sorted, int(count), int(count)*4/3+1)
	}
	return true
}
