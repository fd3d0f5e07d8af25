package client

import (
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Estimate is a value with its error bars: with the given confidence the truth is between Low and High. An exact value
// has Low = High = Value and confidence 1.
type Estimate struct {
	Value      float64
	StdErr     float64 // 0 when it is exact, or when only bounds are known
	Low, High  float64
	Confidence float64   // 0.5 to 1, which is certain
	AsOf       time.Time // the value decays, so it holds for this time
}

func exact(v float64, asOf time.Time) Estimate {
	return Estimate{Value: v, Low: v, High: v, Confidence: 1, AsOf: asOf}
}

// Coverage describes which shards an answer includes.
type Coverage struct {
	ShardsTotal    int // shards that hold a part of the answer
	ShardsAnswered int
	ShardsFailed   []uint32
	ShardsStale    []uint32 // their part may lag behind the log
	AsOfMin        time.Time
	AsOfMax        time.Time

	// Missing lists keys that the question names and that do not exist, or have faded completely. They count as empty.
	// It has the first 100 of MissingTotal. In the query language it also has patterns and ranges without a key.
	Missing      []string
	MissingTotal int
}

// Complete reports whether every shard that holds a part has answered.
func (c Coverage) Complete() bool { return c.ShardsAnswered == c.ShardsTotal }

func coverageOf(w *ebbv1.Coverage) Coverage {
	return Coverage{
		ShardsTotal: int(w.GetShardsTotal()), ShardsAnswered: int(w.GetShardsAnswered()),
		ShardsFailed: w.GetShardsFailed(), ShardsStale: w.GetShardsStale(),
		AsOfMin: timeOf(w.GetAsOfMinUs()), AsOfMax: timeOf(w.GetAsOfMaxUs()),
		Missing: namesOf(w.GetMissingKeys()), MissingTotal: int(w.GetMissingTotal()),
	}
}

// Reading is one number about a key, or about a namespace.
type Reading struct {
	Estimate
	Coverage Coverage
	Found    bool // false: there is no such key, or all of it has faded
}

// Bin is one category of a distribution.
type Bin struct {
	Name  string
	Count float64  // decayed
	P     Estimate // probability
	// Hidden is the rest of a bin that was asked for and is below the threshold, so that its Count is 0. The truth is
	// between Count + Hidden and Count + Hidden + Lost. Where amounts may be negative, Hidden may be negative too.
	Hidden float64
}

// Distribution is a decaying categorical distribution at one time.
type Distribution struct {
	Keys       []string // those that were merged
	Matched    int      // how many keys matched the pattern of the question
	Found      bool     // false: no such key, or all of it has faded
	Bins       []Bin    // most probable first, or as they were asked for
	BinsTotal  int      // visible bins; Bins may be a selection of them; when Brief, an upper bound
	Z          float64  // everything ever added, decayed
	Z2         float64  // sum of squared weights, decayed at twice the rate
	Other      float64  // Z less the visible bins; not given when Brief
	EffectiveN float64  // Z^2 / Z2
	Entropy    float64  // of the visible bins, in bits; not given when Brief
	Brief      bool     // the top of one key of more than 16,384 bins, computed without visiting them all
	// Lost is how much too low Z and each Count may be, in any order of events. The cause: bins below the threshold
	// were removed, or an earlier summary of the key had faded. In a Signed namespace they may also be too high.
	// Intervals cover it. If Lost is 0, they are exact except for rounding (1e-9, or 1e-5 in a compact namespace).
	Lost       float64
	Signed     bool // the namespace allows negative amounts
	AsOf       time.Time
	LastEvent  time.Time
	Confidence float64 // of the intervals
	Decay      Decay
	HalfLife   time.Duration
	Floor      Floor
	Coverage   Coverage
}

// Bin returns the bin of that name, and whether it is in Bins.
func (d Distribution) Bin(name string) (Bin, bool) {
	for _, b := range d.Bins {
		if b.Name == name {
			return b, true
		}
	}
	return Bin{}, false
}

func distributionOf(a *ebbv1.Answer) Distribution {
	w := a.GetDistribution()
	d := Distribution{
		Found: w.GetFound(), Matched: int(w.GetMatched()), BinsTotal: int(w.GetBinsTotal()),
		Z: w.GetZ(), Z2: w.GetZ2(), Other: w.GetOther(),
		EffectiveN: w.GetEffectiveN(), Entropy: w.GetEntropyBits(), Brief: w.GetBrief(),
		Lost: w.GetLost(), Signed: w.GetSigned(),
		AsOf: timeOf(w.GetAsOfUs()), LastEvent: timeOf(w.GetLastEventUs()), Confidence: w.GetConfidence(),
		Decay: w.GetDecay(), HalfLife: time.Duration(w.GetHalfLifeUs()) * time.Microsecond, Floor: w.GetFloor(),
		Coverage: coverageOf(a.GetCoverage()),
	}
	for _, k := range w.GetKeys() {
		d.Keys = append(d.Keys, string(k))
	}
	if n := len(w.GetBins()); n > 0 {
		d.Bins = make([]Bin, n)
	}
	for i, b := range w.GetBins() {
		d.Bins[i] = Bin{
			Name: string(b.GetBin()), Count: b.GetCount(), Hidden: b.GetHidden(),
			P: Estimate{Value: b.GetP(), Low: b.GetPLow(), High: b.GetPHigh(), Confidence: d.Confidence, AsOf: d.AsOf},
		}
	}
	return d
}

func timeOf(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// microOf returns a time as it travels, where 0 stands for none: the epoch
// itself becomes the microsecond after it.
func microOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	if us := t.UnixMicro(); us != 0 {
		return us
	}
	return 1
}

func namesOf(raw [][]byte) (names []string) {
	for _, name := range raw {
		names = append(names, string(name))
	}
	return names
}
