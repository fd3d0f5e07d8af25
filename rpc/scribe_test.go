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

// A disk that hangs holds up the first who writes for a second, and the others for nothing. Lines that find no room are counted, and the log says so
// as soon as it can be written again; those that had room are all there.
func TestAHungDiskHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &hungDisk{gate: make(chan struct{})}
		registry := prometheus.NewRegistry()
		s := newScribe(slog.New(slog.NewJSONHandler(disk, nil)), registry)
		start := time.Now()
		s.await(s.put([]any{"act", "first"}))
		if took := time.Since(start); took != lineWait {
			t.Errorf("the first waits for %v, want %v", took, lineWait)
		}
		start = time.Now()
		const more = linesMax + 7 // and one is being written
		for range more {
			s.await(s.put([]any{"act", "more"}))
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the others wait for %v", took)
		}
		if lost := testutil.ToFloat64(s.lost); lost != more-linesMax {
			t.Errorf("%v lines are counted as lost, want %d", lost, more-linesMax)
		}
		close(disk.gate)
		synctest.Wait()
		said := disk.String()
		if n := strings.Count(said, `"msg":"audit"`); n != 1+linesMax || !strings.Contains(said, `lacks lines: its disk was too slow for them","lines":7`) {
			t.Errorf("%d lines are written, want %d; the end is %s", n, 1+linesMax, said[len(said)-200:])
		}
		s.await(s.put([]any{"act", "last"}))
		if !strings.HasSuffix(disk.String(), `"act":"last"}`+"\n") {
			t.Error("a line is not there when its writer goes on, though the disk does not hang any more")
		}
	})
}
