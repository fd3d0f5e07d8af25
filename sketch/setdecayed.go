package sketch

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// SetDecayedKMax bounds the K of a SetDecayed.
const SetDecayedKMax = 4096

// SetDecayedParams say how a SetDecayed is made.
type SetDecayedParams struct {
	// K is the number of things kept, 16 to 4096; 0 means 1024. The relative standard error of a sum over all things is
	// at most 1/sqrt(K-1).
	K int
	// HalfLife in microseconds, 1 to HalfLifeMax.
	HalfLife Tick
	// Members keeps, with each thing, the member itself.
	Members bool
	// Hash is the hash function and seed of the caller's hashes.
	Hash Hash
}

// SetDecayed summarises a set of things. Each has the weight w = 2^-(age/h); its age is the time since it was last
// seen. The summary estimates the total weight, gives a sample that prefers recent things, and compares such sets.
// NewSetDecayed makes one.
//
// Up to k things everything is exact. Beyond k, it keeps the k things with the largest priority w/u, where u is the
// hash as a fraction of 2^64; tau is the largest priority that was left out. A kept thing stands for max(w, tau). The
// sum of that over any part of the things is an unbiased estimate of the weight of that part (priority sampling;
// Duffield, Lund, Thorup 2007), with variance at most the sum of tau max(0, tau - w). All priorities decay alike, so
// their order never changes.
//
// A thing 64 half-lives old counts as 0. Add and Merge commute and are idempotent; with equal latest times they
// associate.
//
// It is a value with one owner: Clone makes an independent copy.
type SetDecayed struct {
	p SetDecayedParams
	fade
	loss
	latest  Tick     // the latest now of any call
	hashes  []uint64 // ascending
	times   []Tick   // in the order of hashes: when last seen
	ranks   []int64  // in the order of hashes: log2(w/u) relative to the landmark, in 2^-44
	members []string // in the order of hashes, when they are kept
	named   int      // bytes of all members
	oldest  Tick     // no thing was last seen earlier
	tau     int64    // the largest rank that was left out
	least   int      // the position of the least rank, -1 when unknown
}

// noRank is the tau of a set that has left nothing out.
const noRank = math.MinInt64

// rankBits is the number of fractional bits of a rank.
const rankBits = 44

// NewSetDecayed is an empty SetDecayed. It returns ErrParams for parameters out of range.
func NewSetDecayed(p SetDecayedParams) (SetDecayed, error) {
	if p.K == 0 {
		p.K = SetKDefault
	}
	p.Hash = p.Hash.orDefault()
	if p.K < SetKMin || p.K > SetDecayedKMax {
		return SetDecayed{}, fmt.Errorf("%w: set: k of %d is not in %d..%d", ErrParams, p.K, SetKMin, SetDecayedKMax)
	}
	if p.HalfLife < 1 || p.HalfLife > HalfLifeMax {
		return SetDecayed{}, fmt.Errorf("%w: set: half-life of %d microseconds is not in 1..%d", ErrParams, p.HalfLife, HalfLifeMax)
	}
	if !p.Hash.known() {
		return SetDecayed{}, fmt.Errorf("%w: set: hash %d", ErrParams, p.Hash.ID)
	}
	return SetDecayed{p: p, fade: fade{halfLife: p.HalfLife}, tau: noRank, least: -1}, nil
}

// Params are the present parameters: those of the constructor, unless a merge has changed them.
func (s *SetDecayed) Params() SetDecayedParams { return s.p }

// Len is the number of things kept.
func (s *SetDecayed) Len() int { return len(s.hashes) }

// Hashes are the hashes kept, ascending, valid until s changes. all says whether they are all things that still count.
func (s *SetDecayed) Hashes() (hashes []uint64, all bool) { return s.hashes, s.threshold() == noRank }

// Add adds the thing with this hash, seen at time t, which must not be after now; now must not be before the now of any
// earlier call. member is kept as Set.Add does. It takes time proportional to k when the thing is new and among the k
// largest.
func (s *SetDecayed) Add(now, t Tick, hash uint64, member []byte) {
	s.advance(now)
	if len(s.times) > 0 && s.tooOld(s.oldest) {
		s.forget()
	}
	t = min(max(t, 0), s.latest)
	if s.tooOld(t) {
		return
	}
	text := ""
	if s.p.Members {
		text = string(member[:min(len(member), SetMemberMax)])
	}
	s.see(hash, t, text)
}

