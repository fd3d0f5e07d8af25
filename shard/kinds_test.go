package shard

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// seen is one event as the truth remembers it.
type seen struct {
	key, bin string
	at       int64
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

// quantile is the least value that a part of the weight does not exceed, and the one after it where that is a close call.
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
		kind := ebbv1.Kind(rapid.IntRange(int(ebbv1.Kind_KIND_DISTINCT), int(proto.KindMax)).Draw(t, "kind"))
		now := int64(1_700_000_000 * second)
		// the shard a has keys a1 and a2, b has b1
		states := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
		for index := uint64(2); index < 12; index++ {
			now += rapid.Int64Range(0, 20*second).Draw(t, "step")
			batches := map[byte]*ebbv1.Increments{'a': {}, 'b': {}}
			for range rapid.IntRange(0, 8).Draw(t, "events") {
				e := seen{
					key:    rapid.SampledFrom([]string{"a1", "a2", "b1"}).Draw(t, "key"),
					bin:    fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "bin")),
					at:     now - rapid.Int64Range(0, 30*second).Draw(t, "age"),
					amount: rapid.SampledFrom([]float64{1, 1, 0.5, 7}).Draw(t, "amount"),
					value:  rapid.Float64Range(-100, 100).Draw(t, "value"),
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
	if !s.Found && total > proto.DefaultThreshold {
		t.Fatalf("%v of %v is not found, and %g is left", kind, keys, total)
	}
	switch kind {
	case ebbv1.Kind_KIND_DISTINCT:
		close("how many", s.Total.Value, tr.distinct(keys, at), 1e-3)
	case ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_TOPK:
		close("the sum", s.Total.Value, total, 1e-3)
		for i, bin := range q.Bins {
			n := tr.count(keys, string(bin), at)
			if e := s.Bins[i]; n > e.High+1e-3 || n < e.Low-1e-3 {
				t.Fatalf("bin %s of %v: %g is not in %v", bin, keys, n, e)
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

// Of far more bins than it keeps, a topk names those that count most, each within a thousandth of the sum, and so does the merge of two.
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
		{"two seeds", good, part(plain(2), ebbv1.Kind_KIND_DISTINCT), ebbv1.Code_CODE_WRONG_KIND},
		{"one forgets", good, part(ebbing(9*second), ebbv1.Kind_KIND_DISTINCT), ebbv1.Code_CODE_WRONG_KIND},
		{"two half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_COUNTMIN), part(ebbing(9*second), ebbv1.Kind_KIND_COUNTMIN), ebbv1.Code_CODE_WRONG_KIND},
		{"two topk half-lives", part(ebbing(8*second), ebbv1.Kind_KIND_TOPK), part(ebbing(9*second), ebbv1.Kind_KIND_TOPK), ebbv1.Code_CODE_WRONG_KIND},
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
