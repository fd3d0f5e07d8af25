package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Every method, command, operation on bits and kind of query says whether it is audited, or why it destroys nothing.
// There is no default.
func TestEveryActSaysWhetherItDestroys(t *testing.T) {
	for method, r := range rules { // TestAccessMatrix holds rules to the services
		if (r.audit == nil) == (r.auditExempt == "") {
			t.Errorf("%s: audited is %v, and the reason why it destroys nothing is %q", method, r.audit != nil, r.auditExempt)
		}
	}
	body := (&ebbv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	for i := range body.Len() {
		f := body.Get(i)
		r, known := commandRules[int(f.Number())]
		if !known || (r.audit == nil) == (r.auditExempt == "") || r.who == ofNobody {
			t.Errorf("command %s: audited is %v, and the reason why it destroys nothing is %q", f.Name(), r.audit != nil, r.auditExempt)
		}
	}
	if len(commandRules) != body.Len() {
		t.Errorf("%d rules of %d commands", len(commandRules), body.Len())
	}
	for number := range ebbv1.BitOp_name {
		if _, known := destroyedBits[ebbv1.BitOp(number)]; !known {
			t.Errorf("bits operation %v is not in the table", ebbv1.BitOp(number))
		}
	}
	// what a new field of these could do is not known to the rules that look for destruction field by field
	for message, fields := range map[protobuf.Message]int{
		&ebbv1.PutKey{}:      8,
		&ebbv1.HomeCommand{}: 3, &ebbv1.RestoreShard{}: 5, &ebbv1.BitEdit{}: 7, &ebbv1.Increment{}: 8, &ebbv1.ExpireKeys{}: 3, &ebbv1.ExpireRequest{}: 6,
	} {
		if d := message.ProtoReflect().Descriptor(); d.Fields().Len() != fields {
			t.Errorf("%s has %d fields, and the audit knows %d", d.Name(), d.Fields().Len(), fields)
		}
	}
	writes := 0
	ask := (&ebbv1.Plan{}).ProtoReflect().Descriptor().Oneofs().ByName("ask").Fields()
	for i := range ask.Len() {
		if ask.Get(i).Message().Fields().ByName("to") != nil && ask.Get(i).Name() != "similar" {
			writes++
		}
	}
	if writes != 1 || ask.Len() != 15 {
		t.Errorf("%d of %d questions of the language write; the audit knows of 1 of 15", writes, ask.Len())
	}
	put := (&ebbv1.PutKey{}).ProtoReflect().Descriptor().Fields()
	for name, number := range map[string]protoreflect.FieldNumber{
		"key": fieldPutKey, "from": fieldPutFrom, "overwrite": fieldPutOverwrite, "replace": fieldPutReplace,
		"merge": fieldPutMerge, "kmv": fieldPutKMV,
	} {
		if put.ByName(protoreflect.Name(name)).Number() != number {
			t.Errorf("PutKey.%s is not field %d", name, number)
		}
	}
}

// auditedServices are services whose audit log is lines.
func auditedServices() (s Services, lines *lockedBuffer) {
	lines = &lockedBuffer{}
	s = fixture().services()
	s.Access = NewAccess(AccessConfig{Tokens: boxOf().tokens, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(lines, nil))})
	return s, lines
}

func increments(list ...*ebbv1.Increment) *ebbv1.IncrementRequest {
	return &ebbv1.IncrementRequest{Namespace: "clicks", Increments: list}
}

