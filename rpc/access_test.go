package rpc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

var rewriteAccess = flag.Bool("access", false, "write testdata/access.txt")

// secretOf is the text of the token of a name.
func secretOf(name string) string { return "ebb_" + name + strings.Repeat("x", 40) }

func tokenRecord(name string, grants ...*ebbv1.Grant) *ebbv1.TokenRecord {
	hash, _ := cluster.HashToken(secretOf(name))
	return &ebbv1.TokenRecord{Name: name, Sha256: fmt.Sprintf("%x", hash[:]), Grants: grants}
}

func grant(role ebbv1.Role, namespaces string) *ebbv1.Grant {
	return &ebbv1.Grant{Role: role, Namespaces: namespaces}
}

// tokenBox is what a cluster knows of tokens.
type tokenBox struct{ records []*ebbv1.TokenRecord }

func (b *tokenBox) tokens() *cluster.Tokens { return cluster.NewTokens(b.records) }

// boxOf holds one token of each role: of namespace clicks, of another, and of the cluster.
func boxOf() *tokenBox {
	return &tokenBox{[]*ebbv1.TokenRecord{
		tokenRecord("reader", grant(reader, "clicks")), tokenRecord("stranger", grant(reader, "other")), tokenRecord("writer", grant(writer, "cl*")),
		tokenRecord("admin", grant(admin, "clicks")), tokenRecord("operator", grant(operator, "")),
	}}
}

// callers are who calls in the matrix. A node shows that it is one, and all others show a token; "nobody" shows
// nothing.
var callers = []string{"nobody", "reader", "stranger", "writer", "admin", "operator", "node"}

const rootSecret = "ebb_root_of_all_things_in_this_test_and_no_other"

func accessOf(b *tokenBox) *Access {
	return NewAccess(AccessConfig{Tokens: b.tokens, Root: []string{rootSecret}, Node: "ebb-0"})
}

// as returns the context of a call by the caller of this name.
func as(t testing.TB, a *Access, name string) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	switch name {
	case "nobody":
		return ctx
	case "node":
		return asNode(ctx, a)
	case "root":
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+rootSecret)
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secretOf(name))
}

func guardedServices(b *tokenBox) (Services, *Access) {
	s := fixture().services()
	s.Access, s.Backups = accessOf(b), noBackups{}
	return s, s.Access
}

// noBackups are refused when they come as far as that.
type noBackups struct{}

func (noBackups) Snapshot(context.Context, *ebbv1.SnapshotRequest, func(*ebbv1.SnapshotPart) error) error {
	return proto.ErrStarting.Errorf("no backups")
}

func (noBackups) RestoreNamespaces(context.Context, *ebbv1.RestoreNamespacesRequest) (*ebbv1.RestoreNamespacesResponse, error) {
	return nil, proto.ErrStarting.Errorf("no backups")
}

func (f *fake) CreateToken(_ context.Context, _ *ebbv1.CreateTokenRequest, r *ebbv1.TokenRecord) (*ebbv1.CreateTokenResponse, error) {
	return &ebbv1.CreateTokenResponse{Token: Shown(r)}, nil
}

func (f *fake) RevokeToken(context.Context, *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	return &ebbv1.RevokeTokenResponse{}, nil
}

func (f *fake) TokenRecords() []*ebbv1.TokenRecord { return nil }

var (
	clicksKey = &ebbv1.Question{Namespace: "clicks", Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte("k")}, Select: &ebbv1.DistributionQuestion_All{All: true},
	}}}
	clicksDelete = &ebbv1.Command{Namespace: "clicks", Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}}}}
)

