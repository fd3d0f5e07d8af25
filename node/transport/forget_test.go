package transport

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A node that is not known is forgotten, with all that runs for it, when it was not asked, and its replicas have not
// asked, for a minute. A caller that asks it again finds it.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, asks := pair(t, nil)
		all, none := func(string) bool { return true }, func(string) bool { return false }
		forget := func(known func(string) bool) (left int) {
			for _, n := range w.nodes {
				n.Forget(known)
				left += len(n.Peers())
			}
			return left
		}
		synctest.Wait()
		before := bubbleGoroutines()
		for range 2 {
			if err := vote(asks, "b/12"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(forgetAfter - time.Second)
			if left := forget(none); left != 2 {
				t.Errorf("%d peers are left of those that were asked within a minute", left)
			}
			time.Sleep(2 * time.Second)
			if left := forget(all); left != 2 {
				t.Errorf("%d peers are left of those that are known", left)
			}
			if left := forget(none); left != 1 {
				t.Errorf("%d peers are left: a's session said until now that it is there", left)
			}
			time.Sleep(forgetAfter + time.Second)
			if left := forget(none); left != 0 {
				t.Errorf("%d peers are left", left)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if now := bubbleGoroutines(); now > before {
				t.Errorf("%d goroutines, and %d before", now, before)
			}
		}
	})
}

// bubbleGoroutines counts the goroutines of the test's own synctest bubble.
// runtime.NumGoroutine also counts a finalizer that happens to run.
func bubbleGoroutines() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte(", synctest bubble "))
}
