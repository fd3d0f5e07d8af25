// Package cores says how many cores the process computes on, and gives Go's scheduler more processors than that while
// much waits to be computed.
package cores

import (
	"runtime"
	"sync"
	"time"
)

const (
	// spare is how many processors Go's scheduler has in addition to one for each core, while work waits. With 2 cores
	// and 64 large requests at a time, 99% of health probes took 14 ms with 14 of them and 85 ms without; the longest
	// of a run was above 100 ms in one run of three with 6 of them: docs/adr/0060.
	spare = 14
	// spareFor is for how long they stay after the last call of Wait.
	spareFor = 10 * time.Second
)

var count = runtime.GOMAXPROCS(0)

// Count is on how many cores the process computes: GOMAXPROCS as it was when the process started.
func Count() int { return count }

// Spare are the processors of Go's scheduler in addition to one for each core. Without them a goroutine with next to
// nothing to do, such as a health probe, waits behind all that compute, 10 ms for each. With them those that compute
// share the cores by the kernel's time slices, and the kernel runs first what has just been woken. They cost a few
// percent of throughput: so they are there only while work waits.
type Spare struct {
	mu    sync.Mutex
	timer *time.Timer // nil: there are none
}

// Wait notes that work waits for a core.
func (s *Spare) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Reset(spareFor)
		return
	}
	runtime.GOMAXPROCS(count + spare)
	s.timer = time.AfterFunc(spareFor, s.end)
}

func (s *Spare) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = nil
	runtime.SetDefaultGOMAXPROCS() // which follows the container's limit of CPU again
}
