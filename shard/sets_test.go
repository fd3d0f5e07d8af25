package shard

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// overlapAsked and graphAsked ask about some keys.
func overlapAsked(keys ...string) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: named(keys...)}}}
}

func graphAsked(q *ebbv1.GraphQuestion, keys ...string) *ebbv1.Question {
	g := pb.CloneOf(q)
	g.Keys = named(keys...)
	return &ebbv1.Question{Ask: &ebbv1.Question_Graph{Graph: g}}
}

// part is what a shard says of its keys of a question.
func partOf(t fataler, s *State, q *ebbv1.Question, at int64) *ebbv1.ShardAnswer {
	t.Helper()
	a := s.Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, sketch.Tick(at))
	if a.Error != nil {
		t.Fatalf("%v", a.Error)
	}
	return a
}

// Overlaps and graphs tell the truth about small sets, and say the same whether their keys lie in one shard or in two,
// in which time has gone on differently.
func TestSetsAcrossShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := int64(1_700_000_000 * second)
		def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
		tr := &truth{}
		if rapid.Bool().Draw(t, "decays") {
			def.Decay, def.HalfLifeUs, tr.halfLife = ebbv1.Decay_DECAY_HALF_LIFE, 20*second, 20*second
		}
		whole := definedAt(t, def, now)
		split := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
		keys := []string{"a1", "b1", "a2", "b2", "a3"}
		for range rapid.IntRange(1, 12).Draw(t, "entries") {
			now += rapid.Int64Range(0, 10*second).Draw(t, "step")
			e := seen{key: rapid.SampledFrom(keys[:4]).Draw(t, "key"), applied: now, amount: 1}
			batch := &ebbv1.Increments{}
			for range rapid.IntRange(1, 8).Draw(t, "events") {
				e.bin, e.at = fmt.Sprint(rapid.IntRange(0, 15).Draw(t, "bin")), now-rapid.Int64Range(0, 30*second).Draw(t, "age")
				tr.events = append(tr.events, e)
				batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(e.key), Bin: []byte(e.bin), TimeUs: e.at, Kind: ebbv1.Kind_KIND_SET})
			}
			c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
			for _, s := range []*State{whole, split[e.key[0]]} {
				s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)
				audit(t, s)
			}
		}
		links := rapid.SampledFrom([]uint32{0, 1, 4}).Draw(t, "links")
		for _, ask := range []func(...string) *ebbv1.Question{overlapAsked, func(keys ...string) *ebbv1.Question {
			return graphAsked(&ebbv1.GraphQuestion{Links: links}, keys...)
		}} {
			one := whole.Ask(&ebbv1.ShardQuestion{Question: ask(keys...)}, sketch.Tick(now))
			two, err := Merge(ask(keys...), []*ebbv1.ShardAnswer{
				partOf(t, split['a'], ask("a1", "a2", "a3"), now), partOf(t, split['b'], ask("b1", "b2"), now),
			})
			if err != nil || !pb.Equal(one.GetAnswer(), two) {
				t.Fatalf("%v\none shard %v\ntwo       %v", err, one, two)
			}
			checkOverlap(t, tr, keys, now, two.GetOverlap())
			checkGraph(t, tr, keys, now, int(max(links, 2)), two.GetGraph())
		}
	})
}

// weights is what each bin counts in a key.
func (tr *truth) weights(key string, at int64) map[string]float64 {
	last := map[string]float64{}
	for _, e := range tr.events {
		if e.key == key {
			last[e.bin] = max(last[e.bin], tr.weight(e, at))
		}
	}
	return last
}

// overlap is union, intersection and difference of keys.
func (tr *truth) overlap(keys []string, at int64) (union, intersection, difference float64) {
	for bin := range 16 {
		least, most, others := math.Inf(1), 0.0, 0.0
		for i, key := range keys {
			w := tr.weights(key, at)[fmt.Sprint(bin)]
			least, most = min(least, w), max(most, w)
			if i > 0 {
				others = max(others, w)
			}
		}
		union, intersection, difference = union+most, intersection+least, difference+most-others
	}
	return union, intersection, difference
}

