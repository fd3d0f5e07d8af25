package proc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/chaos/swarm"
)

// A fault that broke nothing, as it reports when it strikes or when it is mended, is not counted, and the run
// continues. A fault that cannot be injected or mended ends the run.
func TestFaultThatDidNothingIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: &Trial{}, over: func() bool { return false }, began: time.Now(), f: &Fleet{}, load: &Load{}, readers: &readers{}, rng: rand.New(rand.NewPCG(1, 2)),
			down: make(map[int]bool), healed: make(map[string][]time.Duration), verdict: &swarm.Verdict{Faults: map[string]int{}, Checks: map[string]int{}},
		}
		nothing, broken := fmt.Errorf("%w: of this", errNothing), errors.New("no disk")
		for _, c := range []struct {
			name         string
			strike, mend error
			want         error
		}{{"did", nil, nil, nil}, {"never-struck", nothing, nil, nil}, {"seen-at-mending", nil, nothing, nil}, {"cannot", broken, nil, broken}, {"cannot-be-mended", nil, broken, broken}} {
			f := Family{Name: c.name, strike: func(context.Context, *world) (func() error, error) {
				return func() error { return c.mend }, c.strike
			}}
			if err := w.strike(t.Context(), f); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		}
		if want := map[string]int{"did": 1}; !maps.Equal(w.verdict.Faults, want) || len(w.verdict.Spans) != 1 || len(w.healed) != 1 {
			t.Errorf("counted: %v, spans %v, healed %v", w.verdict.Faults, w.verdict.Spans, w.healed)
		}
	})
}
