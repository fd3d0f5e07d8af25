package sketch

import (
	"math"
	"math/bits"
)

// Counts that do not depend on the order of events (Params.OrderFree). An event is counted even if it weighs very
// little by now. Faded bins are removed together, when the number of bins has grown. One number of the summary, lost,
// bounds what removals cost:
//
//	lost     at most so much is missing from any one bin, and from Z
//	birth    lost = 8/7 th                      what a predecessor of the same key may have held when it died
//	removal  bins below th go; lost += the largest of them
//	death    Z < th and lost <= th/7            th: the threshold, as weighed at that time
//
// lost is a stored value like Z: it decays, moves with the landmark and merges by addition. A new summary starts with
// lost = 8/7 th. That has decayed to th/7 after three half-lives, so no summary dies earlier. A summary that died held
// at most th + th/7 of any bin; its successor starts with this number as lost.
//
//	truth of a bin, and of Z, lies in [v, v + lost + 1e-9 v]; with negative amounts in [v - lost, v + lost]
//
// Faded bins are removed when a new bin comes and three conditions hold: the number of bins is 8, 12, 16, 18, 20, ...
// (steps of an eighth to a sixteenth); at least an eighth of the bins is below th; and lost <= th/8. So lost stays
// below 9/8 th, unless bins reach their limit.

// Shares of the threshold in the rules above.
const (
	lostAtBirth   = 8.0 / 7
	lostAtDeath   = 1.0 / 7
	lostAtRemoval = 1.0 / 8
)

// lostFaintest is the least stored value of lost: below it, doubles have fewer bits.
const lostFaintest = 0x1p-900

// lostUp rounds v up to the upper half of a double (relative error below 2^-20), the form in which lost is stored.
func lostUp(v float64) float64 { return upperOf(v).float() }

// keeps says whether the floor keeps for good all bins that events named, and so the summary.
func (p *Params) keeps() bool { return p.OrderFree && (p.Floor == Clamp || p.Floor == Prior) }

// LostAtBirth is the most that a bin of a key without a summary can have held, in counts at a time. Every new summary
// starts with it, and an answer about an absent key may be too low by it. It is 0 unless Params.OrderFree, or Bounded
// under Linear, is set.
func (p *Params) LostAtBirth(at Tick) float64 { return lostUp(p.Held(at)) }

// Held is LostAtBirth before it is rounded up.
func (p *Params) Held(at Tick) float64 { return max(p.heldAtDeath(), p.Gone.at(at)) }

// heldAtDeath is the most that a bin of a key can have held when it died under these settings.
func (p *Params) heldAtDeath() float64 {
	switch {
	case p.Decay == Linear && p.Bounded:
		return float64(p.microThreshold()) / microPerCount // of any one bin
	case p.Decay == Linear || !p.OrderFree:
		return 0
	case p.Decay == HalfLife:
		return float64(p.threshold() * lostAtBirth)
	case p.Gone.Count > 0: // what has its own half-life still fades
		return float64(max(p.Threshold, faintest) * lostAtBirth)
	}
	return 0
}

// Gone bounds what a key that had died before settings changed may have held of any bin: a count at a time, which
// decays from then on. The settings that follow may promise a lower bound for keys that die later, but not for these
// keys.
type Gone struct {
	Count float64
	Since Tick
	// HalfLife is the longest half-life that any such key may have had; 0 means that the count does not decay.
	HalfLife Tick
	// Shortest is the shortest half-life that any key may have had; 0 if unknown.
	Shortest Tick
	// Grown says that a clock was set back after Since: the count may be above all thresholds.
	Grown bool
}

func (g Gone) at(t Tick) float64 {
	if g.HalfLife == 0 {
		return g.Count
	}
	return loss{g.Count, g.Since}.at(t, g.HalfLife)
}

// Follow sets p.Gone when the settings p replace the settings before at a time: it bounds what the keys that died under
// before may have held.
func (p *Params) Follow(before *Params, at Tick) {
	g := Gone{Count: before.LostAtBirth(at), Since: at}
	lasts := p.Decay != HalfLife || before.Decay != HalfLife || before.Gone.Count > 0 && before.Gone.HalfLife == 0
	if g.Count > 0 && !lasts {
		g.HalfLife = max(p.HalfLife, before.HalfLife, before.Gone.HalfLife)
	}
	p.Gone = g
}

// Rewind sets p.Gone when the clock is set back from the time `was` to the time `to`: at the earlier time, the counts
// of dead keys have faded less. A key that died under these settings died no later than `was`. What had died before
// Gone.Since has faded from then on, or had faded less at `to` if that is earlier. No key has a shorter half-life than
// shortest, which is 0 if none fades.
func (p *Params) Rewind(was, to, shortest Tick) {
	g := p.Gone
	held := unfaded(p.heldAtDeath(), was-to, shortest)
	if to < g.Since {
		held = max(held, unfaded(g.Count, g.Since-to, shortest))
	} else {
		held = max(held, g.at(to))
	}
	lasts := p.Decay != HalfLife || g.Count > 0 && g.HalfLife == 0
	p.Gone = Gone{Count: lostUp(held), Since: to, Shortest: shortest, Grown: true}
	if held > 0 && !lasts {
		p.Gone.HalfLife = max(p.HalfLife, g.HalfLife)
	}
}

