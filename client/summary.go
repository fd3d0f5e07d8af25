package client

import (
	"context"
	"math"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// SummaryQuery is a question about keys that are not distributions. Several keys, of one kind, are merged: a member of
// two of them counts once.
type SummaryQuery struct {
	Keys []string
	// Patterns name further keys: all that match, except distributions. See KeysQuery.
	Patterns []string
	// Bins of a KindCountMin or a KindTopK, to be counted, or of a KindBloom, to be looked for.
	Bins []string
	// Quantiles of a KindQuantile, each from 0 to 1.
	Quantiles []float64
	// Top is how many of the bins that a KindTopK has counted most to name. It keeps 1,000, and counts the first 100
	// well.
	Top int
	// Members asks for the bins of a KindLinear by name, for a sample of the bins of a KindSet, or for the phrases of a
	// KindPhrases.
	Members bool
	// Window asks a KindDistinct in a namespace with a window for what was there in the last Window; the whole window
	// if 0. Summary.Span is the time that the answer covers.
	Window time.Duration
	// Limit is how many members of a KindSet to name at most; 100 if 0.
	Limit int
}

// Summary is the answer about keys of one kind, at one time.
type Summary struct {
	Keys []string // those that were merged
	// Matched is how many keys the patterns of the query found.
	Matched int
	Found   bool // false: no such key, or all of it has faded
	Kind    Kind // if found
	// Total is how many members a KindDistinct, a KindLinear, a KindBloom or a KindSet has; for the others it is the
	// sum of all amounts. If High is math.MaxFloat64, it is only a lower bound.
	Total Estimate
	// Span is how long before AsOf Total reaches back, for a KindDistinct in a namespace with a window. It is longer
	// than the window that was asked for by at most a 32,768th of the namespace's window. For a key that was made
	// before storage version 11 it is up to a 30th longer. Total.Low is of the window alone.
	Span time.Duration
	// Over means that more was added than the kind is made for: errors are larger than the kind promises.
	Over bool
	// Bins and Quantiles are in the order of the query; there are no Quantiles when each value has faded. The truth is
	// at most High: Value plus what is lost (see Distribution.Lost). Low of a KindCountMin is right with a probability
	// of 99%. For a KindTopK and a KindQuantile the truth is certain to be between Low and High. The Confidence of each
	// shows which. If faded values alone may decide a quantile, Low is -math.MaxFloat64 or High math.MaxFloat64.
	Bins      []Estimate
	Quantiles []Estimate
	// Items are the bins of a KindTopK that were counted most, the largest first.
	Items []Item
	// Memberships are the answers of a KindBloom, in the order of the query's Bins. All are false if nothing was found.
	Memberships []Membership
	// Members are the bins of a KindLinear by name, if asked for: all of them up to 250 (Total has no error then), none
	// beyond. For a KindSet they are a sample: uniform or, where the namespace decays, of the latest. For a KindPhrases
	// they are all phrases.
	Members []string
	// Text is the value of a KindString.
	Text     string
	AsOf     time.Time
	Coverage Coverage
}

// Membership is whether a bin was there.
type Membership struct {
	Contained bool // false is certain
	// FalseRate is for a contained bin. Of all bins that were never there, Contained would be true for this part.
	FalseRate float64
}

// Item is a bin and its count: the truth is certain to be between Low and High.
type Item struct {
	Bin   string
	Count Estimate
}

// Summary asks about keys that are not distributions.
func (c *Client) Summary(ctx context.Context, ns string, query SummaryQuery, opts ...AskOption) (Summary, error) {
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{
		Keys: bytesOf(query.Keys...), Patterns: bytesOf(query.Patterns...), Bins: bytesOf(query.Bins...), Quantiles: query.Quantiles, Top: uint32(min(max(query.Top, 0), math.MaxUint32)), Members: query.Members,
		WindowUs: query.Window.Microseconds(),
		Limit:    clampCount(query.Limit),
	}}}
	a, err := c.askOne(ctx, "summary", keyOf(q), q, opts)
	if err != nil {
		return Summary{}, err
	}
	return summaryOf(a), nil
}

// Distinct asks how many different bins keys of KindDistinct have, all keys taken together.
func (c *Client) Distinct(ctx context.Context, ns string, keys []string, opts ...AskOption) (Reading, error) {
	s, err := c.Summary(ctx, ns, SummaryQuery{Keys: keys}, opts...)
	if err != nil {
		return Reading{}, err
	}
	if s.Found && s.Kind != KindDistinct {
		return Reading{}, c.otherKind("distinct", keys[0], s.Kind, "does not count what is different")
	}
	return Reading{Estimate: s.Total, Coverage: s.Coverage, Found: s.Found}, nil
}

// otherKind returns the error for a question that keys of this kind cannot answer.
func (c *Client) otherKind(op, key string, kind Kind, lacks string) error {
	return c.fail(attempt{op: op, key: key}, proto.ErrWrongKind.Errorf("key %q is a %s, which %s", key, proto.KindName(kind), lacks))
}

// Contains asks which of some bins keys of KindBloom contain, all keys taken together. The answers are in the order of
// bins. If partial answers are allowed, a no is only as good as the coverage: use Summary, which returns it.
func (c *Client) Contains(ctx context.Context, ns string, keys, bins []string, opts ...AskOption) ([]Membership, error) {
	s, err := c.Summary(ctx, ns, SummaryQuery{Keys: keys, Bins: bins}, opts...)
	switch {
	case err != nil:
		return nil, err
	case !s.Found:
		return make([]Membership, len(bins)), nil
	case s.Kind != KindBloom:
		return nil, c.otherKind("contains", keys[0], s.Kind, "knows no members")
	}
	return s.Memberships, nil
}

func estimateOf(e *ebbv1.Estimate, asOf time.Time) Estimate {
	out := Estimate{Value: e.GetValue(), StdErr: e.GetStdError(), Low: e.GetLow(), High: e.GetHigh(), Confidence: e.GetConfidence(), AsOf: asOf}
	if out.Low == out.High {
		out.Confidence = 1
	}
	return out
}

func summaryOf(a *ebbv1.Answer) Summary {
	w := a.GetSummary()
	s := Summary{Found: w.GetFound(), Matched: int(w.GetMatched()), Kind: w.GetKind(), Over: w.GetOver(), Text: string(w.GetText()), AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage())}
	s.Span = time.Duration(w.GetSpanUs()) * time.Microsecond
	for _, k := range w.GetKeys() {
		s.Keys = append(s.Keys, string(k))
	}
	estimate := func(e *ebbv1.Estimate) Estimate { return estimateOf(e, s.AsOf) }
	s.Total = estimate(w.GetTotal())
	for _, e := range w.GetBins() {
		s.Bins = append(s.Bins, estimate(e))
	}
	for _, e := range w.GetQuantiles() {
		s.Quantiles = append(s.Quantiles, estimate(e))
	}
	for _, m := range w.GetMemberships() {
		s.Memberships = append(s.Memberships, Membership{Contained: m.GetContained(), FalseRate: m.GetFalseRate()})
	}
	for _, m := range w.GetMembers() {
		s.Members = append(s.Members, string(m))
	}
	for _, item := range w.GetItems() {
		s.Items = append(s.Items, Item{Bin: string(item.GetBin()), Count: estimate(item.GetCount())})
	}
	return s
}
