package shard

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// seen is one event as the truth remembers it.
type seen struct {
	key, bin string
	at       int64
	applied  int64 // the time of its entry
	amount   float64
	value    float64
}

// truth is every event there was, and decays each when asked.
type truth struct {
	halfLife float64 // in microseconds, 0: none
	events   []seen
}

func (tr *truth) weight(e seen, at int64) float64 {
	if tr.halfLife == 0 {
		return 1
	}
	return math.Exp2(-float64(at-e.at) / tr.halfLife)
}

// distinct is how many bins of keys there are, each counted as it was last seen.
func (tr *truth) distinct(keys []string, at int64) (n float64) {
	last := map[string]float64{}
	for _, e := range tr.events {
		if slices.Contains(keys, e.key) {
			last[e.bin] = max(last[e.bin], tr.weight(e, at))
		}
	}
	for _, w := range last {
		n += w
	}
	return n
}

// count is the sum of what a bin of keys got; of all bins if bin is "".
func (tr *truth) count(keys []string, bin string, at int64) (n float64) {
	for _, e := range tr.events {
		if slices.Contains(keys, e.key) && (bin == "" || e.bin == bin) {
			n += e.amount * tr.weight(e, at)
		}
	}
	return n
}

// within says whether a bin of keys was seen in the last so many microseconds; ever, without decay.
func (tr *truth) within(keys []string, bin string, at int64, span float64) bool {
	return slices.ContainsFunc(tr.events, func(e seen) bool {
		return slices.Contains(keys, e.key) && e.bin == bin && (tr.halfLife == 0 || float64(at-e.at) <= span)
	})
}

// linear is the bins of keys. All bins leave a key when its latest event weighs less than the threshold.
func (tr *truth) linear(keys []string, at int64) []string {
	var all []string
	for _, key := range keys {
		bins, latest := map[string]bool{}, int64(0)
		over := func(now int64) bool {
			return tr.halfLife > 0 && float64(now-latest) >= tr.halfLife*math.Log2(1/proto.DefaultThreshold)
		}
		for _, e := range tr.events {
			if e.key != key {
				continue
			}
			if over(e.applied) {
				clear(bins)
				latest = 0
			}
			bins[e.bin], latest = true, max(latest, e.at)
		}
		if !over(at) {
			all = slices.AppendSeq(all, maps.Keys(bins))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// quantile is the least value that a part of the weight does not exceed, and the one after it where that is a close
// call.
func (tr *truth) quantile(keys []string, part float64, at int64) (low, high float64) {
	var of []seen
	for _, e := range tr.events {
		if slices.Contains(keys, e.key) {
			of = append(of, e)
		}
	}
	slices.SortFunc(of, func(a, b seen) int { return int(math.Copysign(1, a.value-b.value)) })
	total := tr.count(keys, "", at)
	find := func(target float64) float64 {
		sum := 0.0
		for _, e := range of {
			if sum += e.amount * tr.weight(e, at); sum >= target {
				return e.value
			}
		}
		return of[len(of)-1].value
	}
	return find(part*total*(1-1e-6) - 1e-9), find(part*total*(1+1e-6) + 1e-9)
}

// Every kind tells the truth about its own keys, merged within a shard and
// across shards alike, whatever the decay and the order of events.
func TestKindsAgainstTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
		tr := &truth{}
		if rapid.Bool().Draw(t, "decays") {
			def.Decay, def.HalfLifeUs = ebbv1.Decay_DECAY_HALF_LIFE, 20*second
			tr.halfLife = 20 * second
		}
		kind := ebbv1.Kind(rapid.IntRange(int(ebbv1.Kind_KIND_DISTINCT), int(ebbv1.Kind_KIND_SET)).Draw(t, "kind")) // those that count
		now := int64(1_700_000_000 * second)
		// the shard a has keys a1 and a2, b has b1
		states := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
		if rapid.Bool().Draw(t, "newest") {
			states['a'].setBehaviour(BehaviourMax)
			states['b'].setBehaviour(BehaviourMax)
		}
		for index := uint64(2); index < 12; index++ {
			now += rapid.Int64Range(0, 20*second).Draw(t, "step")
			batches := map[byte]*ebbv1.Increments{'a': {}, 'b': {}}
			for range rapid.IntRange(0, 8).Draw(t, "events") {
				e := seen{
					key:     rapid.SampledFrom([]string{"a1", "a2", "b1"}).Draw(t, "key"),
					bin:     fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "bin")),
					at:      now - rapid.Int64Range(0, 30*second).Draw(t, "age"),
					applied: now,
					amount:  rapid.SampledFrom([]float64{1, 1, 0.5, 7}).Draw(t, "amount"),
					value:   rapid.Float64Range(-100, 100).Draw(t, "value"),
				}
				tr.events = append(tr.events, e)
				batch := batches[e.key[0]]
				batch.Increments = append(batch.Increments, &ebbv1.Increment{
					Key: []byte(e.key), Bin: []byte(e.bin), TimeUs: e.at, Amount: &e.amount, Value: &e.value, Kind: kind,
				})
			}
			for id, batch := range batches {
				c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
				r := states[id].Apply(index, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]
				if r.Applied != uint64(len(batch.Increments)) {
					t.Fatalf("%v", r)
				}
				audit(t, states[id])
			}
		}
		at := now + rapid.Int64Range(0, 20*second).Draw(t, "later")
		checkTruth(t, tr, kind, []string{"a1"}, at, states)
		checkTruth(t, tr, kind, []string{"a1", "a2"}, at, states)
		checkTruth(t, tr, kind, []string{"a1", "b1", "a2"}, at, states)
	})
}

