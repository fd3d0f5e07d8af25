package rpc

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// A key that would be ignored is refused, and the refusal says how to write it.
func TestIdempotencyKeysOverHTTP(t *testing.T) {
	h := NewHTTP(fixture().services())
	const increments = `"increments":[{"key":"k","bin":"b"}]`
	for _, test := range []struct {
		what, path, body, header string
		status                   int
		want                     []string
	}{
		{
			"an object", "/v1/increment",
			`{` + increments + `,"idempotency_key":{"issued_at_us":"2026-11-26T08:00:00Z","hi":"1","lo":"2"}}`, "", 200, nil,
		},
		{
			"a string", "/v1/increment", `{` + increments + `,"idempotency_key":"abc"}`, "", 400,
			[]string{"issued_at_us", "hi", "lo", "not a string"},
		},
		{
			"a header", "/v1/increment", `{` + increments + `}`, "abc", 400,
			[]string{"Idempotency-Key", "field of the body", "issued_at_us"},
		},
		{"a header of a deletion", "/v1/delete", `{"keys":["k"]}`, "abc", 400, []string{"field of the body"}},
		{"a header of a question", "/v1/query", `{"text":"top 1 k"}`, "abc", 200, nil},
	} {
		r := jsonRequest("POST", test.path, strings.NewReader(test.body))
		if test.header != "" {
			r.Header.Set("Idempotency-Key", test.header)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.status && !(test.status == 200 && w.Code != 400) {
			t.Errorf("%s: %d: %s", test.what, w.Code, w.Body)
		}
		for _, want := range test.want {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %q is not in %s", test.what, want, w.Body)
			}
		}
	}
}
