package sketch

import (
	"math"
	"math/bits"
)

// bloomExactBlocks is how many blocks of a layer are read for its rate of false positives; that of a larger one
// follows from its keys.
const bloomExactBlocks = 1 << 14

// bloomLayers is what the layers of a filter that grows say together. A key that an earlier layer seems to have is not
// put into a later one. So each layer stands for the keys that its bits tell, divided by the probability that a key
// passes those before it.
type bloomLayers struct {
	// keys is the estimate. Of a filter that was merged it takes layers for as full as they were when they were
	// followed by the next; most takes them for as full as they are, as for all keys added since. least divides by
	// nothing.
	least, keys, most float64

	variance  float64 // of most, and at least that of the others
	misses    float64 // the probability that a key which was never added is not found
	over      bool
	saturated bool // so full that the bits do not tell how many keys there are

	// merged: a layer that is followed by another has more bits than a filter puts into one. Else it was not
	// merged, or with filters that had no other keys in these layers.
	merged   bool
	greatest float64 // the most keys of one layer, divided by nothing
}

// layersOf adds up layers. others is the probability that a key passes what else is asked before it is added.
func layersOf(layers []Bloom, others float64) (all bloomLayers) {
	all.misses = 1
	then, now := 1.0, others // the probability to pass the layers so far
	steps := make([]bloomStep, 0, len(layers))
	for i := range layers {
		l, followed := &layers[i], i+1 < len(layers)
		s := l.State()
		all.over = all.over || s.Over
		all.saturated = all.saturated || s.FalseRate > 1-1e-9 || now < 1e-9
		all.misses = float64(all.misses * (1 - s.FalseRate))
		all.least += s.Keys
		all.greatest = max(all.greatest, s.Keys)
		if all.saturated {
			all.keys += s.Keys
			all.most += s.Keys
			continue
		}
		all.keys += s.Keys / then
		most := s.Keys / now
		all.most += most
		all.variance += float64(s.KeysError*s.KeysError)/float64(now*now) + float64(most*(1-now))/now
		if !followed {
			break
		}
		rate, spread := l.measuredRate(s)
		steps = append(steps, bloomStep{keys: most, doubt: spread / (1 - rate)})
		now = float64(now * (1 - rate))
		if l.ones > l.full+blockLanes-1 {
			all.merged = true
			rate = min(rate, splitBlockRate(float64(l.params.Capacity)/float64(l.blocks)))
		}
		then = float64(then * (1 - rate))
	}
	if all.saturated {
		all.variance = math.Inf(1)
		return all
	}
	later := all.most
	for _, s := range steps { // a wrong rate of a layer changes the keys of all later ones alike
		later -= s.keys
		doubt := float64(later * s.doubt)
		all.variance += float64(doubt * doubt)
	}
	return all
}

// bloomStep is a layer that is followed by another: its keys, and the standard error of the part of keys that pass it,
// relative to that part.
type bloomStep struct{ keys, doubt float64 }

// blockLanes is how many bits a key sets.
const blockLanes = 8

// measuredRate is the rate of false positives that results from the bits, and its standard error: 0 where all bits were
// read.
func (f *Bloom) measuredRate(s BloomState) (rate, stdErr float64) {
	if f.blocks > bloomExactBlocks {
		mean := s.Keys / float64(f.blocks)
		rate = s.FalseRate
		square := splitBlockMoment(mean, 2)
		return rate, math.Sqrt(max(0, square-float64(rate*rate)) / float64(f.blocks))
	}
	sum := 0.0
	switch {
	case f.bits.words != nil:
		for i := 0; i < len(f.bits.words); i += 4 {
			sum += blockRate(f.bits.words[i : i+4])
		}
	case f.bits.few != nil:
		parts := make([]float64, f.blocks) // added in the order of blocks, for one sum of one set of bits
		f.bits.few.each(func(i int, c *[4]uint64) { parts[i] = blockRate(c[:]) })
		for _, part := range parts {
			sum += part
		}
	}
	return sum / float64(f.blocks), 0
}

// blockRate is the probability that a key of a block seems to be there: the product of the lanes' fills.
func blockRate(words []uint64) float64 {
	rate := 1.0
	for _, w := range words {
		rate = float64(rate*float64(bits.OnesCount32(uint32(w)))) / 32
		rate = float64(rate*float64(bits.OnesCount32(uint32(w>>32)))) / 32
	}
	return rate
}

// blockVariance is that of the number of keys that the bits of a split-block filter tell. Within a block the lanes are
// filled independently, which gives an eighth of the variance of one lane alone; the rest is that blocks get more or
// fewer keys. With t = keys / bits of a lane, 32 bits a block:
//
//	blocks * (4 (e^t - 1 - t) + 896 (e^(t/32) - 1 - t/32))
//
// The last term is half the step between numbers of bits, squared: bits are whole.
func blockVariance(keys float64, blocks int) float64 {
	lane := float64(blocks) * (blockBits / blockLanes)
	step := exp2Float(float64(keys/lane*math.Log2E)) / blockLanes
	return float64(linearVariance(keys, lane)/blockLanes) +
		linearVariance(float64(keys*7)/8, float64(28*lane)) + float64(float64(step*step)/4)
}