func checkOverlap(t fataler, tr *truth, keys []string, at int64, o *ebbv1.Overlap) {
	t.Helper()
	if o == nil {
		return
	}
	union, intersection, difference := tr.overlap(keys, at)
	for i, s := range o.Sets {
		want := tr.distinct(keys[i:i+1], at)
		if s.Found != (want > 0.5) && math.Abs(want-0.5) > 1e-6 && s.Found != (want > 0) || s.Found && math.Abs(s.Size.Value-want) > 1e-6 {
			t.Fatalf("%s: %v, want %g", keys[i], s, want)
		}
	}
	if slices.ContainsFunc(o.Sets[:4], func(s *ebbv1.SizedSet) bool { return !s.Found }) {
		return // one has faded as a whole, and takes a little of the truth with it
	}
	if math.Abs(o.Union.Value-union) > 1e-6 || math.Abs(o.Intersection.Value-intersection) > 1e-6 || math.Abs(o.Difference.Value-difference) > 1e-6 ||
		math.Abs(o.Jaccard.Value-intersection/union) > 1e-6 {
		t.Fatalf("%v, the truth %g, %g and %g", o, union, intersection, difference)
	}
}

func checkGraph(t fataler, tr *truth, keys []string, at int64, links int, g *ebbv1.Graph) {
	t.Helper()
	for i, n := range g.GetNodes() {
		if string(n.Set.Key) != keys[i] || len(n.Links) > links && links > 0 {
			t.Fatalf("node %d of %v", i, g)
		}
		last := 1.0
		for _, l := range n.Links {
			union, intersection, _ := tr.overlap([]string{keys[i], keys[l.To]}, at)
			if got := l.Jaccard.Value; int(l.To) == i || math.Abs(got-intersection/union) > 1e-6 || got > last {
				t.Fatalf("%s to %s: %v, the truth %g", keys[i], keys[l.To], l, intersection/union)
			}
			last = l.Jaccard.Value
		}
	}
}

// Of sets that are larger than what is kept of them, parts stay small and answers within what they state.
func TestGraphOfLargeSets(t *testing.T) {
	const now, size = 1_700_000_000 * second, 6000
	for _, decay := range []ebbv1.Decay{ebbv1.Decay_DECAY_NONE, ebbv1.Decay_DECAY_HALF_LIFE} {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: decay, HalfLifeUs: 3600 * second}, now)
		var keys []string
		for i := range 6 { // each shares two thirds with the next one, and so half of the union
			keys = append(keys, fmt.Sprint("k", i))
			for from := 0; from < size; from += 3000 {
				batch := &ebbv1.Increments{}
				for j := range 3000 {
					batch.Increments = append(batch.Increments, &ebbv1.Increment{
						Key: []byte(keys[i]), Bin: fmt.Append(nil, i*size/3+from+j), Kind: ebbv1.Kind_KIND_SET,
					})
				}
				c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
				if r := s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 3000 {
					t.Fatalf("%v", r)
				}
			}
		}
		q := graphAsked(&ebbv1.GraphQuestion{PartBytes: 6 * 4000}, keys...)
		part := partOf(t, s, q, now)
		if n := len(part.GetPart()); n > 6*4200 {
			t.Errorf("a part of %d bytes", n)
		}
		a, err := Merge(q, []*ebbv1.ShardAnswer{part})
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range a.GetGraph().Nodes {
			if math.Abs(n.Set.Size.Value-size) > 5*n.Set.Size.StdError || len(n.Links) != 2 {
				t.Errorf("%v", n)
			}
			near := n.Links[0]
			if d := int(near.To) - i; d != 1 && d != -1 || math.Abs(near.Jaccard.Value-0.5) > 5*near.Jaccard.StdError || near.Jaccard.StdError > 0.05 {
				t.Errorf("%s is most like %v", n.Set.Key, near)
			}
		}
		two := s.Ask(&ebbv1.ShardQuestion{Question: overlapAsked(keys[:2]...)}, now).GetAnswer().GetOverlap()
		if e := two.Jaccard; math.Abs(e.Value-0.5) > 5*e.StdError || e.StdError > 0.02 || e.High > 1 || e.Confidence != proto.DefaultConfidence {
			t.Errorf("%v", two)
		}
	}
}

