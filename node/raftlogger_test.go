package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// An operator sees errors of Raft, once in a while, but not that a peer has not made its replica yet.
func TestRaftLoggerShowsFewErrors(t *testing.T) {
	const vote = "failed to make requestVote RPC"
	early := proto.ErrUnreachable.Errorf("group %d has no replica on node %s", 3, "ebb-1")
	for name, c := range map[string]struct {
		message string
		args    []any
		shown   bool
	}{
		"a peer that is starting":     {vote, []any{"target", "ebb-1", "error", early, "term", 2}, false},
		"a peer that is down":         {vote, []any{"target", "ebb-1", "error", proto.ErrUnreachable, "term", 2}, true},
		"a vote without a reason":     {vote, nil, true},
		"another failure of the same": {"failed to heartbeat to", []any{"peer", "ebb-1", "error", early}, true},
	} {
		var out bytes.Buffer
		log := newRaftLogger(slog.New(slog.NewTextHandler(&out, nil)), newRepeats(), 3)
		log.Error(c.message, c.args...)
		log.Error(c.message, c.args...)
		if got := strings.Count(out.String(), c.message); got != map[bool]int{true: 1}[c.shown] {
			t.Errorf("%s: shown %d times: %s", name, got, out.String())
		}
		log.Info(c.message)
		log.Warn(c.message)
		if strings.Count(out.String(), "\n") > 1 {
			t.Errorf("%s: information is shown: %s", name, out.String())
		}
	}
}

// A message that repeats for an hour is logged seldom. One that comes again after a pause is logged at once, and soon
// again.
func TestRepeatsGrowRare(t *testing.T) {
	r, now := newRepeats(), time.Unix(1_700_000_000, 0)
	shown, unsaid := 0, 0
	for end := now.Add(time.Hour); now.Before(end); now = now.Add(5 * time.Second) {
		if skipped, ok := r.due("failed", now); ok {
			shown++
			unsaid += skipped
		}
	}
	if shown < 8 || shown > 18 || unsaid < 500 {
		t.Errorf("it was said %d times in an hour, and %d times not", shown, unsaid)
	}
	for _, c := range []struct {
		after time.Duration
		said  bool
	}{{20 * time.Minute, true}, {5 * time.Second, false}, {5 * time.Second, true}} {
		now = now.Add(c.after)
		if _, ok := r.due("failed", now); ok != c.said {
			t.Errorf("%v later it is said: %v", c.after, ok)
		}
	}
}
