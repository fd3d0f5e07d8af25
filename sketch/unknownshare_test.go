package sketch

import (
	"math/rand/v2"
	"testing"
)

// TestShareOfNothingFound: a sample that holds nothing of a union says nothing of a similarity, unless it is all.
func TestShareOfNothingFound(t *testing.T) {
	only := SetExpr{Op: SetMinus, Of: []SetExpr{LeafExpr(1), LeafExpr(2)}} // the second small set without the big one
	empty := SetExpr{Op: SetMinus, Of: []SetExpr{LeafExpr(0), LeafExpr(0)}}
	unknown := 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 3))
		plain, decayed := make([]*Set, 3), make([]*SetDecayed, 3)
		for i := range plain {
			s, _ := NewSet(SetParams{})
			d, _ := NewSetDecayed(SetDecayedParams{HalfLife: 1e9})
			plain[i], decayed[i] = &s, &d
		}
		add := func(i int, hash uint64) {
			plain[i].Add(hash, nil)
			decayed[i].Add(0, 0, hash, nil)
		}
		x := r.Uint64()
		add(0, x)
		add(1, x)
		for range 2000 {
			add(2, r.Uint64())
		}
		o, err := OverlapOf(plain, []SetExpr{LeafExpr(0), only})
		if err != nil {
			t.Fatal(err)
		}
		checkShare(t, o, 1, &unknown)
		two, err := JaccardOf(plain, LeafExpr(0), only)
		if err != nil || two != o.Jaccard {
			t.Errorf("%v and %v: %v", two, o.Jaccard, err)
		}
		if o, err = OverlapOf(plain[:2], []SetExpr{empty, empty}); err != nil || o.Jaccard != (SetEstimate{}) {
			t.Errorf("two empty sets: %v, %v", o.Jaccard, err)
		}
		o, err = OverlapOfDecayed(decayed, []SetExpr{LeafExpr(0), only}, 0)
		if err != nil {
			t.Fatal(err)
		}
		checkShare(t, o, 1, &unknown)
		o, err = OverlapOfDecayed(decayed[:2], []SetExpr{empty, empty}, 0)
		if err != nil || o.Jaccard != (SetEstimate{}) {
			t.Errorf("two empty sets that forget: %v, %v", o.Jaccard, err)
		}
	}
	if unknown < 20 {
		t.Errorf("only %d of 80 samples had nothing of the union", unknown)
	}
}

// checkShare checks that the interval of a similarity has the truth, and is whole where nothing was found.
func checkShare(t *testing.T, o SetsOverlap, truth float64, unknown *int) {
	t.Helper()
	for _, confidence := range []float64{0.5, 0.95, 0.9999} {
		low, high := o.Jaccard.ShareInterval(confidence)
		if truth < low || truth > high {
			t.Errorf("similarity %v from %v to %v of %v, not %v", o.Jaccard, low, high, o.Union, truth)
		}
		if o.Union.Value == 0 && (low != 0 || high != 1) {
			t.Errorf("similarity %v from %v to %v, of a union in which nothing was found", o.Jaccard, low, high)
		}
	}
	if o.Union.Value == 0 {
		*unknown++
	}
}