// Without a shard there is no overlap, and a graph of the others.
func TestSetsOfMissingShards(t *testing.T) {
	const now = 1_700_000_000 * second
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, now)
	if _, err := Merge(overlapAsked("a", "b"), []*ebbv1.ShardAnswer{partOf(t, s, overlapAsked("a"), now)}); proto.AsError(err).Code != ebbv1.Code_CODE_INCOMPLETE {
		t.Errorf("%v", err)
	}
	g := &ebbv1.GraphQuestion{}
	a, err := Merge(graphAsked(g, "a", "b", "c"), []*ebbv1.ShardAnswer{partOf(t, s, graphAsked(g, "a", "c"), now)})
	if nodes := a.GetGraph().GetNodes(); err != nil || len(nodes) != 2 || string(nodes[1].Set.Key) != "c" {
		t.Errorf("%v, %v", a, err)
	}
}

// setParts are parts as shards make them.
func setParts(t fataler) (parts [][]byte) {
	const now = 1_700_000_000 * second
	for _, decay := range []ebbv1.Decay{ebbv1.Decay_DECAY_NONE, ebbv1.Decay_DECAY_HALF_LIFE} {
		def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: decay, Sizes: &ebbv1.Sizes{SetMembers: 16}}
		s := definedAt(t, def, now)
		batch := &ebbv1.Increments{}
		for i := range 40 {
			for _, key := range []string{"k", "l"}[:1+i%2] {
				batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(key), Bin: fmt.Append(nil, i), Kind: ebbv1.Kind_KIND_SET})
			}
		}
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
		s.Apply(2, encodeEntry(t, now, []*ebbv1.Command{c}), nil)
		parts = append(parts, partOf(t, s, overlapAsked("k", "l"), now).GetPart(), partOf(t, s, graphAsked(&ebbv1.GraphQuestion{}, "k", "l", "m"), now).GetPart())
	}
	return parts
}

// Parts that no shard makes are refused, and those that do not compare say so.
func TestSetPartsRefused(t *testing.T) {
	parts := setParts(t)
	plain, ebbing := parts[0], parts[2]
	for _, c := range []struct {
		name string
		part []byte
		want ebbv1.Code
	}{
		{"good", plain, 0},
		{"nothing", nil, ebbv1.Code_CODE_CORRUPT},
		{"of a graph", parts[1], ebbv1.Code_CODE_CORRUPT},
		{"cut", plain[:len(plain)-1], ebbv1.Code_CODE_CORRUPT},
		{"too long", append(slices.Clone(plain), 1), ebbv1.Code_CODE_CORRUPT},
		{"another kind", append(slices.Clone(plain), 1, 'm', byte(formMorris), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), ebbv1.Code_CODE_CORRUPT},
		{"no number", append(slices.Clone(plain), 1, 'm', byte(formSet), 0, 0, 0, 0, 0, 0, 0xf8, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0, 0), ebbv1.Code_CODE_CORRUPT},
		{"a later time", []byte{partOverlap, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, ebbv1.Code_CODE_CORRUPT},
	} {
		_, err := Merge(overlapAsked("k", "l"), []*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: c.part}}})
		if got := proto.AsError(err); (err != nil) != (c.want != 0) || err != nil && got.Code != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	_, err := Merge(overlapAsked("k", "l", "m"), []*ebbv1.ShardAnswer{
		{Value: &ebbv1.ShardAnswer_Part{Part: renamed(plain)}}, {Value: &ebbv1.ShardAnswer_Part{Part: ebbing}},
	})
	if got := proto.AsError(err); err == nil || got.Code != ebbv1.Code_CODE_UNMERGEABLE {
		t.Errorf("one forgets: %v", err)
	}
}

// renamed is a part whose first key k is called m.
func renamed(part []byte) []byte {
	b := slices.Clone(part)
	b[slices.Index(b, 'k')] = 'm'
	return b
}

