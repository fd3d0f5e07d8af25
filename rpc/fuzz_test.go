package rpc

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What is read and written again reads as the same message; what encoding/json
// would not take is not taken.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{
		`{"questions":[{"namespace":"n","distribution":{"keys":["a","b"],"top":3,"as_of_us":"2011-11-01T00:00:00Z","rate":0.5}},{"count_keys":{}}],"consistency":"any"}`,
		`{"questions":[{"distribution":{"keys":["\u00fc\ud83d\ude00\n"],"bins":{"bins":["x",""]},"confidence":9e-1}}],"max_staleness_us":"1h","allow_partial":true}`,
		`{"questions":[{"distribution":{"all":true,"asOfUs":-0}}]}`,
		`{"questions":null,"consistency":2,"maxStalenessUs":1e3}`,
		`{"questions":[{"distribution":{"rate":1e999}}]}`,
		`{"questions":[{"distribution":{"keys":["\ud800"]}}]}`, `{`, ``, `[]`, "{\"\xff\":1}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		m := &ebbv1.AskRequest{}
		if err := parseJSON(new(charge), doc, m); err != nil {
			if err.Code == 0 || err.Message == "" || !utf8.ValidString(err.Message) {
				t.Fatalf("an error that says nothing: %+v", err)
			}
			return
		}
		if !json.Valid(doc) || !utf8.Valid(doc) {
			t.Fatalf("took %q, which is no JSON", doc)
		}
		out, err := appendJSON(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(out) {
			t.Fatalf("wrote %q, which is no JSON", out)
		}
		again := &ebbv1.AskRequest{}
		if err := parseJSON(new(charge), out, again); err != nil {
			t.Fatalf("wrote %s and does not read it: %v", out, err)
		}
		if !bytes.Equal(marshal(t, m), marshal(t, again)) {
			t.Fatalf("%s\nbecame\n%s", doc, out)
		}
	})
}

// Strings and numbers are taken and understood as encoding/json does, but for
// what it replaces silently.
func FuzzLexer(f *testing.F) {
	for _, s := range []string{`"a\u0041\n\/"`, `"\ud83d\ude00"`, `"\ud83d"`, `-0.5e+10`, `01`, `1.`, `.5`, `"`, `"\`, `"\u12"`, `true`, "\"\x7f\"", `"` + "\u2028" + `"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, lerr := newLexer([]byte(s))
		if lerr != nil {
			if utf8.ValidString(s) {
				t.Fatal(lerr)
			}
			return
		}
		var want any
		stdErr := json.Unmarshal([]byte(s), &want)
		switch l.peek() {
		case '"':
			got, err := l.str()
			if err == nil {
				err = l.end()
			}
			lone := err != nil && err.Is(proto.ErrNotUTF8)
			if (err == nil) != (stdErr == nil) && !lone || err == nil && got != want {
				t.Fatalf("%q: %q, %v; encoding/json: %q, %v", s, got, err, want, stdErr)
			}
			if err == nil && json.Unmarshal(appendString(nil, got), &want) == nil && want != got {
				t.Fatalf("%q was written as %q", got, want)
			}
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			_, err := l.number()
			if err == nil {
				err = l.end()
			}
			if (err == nil) != json.Valid([]byte(s)) {
				t.Fatalf("%q: %v; encoding/json: %v", s, err, stdErr)
			}
		}
	})
}

// Whatever is asked of the forgettable door, it answers in one of its forms.
func FuzzForgettable(f *testing.F) {
	for _, s := range []string{
		"dist?distribution=colors", "get?distribution=colors&field=red&rate=1", "incr?distribution=a&field=b&N=-3",
		"nmostprobable?distribution=colors&N=5", "dbsize", "get?distribution=%ff", "incr?distribution=a;b", "dist?distribution=%zz",
		"nmostprobable?distribution=colors&N=1e3", "dist?rate=0x1p-2&distribution=colors", "exit?now",
	} {
		f.Add(s)
	}
	h := NewHTTP(fixture().services())
	f.Fuzz(func(t *testing.T, target string) {
		path, query, _ := strings.Cut(target, "?")
		op, ok := doorOperation("/" + path)
		args, err := parseQuery(query)
		if ok && err == nil {
			op.choose(args)
		}
		if !ok || op.door != ofGoforget && op.door != anyOrigin {
			t.Skip()
		}
		r := httptest.NewRequest("GET", "/"+path, nil)
		r.URL = &url.URL{Path: "/" + path, RawQuery: query}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if body := w.Body.String(); body == "OK" && w.Code == 200 || strings.HasPrefix(body, "FAIL: ") && w.Code == 500 {
			return
		}
		checkEnvelope(t, w)
	})
}

// FuzzHosts: a name that is allowed is, as URLs have it, one of the list, however it is written.
func FuzzHosts(f *testing.F) {
	for _, s := range []string{"localhost", "LocalHost.:7080", "[::1]:1", "[::1", "127.0.0.1:x", "page.example", "a@localhost", "localhost:1@page.example", "localhost#.page.example"} {
		f.Add(s)
	}
	h := NewHosts()
	f.Fuzz(func(t *testing.T, host string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		if CheckHost(host) == nil {
			if r.Host = hostOf(host); !NewHosts(host).allow(r) {
				t.Fatalf("%q is a list of its own, and not in it", host)
			}
		}
		r.Host = host
		u, err := url.Parse("http://" + host + "/")
		if !h.allow(r) || err != nil || host == "" {
			return
		}
		if name := strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")); u.User == nil && name != "localhost" && name != "127.0.0.1" && name != "::1" {
			t.Fatalf("%q is allowed, and is %q", host, name)
		}
	})
}

func checkEnvelope(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	var e struct {
		StatusCode int             `json:"status_code"`
		StatusTxt  *string         `json:"status_txt"`
		Data       json.RawMessage `json:"data"`
	}
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Fatalf("no envelope: %v", err)
	}
	good := w.Code == 200 && *e.StatusTxt == "" && string(e.Data) != "null"
	bad := (w.Code == 500 || w.Code == 403) && *e.StatusTxt != "" && string(e.Data) == "null" && w.Header().Get("Ebb-Error") != ""
	if e.StatusCode != w.Code || !good && !bad {
		t.Fatalf("%d: %+v", w.Code, e)
	}
}

// Every message of the door reads back as it was written.
func TestJSONRoundTrip(t *testing.T) {
	q := topQuestion("colors", 2).GetQuestions()[0]
	for _, m := range []protobuf.Message{
		answerFixture(q), answerFixture(&ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}),
		&ebbv1.TableResponse{Table: fixture().table, Node: "ebb-0"},
		&ebbv1.IncrementRequest{
			Increments:     increment("k", "b", 0.1, 1<<60),
			IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: 1, Hi: 1 << 63, Lo: 3},
		},
		&ebbv1.StatusResponse{Nodes: []*ebbv1.NodeStatus{{Replicas: []*ebbv1.ReplicaStatus{{Term: 1<<64 - 1, NowUs: -1 << 62}}}}},
	} {
		out, err := appendJSON(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		again := m.ProtoReflect().New().Interface()
		if err := parseJSON(new(charge), out, again); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if !protobuf.Equal(m, again) {
			t.Errorf("%s\nreads as\n%v", out, again)
		}
	}
}