// What can destroy is in the audit log, whichever method does it, and what cannot is not.
func TestDestructionIsAudited(t *testing.T) {
	k, k2 := []byte("k"), []byte("k\x1b[2J")
	text := &ebbv1.Increment{Key: k, Text: []byte("v"), Kind: ebbv1.Kind_KIND_STRING}
	less, more := protobuf.Float64(-1), protobuf.Float64(2)
	bits := func(op ebbv1.BitOp) *ebbv1.BitsRequest {
		return &ebbv1.BitsRequest{Namespace: "clicks", Changes: []*ebbv1.BitChange{{Key: k, Op: op, Ids: []uint64{1}}, {Key: k2, Op: op, Range: &ebbv1.BitRange{Last: 9}}}}
	}
	expr := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: k2}}
	edits := func(op ebbv1.BitOp) *ebbv1.Command {
		return &ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{{Key: k, Op: op, Range: &ebbv1.BitRange{Last: 9}}}}}}
	}
	put := func(p *ebbv1.PutKey) *ebbv1.Command {
		p.Key = k
		return &ebbv1.Command{Body: &ebbv1.Command_Put{Put: p}}
	}
	counts := func(list ...*ebbv1.Increment) *ebbv1.Command {
		return &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: list}}}
	}
	home := func(h *ebbv1.HomeCommand) *ebbv1.Command { return &ebbv1.Command{Body: &ebbv1.Command_Home{Home: h}} }
	number := &ebbv1.HomeNumber{Key: k, Number: 1}
	hashes := &ebbv1.PutKey_Kmv{Kmv: []byte("v")}
	for _, c := range []struct {
		name string
		req  any
		want string // "" if there is no line
	}{
		{"counts", increments(&ebbv1.Increment{Key: k, Bin: k}, &ebbv1.Increment{Key: k, Bin: k, Amount: more, TimeUs: 7}), ""},
		{"a string", increments(&ebbv1.Increment{Key: k, Bin: k}, text), `"act":"set string","on":"key \"k\" of namespace clicks","outcome":"done"`},
		{"phrases that go", increments(&ebbv1.Increment{Key: k2, Bin: k, Amount: less, Kind: ebbv1.Kind_KIND_PHRASES}), `"act":"remove phrases","on":"key \"k\\x1b[2J\" of namespace clicks"`},
		{"counts that go down", increments(&ebbv1.Increment{Key: k, Bin: k, Amount: less}), `"act":"subtract","on":"key \"k\" of namespace clicks"`},
		{"bits set", bits(ebbv1.BitOp_BIT_OP_SET), ""},
		{"bits clear", bits(ebbv1.BitOp_BIT_OP_CLEAR), `"act":"clear bits","on":"2 keys of namespace clicks: \"k\", \"k\\x1b[2J\""`},
		{"bits flip", bits(ebbv1.BitOp_BIT_OP_FLIP), `"act":"flip bits","on":"2 keys of namespace clicks: \"k\", \"k\\x1b[2J\""`},
		{"store", &ebbv1.StoreBitmapRequest{Namespace: "clicks", Key: k, Expr: expr}, `"act":"store bitmap","on":"key \"k\" of namespace clicks"`},
		{"rename", &ebbv1.RenameRequest{Namespace: "clicks", Key: k, To: k2}, `"act":"rename","on":"2 keys of namespace clicks: \"k\", \"k\\x1b[2J\""`},
		{"rename over", &ebbv1.RenameRequest{Namespace: "clicks", Key: k, To: k2, Overwrite: true}, `"act":"rename over","on":"2 keys`},
		{"expire in a year", &ebbv1.ExpireRequest{Namespace: "clicks", Keys: [][]byte{k}, TtlUs: 1 << 45}, `"act":"expire","on":"key \"k\" of namespace clicks"`},
		{"a question", &ebbv1.QueryRequest{Text: "top 10 clicks/store", Namespace: "clicks"}, ""},
		{"a question that stores", &ebbv1.QueryRequest{Text: " # ids\nstore bm = empty", Namespace: "clicks"}, `"act":"store bitmap","on":"key \"bm\" of namespace clicks"`},
		{"one that stores elsewhere", &ebbv1.QueryRequest{Text: "store @clicks/bm = a & b", Namespace: "other"}, `"act":"store bitmap","on":"key \"bm\" of namespace clicks"`},
		{"one that says what it would store", &ebbv1.QueryRequest{Text: "store bm = empty", Namespace: "clicks", Explain: true}, ""},
		{"a plan that stores", &ebbv1.QueryRequest{Plan: storePlan()}, `"act":"store bitmap","on":"key \"bm\" of namespace clicks"`},
		{"settings", &ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{
			Name: "clicks", HalfLifeUs: 1e6, Floor: ebbv1.Floor_FLOOR_PRUNE, Rollups: &ebbv1.Rollups{}, WindowUs: protobuf.Int64(0), Universe: []byte("u\n"),
		}}, `"act":"set namespace","on":"clicks: half_life_us=1000000, floor=FLOOR_PRUNE, window_us=0, universe=\"u\\n\", rollups={}"`},

		{"command: counts", counts(&ebbv1.Increment{Key: k, Bin: k}, &ebbv1.Increment{Key: k, Bin: k, Amount: more}, &ebbv1.Increment{Key: k, Bin: k, Amount: more, TimeUs: 7}), ""},
		{"command: a string", counts(&ebbv1.Increment{Key: k, Bin: k}, text), `"act":"set string","on":"key \"k\" of namespace clicks in shard 1"`},
		{"command: counts that go down", counts(&ebbv1.Increment{Key: k, Bin: k, Amount: less}), `"act":"subtract","on":"key \"k\"`},
		{"command: a long key's count that goes down", counts(&ebbv1.Increment{Key: []byte(strings.Repeat("l", 300)), Bin: k, Amount: less}), `"act":"subtract"`},
		{"command: phrases that go", counts(&ebbv1.Increment{Key: k, Bin: k, Amount: less, Kind: ebbv1.Kind_KIND_PHRASES}), `"act":"remove phrases"`},
		{"command: bits set", edits(ebbv1.BitOp_BIT_OP_SET), ""},
		{"command: bits clear", edits(ebbv1.BitOp_BIT_OP_CLEAR), `"act":"clear bits","on":"key \"k\" of namespace clicks in shard 1"`},
		{"command: bits flip", edits(ebbv1.BitOp_BIT_OP_FLIP), `"act":"flip bits"`},
		{"command: store", &ebbv1.Command{Body: &ebbv1.Command_StoreBitmap{StoreBitmap: &ebbv1.StoreBitmap{Key: k, Expr: expr}}}, `"act":"store bitmap","on":"key \"k\" of namespace clicks in shard 1"`},
		{"command: rename", put(&ebbv1.PutKey{What: &ebbv1.PutKey_From{From: k2}}), `"act":"put key","on":"2 keys`},
		{"command: put over", put(&ebbv1.PutKey{What: &ebbv1.PutKey_Image{Image: []byte("i")}, Overwrite: true}), `"act":"put key over","on":"key \"k\"`},
		{"command: put over a state", put(&ebbv1.PutKey{What: &ebbv1.PutKey_Image{Image: []byte("i")}, Replace: protobuf.Uint64(0)}), `"act":"put key over"`},
		{"command: hashes", put(&ebbv1.PutKey{What: hashes, Merge: true}), ""},
		{
			"command: an event clock goes on",
			&ebbv1.Command{Body: &ebbv1.Command_EventClock{EventClock: &ebbv1.EventClock{NowUs: 1700000000000000}}},
			`"act":"advance event clock","on":"time \"2023-11-14T22:13:20Z\" of namespace`,
		},
		{"command: hashes over", put(&ebbv1.PutKey{What: hashes, Merge: true, Overwrite: true}), `"act":"put key over"`},
		{"command: names", &ebbv1.Command{Body: &ebbv1.Command_Names{Names: &ebbv1.Names{Names: [][]byte{k}, Shards: 1}}}, ""},
		{"command: home reserve", home(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Reserve{Reserve: number}}), ""},
		{"command: home put", home(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: number}}}), `"act":"store bitmap","on":"key \"k\"`},
		{"command: home swept", home(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Swept{Swept: &ebbv1.HomeSwept{Numbers: []uint64{1}}}}), `"act":"sweep bitmap","on":"of namespace clicks in shard 1"`},
		{"command: drop source", &ebbv1.Command{Body: &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: "import"}}}, `"act":"drop source","on":"source \"import\" of namespace default in shard 1"`},
		{"command: session", &ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}, ""},
		{"command: restore", &ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: &ebbv1.RestoreShard{Name: "b", Step: &ebbv1.RestoreShard_Cancel{Cancel: &ebbv1.RestoreCancel{}}}}}, `"act":"restore: cancel","on":"shard 1"`},
	} {
		s, lines := auditedServices()
		conn := serve(t, s)
		send(as(t, s.Access, "operator"), t, conn, c.req)
		checkLine(t, c.name, lines.String(), c.want)
	}
}