// summarise asks the shards for parts, if there are several, and merges them.
func summarise(t fataler, q *ebbv1.SummaryQuestion, states map[byte]*State, at int64) *ebbv1.Summary {
	t.Helper()
	var keys [2][][]byte
	for _, key := range q.Keys {
		keys[key[0]-'a'] = append(keys[key[0]-'a'], key)
	}
	wrap := func(q *ebbv1.SummaryQuestion) *ebbv1.Question {
		return &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: q}}
	}
	if len(keys[1]) == 0 {
		a := states['a'].Ask(&ebbv1.ShardQuestion{Question: wrap(q)}, sketch.Tick(at))
		if a.Error != nil {
			t.Fatalf("%v", a.Error)
		}
		return a.GetAnswer().GetSummary()
	}
	var parts []*ebbv1.ShardAnswer
	for i, some := range keys {
		part := &ebbv1.SummaryQuestion{Keys: some, AsOfUs: q.AsOfUs}
		parts = append(parts, states['a'+byte(i)].Ask(&ebbv1.ShardQuestion{Question: wrap(part), Partial: true}, sketch.Tick(at)))
	}
	a, err := Merge(wrap(q), parts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return a.GetSummary()
}

func checkTruth(t fataler, tr *truth, kind ebbv1.Kind, keys []string, at int64, states map[byte]*State) {
	t.Helper()
	q := &ebbv1.SummaryQuestion{AsOfUs: at}
	for _, k := range keys {
		q.Keys = append(q.Keys, []byte(k))
	}
	switch kind {
	case ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_TOPK:
		q.Bins = [][]byte{[]byte("0"), []byte("7"), []byte("never")}
		if kind == ebbv1.Kind_KIND_TOPK {
			q.Top = 5
		}
	case ebbv1.Kind_KIND_BLOOM:
		q.Bins = [][]byte{[]byte("0"), []byte("7"), []byte("never")}
	case ebbv1.Kind_KIND_LINEAR, ebbv1.Kind_KIND_SET:
		q.Members = true
	case ebbv1.Kind_KIND_QUANTILE:
		q.Quantiles = []float64{0, 0.25, 0.5, 0.99}
	}
	s := summarise(t, q, states, at)
	close := func(what string, got, want, within float64) {
		if math.Abs(got-want) > within {
			t.Fatalf("%v of %v: %s is %g, the truth %g", kind, keys, what, got, want)
		}
	}
	total := tr.count(keys, "", at)
	left := total
	switch kind {
	case ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_SET:
		left = tr.distinct(keys, at)
	case ebbv1.Kind_KIND_LINEAR:
		left = float64(len(tr.linear(keys, at)))
	case ebbv1.Kind_KIND_MORRIS, ebbv1.Kind_KIND_BLOOM:
		left = 0 // chance may round the one down to nothing, and the other forgets sooner
	}
	if !s.Found && left > proto.DefaultThreshold {
		t.Fatalf("%v of %v is not found, and %g is left", kind, keys, left)
	}
	switch kind {
	case ebbv1.Kind_KIND_LINEAR:
		members := make([]string, len(s.Members))
		for i, m := range s.Members {
			members[i] = string(m)
		}
		if want := tr.linear(keys, at); !slices.Equal(members, want) || s.Total.Value != float64(len(want)) {
			t.Fatalf("members of %v: %q, %v, the truth %q", keys, members, s.Total, want)
		}
	case ebbv1.Kind_KIND_MORRIS:
		// each event and each merge is rounded, to a neighbour at most 1+total/2000 away: 7 standard deviations of that
		n := 3.0
		for _, e := range tr.events {
			if slices.Contains(keys, e.key) {
				n += 2 // for the event, and for a half-life that may have begun
			}
		}
		close("the sum", s.Total.Value, total, 7*(0.016*total+0.5*(1+total/2000)*math.Sqrt(n)))
	case ebbv1.Kind_KIND_BLOOM:
		checkBloom(t, tr, keys, at, q, s)
	case ebbv1.Kind_KIND_DISTINCT:
		close("how many", s.Total.Value, tr.distinct(keys, at), 1e-3)
	case ebbv1.Kind_KIND_SET:
		close("how many", s.Total.Value, tr.distinct(keys, at), 1e-3)
		for _, m := range s.Members {
			if tr.count(keys, string(m), at) == 0 {
				t.Fatalf("member %s of %v was never there", m, keys)
			}
		}
		if s.Found && tr.halfLife == 0 && float64(len(s.Members)) != s.Total.Value {
			t.Fatalf("%d members of %v, and %v", len(s.Members), keys, s.Total)
		}
	case ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_TOPK:
		close("the sum", s.Total.Value, total, 1e-3)
		sure := map[ebbv1.Kind]float64{ebbv1.Kind_KIND_TOPK: 1, ebbv1.Kind_KIND_COUNTMIN: 0.99}[kind]
		for i, bin := range q.Bins {
			n := tr.count(keys, string(bin), at)
			if e := s.Bins[i]; n > e.High+1e-3 || n < e.Low-1e-3 {
				t.Fatalf("bin %s of %v: %g is not in %v", bin, keys, n, e)
			}
			// none is certain, but for what is lost
			if e := s.Bins[i]; e.Confidence != sure && (e.Confidence != 1 || e.Value != 0 && e.Low != e.High) {
				t.Fatalf("bin %s of %v: the bounds %v hold with %v", bin, keys, e, sure)
			}
		}
		checkTop(t, tr, keys, at, s)
	case ebbv1.Kind_KIND_QUANTILE:
		close("the sum", s.Total.Value, total, 1e-2)
		for i, e := range s.Quantiles {
			low, high := tr.quantile(keys, q.Quantiles[i], at)
			if slack := 1e-2*max(math.Abs(low), math.Abs(high)) + 1e-6; total > 1 && tr.halfLife == 0 && (e.Value < low-slack || e.Value > high+slack) {
				t.Fatalf("quantile %g of %v: %g, the truth %g to %g", q.Quantiles[i], keys, e.Value, low, high)
			}
		}
	}
}

