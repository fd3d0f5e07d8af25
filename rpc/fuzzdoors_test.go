package rpc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// FuzzHTTP: whatever is asked of the HTTP doors, they answer in one of their forms, and no handler panics.
func FuzzHTTP(f *testing.F) {
	for i, rt := range routes {
		path := strings.NewReplacer("{ns}", "default", "{key...}", "colors", "{pattern...}", "col*").Replace(rt.pattern)
		f.Add(byte(i), path, "", []byte(`{}`))
		f.Add(byte(i), path, "top=2&as_of=2011-11-01&confidence=0.9&key=a&key=b&quantile=0.5&limit=3", []byte(`{"increments":[{"key":"k","bin":"b","amount":1e999}]}`))
	}
	for _, body := range []string{
		`{"questions":[{"distribution":{"keys":["colors"],"top":3}}]}`, `{"query":"top 3 colors"}`, `{"changes":[{"key":"b","op":"set","ids":[1,18446744073709551615]}]}`,
		`{"namespace":{"name":"n","half_life_us":"1h"}}`, `{"keys":["a"],"ttl_us":-1}`, `{"key":"k","texts":["a b"]}`,
	} {
		f.Add(byte(0), "/v1/ask", "", []byte(body))
	}
	f.Add(byte(200), "/ns/x/nmostprobable", "distribution=colors&N=5", []byte(nil))
	f.Add(byte(200), "/v1/ns/%ff/keys/%00", "pattern=**", []byte(nil))
	h := NewHTTP((&fake{table: fixture().table}).services())
	f.Fuzz(func(t *testing.T, pick byte, path, query string, body []byte) {
		method := http.MethodPost
		if int(pick) < len(routes) {
			method = routes[pick].method
			if routes[pick].watch != nil {
				t.Skip() // it does not end
			}
		}
		if rt, _, _ := findRoute(method, escaped(path)); rt != nil && rt.watch != nil {
			t.Skip()
		}
		r := jsonRequest(method, "/", strings.NewReader(string(body)))
		r.URL = &url.URL{Path: path, RawQuery: query}
		if pick >= 128 {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		said := w.Body.String()
		if strings.Contains(said, "internal error; the node's log has the details") || strings.Contains(w.Header().Get("Ebb-Error"), "internal error; the node's log") {
			t.Fatalf("a handler panicked: %s", said)
		}
		if _, ok := doorOperation(r.URL.EscapedPath()); ok {
			return // FuzzForgettable, FuzzPyforget and FuzzGocountme look at these answers
		}
		if w.Code != http.StatusOK {
			if err := bodyError(w); err == nil || proto.AsError(err).Code == 0 || proto.AsError(err).Message == "" {
				t.Fatalf("%d says nothing: %s", w.Code, said)
			}
		}
		if !utf8.ValidString(said) {
			t.Fatalf("%q is no JSON", said)
		}
	})
}

func escaped(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// method is one of gRPC, with the service that has it.
type method struct {
	server any
	grpc.MethodDesc
}

// FuzzRequests: whatever bytes come as a request of gRPC, they are refused with a code or answered, and no handler
// panics.
func FuzzRequests(f *testing.F) {
	s := (&fake{table: fixture().table}).services()
	s.Backups = noBackups{}
	var methods []method
	for _, m := range ebbv1grpc.Ebb_ServiceDesc.Methods {
		methods = append(methods, method{&ebbServer{Services: &s}, m})
	}
	for _, m := range ebbv1grpc.Shards_ServiceDesc.Methods {
		methods = append(methods, method{&shardsServer{Services: &s}, m})
	}
	add := func(m protobuf.Message) {
		raw := marshal(f, m)
		for i := range methods {
			f.Add(byte(i), raw)
		}
	}
	add(topQuestion("colors", 3))
	for _, rt := range routes {
		if rt.body != nil {
			add(rt.body)
		}
	}
	f.Fuzz(func(t *testing.T, pick byte, raw []byte) {
		m := methods[int(pick)%len(methods)]
		malformed := false
		resp, err := m.Handler(m.server, context.Background(), func(req any) error {
			err := protobuf.Unmarshal(raw, req.(protobuf.Message))
			malformed = err != nil
			return err
		}, nil)
		switch {
		case malformed:
		case err == nil:
			if _, merr := protobuf.Marshal(resp.(protobuf.Message)); merr != nil {
				t.Fatalf("%s: %v", m.MethodName, merr)
			}
		case proto.AsError(err).Code == 0 || proto.AsError(err).Is(proto.ErrInternal):
			t.Fatalf("%s: %v", m.MethodName, err)
		}
	})
}