// FuzzMergeSets: no part that a peer could send makes a coordinator panic, or answer with what is not a number.
func FuzzMergeSets(f *testing.F) {
	own := setParts(f)
	for i, name := range []string{"overlap", "graph", "overlap-decayed", "graph-decayed"} {
		seedPart(f, name, own[i])
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for i, q := range []*ebbv1.Question{overlapAsked("k", "l"), graphAsked(&ebbv1.GraphQuestion{Links: 3}, "k", "l", "m", "n")} {
			for _, mine := range [][]byte{own[i], own[i+2]} {
				a, err := Merge(q, []*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: mine}}, {Value: &ebbv1.ShardAnswer_Part{Part: raw}}})
				if err != nil {
					continue
				}
				o := a.GetOverlap()
				for _, e := range []*ebbv1.Estimate{o.GetUnion(), o.GetIntersection(), o.GetDifference(), o.GetJaccard()} {
					if !number(e.GetValue()) || !number(e.GetStdError()) || e.GetValue() < 0 {
						t.Fatalf("%v", o)
					}
				}
				for _, n := range a.GetGraph().GetNodes() {
					for _, l := range n.Links {
						if !number(l.Jaccard.Value) || l.Jaccard.Value > 1 || !number(l.Jaccard.StdError) || int(l.To) >= len(a.GetGraph().Nodes) {
							t.Fatalf("%v", n)
						}
					}
				}
			}
		}
	})
}

// BenchmarkMergeGraph is what a coordinator does with the parts of 1,000 sets of 1,000 to 11,000 members from 16
// shards: decode, compare each with each, write the answer.
func BenchmarkMergeGraph(b *testing.B) {
	for _, halfLife := range []sketch.Tick{0, 3600 * second} {
		b.Run(fmt.Sprintf("halflife=%ds", halfLife/second), func(b *testing.B) {
			const now, shards, sets = sketch.Tick(1_700_000_000 * second), 16, 1000
			q := &ebbv1.GraphQuestion{}
			parts := make([][]byte, shards)
			for i := range parts {
				parts[i] = binary.AppendUvarint([]byte{partGraph}, uint64(now))
			}
			r := rand.New(rand.NewPCG(1, 2))
			for i := range sets {
				s := namedSet{name: fmt.Appendf(nil, "set/%d", i), body: newSetOf(halfLife)}
				from := r.IntN(200_000)
				for j := range 1000 + r.IntN(10_000) {
					if err := s.body.add(&event{now: now, at: now - sketch.Tick(r.Int64N(4*3600*second)), bin: fmt.Append(nil, from+j)}); err != nil {
						b.Fatal(err)
					}
				}
				s.size, s.body = sizeOf(s.body, now), fitting(s.body, GraphBytes/sets)
				parts[i%shards] = s.append(parts[i%shards])
				q.Keys = append(q.Keys, s.name)
			}
			var answers []*ebbv1.ShardAnswer
			size := 0
			for _, part := range parts {
				answers = append(answers, &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: part}})
				size += len(part)
			}
			for b.Loop() {
				if _, err := mergeGraphs(q, answers); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size)/sets, "bytes/set")
		})
	}
}

func newSetOf(halfLife sketch.Tick) body {
	if halfLife == 0 {
		s, err := sketch.NewSet(sketch.SetParams{Members: true, Signature: setSignature})
		return mustBody(&set{s}, err)
	}
	s, err := sketch.NewSetDecayed(sketch.SetDecayedParams{HalfLife: halfLife, Members: true})
	return mustBody(&setDecayed{s}, err)
}

