package rpc

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What tells a browser's request from another program's.
const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:150.0) Gecko/20100101 Firefox/150.0"

// pageRequests are requests that a page of another origin can make a browser send, by what makes it do so. Those with
// preflights are here as what they ask for, as if a browser asked for no leave.
var pageRequests = []struct {
	name    string
	methods []string // those that a browser sends in this way
	header  map[string]string
}{
	{"an image", []string{"GET"}, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}},
	{"a frame", []string{"GET"}, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}},
	{"a page of another port", []string{"GET", "HEAD", "POST", "DELETE"}, map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}},
	{"fetch", []string{"GET", "HEAD", "POST", "DELETE"}, map[string]string{
		"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "http://page.example",
	}},
	{"a preflight", []string{"OPTIONS"}, map[string]string{
		"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "http://page.example", "Access-Control-Request-Method": "POST",
	}},
	{"fetch of an older browser", []string{"GET", "HEAD", "POST", "DELETE", "OPTIONS"}, map[string]string{"Origin": "http://page.example"}},
	{"a page in a sandbox", []string{"GET", "POST", "DELETE"}, map[string]string{"Origin": "null"}},
	{"a form", []string{"POST"}, map[string]string{
		"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-User": "?1", "Origin": "http://page.example",
	}},
	{"a site that does not exist", []string{"GET", "POST"}, map[string]string{"Sec-Fetch-Site": "yonder"}},
}

// untouched are services that fail the test as soon as one of them is asked.
func untouched(t *testing.T) Services {
	t.Helper()
	f := &touched{fake: *fixture(), t: t}
	s := f.services()
	s.Router, s.Coordinator, s.Cluster = f, f, f
	return s
}

// touched fails its test when anything is handed over to it.
type touched struct {
	fake
	t *testing.T
}

func (f *touched) Increment(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
	f.t.Error("an increment is handed over")
	return nil, proto.ErrInternal
}

func (f *touched) Ask(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	f.t.Error("a question is handed over")
	return nil, proto.ErrInternal
}

func (f *touched) Apply(context.Context, *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	f.t.Error("a command is handed over")
	return nil, proto.ErrInternal
}

func (f *touched) ApplyWaiting(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	return f.Apply(ctx, req)
}

func (f *touched) Bits(context.Context, *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error) {
	f.t.Error("a change of bits is handed over")
	return nil, proto.ErrInternal
}

func (f *touched) SetNamespace(context.Context, *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
	f.t.Error("a namespace is handed over")
	return nil, proto.ErrInternal
}

func (f *touched) DeleteNamespace(context.Context, *ebbv1.DeleteNamespaceRequest) (*ebbv1.DeleteNamespaceResponse, error) {
	f.t.Error("the deletion of a namespace is handed over")
	return nil, proto.ErrInternal
}

func (f *touched) UndeleteNamespace(context.Context, *ebbv1.UndeleteNamespaceRequest) (*ebbv1.UndeleteNamespaceResponse, error) {
	f.t.Error("the undelete of a namespace is handed over")
	return nil, proto.ErrInternal
}

// doorSamples are all routes and operations of the HTTP doors: METHOD PATH. What is not a GET is sent with other
// methods, too.
func doorSamples(t *testing.T) []string {
	t.Helper()
	out := routeSamples(t)
	for _, has := range originPaths[ofGoforget:] {
		for _, op := range has.operations {
			for _, prefix := range []string{"/", "/" + has.prefix + "/", "/ns/clicks/" + has.prefix + "/"} {
				out = append(out, "GET "+prefix+op, "POST "+prefix+op)
			}
		}
	}
	return append(out, "GET /", "GET /nothing/here")
}

// Whatever a page of another origin makes a browser send, to any route of any door and by any method, is refused before
// anything is handed over, in words that name the header, and no answer gives a page leave to read it.
func TestPagesOfOtherOriginsAreRefused(t *testing.T) {
	h := NewHTTP(untouched(t))
	sent := 0
	for _, sample := range doorSamples(t) {
		method, path, _ := strings.Cut(sample, " ")
		for _, from := range pageRequests {
			for _, m := range from.methods {
				op, _ := doorOperation(path)
				if m != method && m != "OPTIONS" && m != "HEAD" && (op.name == "" || op.effect() != counts) {
					continue // another route, or none
				}
				sent++
				r := jsonRequest(m, path+"?distribution=k&field=f&key=k", strings.NewReader(bodies[sample]))
				for name, value := range from.header {
					r.Header.Set(name, value)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				said := w.Body.String() + w.Header().Get("Ebb-Error")
				named := "Sec-Fetch-Site"
				if from.header[named] == "" {
					named = "Origin"
				}
				if w.Code != http.StatusForbidden || !strings.Contains(said, "EBB-2051") || !strings.Contains(said, "header "+named) {
					t.Errorf("%s %s of %s: %d %s", m, path, from.name, w.Code, said)
				}
				isolated(t, sample, w.Header())
			}
		}
	}
	if sent < 500 {
		t.Errorf("only %d requests were sent", sent)
	}
}

// isolated looks at the headers that every answer has.
func isolated(t *testing.T, of string, h http.Header) {
	t.Helper()
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("%s: header %s lets pages of other origins read", of, name)
		}
	}
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin", "Content-Security-Policy": "frame-ancestors 'none'",
	} {
		if !strings.Contains(h.Get(name), want) {
			t.Errorf("%s: header %s is %q", of, name, h.Get(name))
		}
	}
}