// checkBloom: what was seen in the last half-life is there, and what was not in the last 1.2 is not: so few do not fill
// 10,000 places.
func checkBloom(t fataler, tr *truth, keys []string, at int64, q *ebbv1.SummaryQuestion, s *ebbv1.Summary) {
	t.Helper()
	for i, bin := range q.Bins {
		sure, maybe := tr.within(keys, string(bin), at, tr.halfLife), tr.within(keys, string(bin), at, 1.2*tr.halfLife)
		there := s.Found && s.Memberships[i].Contained
		if there && !maybe || !there && sure {
			t.Fatalf("bin %s of %v: %v, the truth from %t to %t", bin, keys, s, sure, maybe)
		}
		if there && !(s.Memberships[i].FalseRate < 0.01) {
			t.Fatalf("bin %s of %v: %v", bin, keys, s)
		}
	}
	var low, high float64
	for bin := range 31 {
		if tr.within(keys, fmt.Sprint(bin), at, tr.halfLife) {
			low++
		}
		if tr.within(keys, fmt.Sprint(bin), at, 1.2*tr.halfLife) {
			high++
		}
	}
	slack := 5*s.Total.StdError + 0.5
	if tr.halfLife > 0 {
		slack = 3.5 // two of them have one bit in some slice of 2,000 now and then
	}
	if s.Total.High < low-slack || s.Total.Low > high+slack || s.Total.Value > s.Total.High || s.Total.Value < s.Total.Low {
		t.Fatalf("bins of %v: %v, the truth from %g to %g", keys, s.Total, low, high)
	}
}

