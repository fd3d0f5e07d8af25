package rpc

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// hungDisk takes nothing until it is let go.
type hungDisk struct {
	lockedBuffer
	gate chan struct{}
}

func (h *hungDisk) Write(p []byte) (int, error) {
	<-h.gate
	return h.lockedBuffer.Write(p)
}

// A disk that hangs holds up the first writer for a second, and the others not at all. Lines that find no room are
// counted, and the log says so as soon as it can be written again. Those that had room are all there.
func TestAHungDiskHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &hungDisk{gate: make(chan struct{})}
		registry := prometheus.NewRegistry()
		w := newAuditWriter(slog.New(slog.NewJSONHandler(disk, nil)), registry)
		start := time.Now()
		w.await(w.put([]any{"act", "first"}))
		if took := time.Since(start); took != lineWait {
			t.Errorf("the first waits for %v, want %v", took, lineWait)
		}
		start = time.Now()
		const more = linesMax + 7 // and one is being written
		for range more {
			w.await(w.put([]any{"act", "more"}))
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the others wait for %v", took)
		}
		if lost := testutil.ToFloat64(w.lost); lost != more-linesMax {
			t.Errorf("%v lines are counted as lost, want %d", lost, more-linesMax)
		}
		close(disk.gate)
		synctest.Wait()
		said := disk.String()
		if n := strings.Count(said, `"msg":"audit"`); n != 1+linesMax || !strings.Contains(said, `lacks lines: its disk was too slow for them","lines":7`) {
			t.Errorf("%d lines are written, want %d; the end is %s", n, 1+linesMax, said[len(said)-200:])
		}
		w.await(w.put([]any{"act", "last"}))
		if !strings.HasSuffix(disk.String(), `"act":"last"}`+"\n") {
			t.Error("a line is not there when its writer goes on, though the disk does not hang any more")
		}
	})
}

// A node that ends waits for the lines that are waiting. If the disk hangs, it waits no longer than it said.
func TestLinesThatWaitAreWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &hungDisk{gate: make(chan struct{})}
		w := newAuditWriter(slog.New(slog.NewJSONHandler(disk, nil)), nil)
		if left := w.drain(time.Second); left != 0 {
			t.Errorf("%d lines are left of none", left)
		}
		for range 10 {
			w.put([]any{"act", "denied"})
		}
		start := time.Now()
		if left, took := w.drain(2*time.Second), time.Since(start); left != 10 || took != 2*time.Second {
			t.Errorf("a disk that hangs is waited for %v, and %d lines are left, want 10", took, left)
		}
		time.AfterFunc(time.Second, func() { close(disk.gate) })
		if left, took := w.drain(2*time.Second), time.Since(start); left != 0 || took != 3*time.Second {
			t.Errorf("after %v %d lines are left, want 0 after 3s", took, left)
		}
		if n := strings.Count(disk.String(), `"act":"denied"`); n != 10 {
			t.Errorf("%d lines are written, want 10", n)
		}
	})
}