// What is no page of another origin passes: programs, which send none of the headers, an address that a user types, and
// pages of the node's own origin.
func TestOthersThanPagesPass(t *testing.T) {
	h := NewHTTP(newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"})))
	form := "application/x-www-form-urlencoded"
	for _, c := range []struct {
		name, method, path string
		header             map[string]string
	}{
		{"curl", "GET", "/incr?distribution=k&field=f", map[string]string{"User-Agent": "curl/8.5.0"}},
		{"a program without a name", "GET", "/incr?distribution=k&field=f", nil},
		{"a program's form", "POST", "/incr", map[string]string{"Content-Type": form}},
		{"a form of the node's own origin", "POST", "/incr", map[string]string{
			"Content-Type": form, "Origin": "http://ebb.example:7080", "User-Agent": firefox,
		}},
		{"the same, in a newer browser", "POST", "/incr", map[string]string{
			"Content-Type": form, "Origin": "http://ebb.example:7080", "Sec-Fetch-Site": "same-origin", "User-Agent": firefox,
		}},
		{"an address typed, on loopback", "GET", "/incr?distribution=k&field=f", map[string]string{
			"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "User-Agent": firefox,
		}},
		{"a page of the node's own", "GET", "/v1/ns/default/keys", map[string]string{"Sec-Fetch-Site": "same-origin", "User-Agent": firefox}},
		{"a page of the node's own, in the clear", "GET", "/incr?distribution=k&field=f", map[string]string{
			"User-Agent": firefox, "Referer": "http://ebb.example:7080/",
		}},
		{"a browser in the clear", "GET", "/v1/ns/default/keys", map[string]string{"User-Agent": firefox}},
		{"a link", "GET", "/v1/ns/default/keys", map[string]string{
			"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "User-Agent": firefox,
		}},
		{"DELETE by a program", "DELETE", "/v1/ns/default/key/k", nil},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader("distribution=k&field=f"))
		r.Host = "ebb.example:7080"
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
		isolated(t, c.name, w.Header())
	}
}

// In the clear, beyond loopback, a browser says nothing of the page whose image or link it asks for: a GET of a browser
// counts nothing there. Links count nothing anywhere, and open no watch.
func TestWhatMayNotBeFollowed(t *testing.T) {
	h := NewHTTP(untouched(t))
	link := map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "User-Agent": firefox}
	for _, c := range []struct {
		method, path, names string
		header              map[string]string
	}{
		{"GET", "/incr?distribution=k&field=f", "User-Agent", map[string]string{"User-Agent": firefox}},
		{"HEAD", "/forget/incr?distribution=k&field=f", "User-Agent", map[string]string{"User-Agent": firefox}},
		{"OPTIONS", "/ns/clicks/incr?distribution=k&field=f", "User-Agent", map[string]string{"User-Agent": firefox}},
		{"GET", "/incr?distribution=k&field=f", "User-Agent", map[string]string{"User-Agent": firefox, "Referer": "http://page.example/"}},
		{"GET", "/incr?distribution=k&field=f", "Sec-Fetch-Site", link},
		{"GET", "/v1/ns/clicks/watch/k", "Sec-Fetch-Site", link},
		{"OPTIONS", "/v1/ns/clicks/keys", "Sec-Fetch-Site", link},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if said := w.Body.String() + w.Header().Get("Ebb-Error"); w.Code != http.StatusForbidden || !strings.Contains(said, "header "+c.names) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, said)
		}
	}
}

