package node_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// Without a majority a node answers reads that may be behind from what it has applied. One that has started since knows
// of none of its entries whether it is committed: it refuses, and does not answer as if nothing had been counted.
func TestReadsBehindAfterARestart(t *testing.T) {
	for _, withSnapshots := range []bool{false, true} {
		t.Run(fmt.Sprintf("snapshots %v", withSnapshots), func(t *testing.T) {
			inBubble(t, 3, 4, func(b *bubble) {
				var c *ebb.Client
				if withSnapshots {
					c, _ = b.swollen()
				} else {
					b.openAll()
					c = b.client()
					b.plain(c)
				}
				b.write(c, "late", "x", 2)
				counts := func() bool {
					n, err := b.anyAnswer(0, "late", "x")
					if err == nil && n != 2 {
						b.Errorf("it counts %v of 2", n)
					}
					return err == nil
				}
				b.until("the write is on the first node", func() bool {
					n, err := b.anyAnswer(0, "late", "x")
					return err == nil && n == 2
				})
				b.crash(1)
				b.crash(2)
				if !counts() {
					b.Error("without the others it does not say what it has")
				}
				b.crash(0)
				b.open(0)
				time.Sleep(5 * time.Second)
				if n, err := b.anyAnswer(0, "late", "x"); !errors.Is(err, proto.ErrTooStale) {
					b.Errorf("started again, without the others, it says %v, %v", n, err)
				}
				b.open(1)
				b.until("it counts what its log has", counts)
			})
		})
	}
}