// checkTop: each item is bracketed, and no bin that is not among them counts more than the last.
func checkTop(t fataler, tr *truth, keys []string, at int64, s *ebbv1.Summary) {
	t.Helper()
	named := map[string]bool{}
	least := math.Inf(1)
	for _, item := range s.Items {
		n, e := tr.count(keys, string(item.Bin), at), item.Count
		if n > e.High+1e-3 || n < e.Low-1e-3 || e.Value > least {
			t.Fatalf("item %s of %v: %g is not in %v, after one of %g", item.Bin, keys, n, e, least)
		}
		named[string(item.Bin)], least = true, e.Value
	}
	for _, e := range tr.events {
		n := tr.count(keys, e.bin, at)
		if s.Kind == ebbv1.Kind_KIND_TOPK && s.Found && len(s.Items) < 5 && !named[e.bin] && n > 1e-3 {
			t.Fatalf("bin %s of %v counts %g, and is not among %v", e.bin, keys, n, s.Items)
		}
		if len(s.Items) == 5 && !named[e.bin] && n > least+1e-3 {
			t.Fatalf("bin %s of %v counts %g, and is not among %v", e.bin, keys, n, s.Items)
		}
	}
}

// Where there is no key, no bin counts anything and none is contained, whatever the key would be.
func TestNothingContainsNothing(t *testing.T) {
	const now = 1_700_000_000 * second
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, now)
	q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a1")}, Bins: [][]byte{[]byte("b"), []byte("c")}}
	got := summarise(t, q, map[byte]*State{'a': s}, now)
	if got.Found || len(got.Bins) != 2 || len(got.Memberships) != 2 || got.Memberships[0].Contained || got.Bins[1].High != 0 || got.Bins[1].Confidence != 1 {
		t.Errorf("%v", got)
	}
}

// A threshold above 1 takes bins away that came once, and no member: keys of other kinds than distributions live for a
// half-life and longer after an event, and end all the same.
func TestThresholdAboveOne(t *testing.T) {
	const now = 1_700_000_000 * second
	for kind := ebbv1.Kind_KIND_DISTINCT; kind <= ebbv1.Kind_KIND_SET; kind++ {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second, Threshold: 5}, now)
		for _, bin := range []string{"b", "c"} { // two entries, so that what is dropped is seen to be
			in := &ebbv1.Increment{Key: []byte("a1"), Bin: []byte(bin), Kind: kind, Value: new(1.5)}
			c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}}}
			if r := s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 1 {
				t.Fatalf("%v", r)
			}
		}
		ask := func(at int64) *ebbv1.Summary {
			return summarise(t, &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a1")}, AsOfUs: at}, map[byte]*State{'a': s}, at)
		}
		if got := ask(now); !got.Found || math.Abs(got.Total.Value-2) > 0.01 {
			t.Errorf("%v at once: %v", kind, got)
		}
		if got := ask(now + 9*second); !got.Found {
			t.Errorf("%v within a half-life: %v", kind, got)
		}
		if got := ask(now + 100*second); got.Found {
			t.Errorf("%v after ten half-lives: %v", kind, got)
		}
	}
}

// Of far more bins than it keeps, a topk names those that count most, each within a thousandth of the sum, and so does
// the merge of two.
func TestTopKOfManyBins(t *testing.T) {
	const now = 1_700_000_000 * second
	def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
	states := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
	tr := &truth{}
	for id, s := range states {
		for index := range uint64(4) {
			batch := &ebbv1.Increments{}
			for i := range 1000 { // every bin of 4,000 once or twice, and one of "hot0" to "hot5" after each
				for _, bin := range []string{fmt.Sprint(index, "/", i), fmt.Sprint("hot", i%55/10)} {
					key := string(id) + "1"
					tr.events = append(tr.events, seen{key: key, bin: bin, at: now, amount: 1})
					batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(key), Bin: []byte(bin), Kind: ebbv1.Kind_KIND_TOPK})
				}
			}
			c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
			if r := s.Apply(2+index, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 2000 {
				t.Fatalf("%v", r)
			}
		}
	}
	for _, keys := range [][]string{{"a1"}, {"a1", "b1"}} {
		q := &ebbv1.SummaryQuestion{Top: 5, AsOfUs: now, Bins: [][]byte{[]byte("never")}}
		for _, k := range keys {
			q.Keys = append(q.Keys, []byte(k))
		}
		s := summarise(t, q, states, now)
		if len(s.Items) != 5 || s.Items[4].Count.High-s.Items[4].Count.Low > s.Total.Value/1000 {
			t.Fatalf("%v", s)
		}
		checkTop(t, tr, keys, now, s)
		if never := s.Bins[0]; never.Low != 0 || never.High == 0 || never.High > s.Total.Value/1000 {
			t.Errorf("a bin that was never counted: %v, of %v", never, s.Total)
		}
	}
}

