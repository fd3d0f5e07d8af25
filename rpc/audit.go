package rpc

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/ebbdb/ebb/proto"
)

// record writes what a request did to the audit log: who did what, on what, from where, and what came of it. What
// another node has passed on stands in that node's log; if it has not proven that it is a node, here too.
func (a *Access) record(ctx context.Context, records []auditRecord, resp any, err error) {
	if a.auditWriter == nil || callerOf(ctx).node {
		return
	}
	for i := range records {
		one := &records[i]
		outcome := one.outcome(resp, err)
		if one.data && !a.auditor.due() {
			a.auditor.merge(callerOf(ctx), fromOf(ctx), one, outcome)
			continue
		}
		a.auditWriter.await(a.auditWriter.put(a.line(ctx, one.action, one.subject(), outcome)))
	}
}

func (a *Access) line(ctx context.Context, what, on, outcome string) []any {
	c := callerOf(ctx)
	return auditArgs(c.name(), c.knownBy(), fromOf(ctx), what, on, outcome, a.cfg.Node)
}

// auditArgs are the fields of a line.
func auditArgs(who, knownBy, from, what, on, outcome, node string) []any {
	return []any{
		"who", who, "from", from, "act", what, "on", on, "outcome", outcome, "node", node, "known_by", knownBy,
	}
}

// deny counts a refused action and logs it, unless there are too many. It does not wait for the log, since the
// transport may wait for it.
func (a *Access) deny(ctx context.Context, what string, err error) {
	e := proto.AsError(err)
	if !e.Is(proto.ErrUnauthenticated) && !e.Is(proto.ErrPermissionDenied) {
		return // the request is wrong, whoever asks
	}
	a.denied.WithLabelValues(codeText(e.Code)).Inc()
	unsaid, due := a.limit.due()
	if a.auditWriter == nil || !due {
		return
	}
	outcome := "denied: " + e.Error()
	if unsaid > 0 {
		outcome += fmt.Sprintf("; %d others are not written down", unsaid)
	}
	a.auditWriter.put(a.line(ctx, what, callerOf(ctx).path, outcome))
}

// Drain waits, for so long at most, until what is to be in the audit log is there, and returns how many lines are not.
// It is called when no caller asks for anything any more.
func (a *Access) Drain(most time.Duration) (left int) {
	if a.auditWriter == nil {
		return 0
	}
	a.auditor.flush()
	return a.auditWriter.drain(most)
}

// fromOf is the address of the caller.
func fromOf(ctx context.Context) string {
	if c := callerOf(ctx); c.from != "" {
		return c.from
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// shortMethod is how a line names a method of gRPC, which may be any text of a stranger's.
func shortMethod(method string) string {
	return clipTo(method[strings.LastIndexByte(method, '/')+1:], shownMax)
}

// pathShownMax is how much a line has of a path: as much as most keys need.
const pathShownMax = 200

// pathOf is what a line says of where a request over HTTP went. Its query stays out: callers put secrets there.
func pathOf(r *http.Request) string { return clipTo(r.URL.EscapedPath(), pathShownMax) }

// denialsMax is how many denials a second are written down.
const denialsMax = 10

// limiter lets so many pass in a second.
type limiter struct {
	now func() time.Time
	max int

	mu     sync.Mutex // guards what follows
	second int64
	passed int
	unsaid int
}

// due reports whether one more passes, and how many have not since the last that did.
func (l *limiter) due() (unsaid int, due bool) {
	second := l.now().Unix()
	l.mu.Lock()
	defer l.mu.Unlock()
	if second != l.second {
		l.second, l.passed = second, 0
	}
	if l.passed >= l.max {
		l.unsaid++
		return 0, false
	}
	l.passed++
	unsaid, l.unsaid = l.unsaid, 0
	return unsaid, true
}