func storePlan() *ebbv1.Plan {
	term := func(key string) *ebbv1.PlanTerm { return &ebbv1.PlanTerm{Of: &ebbv1.PlanTerm_Key{Key: []byte(key)}} }
	return &ebbv1.Plan{Namespace: "clicks", Ask: &ebbv1.Plan_Store{Store: &ebbv1.PlanStore{
		To: term("bm"), Of: &ebbv1.PlanExpression{Of: &ebbv1.PlanExpression_Term{Term: term("a")}},
	}}}
}

// send sends a request, or a command for shard 1, to the method that it is for. What comes of it does not matter.
func send(ctx context.Context, t *testing.T, conn *grpc.ClientConn, req any) {
	t.Helper()
	ebb, shards := ebbv1grpc.NewEbbClient(conn), ebbv1grpc.NewShardsClient(conn)
	switch r := req.(type) {
	case *ebbv1.IncrementRequest:
		_, _ = ebb.Increment(ctx, r)
	case *ebbv1.BitsRequest:
		_, _ = ebb.Bits(ctx, r)
	case *ebbv1.StoreBitmapRequest:
		_, _ = ebb.StoreBitmap(ctx, r)
	case *ebbv1.RenameRequest:
		_, _ = ebb.Rename(ctx, r)
	case *ebbv1.ExpireRequest:
		_, _ = ebb.Expire(ctx, r)
	case *ebbv1.QueryRequest:
		_, _ = ebb.Query(ctx, r)
	case *ebbv1.SetNamespaceRequest:
		_, _ = ebb.SetNamespace(ctx, r)
	case *ebbv1.DeleteNamespaceRequest:
		_, _ = ebb.DeleteNamespace(ctx, r)
	case *ebbv1.UndeleteNamespaceRequest:
		_, _ = ebb.UndeleteNamespace(ctx, r)
	case *ebbv1.Command:
		if r.GetRestore() == nil && r.GetDropSource() == nil && r.GetOpenSession() == nil {
			r.Namespace = "clicks"
		}
		_, _ = shards.Apply(ctx, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: 1, Command: marshal(t, r)}}})
	default:
		t.Fatalf("%T is of no method", req)
	}
}

