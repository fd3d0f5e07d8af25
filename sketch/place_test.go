package sketch

import (
	"slices"
	"testing"
)

// roomIn answers the most bins that fit, for every number of words there is use for.
func TestRoomIn(t *testing.T) {
	for _, f := range []form{wide, compact, micro} {
		for words := range 40_000 {
			if words > 4000 {
				words = words * 37
			}
			room := roomIn(f, words)
			if wordsFor(f, room) > words || wordsFor(f, room+1) <= words {
				t.Fatalf("form %d: %d bins in %d words, they take %d and one more %d", f, room, words, wordsFor(f, room), wordsFor(f, room+1))
			}
		}
	}
}

// A distribution that is placed elsewhere before every write, in memory full of rubbish, is at all times the one that
// is left alone.
func TestPlaced(t *testing.T) {
	for name, p := range map[string]*Params{
		"wide":    {HalfLife: 3_600_000_000, Threshold: 0.001},
		"compact": {HalfLife: 3_600_000_000, Threshold: 0.001, Compact: true},
		"linear":  {HalfLife: 3_600_000_000, Threshold: 0.001, Decay: Linear},
	} {
		t.Run(name, func(t *testing.T) {
			var alone, placed Distribution
			now := Tick(1_700_000_000_000_000)
			for i := range 1500 {
				now += 1_000_000
				bin := uint32(i) * 2654435761 % 701
				words := slices.Repeat([]uint64{0xdeadbeefdeadbeef}, placed.WordsFor(placed.Len())+i%7)
				placed.Place(words)
				var h Header
				placed.Header(&h)
				placed = loaded(&h, placed.Words())
				for _, d := range []*Distribution{&alone, &placed} {
					if err := d.Add(p, now, now, bin, float64(1+i%3)); err != nil {
						t.Fatal(err)
					}
				}
				if i == 1000 {
					now += 20 * p.HalfLife
					for _, d := range []*Distribution{&alone, &placed} {
						d.Prune(p, now, nil)
					}
				}
				if a, b := alone.AppendBinary(nil), placed.AppendBinary(nil); !slices.Equal(a, b) {
					t.Fatalf("they differ after %d events", i+1)
				}
			}
		})
	}
}

func loaded(h *Header, words []uint64) (d Distribution) {
	d.Load(h, words)
	return d
}
