package mapped

import (
	"runtime"
	"testing"
	"time"
)

// What is mapped and not handed out is not in use: the rest of a chunk, and pages that were given back.
func TestUsed(t *testing.T) {
	for until := time.Now().Add(10 * time.Second); Used() != 0; runtime.GC() { // it counts what earlier tests have left to the collector
		if time.Now().After(until) {
			t.Fatalf("%d bytes are in use by nobody", Used())
		}
	}
	before := Used()
	m := New()
	page := m.Page()
	if got := Used() - before; got != int64(len(page)) {
		t.Errorf("one page is %d bytes in use", got)
	}
	var runs [][]uint64
	for range 1000 {
		runs = append(runs, m.Run(3), m.Run(20))
	}
	if got, want := Used()-before, int64(len(page)*(1+23*1000)); got != want {
		t.Errorf("%d bytes in use, of %d", got, want)
	}
	release := m.Hold()
	for _, r := range runs {
		m.FreeRun(r)
	}
	if got := Used() - before; got <= int64(len(page)) {
		t.Errorf("%d bytes in use while somebody may still see what was given back", got)
	}
	release()
	if got := Used() - before; got != int64(len(page)) {
		t.Errorf("%d bytes in use when all but a page is given back", got)
	}
	m.Free(page)
	if got := Used() - before; got != 0 {
		t.Errorf("%d bytes in use when all is given back", got)
	}
}
