package rpc

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// record writes a line of the audit log: who did what, on what, from where, and what came of it. What another node has
// passed on stands in that node's log.
func (a *Access) record(ctx context.Context, act, on, outcome string) {
	if a.cfg.Audit == nil || len(metadata.ValueFromIncomingContext(ctx, peerKey)) > 0 {
		return
	}
	a.write(callerOf(ctx).name(), fromOf(ctx), act, on, outcome)
}

func (a *Access) write(who, from, act, on, outcome string) {
	a.cfg.Audit.Info("audit", "who", who, "from", from, "act", act, "on", on, "outcome", outcome, "node", a.cfg.Node)
}

// deny counts a refusal and writes it down, unless there are too many. It does not wait for the log, since the transport may.
func (a *Access) deny(ctx context.Context, method string, err error) {
	e := proto.AsError(err)
	if !e.Is(proto.ErrUnauthenticated) && !e.Is(proto.ErrPermissionDenied) {
		return // the request is wrong, whoever asks
	}
	a.denied.WithLabelValues(codeText(e.Code)).Inc()
	unsaid, due := a.limit.due()
	if a.cfg.Audit == nil || !due {
		return
	}
	outcome := "denied: " + e.Error()
	if unsaid > 0 {
		outcome += fmt.Sprintf("; %d others are not written down", unsaid)
	}
	who, from := callerOf(ctx).name(), fromOf(ctx)
	go a.write(who, from, shortMethod(method), "", outcome)
}

// fromOf is the address of who asks.
func fromOf(ctx context.Context) string {
	if c := callerOf(ctx); c.from != "" {
		return c.from
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

func shortMethod(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

// denialsMax is how many denials a second are written down.
const denialsMax = 10

// limiter lets denialsMax pass in a second.
type limiter struct {
	now func() time.Time

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
	if l.passed >= denialsMax {
		l.unsaid++
		return 0, false
	}
	l.passed++
	unsaid, l.unsaid = l.unsaid, 0
	return unsaid, true
}

// outcomeOf is the word for what came of an act.
func outcomeOf(resp any, err error) string {
	if err != nil {
		return asError(err).Error()
	}
	if _, ok := resp.(begun); ok {
		return "begun"
	}
	if refused, ok := resp.(interface{ GetRefused() []*ebbv1.Refusal }); ok && len(refused.GetRefused()) > 0 {
		return fmt.Sprintf("%d refused", len(refused.GetRefused()))
	}
	if r, ok := resp.(*ebbv1.ApplyResponse); ok {
		for _, one := range r.GetResults() {
			if e := one.GetError(); e != nil {
				return proto.FromWire(e).Error()
			}
		}
	}
	return "done"
}

func deleteAct(req any) (act, on string) {
	r, ok := req.(*ebbv1.DeleteRequest)
	if !ok || len(r.GetKeys()) == 0 {
		return "", ""
	}
	on = "key " + strconv.Quote(string(r.GetKeys()[0])) + " of namespace " + orName(r.GetNamespace(), proto.DefaultNamespace)
	if n := len(r.GetKeys()); n > 1 {
		on = fmt.Sprintf("%d keys of namespace %s, the first %q", n, orName(r.GetNamespace(), proto.DefaultNamespace), r.GetKeys()[0])
	}
	return "delete", on
}

func setNamespaceAct(req any) (act, on string) {
	r, _ := req.(*ebbv1.SetNamespaceRequest)
	act = "set namespace"
	if r.GetCreate() {
		act = "create namespace"
	}
	return act, r.GetNamespace().GetName()
}

func changeClusterAct(req any) (act, on string) {
	r, _ := req.(*ebbv1.ChangeClusterRequest)
	if r.GetChange() == nil || r.GetDryRun() {
		return "", "" // it only asks
	}
	return "change cluster", r.String()
}

func createTokenAct(req any) (act, on string) {
	r, _ := req.(*ebbv1.CreateTokenRequest)
	var roles []string
	for _, g := range r.GetGrants() {
		roles = append(roles, strings.TrimSuffix(proto.RoleName(g.GetRole())+"="+g.GetNamespaces(), "="))
	}
	return "create token", strconv.Quote(r.GetName()) + " with " + strings.Join(roles, ",")
}

func revokeTokenAct(req any) (act, on string) {
	r, _ := req.(*ebbv1.RevokeTokenRequest)
	return "revoke token", strconv.Quote(r.GetName())
}

func snapshotAct(req any) (act, on string) {
	r, _ := req.(*ebbv1.SnapshotRequest)
	return "read snapshot", fmt.Sprintf("shard %d", r.GetShard())
}

func restoreNamespacesAct(req any) (act, on string) {
	r, _ := req.(*ebbv1.RestoreNamespacesRequest)
	var names []string
	for _, ns := range r.GetNamespaces() {
		names = append(names, ns.GetName())
	}
	return "restore namespaces", strings.Join(names, ",")
}

// applyAct finds what is administration among commands: restores, of which the pieces are left out, and deletions.
func applyAct(req any) (act, on string) {
	r, ok := req.(*ebbv1.ApplyRequest)
	if !ok || r.GetForwarded() {
		return "", "" // what a node forwards is in its own log
	}
	for _, c := range r.GetCommands() {
		switch namespace, body := proto.CommandBody(c.GetCommand()); body {
		case proto.FieldCommandRestore:
			if step := proto.RestoreStep(c.GetCommand()); step != "" {
				return "restore: " + step, fmt.Sprintf("shard %d", c.GetShard())
			}
		case proto.FieldCommandDelete:
			return "delete", fmt.Sprintf("keys of namespace %s in shard %d", orName(string(namespace), proto.DefaultNamespace), c.GetShard())
		case proto.FieldCommandDropSource:
			return "drop source", fmt.Sprintf("in shard %d", c.GetShard())
		}
	}
	return "", ""
}