func checkLine(t *testing.T, name, said, want string) {
	t.Helper()
	if n := strings.Count(said, "\n"); want == "" && n != 0 || want != "" && (n != 1 || !strings.Contains(said, want)) {
		t.Errorf("%s: the audit log has %d lines, want %q:\n%s", name, n, want, said)
	}
}

// The doors over HTTP are audited as gRPC is.
func TestDestructionOverHTTPIsAudited(t *testing.T) {
	for _, c := range []struct{ method, target, body, want string }{
		{"POST", "/v1/increment", `{"increments":[{"key":"k","bin":"b"}]}`, ""},
		{"POST", "/v1/increment", `{"increments":[{"key":"k","kind":"STRING","text":"v"}]}`, `"act":"set string","on":"key \"k\" of namespace default"`},
		{"POST", "/v1/ns/clicks/bits/k", `{"op":"SET","ids":[1]}`, ""},
		{"POST", "/v1/ns/clicks/bits/k", `{"op":"CLEAR","ids":[1]}`, `"act":"clear bits","on":"key \"k\" of namespace clicks"`},
		{"POST", "/v1/bits", `{"changes":[{"key":"k","op":"FLIP","range":{"first":1,"last":5}}]}`, `"act":"flip bits"`},
		{"POST", "/v1/store", `{"key":"k","expr":{"key":"a"}}`, `"act":"store bitmap"`},
		{"POST", "/v1/query", `{"text":"store bm = empty"}`, `"act":"store bitmap","on":"key \"bm\" of namespace default"`},
		{"POST", "/v1/query", `{"text":"top 10 k"}`, ""},
		{"POST", "/v1/expire", `{"keys":["k"],"ttl_us":"61s"}`, `"act":"expire","on":"key \"k\" of namespace default"`},
		{"POST", "/v1/rename", `{"key":"k","to":"l","overwrite":true}`, `"act":"rename over"`},
		{"POST", "/v1/delete", `{"keys":["k"]}`, `"act":"delete"`},
		{"DELETE", "/v1/namespaces/clicks?grace=90s", "", `"act":"delete namespace","on":"clicks: grace 1m30s"`},
		{"DELETE", "/v1/namespaces/clicks?grace=200ns", "", `"on":"clicks: grace 1µs"`}, // 0 means none
		{"DELETE", "/v1/namespaces/clicks", "", `"act":"delete namespace","on":"clicks: grace 24h0m0s"`},
		{"POST", "/v1/namespaces/clicks/undelete", "", `"act":"undelete namespace","on":"clicks"`},
		{"DELETE", "/v1/ns/clicks/key/k", "", `"act":"delete","on":"key \"k\" of namespace clicks"`},
		{"GET", "/incr?distribution=d&field=f&N=5", "", ""},
		{"GET", "/ns/clicks/incr?distribution=d&field=f&N=-5", "", `"act":"subtract","on":"key \"d\" of namespace clicks"`},
	} {
		s, lines := auditedServices()
		r := httptest.NewRequest(c.method, c.target, strings.NewReader(c.body))
		r.Header.Set(authorizationKey, "Bearer "+secretOf("operator"))
		if c.body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		NewHTTP(s).ServeHTTP(w, r)
		if w.Code == http.StatusBadRequest || w.Code == http.StatusNotFound {
			t.Errorf("%s %s: %d %s", c.method, c.target, w.Code, w.Body)
		}
		checkLine(t, c.method+" "+c.target, lines.String(), c.want)
	}
}

