package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// TestNodesThatWentAreForgotten: where nodes come, serve and are removed, each under a name of its own, no goroutine is
// left of them in those that stay, also none that dials.
func TestNodesThatWentAreForgotten(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		b.until("a whole cluster", func() bool { return b.whole(3, 0, 1, 2) })
		replace := func(i int) {
			guest := b.newcomer(fmt.Sprint("guest-", i))
			b.open(guest)
			b.until("four nodes", func() bool { return b.whole(3, 0, 1, 2, guest) })
			b.ready(guest)
			b.change(0, remove(b.config[guest].Name))
			b.until("three nodes", func() bool { return b.whole(3, 0, 1, 2) })
			b.until("its end", func() bool { return errors.Is(b.said(guest), proto.ErrWrongCluster) })
			b.nodes[guest].Kill()
			b.nodes[guest] = nil
		}
		replace(0) // what is made when it is first needed
		time.Sleep(3 * time.Minute)
		before := runtime.NumGoroutine()
		const guests = 4
		for i := range guests {
			replace(i + 1)
		}
		time.Sleep(3 * time.Minute)
		// A call or a dial between two of those that stay may be under way at any time; a guest left five goroutines or
		// more at each node.
		if now := runtime.NumGoroutine(); now >= before+guests {
			var all bytes.Buffer
			_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
			t.Errorf("%d goroutines, and %d before %d nodes came and went:\n%s", now, before, guests, all.Bytes())
		}
	})
}
