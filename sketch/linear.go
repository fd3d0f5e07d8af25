package sketch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Limits and defaults of a LinearCounter.
const (
	// LinearExactMax is the largest number of members that are stored one by one.
	LinearExactMax = 250
	// LinearBytesMax bounds the bitmap.
	LinearBytesMax = 8 << 20
	// LinearMemberMax bounds the bytes of a stored member.
	LinearMemberMax = 1024
	// LinearStandardError is the default of LinearParams.StandardError.
	LinearStandardError = 0.005
)

// linearSpare is how many zero bits must be expected at capacity, so that a full bitmap is improbable.
const linearSpare = 25

// LinearParams decide the shape of a LinearCounter.
type LinearParams struct {
	// Capacity is the largest expected number of members.
	Capacity uint64
	// StandardError is the relative standard error from LinearExactMax up to Capacity: in 0.001..0.1; 0 means 0.005.
	StandardError float64
	// Members stores the members themselves, as long as there are at most LinearExactMax.
	Members bool
	Hash    Hash
}

// Bits is the number of bits in the bitmap of a counter with these parameters. It returns ErrParams if they are
// invalid.
func (p *LinearParams) Bits() (int, error) {
	l, err := NewLinearCounter(*p)
	return l.m, err
}

// size is the number of bits, a multiple of 64: the least that keeps the standard error.
func (p *LinearParams) size() (int, error) {
	if p.Capacity == 0 {
		return 0, fmt.Errorf("%w: linear: capacity of 0", ErrParams)
	}
	if !(p.StandardError >= 0.001 && p.StandardError <= 0.1) {
		return 0, fmt.Errorf("%w: linear: standard error %v is not in 0.001..0.1", ErrParams, p.StandardError)
	}
	if !p.Hash.known() {
		return 0, fmt.Errorf("%w: linear: hash id %d is unknown", ErrParams, p.Hash.ID)
	}
	low, high := 1, LinearBytesMax/8
	for low < high {
		middle := (low + high) / 2
		if p.suffices(64 * middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if !p.suffices(64 * low) {
		return 0, fmt.Errorf("%w: linear: a capacity of %d with standard error %v takes more than %d bytes",
			ErrParams, p.Capacity, p.StandardError, LinearBytesMax)
	}
	return 64 * low, nil
}

// suffices says whether m bits keep the standard error, at capacity and with few members, and leave zero bits at
// capacity.
func (p *LinearParams) suffices(m int) bool {
	n, e := float64(p.Capacity), p.StandardError
	load := n / float64(m)
	few := float64(float64(float64(m)*2)*float64(e*e)) >= 1
	full := float64(float64(m)*exp2Float(float64(-load*math.Log2E))) >= linearSpare
	return few && full && linearVariance(n, float64(m)) <= float64(float64(n*e)*float64(n*e))
}

// linearVariance is the variance of the estimate of n members in m bits, m (e^t - t - 1) with t = n/m (Whang 1990).
func linearVariance(n, m float64) float64 {
	t := n / m
	if t < 1e-3 { // where the difference would cancel
		return float64(float64(n*t) * (0.5 + t/6))
	}
	return float64(m * (exp2Float(float64(t*math.Log2E)) - t - 1))
}

// LinearCounter counts distinct members: exactly up to LinearExactMax, and by linear counting beyond (Whang,
// Vander-Zanden, Taylor 1990). The hash of a member picks one of m bits, which is set. If z bits are still zero:
//
//	n = -m ln(z/m) - (e^t - t - 1)/2      t = n/m; the second term is the bias of the first
//	standard deviation sqrt(m (e^t - t - 1))
//
// The state is a set, without order or time: adding and merging commute, associate and are idempotent, to the byte.
// Members are distinguished by their hash. At a capacity of 50,000 a full counter takes 4 KiB. The bitmap takes memory
// only for the words that have a bit set; once the bits set are an eighth to a quarter of the number of words, it takes
// memory for all words.
//
// It is a value with one owner: Clone makes an independent copy.
type LinearCounter struct {
	params LinearParams
	m      int
	hashes []uint64            // ascending, while exact
	places []uint32            // where the members begin in the arena, parallel to hashes
	arena  []byte              // members, each after its length in 2 bytes
	named  int                 // bytes of the arena that places point to
	bits   bitCells[[1]uint64] // empty while exact; sparse while ones is at most bits.most
	ones   int                 // bits that are set
}

// NewLinearCounter makes an empty counter, or returns ErrParams.
func NewLinearCounter(p LinearParams) (LinearCounter, error) {
	p.Hash = p.Hash.orDefault()
	if p.StandardError == 0 {
		p.StandardError = LinearStandardError
	}
	m, err := p.size()
	if err != nil {
		return LinearCounter{}, err
	}
	return LinearCounter{params: p, m: m, bits: newBits[[1]uint64](m)}, nil
}

// Params are the parameters of the constructor, defaults filled in.
func (l *LinearCounter) Params() LinearParams { return l.params }

// Exact says whether members are still stored one by one.
func (l *LinearCounter) Exact() bool { return l.bits.empty() }

// Add counts a member by its hash. It reads member only when Params.Members is set. It returns ErrName, and then
// nothing has changed.
func (l *LinearCounter) Add(hash uint64, member []byte) error {
	if !l.params.Members {
		member = nil
	}
	if len(member) > LinearMemberMax {
		return fmt.Errorf("%w: %d bytes, more than %d", ErrName, len(member), LinearMemberMax)
	}
	switch {
	case l.bits.words != nil:
		l.setFull(hash)
	case l.bits.few != nil:
		l.setFew(hash)
	default:
		l.insert(hash, member)
	}
	return nil
}

// insert adds to the exact set, or changes to the bitmap when the exact set is full.
func (l *LinearCounter) insert(hash uint64, member []byte) {
	i, found := slices.BinarySearch(l.hashes, hash)
	switch {
	case found && l.params.Members && bytes.Compare(member, l.member(i)) < 0: // the lesser of one hash stays
		l.named -= 2 + len(l.member(i))
		l.places[i] = l.intern(member)
	case found:
	case len(l.hashes) == LinearExactMax:
		l.spread()
		l.set(hash)
	default:
		l.hashes = slices.Insert(roomier(l.hashes, LinearExactMax), i, hash)
		if l.params.Members {
			l.places = slices.Insert(roomier(l.places, LinearExactMax), i, l.intern(member))
		}
	}
}

func (l *LinearCounter) intern(member []byte) uint32 {
	at := len(l.arena)
	l.named += 2 + len(member)
	if more := 2 + len(member); at+more > cap(l.arena) {
		l.arena = enlarged(l.arena, at+at/4+more)
	}
	l.arena = append(binary.LittleEndian.AppendUint16(l.arena, uint16(len(member))), member...)
	return uint32(at)
}

func (l *LinearCounter) member(i int) []byte {
	at := l.places[i]
	n := binary.LittleEndian.Uint16(l.arena[at:])
	return l.arena[at+2:][:n:n]
}

// spread changes from the exact set to the bitmap.
func (l *LinearCounter) spread() {
	hashes := l.hashes
	l.hashes, l.places, l.arena, l.named = nil, nil, nil, 0
	l.bits.begin(l.m)
	for _, h := range hashes {
		l.set(h)
	}
}

// set sets a bit of the bitmap.
func (l *LinearCounter) set(hash uint64) {
	if l.bits.words == nil {
		l.setFew(hash)
	} else {
		l.setFull(hash)
	}
}

// setFull is set while the bitmap is dense.
func (l *LinearCounter) setFull(hash uint64) {
	at := mulHigh(hash, uint64(l.m))
	word, bit := &l.bits.words[at/64], uint64(1)<<(at%64)
	if *word&bit == 0 {
		*word |= bit
		l.ones++
	}
}

// setFew is set while the bitmap is sparse.
func (l *LinearCounter) setFew(hash uint64) {
	if l.bits.set(int(mulHigh(hash, uint64(l.m)))) {
		l.ones++
		l.settle()
	}
}

// settle makes the bitmap dense when it has too many bits for the sparse form. A counter never loses bits.
func (l *LinearCounter) settle() {
	if l.ones > l.bits.most {
		l.bits.spread(l.m)
	}
}

// LinearEstimate is a count of distinct members.
type LinearEstimate struct {
	// Count is the estimate, and StandardError its standard error: 0 when Exact.
	Count, StandardError float64
	Exact                bool
	// Over says that the count is above the declared capacity, and the standard error above the declared one.
	Over bool
	// Saturated says that no bit is zero: the count is only a lower bound, and its standard error is +Inf.
	Saturated bool
}

// Estimate is the number of members. It never writes, and takes constant time.
func (l *LinearCounter) Estimate() LinearEstimate {
	if l.Exact() {
		n := float64(len(l.hashes))
		return LinearEstimate{Count: n, Exact: true, Over: n > float64(l.params.Capacity)}
	}
	m := float64(l.m)
	zeros := float64(max(l.m-l.ones, 1))
	n := float64(float64(m*math.Ln2) * (Log2(m) - Log2(zeros)))
	variance := linearVariance(n, m)
	e := LinearEstimate{Count: n - float64(variance/m/2), StandardError: math.Sqrt(variance), Saturated: l.ones == l.m}
	if e.Saturated {
		e.StandardError = math.Inf(1)
	}
	e.Over = e.Saturated || e.Count-float64(3*e.StandardError) > float64(l.params.Capacity)
	return e
}

// Between returns bounds that contain the count with a probability, such as 0.95, or a little more. e must be neither
// exact nor saturated. With few members, the number of members that share a bit is a Poisson variable, and its bounds
// are not symmetric. With many members, the error is normal.
func (l *LinearCounter) Between(e LinearEstimate, probability float64) (low, high float64) {
	shared := max(e.Count-float64(l.ones), 0)
	if e.Count > linearFew*float64(l.m) || shared > linearShared {
		return Around(e.Count, e.StandardError, probability)
	}
	first, last := poissonBetween(shared, probability)
	return min(float64(l.ones)+first, e.Count), max(float64(l.ones)+last, e.Count)
}

const (
	// linearFew is the load up to which the other members change by at most 5% whether a member shares its bit.
	linearFew = 0.05
	// linearShared is the mean from which on the bounds of a Poisson variable are within 3% of those of a normal one.
	linearShared = 100
)

// poissonBetween returns the shortest range of values that a Poisson variable takes with a probability. mean must be
// below 700.
func poissonBetween(mean, probability float64) (first, last float64) {
	at := exp2Float(float64(-mean * math.Log2E)) // the probability of 0, then of the most probable value
	for first < math.Floor(mean) {
		first++
		at = float64(at * mean / first)
	}
	last = first
	for lower, upper, sum := at, at, at; sum < probability; {
		under, over := float64(lower*first)/mean, float64(upper*mean)/(last+1)
		switch {
		case first > 0 && under >= over:
			lower, first, sum = under, first-1, sum+under
		case over > 0:
			upper, last, sum = over, last+1, sum+over
		default: // the remaining probabilities round to 0
			return first, last
		}
	}
	return first, last
}

// Members appends the members to dst, in the order of their hashes. ok is false when members are not stored, or no
// longer. They are valid until the next write.
func (l *LinearCounter) Members(dst [][]byte) (members [][]byte, ok bool) {
	if !l.params.Members || !l.Exact() {
		return dst, false
	}
	for i := range l.hashes {
		dst = append(dst, l.member(i))
	}
	return dst, true
}

// Merge makes the receiver the union with o; o does not change. It commutes, associates and is idempotent, to the byte.
// It returns ErrIncompatible, and then nothing has changed.
func (l *LinearCounter) Merge(o *LinearCounter) error {
	if l.params != o.params {
		return &mismatch{kind: "linear", a: l.params, b: o.params}
	}
	if o.Exact() {
		for i, h := range o.hashes {
			switch {
			case !l.Exact():
				l.set(h)
			case l.params.Members:
				l.insert(h, o.member(i))
			default:
				l.insert(h, nil)
			}
		}
		return nil
	}
	if l.Exact() {
		l.spread()
	}
	l.bits.merge(&o.bits, l.m)
	l.ones = l.bits.ones()
	l.settle()
	return nil
}

// Clone is a copy that shares no memory with the original.
func (l *LinearCounter) Clone() LinearCounter {
	c := *l
	c.hashes, c.places = slices.Clone(l.hashes), slices.Clone(l.places)
	c.arena, c.bits = slices.Clone(l.arena), l.bits.clone()
	return c
}

// Size is the memory in bytes, the struct itself included.
func (l *LinearCounter) Size() int {
	return linearOwn + 8*cap(l.hashes) + 4*cap(l.places) + cap(l.arena) + l.bits.size()
}

// linearOwn is the size of a LinearCounter without the memory that it points to.
const linearOwn = 176

// A LinearCounter in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'l', 1
//	hash             9 bytes, see Hash
//	capacity         uvarint
//	standard error   8 bytes, a little endian double
//	members          1 byte, 0 or 1
//	form             1 byte: 0 exact, else that of the bitmap
//	exact            uvarint of how many; the hashes, ascending, 8 bytes each; when members are kept, each a uvarint of
//	                 its length and its bytes
//	bitmap           see appendBitmap

const linearKind = 'l'

// linearExact is the value of form for the exact set, which no bitmap form uses.
const linearExact = 0

// AppendBinary appends the encoding to b.
func (l *LinearCounter) AppendBinary(b []byte) []byte {
	b = l.params.Hash.append(append(b, linearKind, codecVersion))
	b = appendFloat(binary.AppendUvarint(b, l.params.Capacity), l.params.StandardError)
	flag := byte(0)
	if l.params.Members {
		flag = 1
	}
	b = append(b, flag)
	if !l.Exact() {
		return l.bits.append(b, l.m, l.ones)
	}
	b = binary.AppendUvarint(append(b, linearExact), uint64(len(l.hashes)))
	for _, h := range l.hashes {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	if l.params.Members {
		for i := range l.hashes {
			b = append(binary.AppendUvarint(b, uint64(len(l.member(i)))), l.member(i)...)
		}
	}
	return b
}

// Decode replaces the counter by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change.
func (l *LinearCounter) Decode(b []byte) (rest []byte, err error) {
	return l.DecodeWithin(b, LinearBytesMax)
}

// DecodeWithin is Decode that also refuses a sparse encoding whose bitmap would need more memory than room, in bytes,
// once it is full.
func (l *LinearCounter) DecodeWithin(b []byte, room int) (rest []byte, err error) {
	r := reading(b, room)
	r.header(linearKind)
	p := LinearParams{Hash: r.hash(), Capacity: r.uvarint(), StandardError: r.plainFloat()}
	flag := r.byte()
	p.Members = flag == 1
	if !r.ok || flag > 1 || p.StandardError == 0 {
		return nil, ErrCorrupt
	}
	n, err := NewLinearCounter(p)
	if err != nil {
		return nil, ErrCorrupt
	}
	ok := false
	if len(r.b) > 0 && r.b[0] == linearExact {
		r.byte()
		ok = n.decodeExact(&r)
	} else {
		n.bits, n.ones, ok = bitmapOf[[1]uint64](&r, n.m)
		if ok && n.bits.words != nil && n.ones <= n.bits.most {
			n.bits.narrow()
		} else if ok {
			n.settle()
		}
	}
	if !ok || !r.ok {
		return nil, ErrCorrupt
	}
	*l = n
	return r.b, nil
}

func (l *LinearCounter) decodeExact(r *reader) bool {
	n := r.int(LinearExactMax)
	if !r.ok || 8*n > len(r.b) {
		return false
	}
	l.hashes = make([]uint64, n)
	for i := range l.hashes {
		l.hashes[i] = binary.LittleEndian.Uint64(r.take(8))
		if i > 0 && l.hashes[i] <= l.hashes[i-1] {
			return false
		}
	}
	if l.params.Members {
		for range n {
			member := r.take(r.int(LinearMemberMax))
			if !r.ok {
				return false
			}
			l.places = append(l.places, l.intern(member))
		}
	}
	return true
}
