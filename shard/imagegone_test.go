package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// claim is what an answer says of bin x, or of the total of a quantile: the truth lies from low to high.
func (m *merging) claim(kind ebbv1.Kind, keys ...string) (low, high float64) {
	m.t.Helper()
	var names [][]byte
	for _, key := range keys {
		names = append(names, []byte(key))
	}
	if kind == ebbv1.Kind_KIND_DISTRIBUTION {
		q := &ebbv1.DistributionQuestion{Keys: names, AsOfUs: m.now, Select: &ebbv1.DistributionQuestion_Bins{
			Bins: &ebbv1.BinList{Bins: [][]byte{[]byte("x")}},
		}}
		d := m.Ask(question("n", q), 0).GetAnswer().GetDistribution()
		left := d.GetBins()[0].GetCount() + d.GetBins()[0].GetHidden()
		return left, left + d.GetLost()
	}
	q := &ebbv1.SummaryQuestion{Keys: names, AsOfUs: m.now}
	if kind == ebbv1.Kind_KIND_TOPK || kind == ebbv1.Kind_KIND_COUNTMIN {
		q.Bins = [][]byte{[]byte("x")}
	}
	ask := &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Summary{Summary: q}}
	a := m.Ask(&ebbv1.ShardQuestion{Shard: 1, Question: ask}, 0)
	if a.GetError() != nil {
		m.t.Fatal(a.GetError())
	}
	if e := a.GetAnswer().GetSummary().GetBins(); len(e) > 0 {
		return e[0].GetLow(), e[0].GetHigh()
	}
	total := a.GetAnswer().GetSummary().GetTotal()
	return total.GetLow(), total.GetHigh()
}

// weigher is an exact oracle of one bin.
type weigher struct {
	kind   ebbv1.Kind
	times  []int64
	counts []float64
}

func (w *weigher) add(at int64, n float64) {
	w.times, w.counts = append(w.times, at), append(w.counts, n)
}

// at is the sum of what was added, or the weight of what was seen last: sets and distincts count each thing once.
func (w *weigher) at(now, halfLife int64) (v float64) {
	for i, t := range w.times {
		left := math.Exp2(-float64(now-t) / float64(halfLife))
		if w.kind == ebbv1.Kind_KIND_SET || w.kind == ebbv1.Kind_KIND_DISTINCT {
			v = max(v, left)
		} else {
			v += w.counts[i] * left
		}
	}
	return v
}

func (w *weigher) clone() *weigher {
	return &weigher{w.kind, append([]int64(nil), w.times...), append([]float64(nil), w.counts...)}
}

// What is merged into a key is added to what the key may have held, also where that is gone, or what came has nearly
// faded: the truth lies in what answers state. It did not before BehaviourAdds.
func TestMergesSayWhatIsGone(t *testing.T) {
	for _, kind := range []ebbv1.Kind{
		ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE,
		ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_DISTINCT,
	} {
		for _, slow := range []int64{0, 6 * hourLong} {
			t.Run(fmt.Sprintf("%s slow %d", proto.KindName(kind), slow/hourLong), func(t *testing.T) {
				before := 0
				for seed := range uint64(60) {
					if !mergeWhatIsGone(t, kind, slow, BehaviourAdds, seed) {
						t.Errorf("seed %d: the truth is not in the answer", seed)
					}
					if !mergeWhatIsGone(t, kind, slow, BehaviourGoneBack, seed) {
						before++
					}
				}
				if before == 0 {
					t.Error("no seed comes to where an answer was wrong before")
				}
			})
		}
	}
}

// mergeWhatIsGone counts in two clusters, merges, and reports whether answers were right.
func mergeWhatIsGone(t *testing.T, kind ebbv1.Kind, slow int64, behaviour uint32, seed uint64) (right bool) {
	rng := rand.New(rand.NewPCG(seed, uint64(kind)))
	def := &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong, Threshold: 1}
	if slow > 0 {
		def.SlowHalfLifeUs = new(slow)
	}
	here, there := newMerging(t, def), newMerging(t, def)
	sums := [2]*weigher{{kind: kind}, {kind: kind}}
	both := []*merging{here, there}
	wait := func(halfLives float64) {
		for _, m := range both {
			m.now += int64(halfLives * float64(hourLong))
		}
	}
	for _, m := range both {
		m.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: behaviour}}})
	}
	see := func(i int, n float64) {
		in := &ebbv1.Increment{Key: []byte("k"), Bin: []byte("x"), Kind: kind, Amount: &n}
		if kind == ebbv1.Kind_KIND_SET || kind == ebbv1.Kind_KIND_DISTINCT {
			in.Bin = fmt.Append(nil, i) // each has a thing of its own, so that weights add up
		}
		if kind == ebbv1.Kind_KIND_QUANTILE {
			in.Bin, in.Value = nil, new(7.0)
		}
		both[i].see(in)
		sums[i].add(both[i].now, n)
	}
	// In some seeds one of the keys is there all the time: what it lost at its birth has faded when the other comes.
	kept := rng.IntN(3)
	pass := func(halfLives float64) {
		for ; kept < 2 && halfLives > 2; halfLives -= 2 {
			see(kept, 4)
			wait(2)
		}
		wait(halfLives)
	}
	for range 2 + rng.IntN(3) {
		i := rng.IntN(2)
		if kept < 2 {
			i = 1 - kept
		}
		n := math.Exp2(float64(rng.IntN(12)))
		see(i, n)
		// often it is as long as what was counted takes to fade, or a little longer
		fades := math.Log2(n)
		if kind == ebbv1.Kind_KIND_SET || kind == ebbv1.Kind_KIND_DISTINCT {
			fades = -math.Log2(lifelineMax) // a thing weighs 1, and they live until it weighs that
		}
		pass(max(0, fades+float64(rng.IntN(8))-2))
	}
	if rng.IntN(2) == 0 {
		see(1, 4)
	}
	export := exported(&there.frame, "n", "k")
	if !export.GetFound() {
		return true // nothing goes
	}
	sent := sums[1].clone()
	wait([]float64{0, 0, 1, 2.5, 9, 40}[rng.IntN(6)])
	if rng.IntN(3) == 0 {
		see(0, 1)
	}
	put := &ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Image{Image: export.Image}, Merge: true}
	r := here.put(put)
	if r.Error != nil && r.GetError().GetCode() != ebbv1.Code_CODE_KEY_NOT_FOUND {
		t.Fatal(r.Error)
	}
	if again := reopen(t, here.State); again.Checksum() != here.Checksum() {
		t.Error("the state changed by a restart")
	}
	right = true
	for _, later := range []float64{0, 0.5, 3} {
		wait(later)
		low, high := here.claim(kind, "k")
		truth := sums[0].at(here.now, hourLong) + sent.at(here.now, hourLong)
		slack := 1e-6 * truth
		if truth < low-slack || truth > high+slack+1e-8 {
			right = false
			if behaviour == BehaviourAdds {
				t.Logf("seed %d, %v half-lives later: %v is not in %v to %v (put: %v)", seed, later, truth, low, high,
					r)
			}
		}
	}
	return right
}