// fill applies an event of a kind for each bin, in entries of 5,000.
func fill(t *testing.T, s *State, key string, kind ebbv1.Kind, bins int) {
	t.Helper()
	for from := 0; from < bins; from += 5000 {
		batch := &ebbv1.Increments{}
		for i := from; i < min(bins, from+5000); i++ {
			batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(key), Bin: fmt.Append(nil, i), Kind: kind})
		}
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
		if r := s.Apply(s.Applied()+1, encodeEntry(t, int64(s.Now()), []*ebbv1.Command{c}), nil)[0]; r.Applied != uint64(len(batch.Increments)) {
			t.Fatalf("%v", r)
		}
	}
}

// Morris counters err by chance and not all alike: equal events, in the same entry even, are not rounded alike, and
// neither are those of different keys or shards. So the mean of many is the truth, and the spread what theory says.
func TestMorrisChances(t *testing.T) {
	const now, counters, events = 1_700_000_000 * second, 200, 1000
	def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
	var sum, squares float64
	for id := range ID(2) {
		s := New(id+1, &wiping{})
		s.Apply(1, encodeEntry(t, now, []*ebbv1.Command{{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}}}), nil)
		for i := range counters / 2 {
			key := fmt.Sprint(i)
			fill(t, s, key, ebbv1.Kind_KIND_MORRIS, events)
			q := &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte(key)}}}}
			e := s.Ask(&ebbv1.ShardQuestion{Question: q}, now).GetAnswer().GetSummary().GetTotal()
			if e.Low >= e.Value || e.High <= e.Value || math.Abs(e.StdError/e.Value-0.0158) > 1e-3 {
				t.Fatalf("%v", e)
			}
			sum += e.Value - events
			squares += (e.Value - events) * (e.Value - events)
		}
	}
	sd := math.Sqrt(0.0005/2) * events
	if bias := sum / counters; math.Abs(bias) > 4*sd/math.Sqrt(counters) {
		t.Errorf("%d counters of %d are off by %g on average", counters, events, bias)
	}
	if rmse := math.Sqrt(squares / counters); rmse < 0.8*sd || rmse > 1.2*sd {
		t.Errorf("%d counters of %d have an error of %g, in theory %g", counters, events, rmse, sd)
	}
}

// Beyond 250 members a linear knows no names, and its number within the error that it states.
func TestLinearOfManyMembers(t *testing.T) {
	const now, members = 1_700_000_000 * second, 20_000
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, now)
	fill(t, s, "a1", ebbv1.Kind_KIND_LINEAR, members)
	got := summarise(t, &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a1")}, Members: true}, map[byte]*State{'a': s}, now)
	if e := got.Total; len(got.Members) > 0 || got.Over || e.StdError == 0 || math.Abs(e.Value-members) > min(5*e.StdError, 0.01*members) {
		t.Errorf("%v", got)
	}
}

// A bloom without decay grows: it contains all it has seen, and at most 1% of what it has not, after a restart too. One
// that has grown merges with one that has not.
func TestBloomGrows(t *testing.T) {
	const now, members = 1_700_000_000 * second, 25_000
	def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
	s := definedAt(t, def, now)
	fill(t, s, "a1", ebbv1.Kind_KIND_BLOOM, members)
	fill(t, s, "a2", ebbv1.Kind_KIND_BLOOM, 10)
	s = reopen(t, s)
	q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a1")}}
	for i := range 2 * members {
		q.Bins = append(q.Bins, fmt.Append(nil, i))
	}
	got := summarise(t, q, map[byte]*State{'a': s}, now)
	wrong := 0
	for i, m := range got.Memberships {
		switch {
		case i < members && !m.Contained:
			t.Fatalf("bin %d is not contained", i)
		case i >= members && m.Contained:
			wrong++
		}
	}
	if wrong > members/100 || math.Abs(got.Total.Value-members) > 5*got.Total.StdError+0.01*members || got.Over {
		t.Errorf("%d of %d others, total %v", wrong, members, got.Total)
	}
	q.Keys = append(q.Keys, []byte("a2"))
	both := summarise(t, q, map[byte]*State{'a': s}, now)
	for i, m := range both.Memberships[:members] {
		if !m.Contained {
			t.Fatalf("bin %d is not contained in both", i)
		}
	}
	if e := both.Total; e.Low > members+10 || e.High < members || e.High-e.Low > 0.05*members {
		t.Errorf("both have %v", e)
	}
}

