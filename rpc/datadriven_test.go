package rpc

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The scenario files hold requests and what comes back, byte by byte:
//
//	request [content=TYPE]
//	METHOD PATH
//	BODY
func TestHTTPScenarios(t *testing.T) {
	h := NewHTTP(fixture().services())
	datadriven.Walk(t, "testdata/http", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "request" {
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return answered(t, h, d)
		})
	})
}

// answered makes the request of a scenario, and describes what comes back.
func answered(t *testing.T, h http.Handler, d *datadriven.TestData) string {
	t.Helper()
	line, body, _ := strings.Cut(d.Input, "\n")
	method, target, _ := strings.Cut(line, " ")
	var content string
	d.MaybeScanArgs(t, "content", &content)
	r := jsonRequest(method, target, strings.NewReader(body))
	if content != "" {
		r.Header.Set("Content-Type", content)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return describe(w.Result(), w.Body.String())
}

func describe(r *http.Response, body string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", r.StatusCode, r.Header.Get("Content-Type"))
	for _, name := range []string{"Ebb-Error", "Allow", "Retry-After"} {
		if v := r.Header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	b.WriteString(strings.TrimSuffix(body, "\n"))
	b.WriteString("\n")
	return b.String()
}
