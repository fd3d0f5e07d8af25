package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Limits of a Set.
const (
	SetKMin     = 16
	SetKMax     = 65536
	SetKDefault = 1024
	// SetMemberMax bounds a member's bytes.
	SetMemberMax = 1 << 16

	setSignatureMin = 64
	setSignatureMax = 1 << 16
)

// SetParams say how a Set is made.
type SetParams struct {
	// K is the number of hashes kept, 16 to 65536; 0 means 1024. The relative standard error of a count is 1/sqrt(K-1),
	// and the error of a Jaccard similarity J is at most sqrt(J(1-J)/K): at K = 1024, 3.1% and 0.016.
	K int
	// Members keeps, with each hash, the member itself: a uniform sample of the set.
	Members bool
	// Signature is the number of 8-bit registers that SimilarityGraph uses, a power of two from 64 to 65536; 0 means
	// 1024, a negative number means none.
	Signature int
	// Hash is the hash function and seed of the caller's hashes.
	Hash Hash
}

// Set summarises a set of things by the k smallest of their 64-bit hashes, so that sets can be compared: their sizes,
// their union, their intersection and their similarity. NewSet makes one.
//
// Up to k things everything is exact. Beyond k, theta is the (k+1)-th smallest hash as a fraction of 2^64: the share of
// all things whose hashes are kept. A count of x hashes stands for x / theta things without bias (Bar-Yossef et al.
// 2002, Beyer et al. 2007; with theta apart from the sample: Dasgupta, Lang, Rhodes, Thaler 2016). The hashes kept are
// a uniform sample of the members.
//
// A Set of more than k things also has a signature. The lower bits of a hash choose a register, and each register holds
// the least of its hashes as -8 log2 (hash/2^64), rounded up. Comparing pairs by signatures is ten times as fast (see
// SimilarityGraph). Registers are full at 2^31 things each.
//
// The state is a function of the set of (hash, member) alone. The order, repetition and grouping of Add and Merge make
// no difference.
//
// It is a value with one owner: Clone makes an independent copy.
type Set struct {
	p         SetParams
	hashes    []uint64 // ascending, all below theta; with late at most k
	members   []string // in the order of hashes, when they are kept
	late      *lateSet // hashes not yet in hashes; nil until a set is large
	named     int      // bytes of all members
	theta     uint64   // the least hash that was left out; 0 when none was
	signature []uint8  // while theta is not 0
}

// NewSet is an empty Set. It returns ErrParams for parameters out of range.
func NewSet(p SetParams) (Set, error) {
	if p.K == 0 {
		p.K = SetKDefault
	}
	if p.Signature == 0 {
		p.Signature = 1024
	}
	p.Signature = max(p.Signature, -1)
	p.Hash = p.Hash.orDefault()
	if p.K < SetKMin || p.K > SetKMax {
		return Set{}, fmt.Errorf("set: k of %d is not in %d to %d: %w", p.K, SetKMin, SetKMax, ErrParams)
	}
	if n := p.Signature; n > 0 && (n < setSignatureMin || n > setSignatureMax || n&(n-1) != 0) {
		return Set{}, fmt.Errorf("set: signature of %d registers is not a power of two from %d to %d: %w", n, setSignatureMin, setSignatureMax, ErrParams)
	}
	if !p.Hash.known() {
		return Set{}, fmt.Errorf("set: hash %d: %w", p.Hash.ID, ErrParams)
	}
	return Set{p: p}, nil
}

// Params are the present parameters: those of the constructor, unless a merge has changed them.
func (s *Set) Params() SetParams { return s.p }

// Len is the number of hashes kept.
func (s *Set) Len() int { return len(s.hashes) + s.late.len() }

// Hashes are the hashes kept, ascending, valid until s changes. theta is the least hash that was left out, or 0 if none
// was.
func (s *Set) Hashes() (hashes []uint64, theta uint64) { return s.settled().hashes, s.theta }

// Exact says whether every thing is kept. Then all answers are exact, except for things with equal hashes.
func (s *Set) Exact() bool { return s.theta == 0 }