// samples are requests about namespace clicks, for methods whose namespace does not stand in a field of the request
// itself.
func samples(t testing.TB) map[string]protobuf.Message {
	return map[string]protobuf.Message{
		ebbv1grpc.Ebb_Ask_FullMethodName:                  &ebbv1.AskRequest{Questions: []*ebbv1.Question{clicksKey}},
		ebbv1grpc.Ebb_Query_FullMethodName:                &ebbv1.QueryRequest{Text: "top 3 k", Namespace: "clicks"},
		ebbv1grpc.Ebb_Watch_FullMethodName:                &ebbv1.WatchRequest{Question: clicksKey},
		ebbv1grpc.Ebb_SetNamespace_FullMethodName:         &ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{Name: "clicks"}},
		ebbv1grpc.Shards_Apply_FullMethodName:             &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: 1, Command: marshal(t, clicksDelete)}}},
		ebbv1grpc.Shards_Ask_FullMethodName:               &ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: 1, Question: clicksKey}}},
		ebbv1grpc.Shards_RestoreNamespaces_FullMethodName: &ebbv1.RestoreNamespacesRequest{Namespaces: []*ebbv1.Namespace{{Name: "clicks"}}},
	}
}

// sample makes a request of a method: one of samples, or an empty one about namespace clicks.
func sample(t testing.TB, method string) (in, out protobuf.Message, streams bool) {
	t.Helper()
	service, name, _ := strings.Cut(method[1:], "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		t.Fatal(err)
	}
	md := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name))
	in, out = messageOf(t, md.Input()), messageOf(t, md.Output())
	if fd := md.Input().Fields().ByName("namespace"); fd != nil && fd.Kind() == protoreflect.StringKind {
		in.ProtoReflect().Set(fd, protoreflect.ValueOfString("clicks"))
	}
	if special := samples(t)[method]; special != nil {
		in = special
	}
	return in, out, md.IsStreamingServer() || md.IsStreamingClient()
}

func messageOf(t testing.TB, d protoreflect.MessageDescriptor) protobuf.Message {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt.New().Interface()
}

// errorIn is the error of a response's first result.
func errorIn(resp *ebbv1.ApplyResponse) error {
	if e := resp.GetResults()[0].GetError(); e != nil {
		return proto.FromWire(e)
	}
	return nil
}

// verdict is what becomes of a call: "yes" if it got as far as what serves it, "who?" if a token is asked for, "no" if
// the role is.
func verdict(err error) string {
	switch {
	case errors.Is(err, proto.ErrUnauthenticated):
		return "who?"
	case errors.Is(err, proto.ErrPermissionDenied):
		return "no"
	}
	return "yes"
}

