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

// record writes the actions of a request to the audit log: who did what, on what, from where, and the outcome. A
// request that another node has forwarded is in that node's log. If that node has not proven that it is a node, the
// request is in this log too.
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
// transport may wait for deny.
func (a *Access) deny(ctx context.Context, what string, err error) {
	e := proto.AsError(err)
	if !e.Is(proto.ErrUnauthenticated) && !e.Is(proto.ErrPermissionDenied) {
		return // the request is wrong for every caller
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

// Drain waits, at most for the given time, until all lines are in the audit log. It returns how many lines are not. It
// is called when no caller sends requests any more.
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

// shortMethod is the name of a gRPC method in a line. The name may be any text of an unknown caller.
func shortMethod(method string) string {
	return clipTo(method[strings.LastIndexByte(method, '/')+1:], shownMax)
}

// pathShownMax is how many bytes of a path a line has: as many as most keys need.
const pathShownMax = 200

// pathOf is the path of an HTTP request in a line. It leaves out the query, because callers put secrets there.
func pathOf(r *http.Request) string { return clipTo(r.URL.EscapedPath(), pathShownMax) }

// denialsMax is how many denials a second are logged.
const denialsMax = 10

// limiter allows at most max events a second.
type limiter struct {
	now func() time.Time
	max int

	mu     sync.Mutex // guards what follows
	second int64
	passed int
	unsaid int
}

// due reports whether one more event is allowed. unsaid is how many were not since the last that was.
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
