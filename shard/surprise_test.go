package shard

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A comparison says the same whether the keys of both sides lie in one shard or
// in two, whose bins have other ids.
func TestSurpriseAcrossShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const now = 1_700_000_000 * second
		def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 60 * second}
		whole := definedAt(t, def, now)
		split := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
		for index := uint64(2); index < 8; index++ {
			for range rapid.IntRange(0, 6).Draw(t, "events") {
				key := rapid.SampledFrom([]string{"a/now", "b/now", "a/usual", "b/usual"}).Draw(t, "key")
				in := &ebbv1.Increment{
					Key: []byte(key), Bin: fmt.Append(nil, rapid.IntRange(0, 9).Draw(t, "bin")),
					Amount: new(float64(rapid.IntRange(1, 40).Draw(t, "amount"))), TimeUs: now - rapid.Int64Range(0, 90*second).Draw(t, "age"),
				}
				c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}}}
				for _, s := range []*State{whole, split[key[0]]} {
					if r := s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 1 {
						t.Fatalf("%v", r)
					}
				}
			}
		}
		ask := func(keys, against []string) *ebbv1.Question {
			return &ebbv1.Question{Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
				Keys: named(keys...), Against: named(against...), Bins: named("3", "never"), AsOfUs: now + 5*second,
			}}}
		}
		both := ask([]string{"a/now", "b/now"}, []string{"a/usual", "b/usual"})
		want := whole.Ask(&ebbv1.ShardQuestion{Question: both}, now).GetAnswer().GetSurprise()
		parts := []*ebbv1.ShardAnswer{
			split['a'].Ask(&ebbv1.ShardQuestion{Question: ask([]string{"a/now"}, []string{"a/usual"}), Partial: true}, now),
			split['b'].Ask(&ebbv1.ShardQuestion{Question: ask([]string{"b/now"}, []string{"b/usual"}), Partial: true}, now),
		}
		a, err := Merge(both, parts)
		if err != nil {
			t.Fatalf("%v", err)
		}
		got := a.GetSurprise()
		if got.Found != want.Found || got.Freedom != want.Freedom || !near(got.G, want.G) || !near(got.JensenShannonBits, want.JensenShannonBits) ||
			!near(got.PValue, want.PValue) || !near(got.EffectiveN, want.EffectiveN) || len(got.Bins) != len(want.Bins) || got.AsOfUs != want.AsOfUs {
			t.Fatalf("one shard %v\ntwo      %v", want, got)
		}
		for i, bits := range want.SurpriseBits {
			if !near(got.SurpriseBits[i], bits) {
				t.Fatalf("surprise %v, want %v", got.SurpriseBits, want.SurpriseBits)
			}
		}
	})
}

// A comparison is of what the bins have left, also of those below the threshold, in one shard and over two. Under
// linear decay the sum in the answer includes what they have left.
func TestSurpriseBelowTheThreshold(t *testing.T) {
	const now, minute = 1_700_000_000 * second, 60 * second
	for _, x := range []struct {
		def      *ebbv1.Namespace
		age      int64
		z, other float64
	}{
		{&ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: minute}, 11 * minute, 8. / 2048, 8. / 2048},
		{
			&ebbv1.Namespace{
				Name: "default", Version: 1, HalfLifeUs: minute, Decay: ebbv1.Decay_DECAY_LINEAR, Threshold: 0.5,
			}, minute, 8 * 0.306853, 8 * 0.306853,
		},
	} {
		whole := definedAt(t, x.def, now)
		split := []*State{definedAt(t, x.def, now), definedAt(t, x.def, now)}
		for _, s := range []*State{whole, split[0], split[1]} {
			s.setBehaviour(BehaviourMax)
		}
		for s, bins := range map[*State][]string{
			whole:    {"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"},
			split[0]: {"x0", "x2", "x4", "x6"},
			split[1]: {"x1", "x3", "x5", "x7"},
		} {
			for _, key := range []string{"b", "a"} { // the second one late, so that no cleanup removes its bins
				at := int64(now)
				if key == "a" {
					at -= x.age
				}
				batch := &ebbv1.Increments{}
				for _, bin := range bins {
					in := &ebbv1.Increment{Key: []byte(key), Bin: []byte(bin), TimeUs: at}
					batch.Increments = append(batch.Increments, in)
				}
				c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
				r := s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]
				if r.Applied != uint64(len(bins)) {
					t.Fatalf("%v", r)
				}
			}
		}
		q := &ebbv1.Question{Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
			Keys: named("a"), Against: named("b"), Bins: named("x1"),
		}}}
		merged, err := Merge(q, []*ebbv1.ShardAnswer{
			split[0].Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, now),
			split[1].Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, now),
		})
		if err != nil {
			t.Fatal(err)
		}
		for shards, a := range []*ebbv1.Answer{whole.Ask(&ebbv1.ShardQuestion{Question: q}, now).GetAnswer(), merged} {
			s := a.GetSurprise()
			if !s.GetFound() || s.GetJensenShannonBits() > 1e-6 || s.GetPValue() < 0.99 || s.GetOtherP() != 0 ||
				len(s.GetBins()) != 8 {
				t.Errorf("%s, %d shards: %v", x.def.GetDecay(), 1+shards, s)
			}
		}
		d := whole.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Distribution{
			Distribution: &ebbv1.DistributionQuestion{Keys: named("a")},
		}}}, now).GetAnswer().GetDistribution()
		if math.Abs(d.GetZ()-x.z) > 1e-5 || math.Abs(d.GetOther()-x.other) > 1e-5 || len(d.GetBins()) != 0 {
			t.Errorf("%s: z %v and other %v, want %v and %v", x.def.GetDecay(), d.GetZ(), d.GetOther(), x.z, x.other)
		}
	}
}

func named(words ...string) (out [][]byte) {
	for _, w := range words {
		out = append(out, []byte(w))
	}
	return out
}

// Parts that no shard makes are refused.
func TestSurprisePartsRefused(t *testing.T) {
	q := &ebbv1.Question{Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{Keys: named("k"), Against: named("l")}}}
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, 1_700_000_000*second)
	good := s.Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, sketch.Tick(1_700_000_000*second)).GetPart()
	for name, part := range map[string][]byte{
		"nothing": nil, "another kind": appendCount(nil, 1), "cut": good[:len(good)-1], "too long": append(append([]byte{}, good...), 0), "one side": {partSurprise, 0},
	} {
		_, err := Merge(q, []*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: good}}, {Value: &ebbv1.ShardAnswer_Part{Part: part}}})
		if err == nil || proto.AsError(err).Code != ebbv1.Code_CODE_CORRUPT {
			t.Errorf("%s: %v, want CORRUPT", name, err)
		}
	}
	if _, err := Merge(q, []*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: good}}, {Value: &ebbv1.ShardAnswer_Part{Part: good}}}); err != nil {
		t.Error(err)
	}
}
