package bench

import (
	"math/rand/v2"
	"strconv"
)

// pairs draws (key, bin) pairs uniformly. Their names are as long as real ones.
type pairs struct {
	rng  *rand.Rand
	keys []string
	bins []string
}

func newPairs(seed uint64, distributions, bins int) *pairs {
	p := &pairs{rng: rand.New(rand.NewPCG(seed, 0x7061697273))}
	for i := range distributions {
		p.keys = append(p.keys, "clicks/link/"+strconv.Itoa(i))
	}
	for i := range bins {
		p.bins = append(p.bins, "bin-"+strconv.Itoa(i))
	}
	return p
}

func (p *pairs) next() (key, bin string) {
	return p.keys[p.rng.IntN(len(p.keys))], p.bins[p.rng.IntN(len(p.bins))]
}