// try calls a method and says what became of it.
func try(t testing.TB, conn *grpc.ClientConn, ctx context.Context, method string) string {
	in, out, streams := sample(t, method)
	if !streams {
		err := ebbv1grpc.FromStatus(conn.Invoke(ctx, method, in, out))
		if resp, ok := out.(*ebbv1.ApplyResponse); ok && err == nil {
			err = errorIn(resp)
		}
		return verdict(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err == nil {
		_ = stream.SendMsg(in) // what went wrong is what is received
		_ = stream.CloseSend()
		err = stream.RecvMsg(out)
	}
	return verdict(ebbv1grpc.FromStatus(err))
}

// Every caller calls every method of every service that a node offers: testdata/access.txt says who may. The test fails
// for a method without a line there. It also fails for one without a rule: no caller may call that.
func TestAccessMatrix(t *testing.T) {
	box := boxOf()
	s, access := guardedServices(box)
	srv := NewGRPC(s)
	peerv1.RegisterPeerServer(srv, peerv1.UnimplementedPeerServer{})
	var methods []string
	for service, info := range srv.GetServiceInfo() {
		for _, m := range info.Methods {
			methods = append(methods, "/"+service+"/"+m.Name)
		}
	}
	conn := serveOn(t, srv)
	slices.Sort(methods)
	var got strings.Builder
	line(&got, "method", callers)
	for _, method := range methods {
		if _, ok := rules[method]; !ok {
			t.Errorf("%s has no rule", method)
		}
		var row []string
		for _, who := range callers {
			row = append(row, try(t, conn, as(t, access, who), method))
		}
		line(&got, method, row)
	}
	for method := range rules {
		if !slices.Contains(methods, method) {
			t.Errorf("there is a rule for %s, which nobody serves", method)
		}
	}
	h := NewHTTP(s)
	got.WriteByte('\n')
	line(&got, "route", callers[:len(callers)-1])
	for _, request := range routeSamples(t) {
		var row []string
		for _, who := range callers[:len(callers)-1] {
			row = append(row, tryHTTP(h, request, who))
		}
		line(&got, request, row)
	}
	checkGolden(t, "testdata/access.txt", got.String())
}

func line(b *strings.Builder, name string, cells []string) {
	fmt.Fprintf(b, "%-70s", name)
	for _, c := range cells {
		fmt.Fprintf(b, " %-8s", c)
	}
	s := strings.TrimRight(b.String(), " ")
	b.Reset()
	b.WriteString(s + "\n")
}

func checkGolden(t *testing.T, path, got string) {
	t.Helper()
	if *rewriteAccess {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) == got {
		return
	}
	wants := strings.Split(string(want), "\n")
	for _, l := range strings.Split(got, "\n") {
		if !slices.Contains(wants, l) {
			t.Errorf("%s has no line\n%s\n(go test ./rpc -run TestAccessMatrix -args -access writes it)", path, l)
		}
	}
	if !t.Failed() {
		t.Errorf("%s has lines that nothing is served for", path)
	}
}

// routeSamples are all routes of the HTTP doors as requests about namespace clicks: METHOD PATH.
func routeSamples(t *testing.T) []string {
	var out []string
	for _, rt := range routes {
		path := strings.NewReplacer("{ns}", "clicks", "{name}", "clicks", "{key...}", "k", "{pattern...}", "k*").Replace(rt.pattern)
		if strings.Contains(path, "{") {
			t.Fatalf("%s: no sample for %s", rt.id, path)
		}
		out = append(out, rt.method+" "+path)
	}
	for _, op := range originPaths[ofGoforget].operations {
		out = append(out, "GET /ns/clicks/"+op)
	}
	for _, has := range originPaths[ofPyforget:] {
		for _, op := range has.operations {
			out = append(out, "GET /ns/clicks/"+has.prefix+"/"+op)
		}
	}
	return append(out, "GET /openapi.json")
}

// bodies are what the routes with a body are sent.
var bodies = map[string]string{
	"POST /v1/increment":  `{"namespace":"clicks","increments":[{"key":"k","bin":"b"}]}`,
	"POST /v1/ask":        `{"questions":[{"namespace":"clicks","count_keys":{}}]}`,
	"POST /v1/query":      `{"namespace":"clicks","text":"top 3 k"}`,
	"POST /v1/watch":      `{"question":{"namespace":"clicks","distribution":{"keys":["k"],"all":true}}}`,
	"POST /v1/namespaces": `{"namespace":{"name":"clicks"}}`,
	"POST /v1/tokens":     `{"name":"t"}`,
}

func tryHTTP(h http.Handler, request, who string) string {
	method, path, _ := strings.Cut(request, " ")
	body, special := bodies[request]
	if !special && method == http.MethodPost {
		body = `{"namespace":"clicks"}`
		if strings.HasPrefix(path, "/v1/ns/") || strings.HasPrefix(path, "/v1/cluster") || strings.HasPrefix(path, "/v1/tokens") {
			body = `{}`
		}
	}
	query := ""
	switch {
	case strings.Contains(path, "/py/"):
		query = "?key=k&bin=b"
	case strings.Contains(path, "/kmv/"):
		query = "?key=k&key=l&value=v&hash=1&q=" + url.QueryEscape(`{"method":"get","keys":["k"]}`)
		if strings.HasSuffix(path, "/addmulti") {
			query = "?value=k,v"
		}
	case strings.HasSuffix(path, "/incr") || strings.HasSuffix(path, "/get"):
		query = "?distribution=k&field=f"
	case strings.HasSuffix(path, "/dist") || strings.HasSuffix(path, "/nmostprobable"):
		query = "?distribution=k"
	case strings.HasSuffix(path, "/distribution") || strings.HasSuffix(path, "/summary"):
		query = "?key=k"
	case strings.HasSuffix(path, "/overlap") || strings.HasSuffix(path, "/graph"):
		query = "?key=k&key=l"
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := jsonRequest(method, path+query, strings.NewReader(body)).WithContext(ctx)
	if who != "nobody" {
		r.Header.Set("Authorization", "Bearer "+secretOf(who))
	}
	w := &firstWrite{ResponseRecorder: httptest.NewRecorder(), then: cancel}
	h.ServeHTTP(w, r)
	switch {
	case w.Code == http.StatusUnauthorized:
		return "who?"
	case w.Code == http.StatusForbidden && strings.Contains(w.Body.String()+w.Header().Get("Ebb-Error"), "EBB-2051"):
		return "no"
	}
	return "yes"
}

// firstWrite ends a stream when it has begun.
type firstWrite struct {
	*httptest.ResponseRecorder
	then func()
}

func (w *firstWrite) Write(b []byte) (int, error) {
	defer w.then()
	return w.ResponseRecorder.Write(b)
}

// What is nested in a request is looked at element by element: one element that the caller may not is enough.
func TestAccessIsByElement(t *testing.T) {
	box := boxOf()
	box.records = append(box.records, tokenRecord("both", grant(reader, "clicks"), grant(writer, "other")))
	s, access := guardedServices(box)
	conn := serve(t, s)
	ebb, shards := ebbv1grpc.NewEbbClient(conn), ebbv1grpc.NewShardsClient(conn)
	question := func(ns string) *ebbv1.Question {
		q := protobuf.CloneOf(clicksKey)
		q.Namespace = ns
		return q
	}
	ask := func(namespaces ...string) func(context.Context) error {
		req, sreq := &ebbv1.AskRequest{}, &ebbv1.ShardAskRequest{}
		for _, ns := range namespaces {
			req.Questions = append(req.Questions, question(ns))
			sreq.Questions = append(sreq.Questions, &ebbv1.ShardQuestion{Shard: 1, Question: question(ns)})
		}
		return func(ctx context.Context) error {
			_, err := ebb.Ask(ctx, req)
			if _, err2 := shards.Ask(ctx, sreq); verdict(ebbv1grpc.FromStatus(err)) != verdict(ebbv1grpc.FromStatus(err2)) {
				t.Errorf("%v: Ask says %v, and of shards %v", namespaces, err, err2)
			}
			return err
		}
	}
	query := func(ns, text string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := ebb.Query(ctx, &ebbv1.QueryRequest{Namespace: ns, Text: text})
			return err
		}
	}
	restore := func(namespaces ...string) func(context.Context) error {
		req := &ebbv1.RestoreNamespacesRequest{}
		for _, ns := range namespaces {
			req.Namespaces = append(req.Namespaces, &ebbv1.Namespace{Name: ns})
		}
		return func(ctx context.Context) error {
			_, err := shards.RestoreNamespaces(ctx, req)
			return err
		}
	}
	apply := func(cmd *ebbv1.Command) func(context.Context) error {
		raw := marshal(t, cmd)
		return func(ctx context.Context) error {
			resp, err := shards.Apply(ctx, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: 1, Command: raw}}})
			if err == nil {
				err = errorIn(resp)
			}
			return err
		}
	}
	forget := func(ns string) *ebbv1.Command {
		c := protobuf.CloneOf(clicksDelete)
		c.Namespace = ns
		return c
	}
	for _, c := range []struct {
		name, who, want string
		call            func(context.Context) error
	}{
		{"one question", "reader", "yes", ask("clicks")},
		{"the second question is of another namespace", "reader", "no", ask("clicks", "other")},
		{"both namespaces are its own", "both", "yes", ask("clicks", "other")},
		{"no namespace is the default one", "reader", "no", ask("")},
		{"a query of the home namespace", "reader", "yes", query("clicks", "top 3 k")},
		{"a query that names another", "reader", "no", query("clicks", "count(@other/plays & @other/buys)")},
		{"a query that names another, which it may read", "both", "yes", query("clicks", "count(@other/plays & @other/buys)")},
		{"a query without a home is of the default one", "reader", "no", query("", "top 3 k")},
		{"a store into a namespace that it only reads", "both", "no", query("clicks", "store x = plays | visits")},
		{"a store into another", "both", "yes", query("clicks", "store @other/x = @other/plays | @other/y")},
		{"a store by a reader", "reader", "no", query("clicks", "store x = plays")},
		{"the text of no query is wrong for everybody", "reader", "yes", query("clicks", "top")},
		{"namespaces of a backup", "admin", "yes", restore("clicks")},
		{"one target that is not its own", "admin", "no", restore("clicks", "default")},
		{"a restore of nothing", "admin", "no", restore()},
		{"a restore by an operator", "operator", "yes", restore("clicks", "default")},
		{"a command of its namespace", "writer", "yes", apply(forget("clicks"))},
		{"a command of another", "writer", "no", apply(forget("other"))},
		{"a command without a namespace", "writer", "no", apply(forget(""))},
		{"a session of its namespace", "writer", "yes", apply(opens("clicks"))},
		{"a session of another", "writer", "no", apply(opens("other"))},
		{"a session without a namespace is of the default one", "writer", "no", apply(opens(""))},
		{"a session of a reader", "reader", "no", apply(opens("clicks"))},
		{"the end of a session of another", "writer", "no", apply(closes("other"))},
		{"the end of a session without a namespace", "writer", "no", apply(closes(""))},
		{"the end of a session", "writer", "yes", apply(closes("clicks"))},
		{"a source of another", "writer", "no", apply(takes("other"))},
		{"a source", "writer", "yes", apply(takes("clicks"))},
		{"dropping a source of another", "writer", "no", apply(drops("other"))},
		{"dropping a source without a namespace", "writer", "no", apply(drops(""))},
		{"dropping a source", "writer", "yes", apply(drops("clicks"))},
		{"a piece of a restore", "admin", "no", apply(restoreCommand("clicks"))},
		{"a piece of a restore by an operator", "operator", "yes", apply(restoreCommand(""))},
		{"root", "root", "yes", apply(restoreCommand(""))},
	} {
		if err := ebbv1grpc.FromStatus(c.call(as(t, access, c.who))); verdict(err) != c.want {
			t.Errorf("%s, by %s: %v, want %s", c.name, c.who, err, c.want)
		}
	}
}