// advance sets the latest time, and moves the landmark when necessary.
func (s *SetDecayed) advance(now Tick) {
	s.latest = max(s.latest, now)
	if mark, move := s.due(s.latest); move {
		s.rebase(mark)
	}
}

// rebase moves to a later landmark, and removes what is too old.
func (s *SetDecayed) rebase(mark int64) {
	shift := mark - s.mark
	s.mark = mark
	if shift > earliest { // nothing that was kept or left out counts any more
		shift, s.tau = 0, noRank
	}
	for i := range s.ranks {
		s.ranks[i] -= shift << rankBits
	}
	if s.tau != noRank {
		s.tau -= shift << rankBits
	}
	s.forget()
}

// tooOld says whether a thing last seen at t counts as 0.
func (s *SetDecayed) tooOld(t Tick) bool { return (s.latest-t)/decayedHorizon >= s.halfLife }

// threshold is tau, or noRank if everything left out is too old: what was left out weighs no more than tau.
func (s *SetDecayed) threshold() int64 {
	if s.tau == noRank || s.tau <= s.rank(s.latest, math.MaxUint64)-decayedHorizon<<rankBits {
		return noRank
	}
	return s.tau
}

// forget removes the things that are too old, which no answer shows.
func (s *SetDecayed) forget() {
	s.tau = s.threshold()
	kept := 0
	s.oldest = s.latest
	for i, t := range s.times {
		if s.tooOld(t) {
			continue
		}
		s.oldest = min(s.oldest, t)
		s.hashes[kept], s.times[kept], s.ranks[kept] = s.hashes[i], t, s.ranks[i]
		if s.p.Members {
			s.members[kept] = s.members[i]
		}
		kept++
	}
	s.hashes, s.times, s.ranks, s.least = trimmed(s.hashes[:kept]), trimmed(s.times[:kept]), trimmed(s.ranks[:kept]), -1
	if s.p.Members {
		clear(s.members[kept:])
		s.members = trimmed(s.members[:kept])
		s.named = bytesIn(s.members)
	}
}

// rank is log2(w/u) relative to the landmark.
func (s *SetDecayed) rank(t Tick, hash uint64) int64 {
	k, frac := exponent(t, s.mark, s.halfLife)
	u := 64 - Log2(float64(hash|1))
	return k<<rankBits + int64(frac>>(64-rankBits)) + int64(float64(u*(1<<rankBits)))
}

func (s *SetDecayed) see(hash uint64, t Tick, member string) {
	rank := s.rank(t, hash)
	i, found := slices.BinarySearch(s.hashes, hash)
	if found {
		if s.p.Members && member < s.members[i] {
			s.named += len(member) - len(s.members[i])
			s.members[i] = member
		}
		if t > s.times[i] {
			s.times[i], s.ranks[i] = t, rank
			if s.least == i {
				s.least = -1
			}
		}
		return
	}
	if len(s.hashes) == s.p.K {
		if !s.makeRoom(rank, hash) {
			return
		}
		i, _ = slices.BinarySearch(s.hashes, hash)
	}
	if len(s.hashes) == 0 {
		s.oldest = t
	}
	s.hashes = slices.Insert(roomier(s.hashes, s.p.K), i, hash)
	s.times = slices.Insert(roomier(s.times, s.p.K), i, t)
	s.ranks = slices.Insert(roomier(s.ranks, s.p.K), i, rank)
	if s.p.Members {
		s.members = slices.Insert(roomier(s.members, s.p.K), i, member)
		s.named += len(member)
	}
	s.oldest = min(s.oldest, t)
	s.least = -1
}

// makeRoom leaves out the least of the kept things and a new one; true if the new one can stay.
func (s *SetDecayed) makeRoom(rank int64, hash uint64) bool {
	if s.least < 0 {
		s.least = s.findLeast()
	}
	if s.before(s.least, rank, hash) {
		s.tau = max(s.tau, rank)
		return false
	}
	s.tau = max(s.tau, s.ranks[s.least])
	s.remove(s.least)
	return true
}

