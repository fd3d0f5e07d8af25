package shard

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A distinct in a namespace with a window knows who was there within any window up to that one: of one key, of several in a shard, and of
// keys in two shards, whatever the order of events, after a restart too. All that was there in the window counts, and of
// what is older only what came less than a slice before it.
func TestWindowsAgainstTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window, slice = 60 * second, second
		def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second, WindowUs: new(int64(window))}
		now := int64(1_700_000_000 * second)
		states := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
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
					if e.at > at-q.WindowUs-2*slice { // the slice it lies in may have begun as long before
						maybe[e.bin] = true
					}
				}
			}
			got := math.Round(summarise(t, q, states, at).Total.Value)
			if got < float64(len(sure)) || got > float64(len(maybe)) {
				t.Fatalf("%v in %v us: %v, the truth is from %d to %d", keys, q.WindowUs, got, len(sure), len(maybe))
			}
		}
	})
}