// An admin may restore settings of a namespace that there is, and not another hash seed, under which its keys would
// mean nothing.
func TestAnotherSeedIsForOperators(t *testing.T) {
	box := &tokenBox{[]*ebbv1.TokenRecord{tokenRecord("admin", grant(admin, "*")), tokenRecord("operator", grant(operator, ""))}}
	s, access := guardedServices(box)
	shards := ebbv1grpc.NewShardsClient(serve(t, s))
	for _, c := range []struct {
		who  string
		seed uint64
		want string
	}{{"admin", 18446744073709551615, "yes"}, {"admin", 7, "no"}, {"operator", 7, "yes"}, {"node", 7, "yes"}} {
		_, err := shards.RestoreNamespaces(as(t, access, c.who), &ebbv1.RestoreNamespacesRequest{Namespaces: []*ebbv1.Namespace{{Name: "new", HashSeed: 3}, {Name: "default", HashSeed: c.seed}}})
		if got := verdict(ebbv1grpc.FromStatus(err)); got != c.want {
			t.Errorf("seed %d by %s: %s, want %s", c.seed, c.who, got, c.want)
		}
	}
}

func opens(ns string) *ebbv1.Command {
	return &ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: 1}}}
}

func closes(ns string) *ebbv1.Command {
	return &ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{Session: 1, Secret: 1}}}
}

