package shard

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Keys spread over shards and merged give what they give in one shard, whatever
// the decay, the floor and the clock.
func TestMergeOverShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := int64(1_700_000_000 * second)
		def := &ebbv1.Namespace{
			Name: "default", Version: 1, HalfLifeUs: 100 * second,
			Decay: rapid.SampledFrom([]ebbv1.Decay{1, 1, 3}).Draw(t, "decay"),
			Floor: rapid.SampledFrom([]ebbv1.Floor{1, 2, 3}).Draw(t, "floor"),
		}
		whole := definedAt(t, def, now)
		var shards []*State
		for range rapid.IntRange(1, 4).Draw(t, "shards") {
			shards = append(shards, definedAt(t, def, now))
		}
		ask := &ebbv1.DistributionQuestion{}
		for k := range rapid.IntRange(1, 6).Draw(t, "keys") {
			key := fmt.Sprintf("key-%d", k)
			ask.Keys = append(ask.Keys, []byte(key))
			c := increments(key, rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 1, 12).Draw(t, "bins")...)
			at := now + int64(k)*3*second
			entry := encodeEntry(t, at, []*ebbv1.Command{c})
			whole.Apply(whole.applied+1, entry, nil)
			s := rapid.SampledFrom(shards).Draw(t, "shard")
			s.Apply(s.applied+1, entry, nil)
		}
		if rapid.Bool().Draw(t, "late") {
			ask.AsOfUs = now + 500*second
		}
		if rapid.Bool().Draw(t, "select") {
			ask.Select = &ebbv1.DistributionQuestion_Top{Top: 2}
		}
		q := question("", ask)
		want := whole.Ask(q, 0).GetAnswer().GetDistribution()
		// Some shards' clocks are behind: the parts are scaled to the latest.
		got, err := Merge(q.Question, partsOf(shards, q, 0))
		if err != nil {
			t.Fatalf("%v", err)
		}
		if !nearDistributions(got.GetDistribution(), want) {
			t.Fatalf("merged %v\nwant   %v", got.GetDistribution(), want)
		}
		for i, b := range got.GetDistribution().Bins {
			w := want.Bins[i]
			if string(b.Bin) == string(w.Bin) && (!near(b.P, w.P) || !near(b.PLow, w.PLow) || !near(b.PHigh, w.PHigh)) {
				t.Fatalf("bin %v, want %v", b, w)
			}
		}
	})
}

func partsOf(shards []*State, q *ebbv1.ShardQuestion, at sketch.Tick) []*ebbv1.ShardAnswer {
	var parts []*ebbv1.ShardAnswer
	for _, s := range shards {
		parts = append(parts, s.Ask(&ebbv1.ShardQuestion{Question: q.Question, Partial: true}, at))
	}
	return parts
}

// A shard that knows older settings converts at its own time; the newest hold.
func TestMergeOverVersions(t *testing.T) {
	now := int64(1_700_000_000 * second)
	old := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second}, now)
	young := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 2, HalfLifeUs: 20 * second}, now)
	unaware := New(3, Heap{})
	for _, s := range []*State{old, young} {
		s.Apply(2, encodeEntry(t, now, []*ebbv1.Command{increments("k", "a", "a", "a", "a")}), nil)
	}
	q := question("", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k")}, AsOfUs: now + 20*second})
	a, err := Merge(q.Question, partsOf([]*State{old, unaware, young}, q, 0))
	if err != nil {
		t.Fatal(err)
	}
	// 4 over two half-lives of 10 s, and 4 over one of 20 s.
	if d := a.GetDistribution(); d.Z != 3 || d.HalfLifeUs != 20*second || d.Bins[0].Count != 3 {
		t.Fatalf("got %v", d)
	}
}

func TestMergeOfNothing(t *testing.T) {
	q := question("absent", &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte("k")}, AsOfUs: 5 * second,
		Select: &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: [][]byte{[]byte("x")}}},
	})
	a, err := Merge(q.Question, partsOf([]*State{New(1, Heap{}), New(2, Heap{})}, q, 7))
	if err != nil {
		t.Fatal(err)
	}
	if d := a.GetDistribution(); d.Found || d.AsOfUs != 5*second || len(d.Bins) != 1 || d.Bins[0].Count != 0 {
		t.Fatalf("got %v", d)
	}
}

func TestMergeCounts(t *testing.T) {
	now := int64(1_700_000_000 * second)
	var shards []*State
	for i := range 3 {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, now)
		for j := range i + 1 {
			s.Apply(s.applied+1, encodeEntry(t, now, []*ebbv1.Command{increments(fmt.Sprint(j), "a")}), nil)
		}
		shards = append(shards, s)
	}
	q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}}
	a, err := Merge(q.Question, partsOf(shards, q, 0))
	if err != nil || a.GetCountKeys().GetKeys() != 6 {
		t.Fatalf("%v, %v", a, err)
	}
	// A day later all have faded, as asked from outside.
	a, err = Merge(q.Question, partsOf(shards, q, sketch.Tick(now)+86400*second))
	if err != nil || a.GetCountKeys().GetKeys() != 0 {
		t.Fatalf("%v, %v", a, err)
	}
}

