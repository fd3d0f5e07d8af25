package node_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node/fail"
)

// between waits for a moment at which the mover of a shard's leader rests, and returns that node.
func (b *bubble) between(shard uint32) (leader int) {
	b.Helper()
	leader = b.leaderOf(shard)
	looked := make(chan time.Time, 1)
	b.config[leader].Fail.Arm("move.before.remove", 1, func(*fail.Points) error {
		looked <- time.Now()
		return errors.New("not yet")
	})
	if err := b.nodes[leader].Enlarge(shard, 900); err != nil {
		b.Fatal(err)
	}
	at := <-looked
	b.until("the group of before", func() bool { return !slices.Contains(b.nodes[leader].Replicas(shard), 900) })
	const period = 250 * time.Millisecond // of the mover
	time.Sleep(period - time.Since(at)%period + period/5)
	return leader
}

// leaderOf is the node that leads a shard.
func (b *bubble) leaderOf(shard uint32) int {
	b.Helper()
	leader := -1
	b.until("a leader", func() bool {
		for i, n := range b.nodes {
			for _, r := range n.Status().GetReplicas() {
				if r.GetShard() == shard && r.GetRole() == "leader" {
					leader = i
				}
			}
		}
		return leader >= 0
	})
	return leader
}

// A group that another changed before its log settled is seen as it is then: a replica that the table does not know is
// taken out.
func TestStepsSeeWhatTheLogHeld(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		n := b.nodes[b.between(1)]
		n.Step(context.Background(), 1, func() {
			if err := n.Enlarge(1, 901); err != nil {
				t.Error(err)
			}
		})
		if got := n.Replicas(1); slices.Contains(got, 901) {
			t.Errorf("replicas %v: the step was one of the group of before", got)
		}
	})
}

// A leader that slept between reading a group and changing it changes nothing if another has changed it since.
func TestStepsOfSleepersAreRefused(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		i := b.between(1)
		n := b.nodes[i]
		b.config[i].Fail.Arm("move.before.remove", 1, func(*fail.Points) error { // while it sleeps
			return n.Enlarge(1, 902)
		})
		n.Step(context.Background(), 1, func() {
			if err := n.Enlarge(1, 901); err != nil {
				t.Error(err)
			}
		})
		if got := n.Replicas(1); !slices.Contains(got, 901) || !slices.Contains(got, 902) {
			t.Errorf("replicas %v: a step that knew of one of two changes was made", got)
		}
		b.until("the group of the table", func() bool { return len(n.Replicas(1)) == 3 })
	})
}
