package sketch

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
)

// surprisePrior is the pseudo-count of each bin, and of all unseen bins together, in Surprise (Krichevsky and Trofimov
// 1981). It bounds the surprise of an unseen bin by the number of events.
const surprisePrior = 0.5

// pooledLeast is the least expected number of events, in the smaller of two samples, of a bin that is tested alone.
// Rarer bins are pooled, because G has the chi-square distribution only for larger counts (Cochran 1954). The pool is
// left out when it is expected to have fewer events than restLeast.
const (
	pooledLeast = 5.0
	restLeast   = 1.0
)

// Surprise is -log2 p of an event in a bin, in bits: 0 for what always happens, and one bit more for each halving of p.
// p is smoothed, (n p + 1/2) / (n + (k+1)/2) with n = EffectiveN and k bins, so that n bounds the surprise of an unseen
// bin. Without events it is 0 for every bin.
func (r Reading) Surprise(bin uint32) float64 {
	p := 0.0
	if r.Z > 0 {
		p = min(max(r.Count(bin)/r.Z, 0), 1)
	}
	all := Log2(r.EffectiveN + float64(surprisePrior*(float64(r.Bins)+1)))
	return max(0, all-Log2(float64(r.EffectiveN*p)+surprisePrior))
}

// Comparison describes how a distribution differs from a baseline.
type Comparison struct {
	// JensenShannon is the distance of the two in bits: 0 when they are the same, 1 when they have no bin in common. It
	// does not depend on the number of events.
	JensenShannon float64
	// G is the statistic of the G-test that both are samples of one distribution, with EffectiveN events each, and
	// Freedom its degrees of freedom; bins too rare to be tested alone count as one bin.
	G       float64
	Freedom int
	// P is the probability of such a difference, or a larger one, if both are samples of one distribution: below 0.001
	// it is hardly chance. It is the P of G or of the most extreme single bin, whichever is smaller: see Compare. The
	// events are assumed to be independent.
	P float64
	// Single says that P is the P of a single bin, not of G.
	Single bool
	// Other and BaselineOther are the parts of each that are in no visible bin: they are not compared.
	Other, BaselineOther float64
	// Bins are the parts of the difference, by bin, the largest share first.
	Bins []BinSurprise
}

// BinSurprise is the part of one bin in a Comparison.
type BinSurprise struct {
	ID uint32
	// P and Baseline are its probabilities.
	P, Baseline float64
	// Lift is log2 of P over Baseline, smoothed: above 0 for more, below 0 for less. It is 0 if P equals Baseline, and
	// changes its sign if the two are swapped. See lift.
	Lift float64
	// Share is its part of JensenShannon.
	Share float64
}

// Compare describes how a distribution differs from a baseline, whose bins must have the same ids. It takes time in
// proportion to the bins of both. It compares the visible bins: see Reading.Left.
//
//	JSD = sum over bins (p log2 p/m + q log2 q/m) / 2,              m = (p + q) / 2
//	G   = 2 sum over samples and bins O ln O/E,                     E = what the two together let expect
//
// (Lin 1991; Sokal and Rohlf 1981). With Kish's effective sizes, G is the statistic of that many independent events of
// equal weight.
//
// G pools rare bins, so it cannot show that one of them is no longer rare. So each bin is also tested alone, by the
// upper tail of its binomial distribution in either sample. The chance of the bin is its part of both samples together,
// and the result is multiplied by the number of these tests (Bonferroni). P is the smaller of p(G) and singlePrice *
// p(bin); it is p(bin) where G has no degrees of freedom.
func Compare(r, baseline Reading) Comparison {
	var c Comparison
	rows := c.compared(r, baseline)
	n, m := r.EffectiveN, baseline.EffectiveN
	if !(n > 0 && m > 0) {
		c.P = 1
		return c
	}
	// both is the expected probability of a bin
	both := func(p, q float64) float64 { return (float64(p*n) + float64(q*m)) / (n + m) }
	cells := 0
	test := func(p, q float64) {
		cells++
		c.G += 2 * (float64(float64(n*p)*ln(p/both(p, q))) + float64(float64(m*q)*ln(q/both(p, q))))
	}
	rest, restBase := 1.0, 1.0 // of rare and pruned bins
	for i := range rows {
		b := &rows[i]
		c.JensenShannon += b.Share
		if both(b.P, b.Baseline)*min(n, m) < pooledLeast {
			continue
		}
		test(b.P, b.Baseline)
		rest -= b.P
		restBase -= b.Baseline
	}
	if rest, restBase = max(0, rest), max(0, restBase); both(rest, restBase)*min(n, m) >= restLeast {
		test(rest, restBase)
	}
	c.G, c.JensenShannon = max(0, c.G), max(0, c.JensenShannon) // rounding may leave less
	c.Freedom = max(0, cells-1)
	c.P, c.Single = min(1, singly(rows, n, m, both)), true
	if c.Freedom > 0 {
		pooled := mathext.GammaIncRegComp(float64(c.Freedom)/2, c.G/2)
		c.Single = c.P*singlePrice < pooled
		c.P = min(pooled, c.P*singlePrice)
	}
	c.Bins = rows
	slices.SortFunc(c.Bins, func(a, b BinSurprise) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.ID, b.ID))
	})
	return c
}

