package rpc

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Requests about keys at the HTTP door: what is good is handed over, what is not is refused by name and never gets
// there.
func TestKeysByHTTP(t *testing.T) {
	long := strings.Repeat("k", 513)
	for _, c := range []struct{ method, target, body, want string }{
		{"POST", "/v1/delete", `{"namespace":"plain","keys":["a","b"]}`, `{"deleted":2`},
		{"POST", "/v1/expire", `{"keys":["a"],"ttl_us":"10m"}`, `{"changed":1`},
		{"POST", "/v1/expire", `{"keys":["a"],"at_us":"2030-01-01T00:00:00Z"}`, `{"changed":1`},
		{"POST", "/v1/expire", `{"keys":["a"],"never":true}`, `{"changed":1`},
		{"POST", "/v1/rename", `{"key":"a","to":"b","overwrite":true}`, `{"bytes_moved":1`},
		{"DELETE", "/v1/ns/plain/key/link/a", ``, `{"deleted":1`},
		{"GET", "/v1/ns/plain/keys/link/*?order=total&kind=distinct&limit=5", ``, `{"coverage"`},
		{"GET", "/v1/ns/plain/key/link/a", ``, `{"coverage"`},

		{"POST", "/v1/delete", `{"keys":[]}`, "0 keys: a question names 1 to 10000"},
		{"POST", "/v1/delete", `{"keys":["` + long + `"]}`, "key of 513 bytes: the limit is 512"},
		{"POST", "/v1/delete", `{"keys":["a",""]}`, "empty key"},
		{"POST", "/v1/delete", `{"keys":["a"],"idempotency_key":{"hi":1}}`, "idempotency key issued at 0"},
		{"POST", "/v1/delete", `{"namespace":"no name","keys":["a"]}`, "no name"},
		{"POST", "/v1/expire", `{"keys":["a"],"at_us":"1970-01-01T00:00:05Z","ttl_us":5}`, "one of ttl_us, at_us and never must be given, and 2 are"},
		{"POST", "/v1/expire", `{"keys":["a"],"ttl_us":5,"never":true}`, "and 2 are"},
		{"POST", "/v1/expire", `{"keys":["a"]}`, "and 0 are"},
		{"POST", "/v1/expire", `{"keys":["a"],"ttl_us":0}`, "and 0 are"},
		{"POST", "/v1/expire", `{"keys":["a"],"ttl_us":-5}`, "it must be above 0"},
		{"POST", "/v1/expire", `{"keys":["a"],"at_us":-5}`, "before 1970"},
		{"POST", "/v1/rename", `{"key":"a","to":"a"}`, "has that name already"},
		{"POST", "/v1/rename", `{"key":"a"}`, "empty key"},
		{"GET", `/v1/ns/plain/keys/a%5C`, ``, "ends in a backslash"},
		{"GET", "/v1/ns/plain/keys/" + long, ``, "pattern of 513 bytes"},
		{"GET", "/v1/ns/plain/keys/%FF", ``, "not UTF-8"},
		{"GET", "/v1/ns/plain/keys/*?limit=10001", ``, "10001 keys: an answer lists 1 to 10000"},
		{"GET", "/v1/ns/plain/keys/*?order=total&after=a", ``, "only keys in the order of their names"},
		{"GET", "/v1/ns/plain/keys/*?after=a&after_base64=YQ==", ``, "only one of them may be given"},
		{"GET", "/v1/ns/plain/keys/*?after_base64=%FF", ``, "is not base64"},
		{"POST", "/v1/rename", `{"key_base64":"/w","to":"b"}`, "is not base64"},
		{"POST", "/v1/rename", `{"key_base64":"/w==","key":"a","to":"b"}`, "key is given twice"},
		{"POST", "/v1/delete", `{"keys_base64":["/w=="]}`, "unknown field"},
		{"GET", "/v1/ns/plain/keys/*?order=hot", ``, "is not one of name, total, recent"},
		{"GET", "/v1/ns/plain/keys/*?kind=hot", ``, "is not one of distribution"},
		{"GET", "/v1/ns/plain/distribution?pattern=", ``, "empty pattern"},
		{"GET", "/v1/ns/plain/distribution?pattern=" + strings.Repeat("a&pattern=", 16) + "a", ``, "17 patterns: a question names 16 at most"},
		{"GET", "/v1/ns/plain/distribution", ``, "0 keys"},
		{"PUT", "/v1/ns/plain/key/a", ``, "only GET or DELETE is possible"},
	} {
		w := httptest.NewRecorder()
		NewHTTP((&fake{}).services()).ServeHTTP(w, jsonRequest(c.method, c.target, strings.NewReader(c.body)))
		good := strings.HasPrefix(c.want, "{")
		if body := w.Body.String(); (w.Code == 200) != good || !strings.Contains(body, c.want) || good && !strings.HasPrefix(body, c.want) {
			t.Errorf("%s %s %s: %d %s", c.method, c.target, c.body, w.Code, w.Body)
		}
	}
}

// A key that is not UTF-8 does not take its page with it: it is there as base64, and the next page begins after it.
func TestBinaryKeysByHTTP(t *testing.T) {
	var asked *ebbv1.KeysQuestion
	h := NewHTTP((&fake{ask: func(_ context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
		asked = req.GetQuestions()[0].GetKeys()
		list := &ebbv1.KeyList{Keys: []*ebbv1.KeyInfo{{Key: []byte("a")}, {Key: []byte{0xff, 'b'}}}}
		return &ebbv1.AskResponse{Answers: []*ebbv1.Answer{{Value: &ebbv1.Answer_Keys{Keys: list}}}}, nil
	}}).services())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/ns/plain/keys/**?after_base64=/2E%3D", nil))
	if body := w.Body.String(); w.Code != 200 || !strings.Contains(body, `"key":"a"`) || !strings.Contains(body, `"key_base64":"/2I="`) {
		t.Errorf("%d %s", w.Code, body)
	}
	if string(asked.GetAfter()) != "\xffa" {
		t.Errorf("asked for what comes after %q", asked.GetAfter())
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, jsonRequest("POST", "/v1/ask", strings.NewReader(`{"questions":[{"keys":{"after_base64":"/2I="}}]}`)))
	if w.Code != 200 || string(asked.GetAfter()) != "\xffb" {
		t.Errorf("%d: asked for what comes after %q", w.Code, asked.GetAfter())
	}
}

// A feed that finds more phrases than can be counted at once says so of the texts, and counts none.
func TestFeedOfTooManyPhrases(t *testing.T) {
	match := &ebbv1.Matches{Found: true}
	for i := range proto.BatchOpsMax + 1 {
		match.Matches = append(match.Matches, &ebbv1.Match{Phrase: fmt.Appendf(nil, "phrase %d", i)})
	}
	h := NewHTTP((&fake{
		ask: func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
			return &ebbv1.AskResponse{Answers: []*ebbv1.Answer{{Value: &ebbv1.Answer_Match{Match: match}}}}, nil
		},
		increment: func(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
			t.Error("counted")
			return &ebbv1.IncrementResponse{}, nil
		},
	}).services())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, jsonRequest("POST", "/v1/feed", strings.NewReader(`{"phrases":"p","into":"k","texts":["all of them"]}`)))
	if body := w.Body.String(); w.Code == 200 || !strings.Contains(body, "10001 phrases") || !strings.Contains(body, "several feeds") {
		t.Errorf("%d %s", w.Code, body)
	}
}