// A body of JSON is taken only under a type that a page cannot send to another origin without asking first; no type is
// none.
func TestTypesOfBodies(t *testing.T) {
	refused := []string{
		"", "text/plain", "text/plain; charset=utf-8", "text/plain; x=application/json", "application/x-www-form-urlencoded",
		"multipart/form-data; boundary=x", "multipart/form-data", "text/json", "application/octet-stream", "json", "a/b/c", "text/x+json",
	}
	taken := []string{"application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;", "application/vnd.ebb+json"}
	for _, rt := range routes {
		if rt.body == nil {
			continue
		}
		path := strings.NewReplacer("{ns}", "clicks", "{key...}", "k").Replace(rt.pattern)
		for _, content := range slices.Concat(refused, taken) {
			r := httptest.NewRequest(rt.method, path, strings.NewReader(`{`))
			if content != "" {
				r.Header.Set("Content-Type", content)
			}
			w := httptest.NewRecorder()
			NewHTTP(untouched(t)).ServeHTTP(w, r)
			isTaken := slices.Contains(taken, content)
			if said := w.Body.String(); (w.Code != http.StatusUnsupportedMediaType) != isTaken || !isTaken && !strings.Contains(said, "header Content-Type is ") {
				t.Errorf("%s %s with %q: %d %s", rt.method, path, content, w.Code, said)
			}
		}
	}
}

// Of a listener with a list, every path is asked under its names alone: with and without a port, in any case.
func TestHosts(t *testing.T) {
	s := newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"}), namespaceOf(&ebbv1.Namespace{Name: "clicks"}))
	s.Hosts = NewHosts("ebb.example", "Other.Example:443", "10.0.0.7", "[2001:db8::7]:7080")
	public, admin := NewHTTP(s), NewAdmin(s)
	local := &net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 7080}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(local)))
	defer cancel()
	ask := func(h http.Handler, host, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, host := range []string{
		"", "localhost", "localhost:7080", "LOCALHOST:9", "localhost.", "127.0.0.1", "127.0.0.1:7080", "[::1]", "[::1]:7080",
		"ebb.example", "ebb.example:7080", "EBB.example.:443", "other.example", "other.example:80", "10.0.0.7:7080", "[2001:db8::7]",
		"10.1.2.3", "10.1.2.3:7080", "[::ffff:10.1.2.3]:7080", // where the connection arrived
	} {
		for _, path := range []string{"/", "/v1/ns/default/keys", "/dbsize", "/openapi.json"} {
			if w := ask(public, host, path); w.Code != http.StatusOK {
				t.Errorf("%s as %q: %d %s", path, host, w.Code, w.Body)
			}
		}
		for _, path := range []string{"/metrics", "/version", "/debug/pprof/", "/livez"} {
			if w := ask(admin, host, path); w.Code != http.StatusOK {
				t.Errorf("admin's %s as %q: %d %s", path, host, w.Code, w.Body)
			}
		}
	}
	cancel() // a watch that is not refused ends
	for _, host := range []string{
		"page.example", "page.example:7080", "localhost.page.example", "ebb.example.page.example", "page.ebb.example", "127.0.0.1.page.example:7080",
		"0.0.0.0", "0.0.0.0:7080", "[::]:7080", "10.1.2.4:7080", "127.0.0.2", "2130706433", "0x7f.1", "127.1", "ebb.example,page.example", ":7080", ".", "[",
	} {
		for _, sample := range doorSamples(t) {
			_, path, _ := strings.Cut(sample, " ")
			w := ask(public, host, path)
			if said := w.Body.String() + w.Header().Get("Ebb-Error"); w.Code != http.StatusForbidden || !strings.Contains(said, "header Host is ") ||
				!strings.Contains(said, "localhost, 127.0.0.1, ::1, ebb.example, other.example, 10.0.0.7, 2001:db8::7") {
				t.Errorf("%s as %q: %d %s", path, host, w.Code, said)
			}
		}
		for _, path := range []string{"/metrics", "/version", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/nothing", "//livez"} {
			if w := ask(admin, host, path); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "--http-host NAME") {
				t.Errorf("admin's %s as %q: %d %s", path, host, w.Code, w.Body)
			}
		}
		for _, path := range slices.Sorted(maps.Keys(probed)) { // of whoever looks after nodes, under any name
			if w := ask(admin, host, path); w.Code != http.StatusOK {
				t.Errorf("%s as %q: %d %s", path, host, w.Code, w.Body)
			}
		}
	}
}

// A list that names nothing more has loopback, and none allows every name.
func TestHostsOfNoList(t *testing.T) {
	s := newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"}))
	for name, want := range map[string]int{"localhost:7080": 200, "page.example": 403} {
		for _, hosts := range []*Hosts{NewHosts(), nil} {
			s.Hosts = hosts
			r := httptest.NewRequest(http.MethodGet, "/dbsize", nil)
			r.Host = name
			w := httptest.NewRecorder()
			NewHTTP(s).ServeHTTP(w, r)
			if hosts == nil {
				want = 200
			}
			if w.Code != want {
				t.Errorf("%s with list %v: %d", name, hosts, w.Code)
			}
		}
	}
}