// Add adds the thing with this hash. member is copied and kept if Params.Members, and ignored otherwise. Of two members
// with the same hash, the lesser is kept. A member longer than SetMemberMax is cut to that length. Inserting a hash
// moves up to k other hashes, or some hundreds on average when there are more than 2,048. Of n things, about k (1 + ln
// n/k) are inserted.
func (s *Set) Add(hash uint64, member []byte) {
	if s.theta != 0 {
		s.sign(hash)
		if hash >= s.theta {
			return
		}
	}
	member = member[:min(len(member), SetMemberMax)]
	i, found := slices.BinarySearch(s.hashes, hash)
	if found {
		s.rename(s.members, i, member)
		return
	}
	if s.late.len() > 0 {
		if at, found := slices.BinarySearch(s.late.hashes, hash); found {
			s.rename(s.late.members, at, member)
			return
		}
	}
	if s.Len() == s.p.K && !s.leaveOut(hash) {
		return
	}
	text := ""
	if s.p.Members {
		text = string(member)
	}
	s.insert(min(i, len(s.hashes)), hash, text)
}

// rename replaces the member at i of a list by member, if member is less.
func (s *Set) rename(members []string, i int, member []byte) {
	if s.p.Members && string(member) < members[i] {
		s.named += len(member) - len(members[i])
		members[i] = string(member)
	}
}

// leaveOut makes room for a hash, and returns true, unless the hash is itself the largest. theta becomes the hash that
// is left out.
func (s *Set) leaveOut(hash uint64) bool {
	s.startSignature()
	s.sign(hash)
	largest, late := s.largest()
	if s.theta = largest; hash > largest {
		s.theta = hash
		return false
	}
	if late {
		s.late.hashes, s.late.members = s.drop(s.late.hashes, s.late.members)
	} else {
		s.hashes, s.members = s.drop(s.hashes, s.members)
	}
	return true
}

// Merge adds all things of o; o does not change. Of two K, the lower is kept. Merge returns ErrIncompatible for sets
// that differ in hash, in Members or in the signature, and then nothing has changed.
func (s *Set) Merge(o *Set) error {
	if err := s.compatible(o); err != nil {
		return err
	}
	if s.p.Members != o.p.Members {
		return fmt.Errorf("set: one keeps members and one does not: %w", ErrIncompatible)
	}
	s.settle()
	o = o.settled()
	k := min(s.p.K, o.p.K)
	signature := s.mergedSignature(o)
	hashes := make([]uint64, 0, min(len(s.hashes)+len(o.hashes), k))
	var members []string
	theta := leastTheta(s.theta, o.theta)
	u := union{a: s.hashes, b: o.hashes}
	for u.next(theta) {
		if len(hashes) == k {
			theta = u.hash
			break
		}
		hashes = append(hashes, u.hash)
		if s.p.Members {
			members = append(members, u.member(s, o))
		}
	}
	if theta == 0 {
		signature = nil
	}
	s.p.K, s.hashes, s.members, s.named, s.theta, s.signature = k, hashes, members, bytesIn(members), theta, signature
	return nil
}

// bytesIn is the total length of members.
func bytesIn(members []string) (n int) {
	for _, m := range members {
		n += len(m)
	}
	return n
}

func (s *Set) compatible(o *Set) error {
	if s.p.Hash != o.p.Hash {
		return fmt.Errorf("set: hash %d with seed %#x and hash %d with seed %#x: %w", s.p.Hash.ID, s.p.Hash.Seed, o.p.Hash.ID, o.p.Hash.Seed, ErrIncompatible)
	}
	if s.p.Signature != o.p.Signature {
		return fmt.Errorf("set: signatures of %d and %d registers: %w", s.p.Signature, o.p.Signature, ErrIncompatible)
	}
	return nil
}

