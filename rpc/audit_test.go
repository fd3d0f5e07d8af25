package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Administrative actions are written down with who did what, and denials, but not more than some a second.
func TestAudit(t *testing.T) {
	var lines lockedBuffer
	box := boxOf()
	now := time.Unix(1_700_000_000, 0)
	s := fixture().services()
	s.Access = NewAccess(AccessConfig{
		Tokens: box.tokens, Node: "ebb-0", Now: func() time.Time { return now },
		Audit: slog.New(slog.NewJSONHandler(&lines, nil)),
	})
	ebb := ebbv1grpc.NewEbbClient(serve(t, s))
	ctx := as(t, s.Access, "operator")
	_, err := ebb.ChangeCluster(ctx, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Drain{Drain: "ebb-1"}})
	_, err2 := ebb.Delete(ctx, &ebbv1.DeleteRequest{Namespace: "clicks", Keys: [][]byte{[]byte("a"), []byte("b")}})
	_, err3 := ebb.ChangeCluster(ctx, &ebbv1.ChangeClusterRequest{})
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"who":"operator","from":"bufconn","act":"change cluster","on":"drain:\"ebb-1\"","outcome":"done","node":"ebb-0","known_by":"token"}`,
		`"act":"delete","on":"2 keys of namespace clicks: \"a\", \"b\"","outcome":"done"`,
	} {
		if got := strings.ReplaceAll(lines.String(), ":  ", ": "); !strings.Contains(strings.ReplaceAll(got, "drain: ", "drain:"), want) {
			t.Errorf("the audit log has no %s:\n%s", want, got)
		}
	}
	if n := strings.Count(lines.String(), "change cluster"); n != 1 {
		t.Errorf("%d lines of changes, and one only asked", n)
	}
	for range 3 * denialsMax {
		_, _ = ebb.ChangeCluster(as(t, s.Access, "reader"), &ebbv1.ChangeClusterRequest{})
	}
	lines.await(t, denialsMax)
	now = now.Add(time.Second)
	_, _ = ebb.ChangeCluster(as(t, s.Access, "nobody"), &ebbv1.ChangeClusterRequest{})
	lines.await(t, denialsMax+1)
	if !strings.Contains(lines.String(), "; 20 others are not written down") {
		t.Errorf("nothing is said of those that were left out:\n%s", lines.String())
	}
}

// If a caller only says that a node has passed its request on, the request is written down, and all that it does, each
// with its outcome. What a proven node has passed on stands in that node's log.
func TestAuditLeavesNothingOut(t *testing.T) {
	key := [][]byte{[]byte("k")}
	del := func(ns string) *ebbv1.Command {
		return &ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: key}}}
	}
	expire := func(e *ebbv1.ExpireKeys) *ebbv1.Command {
		e.Keys = key
		return &ebbv1.Command{Namespace: "clicks", Body: &ebbv1.Command_Expire{Expire: e}}
	}
	drop := &ebbv1.Command{Body: &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: "import"}}}
	apply := func(forwarded bool, commands ...*ebbv1.Command) *ebbv1.ApplyRequest {
		req := &ebbv1.ApplyRequest{Forwarded: forwarded}
		for i, c := range commands {
			req.Commands = append(req.Commands, &ebbv1.ShardCommand{Shard: uint32(i + 1), Command: marshal(t, c)})
		}
		return req
	}
	now := time.Unix(1_700_000_000, 0)
	box := boxOf()
	for _, c := range []struct {
		name string
		ctx  func(ctx context.Context, a *Access) context.Context
		req  any
		want []string // of each line
	}{
		{"an empty claim to be a node", show(peerKey, ""), &ebbv1.DeleteRequest{Namespace: "clicks", Keys: key}, []string{`"act":"delete","on":"key \"k\" of namespace clicks","outcome":"done"`}},
		{"a claim that nobody can check", show(peerKey, "ebb-1", originKey, "operator"), &ebbv1.DeleteRequest{Namespace: "clicks", Keys: key}, []string{`"who":"operator"`}},
		{"forwarded, says a stranger", show(), apply(true, del("clicks")), []string{`"act":"delete","on":"key \"k\" of namespace clicks in shard 1","outcome":"done"`}},
		{"all of a batch", show(), apply(false, del("clicks"), drop, del("clicks"), del("other"), del("clicks")), []string{
			`"act":"delete","on":"3 keys of namespace clicks in shards 1, 3, 5: \"k\", \"k\", \"k\"","outcome":"done"`,
			`"act":"drop source","on":"source \"import\" of namespace default in shard 2","outcome":"done"`,
			`"act":"delete","on":"key \"k\" of namespace other in shard 4","outcome":"done"`,
		}},
		{"an expiry that is over", show(), &ebbv1.ExpireRequest{Namespace: "clicks", Keys: key, AtUs: now.UnixMicro() - 1}, []string{`"act":"expire","on":"key \"k\" of namespace clicks"`}},
		{"an expiry in a moment", show(), &ebbv1.ExpireRequest{Namespace: "clicks", Keys: key, TtlUs: 1}, []string{`"act":"expire"`}},
		{"an expiry in an hour", show(), &ebbv1.ExpireRequest{Namespace: "clicks", Keys: key, TtlUs: time.Hour.Microseconds()}, []string{`"act":"expire","on":"key \"k\" of namespace clicks"`}},
		{"an expiry tomorrow", show(), &ebbv1.ExpireRequest{Namespace: "clicks", Keys: key, AtUs: now.Add(24 * time.Hour).UnixMicro()}, []string{`"act":"expire"`}},
		{"an end that is taken back", show(), &ebbv1.ExpireRequest{Namespace: "clicks", Keys: key, Never: true}, nil},
		{"a command of an expiry that is over", show(), apply(false, expire(&ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_AtUs{AtUs: 1}})), []string{`"act":"expire","on":"key \"k\" of namespace clicks in shard 1"`}},
		{"a command of an expiry in an hour", show(), apply(false, expire(&ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: time.Hour.Microseconds()}})), []string{`"act":"expire"`}},
		{"a command that takes an end back", show(), apply(false, expire(&ebbv1.ExpireKeys{})), nil},
	} {
		var lines lockedBuffer
		s := fixture().services()
		s.Access = NewAccess(AccessConfig{Tokens: box.tokens, Node: "ebb-0", Now: func() time.Time { return now }, Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
		conn := serve(t, s)
		ctx := c.ctx(as(t, s.Access, "operator"), s.Access)
		var err error
		switch req := c.req.(type) {
		case *ebbv1.DeleteRequest:
			_, err = ebbv1grpc.NewEbbClient(conn).Delete(ctx, req)
		case *ebbv1.ExpireRequest:
			_, err = ebbv1grpc.NewEbbClient(conn).Expire(ctx, req)
		case *ebbv1.ApplyRequest:
			_, err = ebbv1grpc.NewShardsClient(conn).Apply(ctx, req)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		said := lines.String()
		if n := strings.Count(said, "\n"); n != len(c.want) {
			t.Errorf("%s: %d lines, want %d:\n%s", c.name, n, len(c.want), said)
		}
		for _, want := range c.want {
			if !strings.Contains(said, want) {
				t.Errorf("%s: no line has %s:\n%s", c.name, want, said)
			}
		}
	}
	var lines lockedBuffer
	s := fixture().services()
	s.Access = NewAccess(AccessConfig{Tokens: box.tokens, Root: []string{rootSecret}, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
	if _, err := ebbv1grpc.NewEbbClient(serve(t, s)).Delete(as(t, s.Access, "node"), &ebbv1.DeleteRequest{Namespace: "clicks", Keys: key}); err != nil || lines.String() != "" {
		t.Errorf("what a node has passed on: %v, and %s", err, lines.String())
	}
}

// A restore and an expiry are seen by what they are, whatever the generated code makes of the rest of their commands.
func TestActsWithoutTheRest(t *testing.T) {
	source := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{0xff}) // no UTF-8
	for what, c := range map[string]*ebbv1.Command{
		"restore: begin": {Body: &ebbv1.Command_Restore{Restore: &ebbv1.RestoreShard{Name: "b", Step: &ebbv1.RestoreShard_Begin{Begin: &ebbv1.RestoreBegin{}}}}},
		"expire":         {Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{[]byte("k")}, Until: &ebbv1.ExpireKeys_AtUs{AtUs: 1}}}},
	} {
		raw := protowire.AppendBytes(protowire.AppendTag(nil, proto.FieldCommandSource, protowire.BytesType), source)
		raw = append(raw, marshal(t, c)...)
		if _, got := auditCommand(raw); len(got) != 1 || got[0].action != what {
			t.Errorf("%s is seen as %+v", what, got)
		}
	}
}

// show adds to what a call shows.
func show(md ...string) func(context.Context, *Access) context.Context {
	return func(ctx context.Context, _ *Access) context.Context {
		return metadata.AppendToOutgoingContext(ctx, md...)
	}
}

// The outcome of commands names the first that was refused, and how many were.
func TestOutcomesOfBatches(t *testing.T) {
	refused := &ebbv1.CommandResult{Error: proto.ErrPermissionDenied.Errorf("no").Wire()}
	resp := &ebbv1.ApplyResponse{Results: []*ebbv1.CommandResult{{}, refused, {}, refused}}
	for want, at := range map[string][]int{"done": {0, 2}, "no (EBB-2051": {1, 3}, "1 of 3 refused: no": {0, 1, 2}} {
		one := auditRecord{at: at}
		if got := one.outcome(resp, nil); !strings.HasPrefix(got, want) {
			t.Errorf("%v: %q, want %q", at, got, want)
		}
	}
}

// What came of revoking a token that there is not is no revocation.
func TestOutcomeOfRevoking(t *testing.T) {
	box := boxOf()
	for want, resp := range map[string]*ebbv1.RevokeTokenResponse{
		`"outcome":"done"`: {}, `"outcome":"there is no token of that name"`: {Absent: true},
	} {
		var lines lockedBuffer
		s := fixture().services()
		s.Cluster = revoking{fixture(), resp}
		s.Access = NewAccess(AccessConfig{Tokens: box.tokens, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
		_, err := ebbv1grpc.NewEbbClient(serve(t, s)).RevokeToken(as(t, s.Access, "operator"), &ebbv1.RevokeTokenRequest{Name: "nosuch"})
		if err != nil || !strings.Contains(lines.String(), `"act":"revoke token","on":"\"nosuch\"",`+want) {
			t.Errorf("%v: %v, and the audit log has no %s:\n%s", resp, err, want, lines.String())
		}
	}
}

// revoking answers those who revoke.
type revoking struct {
	*fake
	resp *ebbv1.RevokeTokenResponse
}

func (r revoking) RevokeToken(context.Context, *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	return r.resp, nil
}

// What an operator did stands in the audit log also when the handler panicked on the way.
func TestAPanickingActIsWrittenDown(t *testing.T) {
	var lines lockedBuffer
	s := fixture().services()
	s.Cluster = panicking{fixture()}
	s.Access = NewAccess(AccessConfig{Tokens: boxOf().tokens, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
	_, err := ebbv1grpc.NewEbbClient(serve(t, s)).RevokeToken(as(t, s.Access, "operator"), &ebbv1.RevokeTokenRequest{Name: "old"})
	if !errors.Is(ebbv1grpc.FromStatus(err), proto.ErrInternal) {
		t.Errorf("the caller hears %v", err)
	}
	if said := lines.String(); strings.Count(said, `"act":`) != 1 || !strings.Contains(said, `"who":"operator"`) ||
		!strings.Contains(said, `"act":"revoke token","on":"\"old\"","outcome":"`) || !strings.Contains(said, "panicked") {
		t.Errorf("the audit log has\n%s", said)
	}
}