// A graph takes its sets from patterns as well: those that match, each once, after those that are named, and nothing of
// other kinds.
func TestGraphOfPatterns(t *testing.T) {
	const now = 1_700_000_000 * second
	def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
	states := []*State{definedAt(t, def, now), definedAt(t, def, now)}
	for i, key := range []string{"fans/rust", "fans/go", "fans/php", "fans/c/all", "others/x", "fans/visits"} {
		kind := ebbv1.Kind_KIND_SET
		if key == "fans/visits" {
			kind = ebbv1.Kind_KIND_DISTINCT
		}
		batch := &ebbv1.Increments{}
		for bin := range 4 {
			batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(key), Bin: fmt.Append(nil, 2*i+bin), Kind: kind})
		}
		s, c := states[i%2], &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
		s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)
	}
	for _, c := range []struct {
		patterns, keys string
		want           string
	}{
		{"fans/*", "", "fans/go fans/php fans/rust"},
		{"fans/**", "", "fans/c/all fans/go fans/php fans/rust"},
		{"fans/*", "others/x fans/php fans/none", "others/x fans/php fans/none fans/go fans/rust"},
		{"fans/g* fans/r*", "", "fans/go fans/rust"},
		{"nobody/*", "", ""},
	} {
		q := graphAsked(&ebbv1.GraphQuestion{Patterns: named(strings.Fields(c.patterns)...)}, strings.Fields(c.keys)...)
		a, err := Merge(q, []*ebbv1.ShardAnswer{partOf(t, states[0], q, now), partOf(t, states[1], q, now)})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range a.GetGraph().Nodes {
			got = append(got, string(n.Set.Key))
			if n.Set.Found == (string(n.Set.Key) == "fans/none") || string(n.Set.Key) == "fans/go" && len(n.Links) == 0 {
				t.Errorf("%s: %v", c.patterns, n)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s and %s: %v, want %s", c.patterns, c.keys, got, c.want)
		}
	}
}

// A shard in which more sets match than a graph has says so at once, before it reads what they hold.
func TestGraphOfTooMany(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, beginning)
	for k := range proto.GraphKeysMax + 1 {
		c := increments(fmt.Sprint("set/", k), "a")
		c.GetIncrements().Increments[0].Kind = ebbv1.Kind_KIND_SET
		s.Apply(s.applied+1, encodeEntry(t, beginning, []*ebbv1.Command{c}), nil)
	}
	for text, want := range map[string]ebbv1.Code{"set/1*": 0, "set/*": ebbv1.Code_CODE_RESPONSE_TOO_LARGE} {
		q := graphAsked(&ebbv1.GraphQuestion{Patterns: [][]byte{[]byte(text)}})
		if a := s.Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, beginning); a.GetError().GetCode() != want {
			t.Errorf("%s: %v", text, a.Error)
		}
	}
}

// Of a set that is named a graph has the links that are the strongest, where all sets are exact: signatures alone would
// leave some out.
func TestGraphOfNamedSetLeavesNoneOut(t *testing.T) {
	const now, sets, size, members, links = 1_700_000_000 * second, 120, 300, 4000, 10
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, now)
	r := rand.New(rand.NewPCG(1, 2))
	in := make([]map[int]bool, sets)
	for i := range sets {
		in[i] = map[int]bool{}
		batch := &ebbv1.Increments{}
		for len(in[i]) < size {
			m := r.IntN(members)
			if !in[i][m] {
				in[i][m] = true
				batch.Increments = append(batch.Increments, &ebbv1.Increment{
					Key: fmt.Appendf(nil, "fans/%03d", i), Bin: fmt.Append(nil, m), Kind: ebbv1.Kind_KIND_SET,
				})
			}
		}
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
		s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)
	}
	for i := range 20 {
		q := graphAsked(&ebbv1.GraphQuestion{Patterns: named("fans/*"), Links: links}, fmt.Sprintf("fans/%03d", i))
		a, err := Merge(q, []*ebbv1.ShardAnswer{partOf(t, s, q, now)})
		if err != nil {
			t.Fatal(err)
		}
		var want []float64
		for j := range sets {
			both := 0
			for m := range in[i] {
				if in[j][m] {
					both++
				}
			}
			if j != i {
				want = append(want, float64(both)/float64(2*size-both))
			}
		}
		slices.SortFunc(want, func(a, b float64) int { return cmp.Compare(b, a) })
		for k, l := range a.GetGraph().GetNodes()[0].GetLinks() {
			if l.GetJaccard().GetValue() != want[k] || l.GetJaccard().GetStdError() != 0 {
				t.Errorf("link %d of set %d: %v, want %v", k, i, l.GetJaccard(), want[k])
				break
			}
		}
	}
}