// before says whether the thing at i comes before a thing of this rank and hash.
func (s *SetDecayed) before(i int, rank int64, hash uint64) bool {
	return s.ranks[i] > rank || s.ranks[i] == rank && s.hashes[i] < hash
}

func (s *SetDecayed) findLeast() int {
	least := 0
	for i, rank := range s.ranks {
		if s.before(least, rank, s.hashes[i]) {
			least = i
		}
	}
	return least
}

func (s *SetDecayed) remove(i int) {
	s.hashes, s.times, s.ranks = slices.Delete(s.hashes, i, i+1), slices.Delete(s.times, i, i+1), slices.Delete(s.ranks, i, i+1)
	if s.p.Members {
		s.named -= len(s.members[i])
		s.members = slices.Delete(s.members, i, i+1)
	}
	s.least = -1
}

// Merge adds all things of o; o does not change. Of two K, the lower is kept, and of two latest times, the later. Merge
// returns ErrIncompatible for sets that differ in half-life, hash or Members, and then nothing changes.
func (s *SetDecayed) Merge(o *SetDecayed) error {
	if err := s.compatible(o); err != nil {
		return err
	}
	if s.p.Members != o.p.Members {
		return fmt.Errorf("%w: set: one keeps members and one does not", ErrIncompatible)
	}
	c := o.Clone()
	s.loss = s.loss.plus(c.loss, s.halfLife)
	s.alignWith(&c)
	for s.p.K = min(s.p.K, c.p.K); len(s.hashes) > s.p.K; {
		least := s.findLeast()
		s.tau = max(s.tau, s.ranks[least])
		s.remove(least)
	}
	for i, h := range c.hashes {
		member := ""
		if s.p.Members {
			member = c.members[i]
		}
		s.see(h, c.times[i], member)
	}
	s.tau = max(s.tau, c.tau)
	for i := len(s.hashes) - 1; i >= 0; i-- { // seen here before it was left out there
		if s.ranks[i] < s.tau {
			s.remove(i)
		}
	}
	return nil
}

// alignWith advances both sets to the later time and landmark.
func (s *SetDecayed) alignWith(c *SetDecayed) {
	now := max(s.latest, c.latest)
	s.advance(now)
	c.advance(now)
	mark := max(s.mark, c.mark)
	s.rebase(mark)
	c.rebase(mark)
}

func (s *SetDecayed) compatible(o *SetDecayed) error {
	if s.p.Hash != o.p.Hash || s.p.HalfLife != o.p.HalfLife {
		return fmt.Errorf("%w: set: half-life %d, hash %d with seed %#x and half-life %d, hash %d with seed %#x", ErrIncompatible,
			s.p.HalfLife, s.p.Hash.ID, s.p.Hash.Seed, o.p.HalfLife, o.p.Hash.ID, o.p.Hash.Seed)
	}
	return nil
}

// Estimate is the total weight of the distinct things at a time: each counts as it has decayed. Things kept below the
// threshold, which came late when there was room again, count with what was left out. It does not write.
func (s *SetDecayed) Estimate(at Tick) SetEstimate {
	threshold := s.threshold()
	tau := weightOf(threshold)
	sum, variance := 0.0, 0.0
	for i, t := range s.times {
		if s.tooOld(t) || s.ranks[i] < threshold {
			continue
		}
		w := s.weight(t)
		sum += max(w, tau)
		variance += float64(tau * max(0, tau-w))
	}
	if tau > 0 { // a thing that was not found is as uncertain as a thing found once
		variance = max(variance, float64(tau*tau))
	}
	scale := s.scale(at)
	return SetEstimate{Value: float64(sum * scale), StdErr: float64(math.Sqrt(variance) * scale)}
}

// weightOf is the weight of a rank.
func weightOf(rank int64) float64 {
	if rank == noRank {
		return 0
	}
	return Exp2(rank>>rankBits, uint64(rank)<<(64-rankBits))
}

