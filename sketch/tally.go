package sketch

import "math"

// tally adds up to 2^24 doubles so that the sum does not depend on their order. Each value is split into two integers
// of 38 bits each, in units that depend on the largest value. The error is 2^-75 of the largest value for each value
// added.
type tally struct {
	up, down float64 // powers of two
	hi, lo   int64
}

// tallyBits + 24 bits fit an int64.
const tallyBits = 38

// scaleFor sets the units: no |v| added may exceed top.
func (t *tally) scaleFor(top float64) {
	e := max(int64(math.Float64bits(top)>>52&0x7ff)-1023, -900)
	t.up, t.down = Exp2(tallyBits-1-e, 0), Exp2(e-tallyBits+1, 0)
}

func (t *tally) add(v float64) {
	x := float64(v * t.up)
	whole := int64(x)
	t.hi += whole
	t.lo += int64(float64((x - float64(whole)) * (1 << tallyBits)))
}

func (t *tally) sum() float64 {
	carry := t.lo >> tallyBits
	rest := t.lo - carry<<tallyBits
	return float64((float64(t.hi+carry) + float64(float64(rest)*(1.0/(1<<tallyBits)))) * t.down)
}