// singlePrice is the factor on p(bin) for testing single bins in addition to a G-test: these tests then add at most a
// tenth to the false alarms of the G-test.
const singlePrice = 10

// singly bounds a probability: that any bin of two samples, of n and m events, is so much more frequent in one of them
// than in both. It may be above 1.
func singly(rows []BinSurprise, n, m float64, both func(p, q float64) float64) float64 {
	least := 1.0
	for i := range rows {
		b := &rows[i]
		chance := both(b.P, b.Baseline)
		least = min(least, upperTail(n, b.P, chance), upperTail(m, b.Baseline, chance))
	}
	return least * float64(2*max(1, len(rows)))
}

// upperTail is the probability that at least a part p of n events falls into a bin with this chance.
func upperTail(n, p, chance float64) float64 {
	if p <= chance || chance <= 0 || chance >= 1 {
		return 1
	}
	x := float64(n * p)
	return mathext.RegIncBeta(x, n-x+1, chance)
}

// lift is log2 of a probability p, from n events, over q, from m events. Each is drawn towards the mean of the two by
// as many events as give half an event to the bin at that mean:
//
//	log2 (n p + 1/2) / (n + 1/(p+q)) - log2 (m q + 1/2) / (m + 1/(p+q))
//
// So it has the sign of p - q, even where one of them is 0 and n or m is small, and few events give few bits.
func lift(p, q, n, m float64) float64 {
	if p == q {
		return 0
	}
	more := 1 / (p + q)
	ours := (float64(n*p) + surprisePrior) / (n + more)
	theirs := (float64(m*q) + surprisePrior) / (m + more)
	return Log2(ours) - Log2(theirs)
}

// ln is the natural logarithm, or 0 for x <= 0, so that 0 ln 0 is 0.
func ln(x float64) float64 {
	if x <= 0 {
		return 0
	}
	return Log2(x) * math.Ln2
}

// compared lists the bins with a count above 0 in r or in baseline, ordered by id, and sets c.Other and
// c.BaselineOther.
func (c *Comparison) compared(r, baseline Reading) []BinSurprise {
	ours, z := byID(r)
	theirs, baseZ := byID(baseline)
	c.Other, c.BaselineOther = otherShare(r, z), otherShare(baseline, baseZ)
	rows := make([]BinSurprise, 0, len(ours)+len(theirs))
	for len(ours) > 0 || len(theirs) > 0 {
		var b BinSurprise
		var count, baseCount float64
		switch {
		case len(theirs) == 0 || len(ours) > 0 && ours[0].ID <= theirs[0].ID:
			b.ID = ours[0].ID
		default:
			b.ID = theirs[0].ID
		}
		if len(ours) > 0 && ours[0].ID == b.ID {
			count, ours = ours[0].Count, ours[1:]
		}
		if len(theirs) > 0 && theirs[0].ID == b.ID {
			baseCount, theirs = theirs[0].Count, theirs[1:]
		}
		if count <= 0 && baseCount <= 0 {
			continue
		}
		b.P, b.Baseline = max(0, count)/z, max(0, baseCount)/baseZ
		mean := (b.P + b.Baseline) / 2
		b.Share = (float64(b.P*ln(b.P/mean)) + float64(b.Baseline*ln(b.Baseline/mean))) / (2 * math.Ln2)
		b.Lift = lift(b.P, b.Baseline, r.EffectiveN, baseline.EffectiveN)
		rows = append(rows, b)
	}
	return rows
}

// otherShare is the part of a reading that is in no visible bin. It is a part of z; where counts may be negative, z
// covers the visible bins only, and it is a part of both together.
func otherShare(r Reading, z float64) float64 {
	other := math.Abs(r.Other)
	switch {
	case other == 0:
		return 0
	case r.Bins == 0:
		return 1
	case r.p.AllowNegative:
		z += other
	}
	return min(other/z, 1)
}

// byID is all visible bins, and the normaliser z of their probabilities: Z, or, where counts may be negative and cancel
// in Z, the sum of the counts above 0. It is 1 where that is 0.
func byID(r Reading) (bins []Bin, z float64) {
	bins = make([]Bin, 0, r.Bins)
	r.each(func(b Bin) { bins = append(bins, b) })
	slices.SortFunc(bins, func(a, b Bin) int { return cmp.Compare(a.ID, b.ID) })
	for _, b := range bins {
		z += max(0, b.Count)
	}
	if !r.p.AllowNegative {
		z = max(z, r.Z)
	}
	if z <= 0 {
		z = 1
	}
	return bins, z
}
