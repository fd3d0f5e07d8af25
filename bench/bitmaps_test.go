package bench

import "testing"

// The bitmaps hold what was drawn, whoever counts it: roaring bitmaps of the same ids count the same, or Run fails.
func TestBitmapsCountAsRoaringDoes(t *testing.T) {
	for _, shape := range BitmapShapes {
		const ids = 300_001
		r, err := Bitmaps{IDs: ids, Shape: shape, Rounds: 1, Roaring: true}.Run(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", shape, err)
		}
		least := map[BitmapShape]uint64{BitmapHalf: ids * 4 / 10, BitmapTwentieth: ids * 4 / 100, BitmapClustered: ids * 5 / 100}[shape]
		one, all := r.Windows[0].Count, r.Windows[2].Count
		if one < least || one > least*3/2 && shape != BitmapClustered || all <= one || all > ids || r.IDs < int64(30*least) {
			t.Errorf("%s: %d ids in one day, %d in thirty, %d in all", shape, one, all, r.IDs)
		}
	}
}
