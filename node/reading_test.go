package node

import (
	"testing"
	"testing/synctest"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// What the node has heard of a namespace's event clock goes before its commands, once, and again when it is later or
// when an entry that had it may be lost.
func TestReadingsGoFirst(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		l.table["history"] = &ebbv1.Namespace{Name: "history", Version: 1, Clock: ebbv1.Clock_CLOCK_EVENT}
		l.table["plain"] = &ebbv1.Namespace{Name: "plain", Version: 1, Clock: ebbv1.Clock_CLOCK_WALL}
		l.applied["history"], l.applied["plain"] = 1, 1
		l.clocks = map[string]*ebbv1.EventClock{"history": {Epoch: 1, NowUs: 50}, "plain": {NowUs: 70}}
		readings := func(want ...int64) {
			t.Helper()
			entries := l.sent()
			last := entries[len(entries)-1].entry
			var got []int64
			for i, raw := range last.Commands {
				var c ebbv1.Command
				if err := protobuf.Unmarshal(raw, &c); err != nil {
					t.Fatal(err)
				}
				if clock := c.GetEventClock(); clock != nil {
					if got = append(got, clock.GetNowUs()); i >= len(last.Commands)-1 || c.GetNamespace() != "history" {
						t.Errorf("reading %d of %d commands is of %q", i, len(last.Commands), c.GetNamespace())
					}
				}
			}
			if len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
				t.Errorf("readings %v, not %v", got, want)
			}
		}
		send := func(ns string, err error) {
			t.Helper()
			c := newCall(1)
			p.enqueue(c, 0, command(ns))
			p.kick()
			synctest.Wait()
			l.commit(len(l.sent())-1, err)
			if result := c.wait(t.Context(), nil)[0]; err == nil && result.GetApplied() != 1 {
				t.Errorf("result %v", result)
			}
		}
		l.behaves, l.wants = shard.BehaviourDeletion, shard.BehaviourDeletion
		send("history", nil)
		readings()
		l.behaves, l.wants = shard.BehaviourClocks, shard.BehaviourClocks
		send("plain", nil)
		readings()
		send("history", nil)
		readings(50)
		send("history", nil)
		readings()
		l.clocks["history"] = &ebbv1.EventClock{Epoch: 1, NowUs: 60}
		send("history", errUnknownOutcome(1, "lost"))
		readings(60)
		send("history", nil)
		readings(60)
		l.clocks["history"] = &ebbv1.EventClock{Epoch: 2, NowUs: 5}
		send("history", nil)
		readings(5)
		delete(l.clocks, "history") // the shard is as far
		send("history", nil)
		readings()
	})
}