// A watched query that stores is refused, so that the audit need not look at watches.
func TestWatchesStoreNothing(t *testing.T) {
	s, _ := auditedServices()
	stream, err := ebbv1grpc.NewEbbClient(serve(t, s)).Watch(as(t, s.Access, "operator"), &ebbv1.WatchRequest{Query: "store bm = empty"})
	if err == nil {
		_, err = stream.Recv()
	}
	if e := proto.AsError(ebbv1grpc.FromStatus(err)); !e.Is(proto.ErrBadRequest) {
		t.Errorf("a watch that stores ends with %v", err)
	}
}

// A line has some keys of many, and their number.
func TestLinesOfManyKeysAreBounded(t *testing.T) {
	keys := make([][]byte, 10_000)
	for i := range keys {
		keys[i] = []byte(fmt.Sprintf("%05d%s", i, strings.Repeat("\x01", 500)))
	}
	records := auditDelete(&ebbv1.DeleteRequest{Keys: keys})
	records[0].data, records[0].namespace = true, inNamespace("")
	const bytesMax = keysNamed*keyShownMax*4 + 200
	if got := records[0].subject(); len(got) > bytesMax || !strings.HasPrefix(got, "10000 keys of namespace default: ") || !strings.HasSuffix(got, " and 9992 others") {
		t.Errorf("%d bytes of at most %d: %s", len(got), bytesMax, got)
	}
}

