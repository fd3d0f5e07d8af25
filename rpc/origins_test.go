package rpc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// originServices is one node of real shards, with a namespace of forgettable and one of gocountme.
func originServices(t testing.TB) Services {
	t.Helper()
	s := newOneNode(t)
	n := s.Local.(*oneNode)
	for i := range oneNodeShards {
		newest := &ebbv1.Behaviour{Version: shard.BehaviourMax}
		n.apply(t, i, &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: newest}})
	}
	var namespaces []*ebbv1.Namespace
	murmur3 := ebbv1.SetHash_SET_HASH_MURMUR3.Enum()
	for _, ns := range []*ebbv1.Namespace{
		{Name: "default"},
		{Name: "sets", Decay: ebbv1.Decay_DECAY_NONE, SetHash: murmur3, Sizes: &ebbv1.Sizes{SetMembers: 16}},
		{Name: "ebbing", SetHash: murmur3, Sizes: &ebbv1.Sizes{SetMembers: 16}},
	} {
		namespaces = append(namespaces, namespaceOf(ns))
	}
	for i := range oneNodeShards {
		for _, ns := range namespaces {
			n.apply(t, i, &ebbv1.Command{
				Namespace: ns.GetName(), Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns},
			})
		}
	}
	wire, err := cluster.InitialTable([]string{"ebb-0"}, oneNodeShards, 1)
	if err != nil {
		t.Fatal(err)
	}
	raw := wire.Wire()
	raw.ClusterId, raw.Namespaces, raw.Version = "c", namespaces, proto.StorageVersion
	full, err := cluster.NewTable(raw)
	if err != nil {
		t.Fatal(err)
	}
	return n.services(full)
}

// The scenarios hold requests to the doors of other programs, and what comes back, byte by byte. Each file begins with
// nothing:
//
//	request [content=TYPE]
//	METHOD PATH
//	BODY
//
// count adds the members n-0, n-1 and so on to a set.
func TestOriginScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/origins", func(t *testing.T, path string) {
		h := NewHTTP(originServices(t))
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "request":
			case "count":
				var n int
				d.ScanArgs(t, "n", &n)
				_, target, _ := strings.Cut(d.Input, " ")
				for i := range n {
					visit(t, h, "GET", target+fmt.Sprintf("&value=n-%d", i), "")
				}
				return ""
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return answered(t, h, d)
		})
	})
}

// What a door answers in JSON is JSON, whatever names it holds.
func TestOriginsAnswerJSON(t *testing.T) {
	h := NewHTTP(originServices(t))
	name := "a \"b\"\\\n\t<é>   "
	arg := url.QueryEscape(name)
	visit(t, h, "GET", "/ns/sets/add?key="+arg+"&value="+arg, "")
	visit(t, h, "GET", "/incr?key="+arg+"&bin="+arg, "")
	for _, target := range []string{
		"/ns/sets/get?key=" + arg, "/ns/sets/cardinality?key=" + arg, "/ns/sets/jaccard?key=" + arg + "&key=k",
		"/ns/sets/correlation?key=k&key=" + arg, "/ns/sets/delete?key=" + arg, "/py/get?key=" + arg + "&bin=" + arg,
		"/py/dist?key=" + arg, "/ns/sets/addmulti?delimiter=%7C&value=" + arg + "%7C" + arg,
		"/ns/sets/addmulti?value=" + arg,
		"/ns/sets/query?q=" + url.QueryEscape(`{"method":"get","keys":[`+string(appendString(nil, name))+`]}`),
	} {
		if raw := visit(t, h, "GET", target, ""); !json.Valid(raw) {
			t.Errorf("%s: %s", target, raw)
		}
	}
}