func TestMergeErrors(t *testing.T) {
	q := question("", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k")}})
	for name, c := range map[string]struct {
		q    *ebbv1.Question
		a    *ebbv1.ShardAnswer
		want error
	}{
		"error":       {q.Question, &ebbv1.ShardAnswer{Error: proto.ErrTooStale.Wire()}, proto.ErrTooStale},
		"empty":       {q.Question, &ebbv1.ShardAnswer{}, proto.ErrCorrupt},
		"wrong kind":  {q.Question, &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: appendCount(nil, 3)}}, proto.ErrCorrupt},
		"no question": {&ebbv1.Question{}, &ebbv1.ShardAnswer{}, proto.ErrBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Merge(c.q, []*ebbv1.ShardAnswer{c.a, c.a}); !errors.Is(err, c.want) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// FuzzMerge: a part from anywhere is folded or refused.
func FuzzMerge(f *testing.F) {
	s := furnished(f)
	for _, namespace := range []string{"default", "history", "leak"} {
		q := question(namespace, &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("clicks/link"), []byte("other" + namespace)}})
		seedPart(f, namespace, partsOf([]*State{s}, q, 0)[0].GetPart(), uint32(2))
	}
	q := question("", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k")}})
	own := partsOf([]*State{s}, q, 0)[0]
	f.Fuzz(func(t *testing.T, raw []byte, top uint32) {
		ask := &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k")}, Select: &ebbv1.DistributionQuestion_Top{Top: top}}
		part := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: raw}}
		a, err := Merge(question("", ask).Question, []*ebbv1.ShardAnswer{own, part, part})
		if d := a.GetDistribution(); err == nil && !(math.Abs(d.Z) <= math.MaxFloat64) {
			t.Fatalf("got %v", a)
		}
	})
}

// A question over too much says so.
func TestAnswerTooLarge(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE})
	name := make([]byte, 200)
	for i := range 20 {
		c := &ebbv1.Increments{}
		for j := range 1000 {
			c.Increments = append(c.Increments, &ebbv1.Increment{Key: []byte("k"), Bin: fmt.Appendf(nil, "%d-%d%s", i, j, name)})
		}
		s.Apply(s.applied+1, encode(t, 0, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: c}}), nil)
	}
	q := question("", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k")}})
	for _, a := range append(partsOf([]*State{s}, q, 0), s.Ask(q, 0)) {
		if !proto.FromWire(a.Error).Is(proto.ErrResponseTooLarge) {
			t.Fatalf("got %v", a)
		}
	}
	many := make([][]byte, 1000)
	for i := range many {
		many[i] = []byte("k")
	}
	q = question("", &ebbv1.DistributionQuestion{Keys: many, Select: &ebbv1.DistributionQuestion_Top{Top: 1}})
	if a := s.Ask(q, 0).GetAnswer().GetDistribution(); a.GetZ() != 20_000 {
		t.Fatalf("a key that is named 1,000 times counts once: got %v", a)
	}
	var keys [][]byte
	for i := range 7 {
		keys = append(keys, fmt.Appendf(nil, "k%d", i))
		for begin := 0; begin < 20_000; begin += 10_000 {
			c := &ebbv1.Increments{}
			for j := range 10_000 {
				c.Increments = append(c.Increments, &ebbv1.Increment{Key: keys[i], Bin: fmt.Appendf(nil, "%d", begin+j)})
			}
			s.Apply(s.applied+1, encode(t, 0, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: c}}), nil)
		}
	}
	q = &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
		Keys: keys, Against: keys[:1],
	}}}}
	if a := s.Ask(q, 0); !proto.FromWire(a.Error).Is(proto.ErrResponseTooLarge) {
		t.Fatalf("got %v", a)
	}
}

// seedPart adds a seed that is a part, and with -rewrite writes it to testdata.
func seedPart(f *testing.F, name string, part []byte, more ...any) {
	f.Helper()
	f.Add(append([]any{part}, more...)...)
	if rewrite := flag.Lookup("rewrite"); rewrite.Value.String() != "true" || len(part) > 1000 {
		return
	}
	text := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", part)
	for _, v := range more {
		text += fmt.Sprintf("%T(%v)\n", v, v)
	}
	file := filepath.Join("testdata", "fuzz", f.Name(), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		f.Fatal(err)
	}
}

// FuzzMergeSurprise: no two distributions that a peer could send make a coordinator panic, or find a difference that is
// no number.
func FuzzMergeSurprise(f *testing.F) {
	s := furnished(f)
	ask := func(namespace string, top uint32) *ebbv1.Question {
		return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
			Keys: [][]byte{[]byte("clicks/link")}, Against: [][]byte{[]byte("other" + namespace)}, Bins: [][]byte{[]byte("b")}, Top: top,
		}}}
	}
	for _, namespace := range []string{"default", "history", "leak", "none"} {
		q := &ebbv1.ShardQuestion{Question: ask(namespace, 0), Partial: true}
		seedPart(f, namespace, s.Ask(q, s.Now()).GetPart(), uint32(2))
	}
	f.Fuzz(func(t *testing.T, raw []byte, top uint32) {
		part := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: raw}}
		a, err := Merge(ask("default", top), []*ebbv1.ShardAnswer{part, part})
		if x := a.GetSurprise(); err == nil && !number(x.G+x.JensenShannonBits+x.PValue+x.EffectiveN) {
			t.Fatalf("got %v", a)
		}
	})
}