// leastTheta is the lower of two thetas; 0 means that there is no theta.
func leastTheta(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// union walks over two ascending lists at once.
type union struct {
	a, b     []uint64
	i, j     int // the next positions in a and b
	hash     uint64
	inA, inB bool
}

// next moves to the next hash, and says whether it is below theta (0: no limit).
func (u *union) next(theta uint64) bool {
	moreA, moreB := u.i < len(u.a), u.j < len(u.b)
	if !moreA && !moreB {
		return false
	}
	u.inA = moreA && (!moreB || u.a[u.i] <= u.b[u.j])
	u.inB = moreB && (!moreA || u.b[u.j] <= u.a[u.i])
	if u.inA {
		u.hash = u.a[u.i]
		u.i++
	}
	if u.inB {
		u.hash = u.b[u.j]
		u.j++
	}
	return theta == 0 || u.hash < theta
}

func (u *union) member(a, b *Set) string {
	switch {
	case !u.inB:
		return a.members[u.i-1]
	case !u.inA:
		return b.members[u.j-1]
	}
	return min(a.members[u.i-1], b.members[u.j-1])
}

// SetEstimate is an estimate and its standard error.
type SetEstimate struct{ Value, StdErr float64 }

// SetOverlap describes how two sets overlap.
type SetOverlap struct {
	Union, Intersection SetEstimate
	OnlyA, OnlyB        SetEstimate
	// Jaccard is Intersection / Union, 0 for two empty sets.
	Jaccard SetEstimate
}

// Estimate is the number of things in the set, with a relative standard error of 1/sqrt(k-1); it is exact up to k
// things. It does not write.
func (s *Set) Estimate() SetEstimate { return estimateOf(s.Len(), s.share()) }

// share is theta as a fraction: the share of all things whose hashes are kept.
func (s *Set) share() float64 { return shareOf(s.theta) }

func shareOf(theta uint64) float64 {
	if theta == 0 {
		return 1
	}
	return float64(float64(theta) * 0x1p-64)
}

// estimateOf scales a count up from a share of all things. A thing that was not found in the sample is as uncertain as
// a thing found once.
func estimateOf(count int, share float64) SetEstimate {
	if share == 1 {
		return SetEstimate{Value: float64(count)}
	}
	n := float64(max(count, 1))
	return SetEstimate{Value: float64(count) / share, StdErr: math.Sqrt(float64(n*(1-share))) / share}
}

// Compare estimates union, intersection, differences and Jaccard similarity. It uses the hashes below the lesser of the
// two thetas, which are a uniform sample of the union, of at least the lesser k things. Standard errors are sampling
// errors. Compare returns ErrIncompatible for different hashes or signatures. It does not write, and takes about 3 us
// at k = 1024.
func (s *Set) Compare(o *Set) (SetOverlap, error) {
	if err := s.compatible(o); err != nil {
		return SetOverlap{}, err
	}
	theta := leastTheta(s.theta, o.theta)
	a, b := below(s.settled().hashes, theta), below(o.settled().hashes, theta)
	both := shared(a, b)
	all, share := len(a)+len(b)-both, shareOf(theta)
	return SetOverlap{
		Union:        estimateOf(all, share),
		Intersection: estimateOf(both, share),
		OnlyA:        estimateOf(len(a)-both, share),
		OnlyB:        estimateOf(len(b)-both, share),
		Jaccard:      jaccardOf(both, all, share),
	}, nil
}

// below is the part of ascending hashes that is below theta (0: all).
func below(hashes []uint64, theta uint64) []uint64 {
	if theta == 0 {
		return hashes
	}
	i, _ := slices.BinarySearch(hashes, theta)
	return hashes[:i]
}

// shared counts the common hashes of two ascending lists. No branch depends on the hashes.
func shared(a, b []uint64) (both int) {
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		x, y := a[i], b[j]
		if x <= y {
			i++
		}
		if y <= x {
			j++
		}
		if x == y {
			both++
		}
	}
	return both
}

// unknownShare is the answer for a share when the sample holds nothing of the whole. Its interval is 0 to 1.
var unknownShare = SetEstimate{StdErr: 1}

// jaccardOf is a proportion in a sample without replacement. Its standard error is computed from the proportion with
// half a thing added, so that it is not 0 at proportions 0 and 1.
func jaccardOf(both, all int, share float64) SetEstimate {
	switch {
	case all == 0 && share < 1:
		return unknownShare
	case all == 0:
		return SetEstimate{}
	}
	e := SetEstimate{Value: float64(both) / float64(all)}
	if share < 1 {
		p := (float64(both) + 0.5) / (float64(all) + 1)
		e.StdErr = math.Sqrt(float64(float64(p*(1-p))*(1-share)) / float64(all))
	}
	return e
}

// Sample calls f with up to n of the things kept, in the order of their hashes: they are a uniform sample of the set.
// member is empty when members are not kept.
func (s *Set) Sample(n int, f func(hash uint64, member string)) {
	s = s.settled()
	for i, h := range s.hashes[:min(max(n, 0), len(s.hashes))] {
		member := ""
		if s.p.Members {
			member = s.members[i]
		}
		f(h, member)
	}
}

// Members are the members of the n least hashes kept, a uniform sample of the set. It returns none when members are not
// kept. It does not write.
func (s *Set) Members(n int) []string {
	members := s.settled().members
	return slices.Clone(members[:max(0, min(n, len(members)))])
}

// Reduced is the set as a merge with a set of a lower k would leave it, without members. k is bounded by SetKMin and
// the k of s. The result may be read, compared and encoded until s changes. Reduced does not write.
func (s *Set) Reduced(k int) Set {
	s = s.nameless().settled()
	c := *s
	c.p.K = max(SetKMin, min(k, s.p.K))
	if len(s.hashes) <= c.p.K {
		return c
	}
	if s.p.Signature > 0 {
		c.signature = s.signed()
	}
	c.theta, c.hashes = s.hashes[c.p.K], slices.Clip(s.hashes[:c.p.K])
	return c
}