// Each path of a door is that door's, with and without its prefix and a namespace.
func TestDoorOperations(t *testing.T) {
	for path, want := range map[string]doorOp{
		"/incr":                {anyOrigin, "incr", ""},
		"/add":                 {ofGocountme, "add", ""},
		"/ping":                {ofPyforget, "ping", ""},
		"/nmostprobable":       {ofGoforget, "nmostprobable", ""},
		"/exit":                {anyOrigin, "exit", ""},
		"/kmv/exit":            {ofGocountme, "exit", ""},
		"/forget/incr":         {ofGoforget, "incr", ""},
		"/py/get":              {ofPyforget, "get", ""},
		"/ns/a/get":            {anyOrigin, "get", "a"},
		"/ns/a/kmv/get":        {ofGocountme, "get", "a"},
		"/kmv/ns/a/get":        {ofGocountme, "get", "a"},
		"/forget/ns/kmv/dist":  {ofGoforget, "dist", "kmv"},
		"/ns/a%2Fb/py/dist":    {ofPyforget, "dist", "a/b"},
		"/kmv/incr":            {},
		"/py/add":              {},
		"/forget/ping":         {},
		"/kmv/ns/a/py/get":     {},
		"/ns//get":             {},
		"/kmv/kmv/get":         {},
		"/v1/ns/a/overlap":     {},
		"/ns/a/kmv":            {},
		"/ns/%zz/get":          {},
		"/kmv/query/something": {},
	} {
		got, ok := doorOperation(path)
		if ok != (want != doorOp{}) || ok && got != want {
			t.Errorf("%s: %+v, %v", path, got, ok)
		}
	}
}

// Whatever is asked of the door of gocountme or pyforget, it answers in its form.
func FuzzOrigins(f *testing.F) {
	for _, s := range []string{
		"kmv/add?key=k&value=v", "kmv/addhash?key=k&hash=18446744073709551615",
		"kmv/addmulti?value=k,v&delimiter=,&value=x",
		"kmv/get?key=k", "kmv/jaccard?key=a&key=b", "kmv/correlation?key=a&key=b&key=a", "kmv/delete?key=%ff",
		`kmv/query?q={"method":"union","keys":["a","b"]}`, "py/get?key=k&bin=b", "py/dist?key=%zz", "py/incr?key=k",
		`kmv/query?q={"method":"jaccard","set":[{"method":"get","keys":["a"]},{"method":"union","keys":["a","b"]}]}`,
	} {
		f.Add(s)
	}
	h := NewHTTP(originServices(f))
	f.Fuzz(func(t *testing.T, target string) {
		path, query, _ := strings.Cut(target, "?")
		path = "/ns/sets/" + path
		op, ok := doorOperation(path)
		if !ok || op.door != ofGocountme && op.door != ofPyforget || op.name == "ping" {
			t.Skip()
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.URL = &url.URL{Path: path, RawQuery: query}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if op.name == "incr" && w.Code == http.StatusOK && w.Body.Len() == 0 {
			return
		}
		var body struct {
			StatusCode int `json:"status_code"`
			Data       any `json:"data"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
		if body.StatusCode != w.Code && (op.door != ofPyforget || body.StatusCode != http.StatusNotFound) {
			t.Fatalf("HTTP %d: %s", w.Code, w.Body)
		}
		if strings.Contains(w.Header().Get("Ebb-Error"), "EBB-9") {
			t.Fatalf("%s", w.Header().Get("Ebb-Error"))
		}
	})
}

// FuzzKMVQuery: a query that reads is answered by its operands, and one that does not says why.
func FuzzKMVQuery(f *testing.F) {
	for _, s := range []string{
		`{"method":"get","keys":["a"]}`, `{"keys":[],"set":null,"x":[1,{"y":[true,null]}]}`,
		`{"method":"union","set":[{}]}`,
		`{"method":"get","keys":["\ud800"]}`, `[`, `{"method":1}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := parseKMVQuery(text)
		if err != nil {
			if err.Code == 0 || err.Message == "" {
				t.Fatalf("%q is refused without a word", text)
			}
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%q is no JSON", text)
		}
		terms, refused := q.operands()
		if refused == nil {
			refused = q.check(terms)
		}
		if refused == nil && len(terms) == 0 {
			t.Fatalf("%q is answered about nothing", text)
		}
	})
}