// Bloom filters that have grown merge into one that a key holds: what either had is found, also after a restart, in
// another shard, and when more is added. Before BehaviourAdds such a merge is refused.
func TestGrownBloomsMerge(t *testing.T) {
	def := &ebbv1.Namespace{
		Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE,
		Sizes: &ebbv1.Sizes{BloomCapacity: 100},
	}
	here, there, third := newMerging(t, def), newMerging(t, def), newMerging(t, def)
	see := func(m *merging, from, to int) {
		for i := from; i < to; i++ {
			m.see(&ebbv1.Increment{Key: []byte("k"), Bin: fmt.Append(nil, i), Kind: ebbv1.Kind_KIND_BLOOM})
		}
	}
	see(here, 0, 700)
	see(there, 500, 1500)
	put := func(m *merging, from *merging) *ebbv1.CommandResult {
		image := exported(&from.frame, "n", "k").Image
		return m.put(&ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Image{Image: image}, Merge: true})
	}
	if r := put(here, there); r.GetError().GetCode() != ebbv1.Code_CODE_UNMERGEABLE {
		t.Errorf("before: %v", r)
	}
	for _, m := range []*merging{here, there} {
		m.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourAdds}}})
	}
	if r := put(here, there); r.Error != nil || r.Applied != 1 {
		t.Fatal(r)
	}
	if r := put(third, here); r.GetError().GetCode() != ebbv1.Code_CODE_BAD_REQUEST {
		t.Errorf("into a shard of before: %v", r)
	}
	third.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourAdds}}})
	if r := put(third, here); r.Error != nil || r.Applied != 1 {
		t.Fatal(r)
	}
	see(here, 1500, 1700)
	again := reopen(t, here.State)
	if again.Checksum() != here.Checksum() {
		t.Error("the state changed by a restart")
	}
	here.State = again
	for m, n := range map[*merging]int{here: 1700, third: 1500} {
		q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("k")}}
		for i := range n {
			q.Bins = append(q.Bins, fmt.Append(nil, i))
		}
		ask := &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Summary{Summary: q}}
		a := m.Ask(&ebbv1.ShardQuestion{Shard: 1, Question: ask}, 0).GetAnswer().GetSummary()
		for i, is := range a.GetMemberships() {
			if !is.GetContained() {
				t.Fatalf("bin %d of %d is not there", i, n)
			}
		}
		if e := a.GetTotal(); e.GetLow() > float64(n) || e.GetHigh() < float64(n) {
			t.Errorf("%v of %d", e, n)
		}
	}
}

// An upload without a byte is whole, and neither an image nor a value of hashes: it is refused.
func TestAnEmptyUploadIsRefused(t *testing.T) {
	for _, behaviour := range []uint32{BehaviourSetHash, BehaviourMax} {
		m := newMerging(t, &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE})
		m.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: behaviour}}})
		m.apply(&ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: &ebbv1.PutPiece{Upload: 7}}})
		r := m.put(&ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Upload{Upload: 7}})
		if r.GetError().GetCode() != ebbv1.Code_CODE_BAD_REQUEST {
			t.Errorf("behaviour %d: %v", behaviour, r)
		}
	}
}

// An upload whose put is refused for good takes no more room. Before BehaviourAdds it does for ten minutes.
func TestARefusedUploadIsGone(t *testing.T) {
	for behaviour, left := range map[uint32]int{BehaviourGoneBack: 1, BehaviourAdds: 0} {
		m := newMerging(t, &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong})
		m.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: behaviour}}})
		for _, key := range []string{"k", "there"} {
			m.see(&ebbv1.Increment{Key: []byte(key), Bin: []byte(key)})
		}
		image := exported(&m.frame, "n", "k").Image
		m.bring(7, image, len(image))
		r := m.put(&ebbv1.PutKey{Key: []byte("there"), What: &ebbv1.PutKey_Upload{Upload: 7}})
		if r.GetError().GetCode() != ebbv1.Code_CODE_KEY_EXISTS || len(m.uploads) != left {
			t.Errorf("behaviour %d: %v, and %d uploads are there", behaviour, r, len(m.uploads))
		}
	}
}
