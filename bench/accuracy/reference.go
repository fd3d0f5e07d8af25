package accuracy

import (
	"math"
	"math/bits"
	"sync"
)

// Ranks are the registers of the LogLog family: of the hashes dealt to a register by their low bits, the largest rank,
// which is one more than the leading zeros of the rest. A rank takes 5 bits and stays at 31. It is a reference for
// comparisons with three published estimators, and not a kind that is served.
type Ranks struct {
	p     uint8
	ranks []uint8
}

const (
	rankBits = 5
	rankMax  = 1<<rankBits - 1
)

// NewRanks has 2^p registers, p from 4 to 16, all 0.
func NewRanks(p int) *Ranks { return &Ranks{p: uint8(p), ranks: make([]uint8, 1<<p)} }

// Add adds the thing of this hash.
func (r *Ranks) Add(hash uint64) {
	rank := uint8(min(bits.LeadingZeros64(hash|(1<<r.p-1))+1, rankMax))
	if at := &r.ranks[hash&(1<<r.p-1)]; rank > *at {
		*at = rank
	}
}

// Bytes is what the registers take at 5 bits each.
func (r *Ranks) Bytes() int { return len(r.ranks) * rankBits / 8 }

// LogLog is the estimator of M. Durand and P. Flajolet, "Loglog Counting of Large Cardinalities" (ESA 2003): alpha m
// 2^(mean rank). It is for many more things than registers, has no correction below that, and a standard error of
// 1.30/sqrt(m).
func (r *Ranks) LogLog() float64 {
	sum := 0
	for _, rank := range r.ranks {
		sum += int(rank)
	}
	m := float64(len(r.ranks))
	return logLogAlpha(m) * m * math.Exp2(float64(sum)/m)
}

// logLogAlpha is (Gamma(-1/m) (1 - 2^(1/m)) / ln 2)^-m, which tends to 0.39701.
func logLogAlpha(m float64) float64 {
	// Gamma(-1/m) = -m Gamma(1 - 1/m), and log1p and expm1 keep what the power of m would blow up
	lg, _ := math.Lgamma(1 - 1/m)
	return math.Exp(-m * (lg + math.Log(m*math.Expm1(math.Ln2/m)/math.Ln2)))
}

// superLogLogPart is the part of the registers, the lowest ones, that SuperLogLog looks at.
const superLogLogPart = 0.7

// SuperLogLog is the truncated estimator of the same paper: of the lowest 70% of the ranks, with a standard error of
// 1.05/sqrt(m). The paper gives no formula for its constant; ours is computed, see superLogLogAlpha.
func (r *Ranks) SuperLogLog() float64 {
	var count [rankMax + 1]int
	for _, rank := range r.ranks {
		count[rank]++
	}
	kept := int(superLogLogPart * float64(len(r.ranks)))
	sum, left := 0, kept
	for rank, n := range count {
		n = min(n, left)
		sum += rank * n
		left -= n
	}
	return superLogLogAlpha() * float64(len(r.ranks)) * math.Exp2(float64(sum)/float64(kept))
}

// superLogLogAlpha is what makes SuperLogLog unbiased in the mean over a doubling of n, for many registers: with x
// things a register a rank is at most k with probability exp(-x 2^-k), and alpha(x) is x / 2^(mean of the lowest 70%).
// alpha(x) swings by 1.4% either way, and no constant can follow: so much bias comes and goes with every doubling.
var superLogLogAlpha = sync.OnceValue(func() float64 {
	sum, steps := 0.0, 1024
	for i := range steps {
		sum += math.Log(superLogLogRatio(math.Exp2(20 + float64(i)/float64(steps))))
	}
	return math.Exp(sum / float64(steps))
})

// superLogLogRatio is alpha(x).
func superLogLogRatio(x float64) float64 {
	mean, below := 0.0, 0.0
	for k := 1; k <= 64 && below < superLogLogPart; k++ {
		to := min(math.Exp(-x*math.Exp2(-float64(k))), superLogLogPart)
		mean += float64(k) * (to - below)
		below = to
	}
	return x / math.Exp2(mean/superLogLogPart)
}

// HyperLogLog is the estimator of P. Flajolet, É. Fusy, O. Gandouet and F. Meunier, "HyperLogLog" (AOFA 2007), with its
// linear counting below 5/2 m and, hashes having 64 bits, without its correction for many. Its standard error is
// 1.04/sqrt(m), with a bump above 5/2 m.
func (r *Ranks) HyperLogLog() float64 {
	m := float64(len(r.ranks))
	sum, zeros := 0.0, 0
	for _, rank := range r.ranks {
		sum += math.Ldexp(1, -int(rank))
		if rank == 0 {
			zeros++
		}
	}
	n := hyperLogLogAlpha(m) * m * m / sum
	if n <= 2.5*m && zeros > 0 {
		return m * math.Log(m/float64(zeros))
	}
	return n
}

func hyperLogLogAlpha(m float64) float64 {
	switch m {
	case 16:
		return 0.673
	case 32:
		return 0.697
	case 64:
		return 0.709
	}
	return 0.7213 / (1 + 1.079/m)
}