// Named is the set with the members of its n least hashes only; all other members are empty. The result may be read and
// encoded until s changes. Named does not write.
func (s *Set) Named(n int) Set {
	c := *s.settled()
	if !c.p.Members || n >= len(c.members) {
		return c
	}
	c.members = append(make([]string, 0, len(c.members)), c.members[:n]...)[:len(c.members)]
	c.named = bytesIn(c.members)
	return c
}

// nameless is the set without members, readable until s changes.
func (s *Set) nameless() *Set {
	c := *s
	c.p.Members, c.members, c.named, c.late = false, nil, 0, s.late.nameless()
	return &c
}

// Clone is a copy that shares no memory that changes.
func (s *Set) Clone() Set {
	c := *s
	c.hashes, c.members, c.signature = slices.Clone(s.hashes), slices.Clone(s.members), slices.Clone(s.signature)
	if s.late.len() > 0 {
		late := s.late.clone()
		c.late = &late
		c.settle()
	}
	c.late = nil
	return c
}

// Size is the memory in bytes, the struct itself included.
func (s *Set) Size() int {
	return 136 + 8*cap(s.hashes) + 16*cap(s.members) + s.late.size() + cap(s.signature) + s.named
}

// A Set in bytes. Every state has one encoding.
//
//	version    1 byte, 1
//	form       1 byte: bit 0 members are kept, bit 1 theta is there
//	hash       9 bytes, see Hash
//	k          uvarint
//	signature  1 byte: log2 of its registers, 255 when there is none
//	count      uvarint, of hashes
//	theta      8 bytes, little endian, if it is there
//	hashes     8 bytes each, little endian, ascending
//	members    each a uvarint, its length, and its bytes
//	registers  1 byte each, if theta is there and a signature is kept

const setVersion = 1

// AppendBinary appends the encoding to b.
func (s *Set) AppendBinary(b []byte) []byte {
	s = s.settled()
	form := byte(0)
	if s.p.Members {
		form |= 1
	}
	if s.theta != 0 {
		form |= 2
	}
	b = append(b, setVersion, form)
	b = s.p.Hash.append(b)
	b = binary.AppendUvarint(b, uint64(s.p.K))
	b = append(b, s.p.signatureByte())
	b = binary.AppendUvarint(b, uint64(len(s.hashes)))
	if s.theta != 0 {
		b = binary.LittleEndian.AppendUint64(b, s.theta)
	}
	for _, h := range s.hashes {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	for _, m := range s.members {
		b = append(binary.AppendUvarint(b, uint64(len(m))), m...)
	}
	return append(b, s.signature...)
}

// Decode replaces s by the one encoded at the start of b, and returns the bytes that follow. It returns ErrCorrupt for
// bytes that AppendBinary cannot have written, and then the receiver does not change.
func (s *Set) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version, form := r.byte(), r.byte()
	p := SetParams{Members: form&1 != 0, Hash: r.hash()}
	k, signature := r.uvarint(), r.byte()
	if !r.ok || version != setVersion || form > 3 || k < SetKMin || k > SetKMax || !p.setSignatureByte(signature) {
		return nil, ErrCorrupt
	}
	p.K = int(k)
	n, err := NewSet(p)
	if err != nil {
		return nil, ErrCorrupt
	}
	count := r.uvarint()
	if form&2 != 0 {
		n.theta = binary.LittleEndian.Uint64(r.take(8))
		r.ok = r.ok && count == k && n.theta != 0
	}
	if !r.ok || count > k || !n.decodeHashes(&r, int(count)) || !n.decodeSignature(&r) {
		return nil, ErrCorrupt
	}
	*s = n
	return r.b, nil
}

func (s *Set) decodeHashes(r *reader, count int) bool {
	raw := r.take(8 * count)
	if !r.ok {
		return false
	}
	if count > 0 {
		s.hashes = make([]uint64, count)
	}
	for i := range s.hashes {
		h := binary.LittleEndian.Uint64(raw[8*i:])
		if i > 0 && h <= s.hashes[i-1] || s.theta != 0 && h >= s.theta {
			return false
		}
		s.hashes[i] = h
	}
	if !s.p.Members {
		return true
	}
	for range count {
		n := r.uvarint()
		if !r.ok || n > SetMemberMax {
			return false
		}
		s.members = append(s.members, string(r.take(int(n))))
	}
	s.named = bytesIn(s.members)
	return r.ok
}