// Sample calls f with every thing kept and the weight that it stands for at a time. The sum of these weights over any
// part of the things estimates the weight of that part. member is empty when members are not kept. It does not write.
func (s *SetDecayed) Sample(at Tick, f func(hash uint64, member string, weight float64)) {
	threshold := s.threshold()
	tau, scale := weightOf(threshold), s.scale(at)
	for i, t := range s.times {
		if s.tooOld(t) || s.ranks[i] < threshold {
			continue
		}
		member := ""
		if s.p.Members {
			member = s.members[i]
		}
		f(s.hashes[i], member, float64(max(s.weight(t), tau)*scale))
	}
}

// Compare estimates how two sets overlap at a time; see OverlapDecayed. It does not write.
func (s *SetDecayed) Compare(o *SetDecayed, at Tick) (SetsOverlap, error) {
	return OverlapDecayed([]*SetDecayed{s, o}, at)
}

// Members are the members of the n things of the largest priority, largest first: a sample that prefers recent things.
// It returns none when members are not kept. It does not write.
func (s *SetDecayed) Members(n int) []string {
	if !s.p.Members {
		return nil
	}
	var names []string
	for _, i := range s.byPriority() {
		if len(names) >= n {
			break
		}
		if !s.tooOld(s.times[i]) {
			names = append(names, s.members[i])
		}
	}
	return names
}

// byPriority are the positions of the things, the largest priority first.
func (s *SetDecayed) byPriority() []int {
	order := make([]int, len(s.hashes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.ranks[b], s.ranks[a]), cmp.Compare(s.hashes[a], s.hashes[b]))
	})
	return order
}

// Reduced is a copy without members that keeps k things, within SetKMin and the present K: the set as it would be if it
// had been made with that K. It does not write.
func (s *SetDecayed) Reduced(k int) SetDecayed {
	c := *s
	c.p.Members, c.members, c.named = false, nil, 0
	c.p.K = max(SetKMin, min(k, s.p.K))
	if len(s.hashes) <= c.p.K {
		c.hashes, c.times, c.ranks = slices.Clone(s.hashes), slices.Clone(s.times), slices.Clone(s.ranks)
		return c
	}
	order := s.byPriority()
	c.tau = max(s.tau, s.ranks[order[c.p.K]])
	c.hashes, c.times, c.ranks, c.least = nil, nil, nil, -1
	kept := order[:c.p.K]
	slices.Sort(kept)
	for _, i := range kept {
		c.hashes, c.times, c.ranks = append(c.hashes, s.hashes[i]), append(c.times, s.times[i]), append(c.ranks, s.ranks[i])
	}
	return c
}

// Last is the latest now of any call; no event was later.
func (s *SetDecayed) Last() Tick { return s.latest }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (s *SetDecayed) Reached() Tick { return s.latest }

// Death is a tick from which on the estimate is below a threshold above 0, as long as nothing is added: a few ticks
// after the first such tick. It is 0 when nothing was ever added. Where something is lost, Death waits until lost is a
// seventh of the threshold.
func (s *SetDecayed) Death(threshold float64) Tick {
	return max(Faded(s.Estimate(s.latest).Value, s.latest, s.p.HalfLife, threshold), s.loss.faded(s.halfLife, threshold))
}

// Clone is a copy that shares no memory that changes.
func (s *SetDecayed) Clone() SetDecayed {
	c := *s
	c.hashes, c.times, c.ranks, c.members = slices.Clone(s.hashes), slices.Clone(s.times), slices.Clone(s.ranks), slices.Clone(s.members)
	return c
}

// Size is the memory in bytes, the struct itself included.
func (s *SetDecayed) Size() int {
	return 200 + 8*(cap(s.hashes)+cap(s.times)+cap(s.ranks)) + 16*cap(s.members) + s.named
}

// A SetDecayed in bytes. Every state has one encoding. What is too old to count is left out.
//
//	version    1 byte, 1, or 2 where something is lost
//	form       1 byte: bit 0 members are kept, bit 1 tau is there
//	hash       9 bytes, see Hash
//	k          uvarint
//	half-life, landmark, latest: uvarints
//	lost       in version 2: 4 bytes, the upper half of a double above 0, and a uvarint, since when
//	tau        8 bytes, little endian, if it is there
//	count      uvarint, of things
//	things     each 8 bytes, little endian, its hash, ascending; a uvarint, its age at the latest time; and, when
//	           members are kept, a uvarint, the member's length, and its bytes

