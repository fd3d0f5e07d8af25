package transport

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestGroupsElectApplyAndHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		const groups = 8
		w.rafts(groups)
		for g := uint32(1); g <= groups; g++ {
			r := w.elect(g, w.names...)
			for i := range 20 {
				if err := r.Apply(fmt.Appendf(nil, "%d/%d", g, i), time.Second).Error(); err != nil {
					t.Fatal(err)
				}
			}
		}
		within(t, 5*time.Second, "equal states", func() bool { return w.agree(groups) })
	})
}

func (w *world) agree(groups uint32) bool {
	for g := uint32(1); g <= groups; g++ {
		want := fmt.Sprint(w.nodes[w.names[0]].rafts[g].fsm.all())
		for _, n := range w.names[1:] {
			if fmt.Sprint(w.nodes[n].rafts[g].fsm.all()) != want {
				return false
			}
		}
	}
	return true
}
