package node

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// repeatQuiet is how long a kind of message stays silent after it was logged: twice as long each time that it goes on, up to repeatQuietMax, until it has
// not come for repeatOver. Raft tries a node that is away every 20 seconds at least.
const (
	repeatQuiet    = 10 * time.Second
	repeatQuietMax = 5 * time.Minute
	repeatOver     = time.Minute
)

// quiet passes on what Raft says, much reduced: 64 groups a node tell every
// election and every failed heartbeat, each in several lines. What Raft calls
// information is debugging to an operator, and an error is said once in ten
// seconds for all groups, and less and less often while it lasts, with the number of times it was not.
type quiet struct {
	out   *slog.Logger
	shown *repeats // shared by all groups of the node
	args  []any
}

// repeats remembers when each kind of message was last shown.
type repeats struct {
	mu   sync.Mutex // guards what follows
	last map[string]repeat
}

type repeat struct {
	at      time.Time     // when it was shown
	heard   time.Time     // when it came last
	quiet   time.Duration // after at
	skipped int
}

func newRepeats() *repeats { return &repeats{last: make(map[string]repeat)} }

// due reports whether to show the message now, and how many like it were skipped.
func (r *repeats) due(message string, now time.Time) (skipped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.last[message]
	if known && now.Sub(last.at) < last.quiet && now.Sub(last.heard) < repeatOver {
		last.skipped, last.heard = last.skipped+1, now
		r.last[message] = last
		return 0, false
	}
	quiet := repeatQuiet
	if known && now.Sub(last.heard) < repeatOver {
		quiet = min(2*last.quiet, repeatQuietMax)
	}
	r.last[message] = repeat{at: now, heard: now, quiet: quiet}
	return last.skipped, true
}

var _ hclog.Logger = (*quiet)(nil)

// newQuiet returns Raft's logger of one group.
func newQuiet(out *slog.Logger, shown *repeats, group uint32) hclog.Logger {
	return &quiet{out: out.With("group", group), shown: shown}
}

// Log implements hclog.Logger.
func (q *quiet) Log(level hclog.Level, message string, args ...any) {
	if level < hclog.Error || unborn(message, args) {
		q.debug(message, args)
		return
	}
	skipped, ok := q.shown.due(message, time.Now())
	if !ok {
		q.debug(message, args)
		return
	}
	args = append(args[:len(args):len(args)], q.args...)
	if skipped > 0 {
		args = append(args, "times_unsaid", skipped)
	}
	q.out.Warn("raft: "+message, args...)
}

// unborn reports whether a vote was asked of a node that does not have its
// replica yet, as in every first start: a node that stays without is told of by
// its shards' lag.
func unborn(message string, args []any) bool {
	if message != "failed to make requestVote RPC" {
		return false
	}
	for i := 0; i+1 < len(args); i += 2 {
		if args[i] == "error" {
			return strings.Contains(fmt.Sprint(args[i+1]), "has no replica on node")
		}
	}
	return false
}

func (q *quiet) debug(message string, args []any) {
	if q.IsDebug() {
		q.out.Debug("raft: "+message, append(args[:len(args):len(args)], q.args...)...)
	}
}

// Trace implements hclog.Logger.
func (q *quiet) Trace(string, ...any) {}

// Debug implements hclog.Logger.
func (q *quiet) Debug(message string, args ...any) { q.debug(message, args) }

// Info implements hclog.Logger.
func (q *quiet) Info(message string, args ...any) { q.debug(message, args) }

// Warn implements hclog.Logger.
func (q *quiet) Warn(message string, args ...any) { q.debug(message, args) }

// Error implements hclog.Logger.
func (q *quiet) Error(message string, args ...any) { q.Log(hclog.Error, message, args...) }

// IsTrace implements hclog.Logger.
func (q *quiet) IsTrace() bool { return false }

// IsDebug implements hclog.Logger.
func (q *quiet) IsDebug() bool { return q.out.Enabled(context.Background(), slog.LevelDebug) }

// IsInfo implements hclog.Logger.
func (q *quiet) IsInfo() bool { return q.IsDebug() }

// IsWarn implements hclog.Logger.
func (q *quiet) IsWarn() bool { return q.IsDebug() }

// IsError implements hclog.Logger.
func (q *quiet) IsError() bool { return true }

// ImpliedArgs implements hclog.Logger.
func (q *quiet) ImpliedArgs() []any { return q.args }

// With implements hclog.Logger.
func (q *quiet) With(args ...any) hclog.Logger {
	return &quiet{out: q.out, shown: q.shown, args: append(q.args[:len(q.args):len(q.args)], args...)}
}

// Name implements hclog.Logger.
func (q *quiet) Name() string { return "raft" }

// Named implements hclog.Logger.
func (q *quiet) Named(string) hclog.Logger { return q }

// ResetNamed implements hclog.Logger.
func (q *quiet) ResetNamed(string) hclog.Logger { return q }

// SetLevel implements hclog.Logger; the slog handler decides.
func (q *quiet) SetLevel(hclog.Level) {}

// GetLevel implements hclog.Logger.
func (q *quiet) GetLevel() hclog.Level {
	if q.IsDebug() {
		return hclog.Debug
	}
	return hclog.Error
}

// StandardLogger implements hclog.Logger.
func (q *quiet) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(q.out.Handler(), slog.LevelDebug)
}

// StandardWriter implements hclog.Logger.
func (q *quiet) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
