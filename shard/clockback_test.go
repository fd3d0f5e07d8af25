package shard

import (
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// keysThere is what so many keys of some kinds hold, in words, and which of them the second half-life counts.
func (f *freeShard) keysThere(n int, kinds []ebbv1.Kind) (all map[string]string) {
	f.t.Helper()
	all = map[string]string{}
	slow := f.s.slowOf(f.s.lookup([]byte("n")))
	for _, kind := range kinds {
		for i := range n {
			key := fmt.Sprint(proto.KindName(kind), i)
			if held := f.summaryOf(key, kind); held != "" {
				all[key] = held
			}
			if slow == nil {
				continue
			}
			if _, ok := f.s.findKey(slow, []byte(key)); ok {
				all["slow "+key] = "there"
			}
		}
	}
	return all
}

// One event that is dated far ahead removes nothing by itself, nor does what sets the clock: back at once, all keys are
// there as they were, also those that expire. Older shards remove some.
func TestAWrongDateRemovesNothing(t *testing.T) {
	const keys = 12
	kinds := []ebbv1.Kind{ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_QUANTILE}
	wrong := map[string]func(f *freeShard){
		"an event":      func(f *freeShard) { f.apply(eventsAt("wrong", 0, 20*day)) },
		"another shard": func(f *freeShard) { f.advance(0, 20*day) },
		"a setting":     func(f *freeShard) { f.set(20 * day) },
	}
	for name, change := range map[string]func(*ebbv1.Namespace){
		"one half-life":        func(*ebbv1.Namespace) {},
		"two half-lives":       func(def *ebbv1.Namespace) { def.SlowHalfLifeUs = new(3 * hourLong) },
		"a shorter second one": func(def *ebbv1.Namespace) { def.SlowHalfLifeUs = new(hourLong / 3) },
	} {
		for cause, jump := range wrong {
			for _, behaviour := range []uint32{BehaviourGoneBack, BehaviourAdds} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, cause, behaviour), func(t *testing.T) {
					f := newClockShard(t, change)
					f.behave(behaviour)
					for _, kind := range kinds {
						for i := range keys {
							f.apply(eventsAt(fmt.Sprint(proto.KindName(kind), i), kind, 1, 2, 3, 4, 5))
						}
					}
					expire := &ebbv1.ExpireKeys{
						Keys:  [][]byte{[]byte("distribution3"), []byte("distinct3")},
						Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: hourLong},
					}
					f.apply(&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Expire{Expire: expire}})
					before := f.keysThere(keys, kinds)
					jump(f)
					f.set(5)
					f.s = reopen(t, f.s)
					after := f.keysThere(keys, kinds)
					if behaviour < BehaviourAdds {
						if lost := len(before) - len(after); cause != "a setting" && lost < cleanupsMin {
							t.Errorf("before behaviour %d it loses %d keys", BehaviourAdds, lost)
						}
						return
					}
					for key, held := range before {
						if after[key] != held {
							t.Errorf("%s holds\n%s\nand held\n%s", key, after[key], held)
						}
					}
				})
			}
		}
	}
}

// What was deleted while the clock was ahead stays deleted when it is set back, though it was not freed yet.
func TestWhatWasDeletedStaysSoWhenTheClockGoesBack(t *testing.T) {
	f := newClockShard(t, func(def *ebbv1.Namespace) { def.SlowHalfLifeUs = new(100 * hourLong) })
	f.behave(BehaviourMax)
	for i := range 100 {
		f.apply(eventsAt(fmt.Sprint("k", i), 0, 1, 2, 3))
	}
	f.apply(eventsAt("wrong", 0, 10*hourLong))
	f.apply(&ebbv1.Command{
		Namespace: "n",
		Body:      &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k99")}}},
	})
	if f.ask("k99").GetFound() {
		t.Fatal("it is not deleted")
	}
	f.set(5)
	if d := f.ask("k99"); d.GetFound() {
		t.Errorf("a key that was deleted is there again: %v", d)
	}
}