func takes(ns string) *ebbv1.Command {
	return &ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{
		Name:  "s",
		Token: 1,
	}}}
}

func drops(ns string) *ebbv1.Command {
	return &ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: "s"}}}
}

func restoreCommand(ns string) *ebbv1.Command {
	return &ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Restore{Restore: &ebbv1.RestoreShard{Name: "r", Step: &ebbv1.RestoreShard_Cancel{Cancel: &ebbv1.RestoreCancel{Any: true}}}}}
}

// In a batch of commands those that the caller may are applied, and the others are refused one by one.
func TestDeniedCommandsLeaveTheOthers(t *testing.T) {
	s, access := guardedServices(boxOf())
	other := protobuf.CloneOf(clicksDelete)
	other.Namespace = "other"
	resp, err := ebbv1grpc.NewShardsClient(serve(t, s)).Apply(as(t, access, "writer"), &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{
		{Shard: 1, Command: marshal(t, other)}, {Shard: 1, Command: marshal(t, clicksDelete)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if e := proto.FromWire(resp.GetResults()[0].GetError()); !errors.Is(e, proto.ErrPermissionDenied) || !strings.Contains(e.Error(), "role writer in namespace other") {
		t.Errorf("the command of namespace other: %v", e)
	}
	if e := resp.GetResults()[1].GetError(); e != nil {
		t.Errorf("the command of namespace clicks: %v", e)
	}
}

// claimOf is what a node says of itself when it makes a call, with its proof.
func claimOf(a *Access, s statement) string {
	s.from, s.ms = a.cfg.Node, a.now().UnixMilli()
	return s.from + " " + strconv.FormatInt(s.ms, 10) + " " + a.keys.sent(s)[0]
}

// A node that asks for a caller is asked again whether that one may. A caller that only says that it is a node, or
// shows what is no token, is anyone.
func TestOriginsAndImpostors(t *testing.T) {
	box := boxOf()
	s, access := guardedServices(box)
	conn := serve(t, s)
	remove := statement{to: "ebb-0", method: ebbv1grpc.Ebb_Delete_FullMethodName}
	// by is what a node shows that calls for an origin; of what it proves some may be of another call.
	by := func(origin string, other func(s *statement)) []string {
		s := remove
		s.origin = origin
		if other != nil {
			other(&s)
		}
		return []string{peerKey, claimOf(access, s), originKey, origin}
	}
	writer, reader := hashed+box.records[2].GetSha256(), hashed+box.records[0].GetSha256()
	late := NewAccess(AccessConfig{
		Tokens: box.tokens, Root: []string{rootSecret}, Node: "ebb-1",
		Now: func() time.Time { return time.Now().Add(-ProofLife - time.Minute) },
	})
	stranger := NewAccess(AccessConfig{Tokens: box.tokens, Root: []string{rootSecret + "x"}, Node: "ebb-1"})
	for _, c := range []struct {
		name, want string
		md         []string
	}{
		{"a node for a writer", "yes", by("writer", nil)},
		{"a node for a reader", "no", by("reader", nil)},
		{"a node for a token that is not there", "who?", by("revoked", nil)},
		{"a node for root", "yes", by(proto.NameRoot, nil)},
		{"a node for itself", "yes", by(proto.NameNode, nil)},
		{"a node for a stranger", "who?", by(proto.NameAnyone, nil)},
		{"a node that does not say for whom", "who?", by("", nil)[:2]},
		{"a node for a token that it does not know, a writer's", "yes", by(writer, nil)},
		{"a node for a token that it does not know, a reader's", "no", by(reader, nil)},
		{"a node for a token that nobody knows", "who?", by(hashed+strings.Repeat("0", 64), nil)},
		{"a node for half a hash", "who?", by(writer[:len(writer)-32], nil)},
		{"a node for more than a hash", "who?", by(writer+"00", nil)},
		{"a hash without a node", "who?", []string{originKey, writer}},
		{"an impostor", "who?", []string{peerKey, "ebb-1", originKey, proto.NameNode}},
		{"an impostor with another proof", "who?", []string{peerKey, claimOf(stranger, remove), originKey, ""}},
		{"an impostor with a token is who the token says", "yes", []string{
			peerKey, "ebb-1", authorizationKey,
			"Bearer " + secretOf("operator"),
		}},
		{"a proof of another method", "who?", by(proto.NameNode, func(s *statement) { s.method = ebbv1grpc.Ebb_Ask_FullMethodName })},
		{"a proof for another node", "who?", by(proto.NameNode, func(s *statement) { s.to = "ebb-1" })},
		{"a proof for another origin", "who?", by(proto.NameNode, func(s *statement) { s.origin = "reader" })},
		{"a proof of long ago", "who?", []string{peerKey, claimOf(late, statement{
			to: "ebb-0", method: remove.method,
			origin: proto.NameNode,
		}), originKey, proto.NameNode}},
		{"a proof of no time", "who?", []string{peerKey, "ebb-1 now " + strings.Repeat("0", 32), originKey, proto.NameNode}},
		{"an origin without a node", "who?", []string{originKey, "operator"}},
		{"an origin beside a token is not looked at", "no", []string{originKey, "operator", authorizationKey, "Bearer " + secretOf("reader")}},
		{"no scheme", "who?", []string{authorizationKey, secretOf("operator")}},
		{"another scheme", "who?", []string{authorizationKey, "Basic " + secretOf("operator")}},
		{"the scheme in other letters", "yes", []string{authorizationKey, "bEARER " + secretOf("operator")}},
		{"a token that nobody made", "who?", []string{authorizationKey, "Bearer " + secretOf("somebody")}},
		{"a hash in place of its token", "who?", []string{authorizationKey, "Bearer " + box.records[4].GetSha256()}},
		{"a token without end", "who?", []string{authorizationKey, "Bearer " + strings.Repeat("x", proto.TokenLenMax+1)}},
		{"nothing behind the scheme", "who?", []string{authorizationKey, "Bearer "}},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		got := try(t, conn, metadata.AppendToOutgoingContext(ctx, c.md...), ebbv1grpc.Ebb_Delete_FullMethodName)
		cancel()
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// A token that has ended is none.
func TestTokensEnd(t *testing.T) {
	box := &tokenBox{[]*ebbv1.TokenRecord{tokenRecord("short", grant(operator, ""))}}
	box.records[0].ExpiresUs = 1_000
	s, access := guardedServices(box)
	_, err := ebbv1grpc.NewEbbClient(serve(t, s)).Status(as(t, access, "short"), &ebbv1.StatusRequest{})
	if err := ebbv1grpc.FromStatus(err); !errors.Is(err, proto.ErrUnauthenticated) || !strings.Contains(err.Error(), "ended at 1970-01-01T00:00:00Z") {
		t.Errorf("a token that has ended: %v", err)
	}
}

// Lists and tables show the namespaces that the caller may read.
func TestListsShowWhatIsReadable(t *testing.T) {
	box := &tokenBox{[]*ebbv1.TokenRecord{tokenRecord("plain", grant(reader, "pl*")), tokenRecord("operator", grant(operator, ""))}}
	s, access := guardedServices(box)
	ebb := ebbv1grpc.NewEbbClient(serve(t, s))
	for who, want := range map[string]int{"plain": 1, "operator": 2, "node": 2} {
		list, err := ebb.ListNamespaces(as(t, access, who), &ebbv1.ListNamespacesRequest{})
		table, err2 := ebb.Table(as(t, access, who), &ebbv1.TableRequest{})
		if err != nil || err2 != nil || len(list.GetNamespaces()) != want || len(table.GetTable().GetNamespaces()) != want {
			t.Errorf("%s sees %d in the list and %d in the table, want %d (%v, %v)", who, len(list.GetNamespaces()), len(table.GetTable().GetNamespaces()), want, err, err2)
		}
	}
}

// What is no token is refused before the control group hears of it.
func TestTokensThatAreNone(t *testing.T) {
	s, _ := guardedServices(boxOf())
	e := &ebbServer{Services: &s}
	for want, req := range map[string]*ebbv1.CreateTokenRequest{
		"64 hexadecimal digits": {Name: "a", Sha256: secretOf("a"), Grants: []*ebbv1.Grant{grant(operator, "")}},
		"would have ended":      {Name: "a", Sha256: strings.Repeat("0", 64), Grants: []*ebbv1.Grant{grant(operator, "")}, ExpiresUs: 1},
	} {
		if _, err := e.CreateToken(context.Background(), req); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
