package node_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// A node that wants to join must know the storage version in force: one that is too old is refused, and one that is too
// new as well. Both end with an error that says both sides' versions; one that knows it joins.
func TestJoinersKnowTheVersionInForce(t *testing.T) {
	inBubble(t, 1, 4, func(b *bubble) {
		b.config[0].Storage = proto.Versions{Oldest: 1, Newest: 5}
		b.openAll()
		b.until("version 5", func() bool { return b.table(0).Version() == 5 })
		for name, c := range map[string]struct {
			build   proto.Versions
			refused bool
		}{
			"ebb-1": {proto.Versions{Oldest: 1, Newest: 4}, true},
			"ebb-2": {proto.Versions{Oldest: 6, Newest: 7}, true},
			"ebb-3": {proto.Versions{Oldest: 5, Newest: 6}, false},
		} {
			i := b.newcomer(name)
			b.config[i].Storage = c.build
			b.open(i)
			if !c.refused {
				b.ready(i)
				continue
			}
			b.until("a refusal of "+name, func() bool { return b.said(i) != nil })
			if !errors.Is(b.said(i), proto.ErrNewerVersion) {
				t.Errorf("%s: %v, want NEWER_VERSION", name, b.said(i))
			}
			if b.table(0).Node(name) != nil {
				t.Errorf("%s is a member", name)
			}
		}
		time.Sleep(time.Minute)
		if got := b.table(0).Version(); got != 5 {
			t.Errorf("version %d is in force, want 5", got)
		}
	})
}
