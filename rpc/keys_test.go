package rpc

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// Requests about keys at the HTTP door: what is good is handed over, what is not is refused by name and never gets there.
func TestKeysByHTTP(t *testing.T) {
	long := strings.Repeat("k", 513)
	for _, c := range []struct{ method, target, body, want string }{
		{"POST", "/v1/delete", `{"namespace":"plain","keys":["a","b"]}`, `{"deleted":2`},
		{"POST", "/v1/expire", `{"keys":["a"],"ttl_us":"10m"}`, `{"changed":1`},
		{"POST", "/v1/expire", `{"keys":["a"],"at_us":"2030-01-01T00:00:00Z"}`, `{"changed":1`},
		{"POST", "/v1/expire", `{"keys":["a"]}`, `{"changed":1`},
		{"POST", "/v1/rename", `{"key":"a","to":"b","overwrite":true}`, `{"bytes_moved":1`},
		{"DELETE", "/v1/ns/plain/key/link/a", ``, `{"deleted":1`},
		{"GET", "/v1/ns/plain/keys/link/*?order=total&kind=distinct&limit=5", ``, `{"coverage"`},
		{"GET", "/v1/ns/plain/key/link/a", ``, `{"coverage"`},

		{"POST", "/v1/delete", `{"keys":[]}`, "0 keys: a question names 1 to 10000"},
		{"POST", "/v1/delete", `{"keys":["` + long + `"]}`, "key of 513 bytes: the limit is 512"},
		{"POST", "/v1/delete", `{"keys":["a",""]}`, "empty key"},
		{"POST", "/v1/delete", `{"keys":["a"],"idempotency_key":{"hi":1}}`, "idempotency key issued at 0"},
		{"POST", "/v1/delete", `{"namespace":"no name","keys":["a"]}`, "no name"},
		{"POST", "/v1/expire", `{"keys":["a"],"at_us":5,"ttl_us":5}`, "only one of them may be given"},
		{"POST", "/v1/expire", `{"keys":["a"],"ttl_us":-5}`, "it must be above 0"},
		{"POST", "/v1/expire", `{"keys":["a"],"at_us":-5}`, "before 1970"},
		{"POST", "/v1/rename", `{"key":"a","to":"a"}`, "has that name already"},
		{"POST", "/v1/rename", `{"key":"a"}`, "empty key"},
		{"GET", `/v1/ns/plain/keys/a%5C`, ``, "ends in a backslash"},
		{"GET", "/v1/ns/plain/keys/" + long, ``, "pattern of 513 bytes"},
		{"GET", "/v1/ns/plain/keys/%FF", ``, "not UTF-8"},
		{"GET", "/v1/ns/plain/keys/*?limit=10001", ``, "10001 keys: an answer lists 1 to 10000"},
		{"GET", "/v1/ns/plain/keys/*?order=total&after=a", ``, "only keys in the order of their names"},
		{"GET", "/v1/ns/plain/keys/*?order=hot", ``, "is not one of name, total, recent"},
		{"GET", "/v1/ns/plain/keys/*?kind=hot", ``, "is not one of distribution"},
		{"GET", "/v1/ns/plain/distribution?pattern=", ``, "empty pattern"},
		{"GET", "/v1/ns/plain/distribution?pattern=" + strings.Repeat("a&pattern=", 16) + "a", ``, "17 patterns: a question names 16 at most"},
		{"GET", "/v1/ns/plain/distribution", ``, "0 keys"},
		{"PUT", "/v1/ns/plain/key/a", ``, "only GET or DELETE is possible"},
	} {
		w := httptest.NewRecorder()
		NewHTTP((&fake{}).services()).ServeHTTP(w, httptest.NewRequest(c.method, c.target, strings.NewReader(c.body)))
		good := strings.HasPrefix(c.want, "{")
		if body := w.Body.String(); (w.Code == 200) != good || !strings.Contains(body, c.want) || good && !strings.HasPrefix(body, c.want) {
			t.Errorf("%s %s %s: %d %s", c.method, c.target, c.body, w.Code, w.Body)
		}
	}
}