func TestCheckHost(t *testing.T) {
	for _, name := range []string{"a", "a.example", "A-b_c.example.", "a.example:443", "10.0.0.1", "10.0.0.1:80", "::1", "[::1]", "[::1]:80", "xn--bcher-kva.example"} {
		if err := CheckHost(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{
		"", ".", ":80", "http://a", "https://a.example/", "a/b", "a b", "*.example", "a.example:http", "a.example:99999", "a,b", "bücher.example", "a\n", strings.Repeat("a", 300),
	} {
		if err := CheckHost(name); err == nil || proto.AsError(err).Hint == "" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Profiles are for no page, and a page has no part in the rest of the admin listener either. Prometheus and probes send
// none of the headers.
func TestPagesAtTheAdminListener(t *testing.T) {
	h := NewAdmin(fixture().services())
	all := []string{"/metrics", "/version", "/debug/pprof/", "/debug/pprof/heap?gc=1", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/livez"}
	link := map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
	visit := func(method, path string, header map[string]string) int {
		r := httptest.NewRequest(method, path, nil)
		for name, value := range header {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		isolated(t, path, w.Header())
		if w.Code == http.StatusForbidden {
			var body struct {
				Error struct{ Code, Message, Hint string }
			}
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Error.Code != "EBB-2051" || body.Error.Hint == "" {
				t.Errorf("%s %s: %s", method, path, w.Body)
			}
		}
		return w.Code
	}
	for _, path := range all {
		for _, from := range pageRequests {
			for _, m := range from.methods {
				if code := visit(m, path, from.header); code != http.StatusForbidden && path != "/livez" {
					t.Errorf("%s %s of %s: %d", m, path, from.name, code)
				}
			}
		}
		for _, header := range []map[string]string{nil, {"User-Agent": "Prometheus/3.5.0"}, {"User-Agent": firefox}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}} {
			if code := visit("GET", path, header); code != http.StatusOK {
				t.Errorf("%s with %v: %d", path, header, code)
			}
		}
		want := http.StatusOK
		if strings.HasPrefix(path, "/debug/") {
			want = http.StatusForbidden
		}
		if code := visit("GET", path, link); code != want {
			t.Errorf("%s of a link: %d, want %d", path, code, want)
		}
	}
}

// What was refused is counted by its reason. What was denied for its caller is in the audit log, too.
func TestRefusalsOfPagesAreCounted(t *testing.T) {
	var lines lockedBuffer
	s, registry := fixture().services(), prometheus.NewRegistry()
	s.Access = NewAccess(AccessConfig{Tokens: boxOf().tokens, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
	s.Registerer, s.Gatherer, s.Hosts = registry, registry, NewHosts()
	public, admin := NewHTTP(s), NewAdmin(s)
	send := func(h http.Handler, method, path, host, site string) string {
		r := httptest.NewRequest(method, path, nil)
		r.Host = host
		r.Header.Set("Authorization", "Bearer "+secretOf("operator"))
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Body.String()
	}
	send(public, "GET", "/incr?distribution=hush", "page.example", "cross-site")
	send(public, "GET", "/forget/incr?distribution=hush", "localhost", "cross-site")
	send(public, "POST", "/v1/tokens", "localhost", "cross-site")
	send(public, "POST", "/v1/tokens", "localhost", "")
	send(admin, "GET", "/debug/pprof/heap", "localhost", "cross-site")
	metrics := send(admin, "GET", "/metrics", "localhost", "")
	for _, line := range []string{
		`ebb_rpc_pages_refused_total{door="admin",reason="cross_origin"} 1`,
		`ebb_rpc_pages_refused_total{door="http",reason="content_type"} 1`,
		`ebb_rpc_pages_refused_total{door="http",reason="cross_origin"} 2`,
		`ebb_rpc_pages_refused_total{door="http",reason="host"} 1`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	lines.await(t, 4)
	said := lines.String()
	for _, part := range []string{
		`"act":"GET /incr","on":"/incr","outcome":"denied: header Host is \"page.example\"`,
		`"act":"GET /incr","on":"/forget/incr","outcome":"denied: header Sec-Fetch-Site is \"cross-site\"`,
		`"act":"POST /v1/tokens","on":"/v1/tokens","outcome":"denied: header Sec-Fetch-Site`,
		`"act":"GET /debug/pprof/","on":"/debug/pprof/heap","outcome":"denied: header Sec-Fetch-Site`,
	} {
		if !strings.Contains(said, part) {
			t.Errorf("the audit log has not %s:\n%s", part, said)
		}
	}
	if strings.Contains(said, "hush") {
		t.Error("the audit log has the query")
	}
}
