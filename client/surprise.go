package client

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// SurpriseQuery names the distribution to compare (Keys) and the baseline (Against). Several keys are taken as one
// distribution.
type SurpriseQuery struct {
	Keys    []string
	Against []string
	// Patterns and AgainstPatterns name further keys: the distributions that match. See KeysQuery.
	Patterns, AgainstPatterns []string
	// Bins are judged by the baseline: Surprise.Bits is the surprise of an event in each.
	Bins []string
	// Top is how many bins of the difference to name; 10 if 0.
	Top int
}

// Surprise is how a distribution differs from a baseline, at one time.
type Surprise struct {
	Found bool // false: one of the two is not there, or has faded
	// JensenShannon is the distance of the two in bits: 0 when they are the same, 1
	// when they have no bin in common.
	JensenShannon float64
	// G is the statistic of the G-test that both are samples of one distribution,
	// of EffectiveN and BaselineN independent events, with Freedom degrees of freedom.
	G                     float64
	Freedom               int
	EffectiveN, BaselineN float64
	// PValue is the probability of such a difference, or a larger one, by chance. It is that of G. If SingleBin is set,
	// it is that of the most unlikely bin by itself, for all bins that were tested.
	PValue    float64
	SingleBin bool
	// OtherP and BaselineOtherP are the parts of each in bins that were removed. These are compared with nothing. Both
	// are 0 under linear decay, where they are not known. What is left of bins below the threshold is compared.
	OtherP, BaselineOtherP float64
	// Bins are what the difference is made of, the largest share first.
	Bins []SurprisingBin
	// Bits is the surprise of an event in each bin of the query, -log2 p by the
	// baseline: one more for each time that it is half as probable.
	Bits     []float64
	AsOf     time.Time
	Coverage Coverage
}

// SurprisingBin is a bin's part of a difference.
type SurprisingBin struct {
	Name        string
	P, Baseline float64 // probability
	// Lift is log2 of P over Baseline, each smoothed by half an event: above 0 where P is larger, below 0 where it is
	// smaller.
	Lift  float64
	Share float64 // its part of JensenShannon
}

// Surprise asks how a distribution differs from a baseline, and whether that may be chance.
func (c *Client) Surprise(ctx context.Context, ns string, query SurpriseQuery, opts ...AskOption) (Surprise, error) {
	q := query.question(ns)
	a, err := c.askOne(ctx, "surprise", keyOf(q), q, opts)
	if err != nil {
		return Surprise{}, err
	}
	return surpriseOf(a), nil
}

func (q SurpriseQuery) question(ns string) *ebbv1.Question {
	sq := &ebbv1.SurpriseQuestion{
		Keys: bytesOf(q.Keys...), Against: bytesOf(q.Against...), Bins: bytesOf(q.Bins...),
		Patterns: bytesOf(q.Patterns...), AgainstPatterns: bytesOf(q.AgainstPatterns...),
	}
	if q.Top != 0 {
		sq.Top = clampCount(q.Top)
	}
	return &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Surprise{Surprise: sq}}
}

func surpriseOf(a *ebbv1.Answer) Surprise {
	w := a.GetSurprise()
	s := Surprise{
		Found: w.GetFound(), JensenShannon: w.GetJensenShannonBits(), G: w.GetG(), Freedom: int(w.GetFreedom()), EffectiveN: w.GetEffectiveN(),
		BaselineN: w.GetBaselineEffectiveN(), PValue: w.GetPValue(), SingleBin: w.GetPOfSingleBin(), Bits: w.GetSurpriseBits(), AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage()),
	}
	s.OtherP, s.BaselineOtherP = w.GetOtherP(), w.GetBaselineOtherP()
	for _, b := range w.GetBins() {
		s.Bins = append(s.Bins, SurprisingBin{Name: string(b.GetBin()), P: b.GetP(), Baseline: b.GetBaselineP(), Lift: b.GetLiftBits(), Share: b.GetShareBits()})
	}
	return s
}