// What holds more than it is made for says so; where only a lower bound is known, the upper one is the largest number
// there is, and all are finite.
func TestKindsThatAreOver(t *testing.T) {
	small, err := sketch.NewLinearCounter(sketch.LinearParams{Capacity: 300, StandardError: 0.1})
	filter, err2 := sketch.NewBloomScalable(sketch.BloomParams{Capacity: 1, FalseRate: 0.5})
	window, err3 := sketch.NewBloomExpiring(sketch.BloomExpiringParams{Capacity: 1, FalseRate: 0.5, Window: 60 * second})
	register, err4 := sketch.NewMorris(sketch.MorrisParams{Bits: 8, A: 1e-4})
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		body    body
		bounded bool // in both directions
		events  int
	}{
		{&linear{LinearCounter: small}, false, 20_000},
		{&bloomExpiring{window}, false, 20_000},
		{&morris{register}, false, 20_000},
		{&bloom{filter}, true, 20_000}, // it grows
	} {
		for i := range c.events {
			e := event{now: second, at: second, bin: fmt.Append(nil, i), amount: 1, chance: xxh3.HashSeed(fmt.Append(nil, i), 7)}
			e.seed = 7
			if err := c.body.add(&e); err != nil {
				t.Fatal(err)
			}
		}
		var out ebbv1.Summary
		c.body.answer(&ebbv1.SummaryQuestion{Bins: [][]byte{[]byte("b")}}, second, &out)
		if out.Over == c.bounded || (out.Total.High == math.MaxFloat64) == c.bounded {
			t.Errorf("%v: %v", c.body.form().kind(), &out)
		}
		for _, v := range []float64{out.Total.Value, out.Total.StdError, out.Total.Low, out.Total.High} {
			if !(v >= 0 && v <= math.MaxFloat64) {
				t.Errorf("%v: %v", c.body.form().kind(), &out)
			}
		}
	}
}

// FuzzMergeSummaries: no part of an answer that a peer could send makes a
// coordinator panic, or answer with what is not a number.
func FuzzMergeSummaries(f *testing.F) {
	const now = 1_700_000_000 * second
	for _, def := range []*ebbv1.Namespace{
		{Decay: ebbv1.Decay_DECAY_NONE}, {Decay: ebbv1.Decay_DECAY_HALF_LIFE}, {Decay: ebbv1.Decay_DECAY_NONE, WindowUs: new(int64(60 * second))},
	} {
		def.Name, def.Version = "default", 1
		s := definedAt(f, def, now)
		s.setBehaviour(BehaviourMax)
		for kind := ebbv1.Kind_KIND_DISTINCT; kind <= proto.EventKindMax; kind++ {
			if def.WindowUs != nil && kind != ebbv1.Kind_KIND_DISTINCT {
				continue
			}
			in := &ebbv1.Increment{Key: []byte(proto.KindName(kind)), Bin: []byte("b"), Kind: kind, Value: new(1.5), Text: []byte("text")}
			c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}}}
			s.Apply(s.Applied()+1, encodeEntry(f, now, []*ebbv1.Command{c}), nil)
			q := &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{in.Key}}}}
			name := fmt.Sprintf("%s-%v-%d", in.Key, def.Decay, def.GetWindowUs())
			seedPart(f, name, s.Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, now).GetPart())
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		part := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: raw}}
		for _, ask := range []*ebbv1.SummaryQuestion{{}, {Bins: [][]byte{[]byte("b")}}, {Quantiles: []float64{0.5}}, {Top: 3}, {Members: true}, {WindowUs: 1}} {
			ask.Keys = [][]byte{[]byte("k")}
			a, err := Merge(&ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: ask}}, []*ebbv1.ShardAnswer{part, part})
			if total := a.GetSummary().GetTotal(); err == nil && math.IsNaN(total.GetValue()+total.GetLow()+total.GetHigh()) {
				t.Fatalf("got %v", a)
			}
		}
	})
}

