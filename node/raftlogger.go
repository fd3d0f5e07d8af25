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

// repeatInterval is how long a kind of message is suppressed after it was logged. It doubles each time, up to
// repeatIntervalMax, until the message has not come for repeatForget. Raft tries an absent node at least every 20 s.
const (
	repeatInterval    = 10 * time.Second
	repeatIntervalMax = 5 * time.Minute
	repeatForget      = time.Minute
)

// raftLogger is Raft's logger, with far fewer messages: 64 groups a node log every election and every failed heartbeat,
// each in several lines. Information becomes debug output. An error is logged once in ten seconds for all groups, and
// less often while it lasts, with the number of suppressed messages.
type raftLogger struct {
	out   *slog.Logger
	shown *repeats // shared by all groups of the node
	args  []any
}

// repeats remembers when each kind of message was last logged.
type repeats struct {
	mu   sync.Mutex // guards what follows
	last map[string]repeat
}

type repeat struct {
	at       time.Time     // when it was logged
	last     time.Time     // when it occurred last
	interval time.Duration // after at
	skipped  int
}

func newRepeats() *repeats { return &repeats{last: make(map[string]repeat)} }

// due reports whether to show the message now, and how many like it were skipped.
func (r *repeats) due(message string, now time.Time) (skipped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.last[message]
	if known && now.Sub(last.at) < last.interval && now.Sub(last.last) < repeatForget {
		last.skipped, last.last = last.skipped+1, now
		r.last[message] = last
		return 0, false
	}
	interval := repeatInterval
	if known && now.Sub(last.last) < repeatForget {
		interval = min(2*last.interval, repeatIntervalMax)
	}
	r.last[message] = repeat{at: now, last: now, interval: interval}
	return last.skipped, true
}

var _ hclog.Logger = (*raftLogger)(nil)

// newRaftLogger returns Raft's logger of one group.
func newRaftLogger(out *slog.Logger, shown *repeats, group uint32) hclog.Logger {
	return &raftLogger{out: out.With("group", group), shown: shown}
}

// Log implements hclog.Logger.
func (l *raftLogger) Log(level hclog.Level, message string, args ...any) {
	if level < hclog.Error || unborn(message, args) {
		l.debug(message, args)
		return
	}
	skipped, ok := l.shown.due(message, time.Now())
	if !ok {
		l.debug(message, args)
		return
	}
	args = append(args[:len(args):len(args)], l.args...)
	if skipped > 0 {
		args = append(args, "times_unsaid", skipped)
	}
	l.out.Warn("raft: "+message, args...)
}

// unborn reports whether a vote request failed because the node does not have its replica yet, as in every first start.
// If the node stays without the replica, the lag of its shards shows that.
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

func (l *raftLogger) debug(message string, args []any) {
	if l.IsDebug() {
		l.out.Debug("raft: "+message, append(args[:len(args):len(args)], l.args...)...)
	}
}

// Trace implements hclog.Logger.
func (l *raftLogger) Trace(string, ...any) {}

// Debug implements hclog.Logger.
func (l *raftLogger) Debug(message string, args ...any) { l.debug(message, args) }

// Info implements hclog.Logger.
func (l *raftLogger) Info(message string, args ...any) { l.debug(message, args) }

// Warn implements hclog.Logger.
func (l *raftLogger) Warn(message string, args ...any) { l.debug(message, args) }

// Error implements hclog.Logger.
func (l *raftLogger) Error(message string, args ...any) { l.Log(hclog.Error, message, args...) }

// IsTrace implements hclog.Logger.
func (l *raftLogger) IsTrace() bool { return false }

// IsDebug implements hclog.Logger.
func (l *raftLogger) IsDebug() bool { return l.out.Enabled(context.Background(), slog.LevelDebug) }

// IsInfo implements hclog.Logger.
func (l *raftLogger) IsInfo() bool { return l.IsDebug() }

// IsWarn implements hclog.Logger.
func (l *raftLogger) IsWarn() bool { return l.IsDebug() }

// IsError implements hclog.Logger.
func (l *raftLogger) IsError() bool { return true }

// ImpliedArgs implements hclog.Logger.
func (l *raftLogger) ImpliedArgs() []any { return l.args }

// With implements hclog.Logger.
func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{out: l.out, shown: l.shown, args: append(l.args[:len(l.args):len(l.args)], args...)}
}

// Name implements hclog.Logger.
func (l *raftLogger) Name() string { return "raft" }

// Named implements hclog.Logger.
func (l *raftLogger) Named(string) hclog.Logger { return l }

// ResetNamed implements hclog.Logger.
func (l *raftLogger) ResetNamed(string) hclog.Logger { return l }

// SetLevel implements hclog.Logger; the slog handler decides.
func (l *raftLogger) SetLevel(hclog.Level) {}

// GetLevel implements hclog.Logger.
func (l *raftLogger) GetLevel() hclog.Level {
	if l.IsDebug() {
		return hclog.Debug
	}
	return hclog.Error
}

// StandardLogger implements hclog.Logger.
func (l *raftLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.out.Handler(), slog.LevelDebug)
}

// StandardWriter implements hclog.Logger.
func (l *raftLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
