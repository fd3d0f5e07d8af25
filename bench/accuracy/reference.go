package accuracy

import (
	"math"
	"math/bits"
	"sync"
)

// Ranks are the registers of the LogLog family. The low bits of a hash choose a register; the rank of the hash is one
// more than the leading zeros of the rest. A register keeps the largest rank of its hashes, in 5 bits, at most 31.
// Ranks is a reference for comparison with three published estimators, and not a kind that ebb serves.
type Ranks struct {
	p     uint8
	ranks []uint8
}

const (
	rankBits = 5
	rankMax  = 1<<rankBits - 1
)

// NewRanks returns 2^p registers, all 0; p is from 4 to 16.
func NewRanks(p int) *Ranks { return &Ranks{p: uint8(p), ranks: make([]uint8, 1<<p)} }

// Add adds a thing by its hash.
func (r *Ranks) Add(hash uint64) {
	rank := uint8(min(bits.LeadingZeros64(hash|(1<<r.p-1))+1, rankMax))
	if at := &r.ranks[hash&(1<<r.p-1)]; rank > *at {
		*at = rank
	}
}

// Bytes returns the size of the registers at 5 bits each.
func (r *Ranks) Bytes() int { return len(r.ranks) * rankBits / 8 }

// LogLog is the estimator of M. Durand and P. Flajolet, "Loglog Counting of Large Cardinalities" (ESA 2003): alpha m
// 2^(mean rank). It is for many more things than registers, and has no correction for fewer. Its standard error is
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
	// Gamma(-1/m) = -m Gamma(1 - 1/m); log1p and expm1 avoid rounding errors that the power of m would enlarge
	lg, _ := math.Lgamma(1 - 1/m)
	return math.Exp(-m * (lg + math.Log(m*math.Expm1(math.Ln2/m)/math.Ln2)))
}

// superLogLogPart is the share of the registers, the lowest ones, that SuperLogLog uses.
const superLogLogPart = 0.7

// SuperLogLog is the truncated estimator of the same paper. It uses the lowest 70% of the ranks, and has a standard
// error of 1.05/sqrt(m). The paper gives no formula for its constant; ours is computed, see superLogLogAlpha.
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

// superLogLogAlpha is the constant that makes SuperLogLog unbiased in the mean over a doubling of n, for many
// registers. With x things a register, a rank is at most k with probability exp(-x 2^-k), and alpha(x) is x / 2^(mean
// of the lowest 70%). alpha(x) varies by 1.4% either way within each doubling. No constant can follow that, so such a
// bias remains.
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

// HyperLogLog is the estimator of P. Flajolet, É. Fusy, O. Gandouet and F. Meunier, "HyperLogLog" (AOFA 2007). It has
// their linear counting below 5/2 m. It lacks their correction for large counts, because hashes have 64 bits. Its
// standard error is 1.04/sqrt(m), and somewhat larger just above 5/2 m.
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