// Parts of kinds, forms and shapes that do not merge say so, and none crashes.
func TestPartsThatDoNotMerge(t *testing.T) {
	const now = 1_700_000_000 * second
	part := func(def *ebbv1.Namespace, kind ebbv1.Kind) []byte {
		s := definedAt(t, def, now)
		in := &ebbv1.Increment{Key: []byte("k"), Bin: []byte("b"), Kind: kind, Value: new(1.5)}
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}}}
		if r := s.Apply(2, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 1 {
			t.Fatalf("%v", r)
		}
		q := &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("k")}}}}
		return s.Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, now).GetPart()
	}
	plain := func(seed uint64) *ebbv1.Namespace {
		return &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE, HashSeed: seed}
	}
	ebbing := func(halfLife int64) *ebbv1.Namespace {
		return &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: halfLife}
	}
	good := part(plain(1), ebbv1.Kind_KIND_DISTINCT)
	for _, c := range []struct {
		name string
		a, b []byte
		want ebbv1.Code
	}{
		{"the same", good, good, 0},
		{"two kinds", good, part(plain(1), ebbv1.Kind_KIND_COUNTMIN), ebbv1.Code_CODE_WRONG_KIND},
		{"two seeds", good, part(plain(2), ebbv1.Kind_KIND_DISTINCT), ebbv1.Code_CODE_UNMERGEABLE},
		{"one forgets", good, part(ebbing(9*second), ebbv1.Kind_KIND_DISTINCT), ebbv1.Code_CODE_UNMERGEABLE},
		{"two half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_COUNTMIN), part(ebbing(9*second), ebbv1.Kind_KIND_COUNTMIN), ebbv1.Code_CODE_UNMERGEABLE},
		{"two topk half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_TOPK), part(ebbing(9*second), ebbv1.Kind_KIND_TOPK), ebbv1.Code_CODE_UNMERGEABLE},
		{"one bloom forgets", part(plain(1), ebbv1.Kind_KIND_BLOOM), part(ebbing(9*second), ebbv1.Kind_KIND_BLOOM), ebbv1.Code_CODE_UNMERGEABLE},
		{"two bloom half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_BLOOM), part(ebbing(9*second), ebbv1.Kind_KIND_BLOOM), ebbv1.Code_CODE_UNMERGEABLE},
		{"one linear forgets", part(plain(1), ebbv1.Kind_KIND_LINEAR), part(ebbing(9*second), ebbv1.Kind_KIND_LINEAR), ebbv1.Code_CODE_UNMERGEABLE},
		{"two linear half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_LINEAR), part(ebbing(9*second), ebbv1.Kind_KIND_LINEAR), ebbv1.Code_CODE_UNMERGEABLE},
		{"two morris half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_MORRIS), part(ebbing(9*second), ebbv1.Kind_KIND_MORRIS), ebbv1.Code_CODE_UNMERGEABLE},
		{"one set forgets", part(plain(1), ebbv1.Kind_KIND_SET), part(ebbing(9*second), ebbv1.Kind_KIND_SET), ebbv1.Code_CODE_UNMERGEABLE},
		{"two seeds of sets", part(plain(1), ebbv1.Kind_KIND_SET), part(plain(2), ebbv1.Kind_KIND_SET), ebbv1.Code_CODE_UNMERGEABLE},
		{"two set half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_SET), part(ebbing(9*second), ebbv1.Kind_KIND_SET), ebbv1.Code_CODE_UNMERGEABLE},
		{"cut short", good, good[:len(good)-1], ebbv1.Code_CODE_CORRUPT},
		{"too long", good, append(slices.Clone(good), 0), ebbv1.Code_CODE_CORRUPT},
		{"an unknown form", good, []byte{partSummary, 1, 99}, ebbv1.Code_CODE_CORRUPT},
		{"nothing", good, nil, ebbv1.Code_CODE_CORRUPT},
		{"of another question", good, appendCount(nil, 3), ebbv1.Code_CODE_CORRUPT},
	} {
		q := &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("k"), []byte("l")}}}}
		_, err := Merge(q, []*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: c.a}}, {Value: &ebbv1.ShardAnswer_Part{Part: c.b}}})
		if got := proto.AsError(err); (err != nil) != (c.want != 0) || err != nil && got.Code != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}