// unfaded is the count that fades to n in the time d, at most CountMax.
func unfaded(n float64, d, halfLife Tick) float64 {
	if n == 0 || halfLife == 0 {
		return n
	}
	k, frac := exponent(d, 0, halfLife)
	return min(float64(n*Exp2(k, frac)), max(n, CountMax))
}

// Lost is by how much any bin, and Z, may be too low at a time, in counts. It is 0 unless Params.OrderFree, or Bounded
// under Linear, is set.
func (d *Distribution) Lost(p *Params, at Tick) float64 {
	if d.lost == 0 {
		return 0
	}
	if d.form() == micro {
		return d.shortAt(p, p.leaked(at))
	}
	return float64(d.lost * p.shrink(max(at, p.earliest(d.mark)), d.mark))
}

// Lose adds held to lost, because another summary of the key may have held that much when it died. It does nothing if
// nothing is stored. Except under Linear, it also does nothing if Params.OrderFree is not set.
func (d *Distribution) Lose(p *Params, now Tick, held float64) {
	switch {
	case d.fresh() || held == 0:
	case d.form() == micro:
		d.lost = lostUp(d.lost + held)
	case p.OrderFree && p.Decay == HalfLife:
		d.settle(p, p.landmark(now))
		d.lost = lostUp(d.lost + float64(held*p.weight(max(now, 0), d.mark)))
	case p.OrderFree:
		d.lost = lostUp(d.lost + held)
	}
}

// earliest is the earliest as-of time of a distribution with this landmark.
func (p *Params) earliest(mark int64) Tick {
	if p.Decay == None {
		return math.MinInt64
	}
	return Tick((mark - earliest) * int64(p.HalfLife))
}

// spent is faded for Params.OrderFree.
func (d *Distribution) spent(p *Params, atNow float64) bool {
	if p.Decay == None || p.keeps() || d.fresh() {
		return false
	}
	th := float64(p.threshold() * atNow)
	return d.magnitude(p) < th && d.lost <= float64(th*lostAtDeath)
}

// spentBy is Death for Params.OrderFree.
func (d *Distribution) spentBy(p *Params) Tick {
	m := d.magnitude(p)
	switch {
	case d.fresh() || d.Len() == 0 && m == 0:
		return 0
	case p.keeps():
		return MaxTick
	}
	at := Tick(0)
	if m > 0 {
		at = d.fallsBelow(p, m, p.threshold())
	}
	if d.lost > 0 {
		at = max(at, d.fallsBelow(p, d.lost, float64(p.threshold()*lostAtDeath)))
	}
	return at
}

// fallsBelow is a tick from which on a stored value counts less than a threshold, a few ticks after the first such
// tick.
func (d *Distribution) fallsBelow(p *Params, v, threshold float64) Tick {
	h := float64(p.HalfLife)
	lives := Log2(v) - Log2(threshold)
	after := float64(lives*h) + float64(h*0x1p-44) + 2
	return Tick(d.mark*int64(p.HalfLife)) + Tick(math.Ceil(after))
}

// isStep says whether faded bins are removed when there are n bins and a new one comes: at 8, 12, 16, then at each
// eighth of a power of two.
func isStep(n int) bool {
	if n < 16 {
		return n == 8 || n == 12
	}
	return n&(1<<(bits.Len(uint(n))-4)-1) == 0
}

// PruneDue says whether PruneForBin would examine the bins before this bin is added at now.
func (d *Distribution) PruneDue(p *Params, now *Now, bin uint32) bool {
	return p.OrderFree && p.Decay == HalfLife && !p.keeps() && isStep(d.Len()) && d.find(bin) < 0 &&
		d.mayLose(p, now.weight(d.mark))
}

// mayLose says whether lost is small enough for a removal.
func (d *Distribution) mayLose(p *Params, atNow float64) bool {
	return d.lost <= float64(float64(p.threshold()*atNow)*lostAtRemoval)
}

// PruneForBin is called before a new bin is added. If PruneDue, and an eighth of the bins is below the threshold, it
// removes these bins and calls gone, which may be nil, with each. It does nothing unless Params.OrderFree.
func (d *Distribution) PruneForBin(p *Params, now *Now, bin uint32, gone func(bin uint32)) {
	if !d.PruneDue(p, now, bin) {
		return
	}
	cut, below := d.cut(p, now.weight(d.mark)), 0
	for i := range d.Len() {
		if math.Abs(d.value(i)) < cut {
			below++
		}
	}
	if below*8 >= d.Len() {
		d.removeBelow(cut, gone)
	}
}

// PruneWithinLoss is Prune that removes bins only if lost is small enough for it. It is for cleanups that do not come
// from a new bin.
func (d *Distribution) PruneWithinLoss(p *Params, now Tick, gone func(bin uint32)) {
	if !p.OrderFree || d.form() == micro || p.Decay == None || d.Dead(p, now) || d.mayLose(p, p.weight(now, d.mark)) {
		d.Prune(p, now, gone)
	}
}

// removeBelow removes the bins below a stored value, and adds the largest of them to lost.
func (d *Distribution) removeBelow(cut float64, gone func(bin uint32)) {
	kept, most := 0, 0.0
	for i := range d.Len() {
		v := math.Abs(d.value(i))
		if v >= cut {
			d.move(i, kept)
			kept++
			continue
		}
		most = max(most, v)
		if gone != nil {
			gone(d.id(i))
		}
	}
	if kept == d.Len() {
		return
	}
	if most > 0 {
		d.lost = lostUp(d.lost + most)
	}
	d.truncate(kept)
}
