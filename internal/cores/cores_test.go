package cores

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// Spare processors come when work waits, and go when none has waited for a while.
func TestSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := func(when string, n int) {
			t.Helper()
			synctest.Wait()
			if got := runtime.GOMAXPROCS(0); got != n {
				t.Errorf("%s: %d processors, want %d", when, got, n)
			}
		}
		var s Spare
		want("at first", Count())
		s.Wait()
		want("while work waits", Count()+spare)
		time.Sleep(spareFor - time.Second)
		s.Wait()
		time.Sleep(spareFor - time.Second)
		want("less than spareFor after the last call", Count()+spare)
		time.Sleep(time.Second)
		want("spareFor after it", Count())
		s.Wait()
		want("while work waits again", Count()+spare)
		time.Sleep(spareFor)
		want("at the end", Count())
	})
}
