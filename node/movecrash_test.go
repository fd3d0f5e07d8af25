package node_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto"
)

// movePoints are the moments of a move at which a node may die.
var movePoints = []string{
	"plan.laid", "plan.begin",
	"move.before.add", "move.after.add", "move.before.promote", "move.after.promote", "move.before.hand over", "move.after.hand over",
	"move.before.remove", "move.after.remove", "move.before.settle", "move.after.settle",
	"host.prepared", "host.listed", "host.unlisted",
}

// TestMovesSurviveCrashes cuts the power of each node once, at the same moment of a move, while a node joins and
// another is removed. That node is the control leader while it plans, the leader of a group between two steps, or the
// node that gets a replica or has lost one. The next one continues the move.
func TestMovesSurviveCrashes(t *testing.T) {
	points := movePoints
	if testing.Short() {
		points = []string{"plan.begin", "move.after.add", "move.after.hand over", "move.before.settle", "host.listed"}
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			inBubble(t, 3, 4, func(b *bubble) {
				b.openAll()
				c := b.client()
				b.plain(c)
				for k := range 8 {
					b.write(c, fmt.Sprintf("k%d", k), "x", 1)
				}
				b.newcomer("ebb-3")
				victims := make(chan int, len(b.nodes))
				for i := range b.config {
					b.config[i].Fail.Arm(point, 1, fail.Kill(func() { victims <- i }))
				}
				b.open(3)
				died := 0
				revive := func() {
					select {
					case i := <-victims:
						died++
						b.crash(i)
						b.config[i].Fail = new(fail.Points)
						time.Sleep(2 * time.Second)
						b.open(i) // another may be dead too by now, so the test does not wait for it
					default:
					}
				}
				b.until("four nodes", func() bool { revive(); return b.whole(3, 0, 1, 2, 3) })
				leader := 0
				for i, n := range b.nodes[:3] {
					for _, r := range n.Status().GetReplicas() {
						if r.GetShard() == 1 && r.GetRole() == "leader" {
							leader = i
						}
					}
				}
				rest := []int{0, 1, 2, 3}
				rest = append(rest[:leader], rest[leader+1:]...)
				b.until("its removal", func() bool {
					revive()
					_, err := b.ask(rest[0], remove(b.config[leader].Name))
					return err == nil || contains(err, "no node")
				})
				b.until("three nodes", func() bool { revive(); return b.whole(3, rest...) })
				b.until("its end", func() bool { revive(); return errors.Is(b.said(leader), proto.ErrWrongCluster) })
				b.nodes[leader].Kill()
				b.nodes[leader] = nil
				b.verify(b.client(), 8, 1)
				b.equal(rest...)
				if died == 0 {
					t.Errorf("nobody came to %s", point)
				}
			})
		})
	}
}
