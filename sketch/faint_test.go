package sketch

import (
	"fmt"
	"testing"
)

// Floors that keep bins keep the same ones whatever order events come in, also of events that weigh nothing any more.
func TestFaintBinsAreKept(t *testing.T) {
	for _, floor := range []Floor{Clamp, Prior} {
		for _, compact := range []bool{false, true} {
			t.Run(fmt.Sprintf("floor %d, compact %v", floor, compact), func(t *testing.T) {
				p := &Params{
					Decay: HalfLife, HalfLife: hour, Floor: floor, Threshold: 0.001, Prior: 0.5, Compact: compact,
					BinsMax: 10, OrderFree: true, KeepsFaint: true,
				}
				late, now := epoch, epoch+800*hour
				read := func(times ...Tick) (all string) {
					d := new(Distribution)
					clock := Tick(0)
					for _, at := range times {
						clock = max(clock, at)
						if err := d.Add(p, clock, at, uint32(at/hour%1000), 1); err != nil {
							t.Fatal(err)
						}
					}
					r := d.At(p, now)
					for _, b := range r.Top(10, nil) {
						all += fmt.Sprintf("%d: %.9g, ", b.ID, b.Count)
					}
					return all + fmt.Sprintf("z %.9g of %d bins", r.Z, r.Bins)
				}
				inOrder, reversed := read(late, now), read(now, late)
				if inOrder != reversed {
					t.Errorf("in order %s; reversed %s", inOrder, reversed)
				}
			})
		}
	}
}