// panicking breaks when a token is revoked.
type panicking struct{ *fake }

func (panicking) RevokeToken(context.Context, *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	panic("a table that cannot be")
}

// A denial over HTTP names what was asked for, by method, pattern and path, cut off where it is long, and nothing of
// the query.
func TestDenialsOverHTTPAreNamed(t *testing.T) {
	box := boxOf()
	long := strings.Repeat("k", 3*pathShownMax)
	for _, c := range []struct{ method, target, token, want string }{
		{"GET", "/v1/ns/default/distribution/clicks/c?top=3&token=hush", "", `"act":"GET /v1/ns/{ns}/distribution/{key...}","on":"/v1/ns/default/distribution/clicks/c","outcome":"denied: `},
		{"GET", "/v1/ns/default/distribution/clicks%0Ac", "", `"on":"/v1/ns/default/distribution/clicks%0Ac"`},
		{"DELETE", "/v1/ns/default/key/" + long, "", `"act":"DELETE /v1/ns/{ns}/key/{key...}","on":"/v1/ns/default/key/` + long[:pathShownMax-len("/v1/ns/default/key/")] + `..."`},
		{"DELETE", "/v1/ns/default/key/k", "reader", `"act":"Delete","on":"/v1/ns/default/key/k","outcome":"denied: token reader has not`},
		{"GET", "/ns/default/incr?distribution=hush&field=f", "", `"act":"GET /incr","on":"/ns/default/incr"`},
		{strings.Repeat("M", 500), "/dbsize", "", `"act":"` + strings.Repeat("M", shownMax) + `... /dbsize","on":"/dbsize"`},
		{"GET", "/debug/pprof/", "", `"act":"GET /debug/pprof/","on":"/debug/pprof/"`},
		{"GET", "/debug/pprof/heap?seconds=hush", "", `"act":"GET /debug/pprof/","on":"/debug/pprof/heap"`},
		{"POST", "/debug/pprof/symbol", "reader", `"act":"POST /debug/pprof/symbol","on":"/debug/pprof/symbol","outcome":"denied: token reader has not the role operator`},
	} {
		var lines lockedBuffer
		s := fixture().services()
		s.Access = NewAccess(AccessConfig{Tokens: box.tokens, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
		door := NewHTTP(s)
		if strings.HasPrefix(c.target, "/debug/") {
			door = NewAdmin(s)
		}
		r := httptest.NewRequest(c.method, c.target, http.NoBody)
		if c.token != "" {
			r.Header.Set(authorizationKey, "Bearer "+secretOf(c.token))
		}
		door.ServeHTTP(httptest.NewRecorder(), r)
		lines.await(t, 1)
		if said := lines.String(); !strings.Contains(said, c.want) || strings.Contains(said, "hush") {
			t.Errorf("%.80s: the line has not %s:\n%s", c.target, c.want, said)
		}
	}
}

// What a denied stranger calls a method of gRPC is cut off, too.
func TestDeniedMethodsAreCutOff(t *testing.T) {
	if got := shortMethod("/ebb.v1.Ebb/Ask"); got != "Ask" {
		t.Errorf("Ask is called %q", got)
	}
	if got := shortMethod("/ebb.v1.Ebb/" + strings.Repeat("x", 60_000)); len(got) > shownMax+3 {
		t.Errorf("%d bytes are written down", len(got))
	}
}
