package shard

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A distinct in a namespace with a window knows who was there within any window up to that one: of one key, of several
// in a shard, and of keys in two shards, whatever the order of events, after a restart too. All that was there in the
// window counts, and of what is older only what came less than a slice before it. So do keys from before
// BehaviourWindows and both together.
func TestWindowsAgainstTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window, slice = 60 * second, second
		def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second, WindowUs: new(int64(window))}
		now := int64(1_700_000_000 * second)
		states := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
		within := 2 * slice // of a ring, the slice in which something lies may have begun as long before
		for _, id := range []byte("ab") {
			// keys of both forms are merged, too
			if rapid.Bool().Draw(t, "new") {
				states[id].setBehaviour(BehaviourMax)
			}
		}
		if states['a'].behaviour == BehaviourMax && states['b'].behaviour == BehaviourMax {
			within = window>>15 + 1
		}
		var events []seen
		for index := uint64(2); index < 12; index++ {
			now += rapid.Int64Range(0, 20*second).Draw(t, "step")
			batches := map[byte]*ebbv1.Increments{'a': {}, 'b': {}}
			for range rapid.IntRange(0, 8).Draw(t, "events") {
				e := seen{
					key: rapid.SampledFrom([]string{"a1", "a2", "b1"}).Draw(t, "key"),
					bin: fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "bin")),
					at:  now - rapid.Int64Range(0, 80*second).Draw(t, "age"),
				}
				events = append(events, e)
				batch := batches[e.key[0]]
				batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(e.key), Bin: []byte(e.bin), TimeUs: e.at, Kind: ebbv1.Kind_KIND_DISTINCT})
			}
			for id, batch := range batches {
				c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
				if r := states[id].Apply(index, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != uint64(len(batch.Increments)) {
					t.Fatalf("%v", r)
				}
				audit(t, states[id])
			}
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				states['a'] = reopen(t, states['a'])
			}
		}
		at := now + rapid.Int64Range(0, 20*second).Draw(t, "later")
		for _, keys := range [][]string{{"a1"}, {"a1", "a2"}, {"a1", "b1", "a2"}} {
			q := &ebbv1.SummaryQuestion{AsOfUs: at, WindowUs: rapid.SampledFrom([]int64{1, slice, 10 * second, window - 1, window}).Draw(t, "window")}
			sure, maybe := map[string]bool{}, map[string]bool{}
			for _, k := range keys {
				q.Keys = append(q.Keys, []byte(k))
			}
			for _, e := range events {
				for _, k := range keys {
					if e.key != k {
						continue
					}
					if e.at > at-q.WindowUs {
						sure[e.bin] = true
					}
					if e.at > at-q.WindowUs-int64(within) {
						maybe[e.bin] = true
					}
				}
			}
			out := summarise(t, q, states, at)
			got := math.Round(out.Total.Value)
			if truth := float64(len(sure)); out.Total.Low > truth+0.5 || out.Total.High < truth-0.5 {
				t.Fatalf("%v in %v us: %v to %v, the truth is %v", keys, q.WindowUs, out.Total.Low, out.Total.High, truth)
			}
			if out.Found && (out.SpanUs < q.WindowUs || out.SpanUs > q.WindowUs+int64(within)) {
				t.Fatalf("%v in %v us: says that it covers %d", keys, q.WindowUs, out.SpanUs)
			}
			if got < float64(len(sure)) || got > float64(len(maybe)) {
				t.Fatalf("%v in %v us: %v, the truth is from %d to %d", keys, q.WindowUs, got, len(sure), len(maybe))
			}
		}
	})
}

// The window of an hour, of a namespace that keeps six: 25 visitors came within it and 31 in the six minutes before.
// Before BehaviourWindows the answer is 56, "55.99 to 56.01".
func TestWindowOfAnHour(t *testing.T) {
	const hour = 3600 * second
	for _, behaviour := range []uint32{BehaviourDeletion, BehaviourWindows} {
		now := int64(1_700_000_000*second) / hour * hour
		def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: hour, WindowUs: new(int64(6 * hour))}
		s := definedAt(t, def, now-2*hour)
		s.setBehaviour(behaviour)
		batch := &ebbv1.Increments{}
		for i := range int64(56) {
			at := now - hour - 5*second - i*second
			if i >= 31 {
				at = now - i*second
			}
			batch.Increments = append(batch.Increments, &ebbv1.Increment{
				Key: []byte("a"), Bin: fmt.Appendf(nil, "visitor %d", i), TimeUs: at, Kind: ebbv1.Kind_KIND_DISTINCT,
			})
		}
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
		if r := s.Apply(2, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 56 {
			t.Fatal(r)
		}
		audit(t, s)
		q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a")}, AsOfUs: now, WindowUs: hour}
		out := summarise(t, q, map[byte]*State{'a': s}, now)
		total := out.Total
		if total.Low > 25 || total.High < 25 {
			t.Errorf("behaviour %d: %v to %v, the truth is 25", behaviour, total.Low, total.High)
		}
		longest := int64(hour + hour/50)
		if behaviour < BehaviourWindows {
			longest = hour + 2*6*hour/60
		} else if math.Round(total.Value) != 25 {
			t.Errorf("%v, want 25", total.Value)
		}
		if out.SpanUs < hour || out.SpanUs > longest {
			t.Errorf("behaviour %d: the answer covers %d us, more than %d", behaviour, out.SpanUs, longest)
		}
	}
}

