package sketch

import (
	"math"
	"math/bits"
)

// bloomExactBlocks is the most blocks of a layer that are read to compute its rate of false positives. For a larger
// layer the rate is computed from its number of keys.
const bloomExactBlocks = 1 << 14

// bloomLayers is what the layers of a growing filter show together. A key that an earlier layer seems to have is not
// added to a later one. So the number of keys that the bits of a layer show is divided by the probability that a key
// passes all earlier layers.
type bloomLayers struct {
	// keys is the estimate. For a merged filter it uses the fill that each layer had when the next layer began. most
	// uses the present fill of the layers, which is right for all keys added since. least does not divide.
	least, keys, most float64

	variance  float64 // of most; at least that of the others
	misses    float64 // the probability that a key which was never added is not found
	over      bool
	saturated bool // so full that the bits do not show how many keys there are

	// merged says that a layer with a successor has more bits than a filter puts into a layer. Otherwise the filter was
	// not merged, or only with filters that had no other keys in these layers.
	merged   bool
	greatest float64 // the most keys of one layer, not divided
}

// layersOf combines layers. others is the probability that a key passes the other filters that are checked before it is
// added.
func layersOf(layers []Bloom, others float64) (all bloomLayers) {
	all.misses = 1
	then, now := 1.0, others // the probabilities of passing the layers so far
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
	for _, s := range steps { // an error in the rate of a layer changes the keys of all later ones alike
		later -= s.keys
		doubt := float64(later * s.doubt)
		all.variance += float64(doubt * doubt)
	}
	return all
}

// bloomStep is a layer with a successor: its keys, and the relative standard error of the part of keys that pass it.
type bloomStep struct{ keys, doubt float64 }

// blockLanes is the number of bits that a key sets.
const blockLanes = 8

// measuredRate is the rate of false positives of the bits, and its standard error: 0 where all bits were read.
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
		parts := make([]float64, f.blocks) // added in the order of blocks, so that the same bits give the same sum
		f.bits.few.each(func(i int, c *[4]uint64) { parts[i] = blockRate(c[:]) })
		for _, part := range parts {
			sum += part
		}
	}
	return sum / float64(f.blocks), 0
}

// blockRate is the probability that an absent key of a block is found: the product of the fills of its lanes.
func blockRate(words []uint64) float64 {
	rate := 1.0
	for _, w := range words {
		rate = float64(rate*float64(bits.OnesCount32(uint32(w)))) / 32
		rate = float64(rate*float64(bits.OnesCount32(uint32(w>>32)))) / 32
	}
	return rate
}

// blockVariance is the variance of the number of keys estimated from the bits of a split-block filter. Within a block
// the lanes are filled independently, which gives an eighth of the variance of one lane; the rest is that blocks get
// different numbers of keys. With t = keys / bits of a lane, 32 bits a block:
//
//	blocks * (4 (e^t - 1 - t) + 896 (e^(t/32) - 1 - t/32))
//
// The code adds the square of half the step between numbers of bits, because bits are whole.
func blockVariance(keys float64, blocks int) float64 {
	lane := float64(blocks) * (blockBits / blockLanes)
	step := exp2Float(float64(keys/lane*math.Log2E)) / blockLanes
	return float64(linearVariance(keys, lane)/blockLanes) +
		linearVariance(float64(keys*7)/8, float64(28*lane)) + float64(float64(step*step)/4)
}
