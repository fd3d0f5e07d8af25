package client

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// TrendQuery names the keys of a trend; several are taken as one distribution.
type TrendQuery struct {
	Keys []string
	// Top is how many rising bins to name, and how many falling ones; 10 if 0.
	Top int
	// Bins to report on in addition.
	Bins []string
}

// Trend is how the rates of bins under a fast half-life differ from those under a slow one, at one time.
type Trend struct {
	Found      bool          // false: no such key, or all of it has faded
	Fast, Slow time.Duration // the half-lives
	Since      time.Time     // both have counted since then
	// Warming means that there is too little past to compare with yet. Rates are given, but no changes.
	Warming bool
	Total   Change // all bins together
	// Rising are the bins that come more often than usual, the most significant change first (by Z); Falling those that
	// come less often.
	Rising, Falling []Change
	Bins            []Change // those of the query, in its order
	Confidence      float64
	AsOf            time.Time
	Coverage        Coverage
}

// Change is how the rate of a bin has changed.
type Change struct {
	Name               string
	FastRate, SlowRate float64 // events a second under each half-life, corrected for the time that was counted
	// Bits is log2 of FastRate over SlowRate, smoothed: 1 is twice as often as usual, -1 half as often. The truth is
	// between Low and High with the confidence of the answer.
	Bits, StdError, Low, High float64
	// Z has a normal distribution if nothing has changed. PValue is the probability of such a change, or a larger one,
	// by chance.
	Z, PValue float64
}

// Trend asks which bins of a key come more or less often than usual. The namespace has two half-lives: see
// Namespace.SlowHalfLife.
func (c *Client) Trend(ctx context.Context, ns string, query TrendQuery, opts ...AskOption) (Trend, error) {
	tq := &ebbv1.TrendQuestion{Keys: bytesOf(query.Keys...), Bins: bytesOf(query.Bins...)}
	if query.Top != 0 {
		tq.Top = clampCount(query.Top)
	}
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Trend{Trend: tq}}
	a, err := c.askOne(ctx, "trend", keyOf(q), q, opts)
	if err != nil {
		return Trend{}, err
	}
	return trendOf(a), nil
}

func trendOf(a *ebbv1.Answer) Trend {
	w := a.GetTrend()
	return Trend{
		Found: w.GetFound(), Fast: durationOf(w.GetFastHalfLifeUs()), Slow: durationOf(w.GetSlowHalfLifeUs()), Since: timeOf(w.GetSinceUs()), Warming: w.GetWarming(),
		Total: changeOf(w.GetTotal()), Rising: changesOf(w.GetRising()), Falling: changesOf(w.GetFalling()), Bins: changesOf(w.GetBins()),
		Confidence: w.GetConfidence(), AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage()),
	}
}

func durationOf(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

func changesOf(changes []*ebbv1.Change) []Change {
	var out []Change
	for _, c := range changes {
		out = append(out, changeOf(c))
	}
	return out
}

func changeOf(c *ebbv1.Change) Change {
	return Change{
		Name: string(c.GetBin()), FastRate: c.GetFastRate(), SlowRate: c.GetSlowRate(), Bits: c.GetBits(), StdError: c.GetStdErrorBits(),
		Low: c.GetLowBits(), High: c.GetHighBits(), Z: c.GetZScore(), PValue: c.GetPValue(),
	}
}