const setDecayedVersion = 1

// AppendBinary appends the encoding to b.
func (s *SetDecayed) AppendBinary(b []byte) []byte {
	form, tau, count := byte(0), s.threshold(), 0
	if s.p.Members {
		form |= 1
	}
	if tau != noRank {
		form |= 2
	}
	for _, t := range s.times {
		if !s.tooOld(t) {
			count++
		}
	}
	b = append(b, s.loss.version(setDecayedVersion), form)
	b = s.p.Hash.append(b)
	b = binary.AppendUvarint(b, uint64(s.p.K))
	b = s.loss.append(s.fade.append(b, false, s.latest))
	if tau != noRank {
		b = binary.LittleEndian.AppendUint64(b, uint64(tau))
	}
	b = binary.AppendUvarint(b, uint64(count))
	for i, h := range s.hashes {
		if s.tooOld(s.times[i]) {
			continue
		}
		b = binary.LittleEndian.AppendUint64(b, h)
		b = binary.AppendUvarint(b, uint64(s.latest-s.times[i]))
		if s.p.Members {
			b = append(binary.AppendUvarint(b, uint64(len(s.members[i]))), s.members[i]...)
		}
	}
	return b
}

// Decode replaces s by the one encoded at the start of b, and returns the bytes that follow. It returns ErrCorrupt for
// bytes that AppendBinary cannot have written, and then the receiver does not change. A union may keep more things than
// SetDecayedKMax; see UniteDecayed.
func (s *SetDecayed) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version, form := r.byte(), r.byte()
	p := SetDecayedParams{Members: form&1 != 0, Hash: r.hash()}
	k := r.uvarint()
	f, latest := r.fade()
	lost := r.loss(version, setDecayedVersion, f.halfLife)
	if !r.ok || form > 3 || k < SetKMin || k > SetSampleMax {
		return nil, ErrCorrupt
	}
	p.K, p.HalfLife = int(min(k, SetDecayedKMax)), f.halfLife
	n, err := NewSetDecayed(p)
	if err != nil {
		return nil, ErrCorrupt
	}
	n.p.K = int(k) // K of a union may be larger
	n.latest, n.mark, n.loss = latest, f.mark, lost
	if now := n.landmark(latest); n.mark > now || now-n.mark > RebaseAfter {
		return nil, ErrCorrupt
	}
	if form&2 != 0 {
		n.tau = int64(binary.LittleEndian.Uint64(r.take(8)))
		// no priority is above 2^64 at now
		r.ok = r.ok && n.tau == n.threshold() && n.tau != noRank && n.tau <= n.rank(latest, 0)
	}
	if !r.ok || !n.decodeThings(&r) {
		return nil, ErrCorrupt
	}
	*s = n
	return r.b, nil
}

func (s *SetDecayed) decodeThings(r *reader) bool {
	count := r.uvarint()
	if !r.ok || count > uint64(s.p.K) || 9*count > uint64(len(r.b)) {
		return false
	}
	s.hashes, s.times, s.ranks = slices.Grow(s.hashes, int(count)), slices.Grow(s.times, int(count)), slices.Grow(s.ranks, int(count))
	if s.p.Members {
		s.members = slices.Grow(s.members, int(count))
	}
	for i := range int(count) {
		h, age := binary.LittleEndian.Uint64(r.take(8)), r.uvarint()
		if !r.ok || i > 0 && h <= s.hashes[i-1] || age > uint64(s.latest) {
			return false
		}
		t := s.latest - Tick(age)
		rank := s.rank(t, h)
		if s.tooOld(t) || rank < s.tau {
			return false
		}
		s.hashes, s.times, s.ranks = append(s.hashes, h), append(s.times, t), append(s.ranks, rank)
		if !s.p.Members {
			continue
		}
		n := r.uvarint()
		if !r.ok || n > SetMemberMax {
			return false
		}
		s.members = append(s.members, string(r.take(int(n))))
	}
	s.named = bytesIn(s.members)
	if len(s.times) > 0 {
		s.oldest = slices.Min(s.times)
	}
	return r.ok
}
