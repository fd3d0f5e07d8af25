package bench

import "testing"

// What a few bitmaps take is measured, however they are filled: more than their ids, and not many times that.
func TestSmallBitmaps(t *testing.T) {
	ids := 0
	for _, inTurn := range []bool{false, true} {
		r, err := SmallBitmaps{N: 5000, Shards: 2, InTurn: inTurn}.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if used := r.Overhead(r.Pages); r.Bitmaps != 5000 || used < 16 || used > 300 || r.FillPerSecond <= 0 {
			t.Errorf("in turn %t: %+v, %.0f bytes of pages a bitmap beside its ids", inTurn, r, used)
		}
		if ids != 0 && r.IDs != ids {
			t.Errorf("%d ids, and %d in turn", ids, r.IDs)
		}
		ids = r.IDs
	}
	if each := float64(ids) / 5000; each < 13 || each > 20 {
		t.Errorf("%.1f ids each: there are about 15", each)
	}
}
