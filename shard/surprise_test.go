package shard

import (
	"fmt"
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