// A log that switches to BehaviourWindows keeps the forms of the keys that are there, and makes new ones for new keys.
// The two forms of windows merge. A shard that is not that far refuses an image of a new form.
func TestBehaviourWindows(t *testing.T) {
	def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 3600 * second, WindowUs: new(int64(3600 * second))}
	now := int64(beginning)
	s := definedAt(t, def, now)
	index := uint64(1)
	apply := func(s *State, raw []byte) *ebbv1.CommandResult {
		index++
		return s.Apply(index, raw, nil)[0]
	}
	add := func(key, bin string, kind ebbv1.Kind) {
		now += second
		in := &ebbv1.Increment{Key: []byte(key), Bin: []byte(bin), Kind: kind}
		batch := &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
		if r := apply(s, encodeEntry(t, now, []*ebbv1.Command{c})); r.Applied != 1 {
			t.Fatal(r)
		}
	}
	formOf := func(s *State, name string) form {
		key, ok := s.findKey(s.lookup(nil), []byte(name))
		if !ok {
			t.Fatalf("no key %s", name)
		}
		sum := s.summary(key)
		return sum.body.form()
	}
	add("a old", "ann", ebbv1.Kind_KIND_DISTINCT)
	add("a old bloom", "ann", ebbv1.Kind_KIND_BLOOM)
	apply(s, behaves(t, BehaviourWindows))
	add("a old", "bob", ebbv1.Kind_KIND_DISTINCT)
	add("a new", "bob", ebbv1.Kind_KIND_DISTINCT)
	add("a new", "cid", ebbv1.Kind_KIND_DISTINCT)
	add("a old bloom", "bob", ebbv1.Kind_KIND_BLOOM)
	add("a new bloom", "bob", ebbv1.Kind_KIND_BLOOM)
	audit(t, s)
	for range 2 {
		for name, want := range map[string]form{
			"a old": formDistinctWindow, "a new": formDistinctSliding,
			"a old bloom": formBloomExpiring, "a new bloom": formBloomTimed,
		} {
			if got := formOf(s, name); got != want {
				t.Errorf("%s has form %d, not %d", name, got, want)
			}
		}
		q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a new"), []byte("a old")}, AsOfUs: now}
		if got := summarise(t, q, map[byte]*State{'a': s}, now).Total.Value; got != 3 {
			t.Errorf("both together have %v, not 3", got)
		}
		s = reopen(t, s)
	}
	key, _ := s.findKey(s.lookup(nil), []byte("a new"))
	image, _, _ := s.exportContent(s.lookup(nil), key)
	put := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
		Key: []byte("copy"), What: &ebbv1.PutKey_Image{Image: image},
	}}}
	for behaviour, refused := range map[uint32]bool{BehaviourDeletion: true, BehaviourWindows: false} {
		to := definedAt(t, def, now)
		to.setBehaviour(behaviour)
		if r := apply(to, encodeEntry(t, now, []*ebbv1.Command{put})); (r.GetError() != nil) != refused {
			t.Errorf("behaviour %d: %v", behaviour, r)
		}
	}
}

// A bloom that forgets is filled in a burst of 50 times its capacity. It says at what rate it errs, errs no more than
// it was made for, and has everything for a half-life. Before BehaviourWindows more than half of what never came is
// found.
func TestBloomInBursts(t *testing.T) {
	const capacity, keys = 2_000, 100_000
	for _, behaviour := range []uint32{BehaviourDeletion, BehaviourWindows} {
		now := int64(beginning)
		def := &ebbv1.Namespace{
			Name: "default", Version: 1, HalfLifeUs: 3600 * second,
			Sizes: &ebbv1.Sizes{BloomCapacity: capacity},
		}
		s := definedAt(t, def, now)
		s.setBehaviour(behaviour)
		for i := range uint64(keys / 1000) {
			batch := &ebbv1.Increments{}
			for j := range 1000 {
				batch.Increments = append(batch.Increments, &ebbv1.Increment{
					Key: []byte("a"), Bin: fmt.Appendf(nil, "came %d", 1000*int(i)+j), Kind: ebbv1.Kind_KIND_BLOOM,
				})
			}
			c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
			if r := s.Apply(2+i, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 1000 {
				t.Fatal(r)
			}
		}
		audit(t, s)
		found := func(prefix string, n int, at int64) (found int, rate float64, over bool) {
			for from := 0; from < n; from += 1000 {
				q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a")}, AsOfUs: at}
				for i := range 1000 {
					q.Bins = append(q.Bins, fmt.Appendf(nil, "%s %d", prefix, from+i))
				}
				out := summarise(t, q, map[byte]*State{'a': s}, at)
				over = out.Over
				for _, m := range out.Memberships {
					if m.Contained {
						found, rate = found+1, m.FalseRate
					}
				}
			}
			return found, rate, over
		}
		if n, _, _ := found("came", keys, now+3600*second); n != keys {
			t.Errorf("behaviour %d: %d of %d are found a half-life later", behaviour, n, keys)
		}
		wrong, said, over := found("never came", 50_000, now)
		measured := float64(wrong) / 50_000
		t.Logf("behaviour %d: %.3f%% of what never came is found, %.3f%% are said", behaviour, 100*measured, 100*said)
		if behaviour < BehaviourWindows {
			if measured < 0.5 || !over {
				t.Errorf("%v, over %v: this is what BehaviourWindows is for", measured, over)
			}
			continue
		}
		if measured > 0.01 || said > 0.01 || over || math.Abs(measured-said) > 0.002 {
			t.Errorf("%v of what never came is found, %v is said, over %v; 0.01 is promised", measured, said, over)
		}
	}
}