// A flood of actions has a bounded number of lines, in which each action is counted. It does not hide the actions of
// another caller.
func TestManyActsAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines lockedBuffer
		a := NewAccess(AccessConfig{Tokens: boxOf().tokens, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
		of := func(name, from string) context.Context {
			return context.WithValue(t.Context(), callerKey{}, &caller{token: a.cfg.Tokens().Named(name), from: from})
		}
		del := func(ns, key string) []auditRecord {
			return []auditRecord{{action: actionDelete, data: true, namespace: inNamespace(ns), keys: keysOf([]byte(key))}}
		}
		const flood = 50_000
		for i := range flood {
			var err error
			if i == flood-1 {
				err = proto.ErrOverloaded.Errorf("full")
			}
			a.record(of("writer", fmt.Sprintf("10.0.0.9:%d", i)), del("clicks", "k"), nil, err)
		}
		a.record(of("operator", "10.0.0.8:1"), del("clicks", "precious"), nil, nil)
		for i := range 3 * mergedMax {
			a.record(of("writer", "10.0.0.9:1"), del(fmt.Sprint("ns", i), "k"), nil, nil)
		}
		time.Sleep(mergedWait)
		synctest.Wait()
		said := lines.String()
		if n := strings.Count(said, "\n"); n > recordLinesMax+mergedMax+1 {
			t.Errorf("%d lines of %d acts", n, flood)
		}
		for _, want := range []string{
			fmt.Sprintf(`"on":"%d keys of namespace clicks: \"k\", \"k\", \"k\", \"k\", \"k\", \"k\", \"k\", \"k\" and %d others","outcome":"1 of %d requests not done wholly, the first: full`,
				flood-recordLinesMax, flood-recordLinesMax-keysNamed, flood-recordLinesMax),
			`"who":"operator","from":"10.0.0.8:1","act":"delete","on":"key \"precious\" of namespace clicks","outcome":"done","node":"ebb-0","known_by":"token","requests":1`,
			`"who":"several callers","from":"","act":"delete","on":"514 keys of several namespaces: `,
		} {
			if !strings.Contains(said, want) {
				t.Errorf("no line has %s", want)
			}
		}
		if t.Failed() {
			t.Log(said[max(0, len(said)-3000):])
		}
		time.Sleep(time.Second) // a second later actions have lines of their own again
		before := strings.Count(said, "\n")
		a.record(of("writer", "10.0.0.9:1"), del("clicks", "k"), nil, nil)
		if n := strings.Count(lines.String(), "\n"); n != before+1 {
			t.Errorf("%d lines, want %d", n, before+1)
		}
	})
}

// A batch of counts, which can destroy nothing, costs the audit no memory.
func TestAuditOfCountsAllocatesNothing(t *testing.T) {
	req := auditRequest{req: countsRequest(t)}
	if n := testing.AllocsPerRun(100, func() { auditApply(req) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func countsRequest(t testing.TB) *ebbv1.ApplyRequest {
	c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{}}}
	for i := range 1_000 {
		one := &ebbv1.Increment{Key: []byte("clicks/country"), Bin: []byte(strconv.Itoa(i)), Amount: protobuf.Float64(3)}
		c.GetIncrements().Increments = append(c.GetIncrements().GetIncrements(), one)
	}
	return &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: 1, Command: marshal(t, c)}}}
}

// BenchmarkAuditOfCounts says what a batch of 1,000 counts costs.
func BenchmarkAuditOfCounts(b *testing.B) {
	req := auditRequest{req: countsRequest(b)}
	for b.Loop() {
		auditApply(req)
	}
}
