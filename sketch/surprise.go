package sketch

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
)

// surprisePrior is the pseudo-count of each bin, and of all that was never seen, in the surprise of one event
// (Krichevsky and Trofimov 1981): what never happened is as surprising as the number of events allows, and not more.
const surprisePrior = 0.5

// pooledLeast is how many events a bin must be expected to have in the smaller of two samples; rarer ones are tested
// together, because the distribution of G is that of chi-square for larger counts only (Cochran 1954). All of them
// together are left out when they are expected to have less than restLeast.
const (
	pooledLeast = 5.0
	restLeast   = 1.0
)

// Surprise is -log2 p of an event in a bin, in bits: 0 for what always happens, and one bit more each time it is half
// as probable. p is smoothed, (n p + 1/2) / (n + (k+1)/2) with n = EffectiveN and k bins, so that a bin that was never
// seen is surprising by no more than n allows. Without events nothing is.
func (r Reading) Surprise(bin uint32) float64 {
	p := 0.0
	if r.Z > 0 {
		p = min(max(r.Count(bin)/r.Z, 0), 1)
	}
	all := Log2(r.EffectiveN + float64(surprisePrior*(float64(r.Bins)+1)))
	return max(0, all-Log2(float64(r.EffectiveN*p)+surprisePrior))
}

// Comparison is how a distribution differs from a baseline.
type Comparison struct {
	// JensenShannon is the distance of the two in bits: 0 when they are the same, 1 when they have no bin in common. It
	// knows nothing of how many events they are of.
	JensenShannon float64
	// G is the statistic of the G-test that both are samples of one distribution, with EffectiveN events each, and
	// Freedom its degrees of freedom; bins too rare to be tested alone are one.
	G       float64
	Freedom int
	// P is the probability of such a difference, or a larger one, if they are: below 0.001 it is hardly chance. It is
	// that of G, or of the bin that has most for its expectation, whichever is smaller: see Compare. The events are
	// taken to be independent.
	P float64
	// Single says that P is that of a single bin, and not of G.
	Single bool
	// Other and BaselineOther are what parts of each are in bins that it does not show: they are compared with nothing.
	Other, BaselineOther float64
	// Bins are what the difference is made of, the largest share first.
	Bins []BinSurprise
}

// BinSurprise is a bin's part in a Comparison.
type BinSurprise struct {
	ID uint32
	// P and Baseline are its probabilities.
	P, Baseline float64
	// Lift is how many times as probable it is as in the baseline, smoothed, in bits: above 0 for more, below for less.
	// It is 0 where P is Baseline, and -Lift where the two are swapped. See lift.
	Lift float64
	// Share is its part of JensenShannon.
	Share float64
}

// Compare says how a distribution differs from a baseline, whose bins have the same ids. It takes time in proportion to
// the bins of both. It compares what the readings show: see Reading.Left.
//
//	JSD = sum over bins (p log2 p/m + q log2 q/m) / 2,              m = (p + q) / 2
//	G   = 2 sum over samples and bins O ln O/E,                     E = what the two together let expect
//
// (Lin 1991; Sokal and Rohlf 1981). With the effective sizes of Kish G is that of as many independent events of equal
// weight.
//
// G pools rare bins, and says nothing of one of them that is rare no more. So each bin is tested by itself, too: by the
// upper tail of its binomial distribution in either sample, at the chance that the two together give it, times the
// number of these tests (Bonferroni). P is the smaller of p(G) and singlePrice * p(bin); p(bin) where G has no freedom.
func Compare(r, baseline Reading) Comparison {
	var c Comparison
	rows := c.compared(r, baseline)
	n, m := r.EffectiveN, baseline.EffectiveN
	if !(n > 0 && m > 0) {
		c.P = 1
		return c
	}
	// both is what is expected of a bin, as a probability
	both := func(p, q float64) float64 { return (float64(p*n) + float64(q*m)) / (n + m) }
	cells := 0
	test := func(p, q float64) {
		cells++
		c.G += 2 * (float64(float64(n*p)*ln(p/both(p, q))) + float64(float64(m*q)*ln(q/both(p, q))))
	}
	rest, restBase := 1.0, 1.0 // of the rare and the pruned
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

// singlePrice is what the tests of single bins cost in addition to a G-test: they add a tenth to its false alarms at
// most.
const singlePrice = 10

// singly is the probability that of all bins of two samples, of n and m events, any has so much more in one of them
// than both let expect; it may be above 1.
func singly(rows []BinSurprise, n, m float64, both func(p, q float64) float64) float64 {
	least := 1.0
	for i := range rows {
		b := &rows[i]
		chance := both(b.P, b.Baseline)
		least = min(least, upperTail(n, b.P, chance), upperTail(m, b.Baseline, chance))
	}
	return least * float64(2*max(1, len(rows)))
}

// upperTail is the probability that of n events, each with this chance, the part p or more is of a bin.
func upperTail(n, p, chance float64) float64 {
	if p <= chance || chance <= 0 || chance >= 1 {
		return 1
	}
	x := float64(n * p)
	return mathext.RegIncBeta(x, n-x+1, chance)
}

// lift is log2 of one probability, of n events, over another, of m. Each is drawn towards the mean of the two by as
// many events as have half an event in the bin at that mean:
//
//	log2 (n p + 1/2) / (n + 1/(p+q)) - log2 (m q + 1/2) / (m + 1/(p+q))
//
// So it has the sign of p - q, also where one of them is 0 and n or m is small, and few events allow few bits.
func lift(p, q, n, m float64) float64 {
	if p == q {
		return 0
	}
	more := 1 / (p + q)
	ours := (float64(n*p) + surprisePrior) / (n + more)
	theirs := (float64(m*q) + surprisePrior) / (m + more)
	return Log2(ours) - Log2(theirs)
}

// ln of what may be 0, where 0 ln 0 is 0.
func ln(x float64) float64 {
	if x <= 0 {
		return 0
	}
	return Log2(x) * math.Ln2
}

// compared lists the bins of both that count for something in either, in the order of their ids, and notes what is in
// no bin.
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

// otherShare is what part of a reading is in bins that it does not show: of z, or where counts may be negative, and z
// is of those that are shown, of both together.
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

// byID is all bins, and what their probabilities are parts of: Z, or where counts may be negative, and cancel in Z, the
// sum of those above 0. It is 1 where there is nothing.
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
