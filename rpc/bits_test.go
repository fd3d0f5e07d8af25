package rpc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Bitmaps are edited and asked by path, by expression and over gRPC alike.
func TestBitmapsThroughTheDoors(t *testing.T) {
	s := newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"}))
	client, h := ebbv1grpc.NewEbbClient(serve(t, s)), NewHTTP(s)
	for _, c := range []struct{ method, path, body, has string }{
		{"POST", "/v1/bits", `{"changes":[{"key":"a/1","op":"set","ids":[5,3,5,18446744073709551615]},{"key":"b","op":"set","range":{"first":3,"last":9}}]}`, `"changed":[3,7]`},
		{"POST", "/v1/ns/default/bits/a/1", `{"op":"flip","ids":[4,"5"]}`, `"changed":[2]`},
		{"POST", "/v1/ns/default/bits/b", `{"op":"clear","range":{"first":0,"last":3}}`, `"changed":[1]`},
		{"GET", "/v1/ns/default/bits/a/1", "", `"count":3`},
		{"GET", "/v1/ns/default/bits/a/1?first=4&last=100", "", `"count":1`},
		{"GET", "/v1/ns/default/bits/b?ids=true&limit=2", "", `"ids":[4,5],"more":true,"next":6`},
		{"GET", "/v1/ns/default/bits/b?ids=true&from=8", "", `"ids":[8,9]`},
		{"GET", "/v1/ns/default/bits/a/1?contains=3&contains=5", "", `"contains":[true,false]`},
		{"GET", "/v1/ns/default/bits/b?rank=6", "", `"count":2`},
		{"GET", "/v1/ns/default/bits/b?position=0", "", `"ids":[4]`},
		{"GET", "/v1/ns/default/bits/b?ends=true", "", `"count":6,"std_error":0,"ids":[4,9]`},
		{"POST", "/v1/ask", `{"questions":[{"bitmap":{"expr":{"and_not":{"of":[{"or":{"of":[{"key":"a/1"},{"key":"b"}]}},{"range":{"first":5,"last":8}}]}},"ids":{}}}]}`, `"ids":[3,4,9,"18446744073709551615"]`},
	} {
		if page := visit(t, h, c.method, c.path, c.body); !strings.Contains(string(page), c.has) {
			t.Errorf("%s %s: %s is not in\n%s", c.method, c.path, c.has, page)
		}
	}
	q := &ebbv1.BitmapQuestion{
		Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte("b")}}, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: 3}},
	}
	resp, err := client.Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{{Ask: &ebbv1.Question_Bitmap{Bitmap: q}}}})
	if err != nil {
		t.Fatal(err)
	}
	got := &ebbv1.Answer{}
	if err := parseJSON(new(charge), visit(t, h, "GET", "/v1/ns/default/bits/b?ids=true&limit=3", ""), got); err != nil || !protobuf.Equal(resp.GetAnswers()[0], got) {
		t.Errorf("gRPC: %v\nHTTP: %v (%v)", resp.GetAnswers()[0], got, err)
	}
}

// halfDone makes half of each change.
type halfDone struct{ *fake }

func (halfDone) Bits(context.Context, *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error) {
	return &ebbv1.BitsResponse{Changed: []uint64{5}, Refused: []*ebbv1.Refusal{{Error: proto.ErrResourceExhausted.Errorf("a shard is full").Wire()}}}, nil
}

// One change that was made in part is no success over HTTP, nor one that was not made.
func TestHalfAChangeIsNoSuccess(t *testing.T) {
	s := fixture().services()
	s.Router = halfDone{fixture()}
	r := jsonRequest("POST", "/v1/ns/default/bits/a", strings.NewReader(`{"op":"flip","ids":[1,2]}`))
	w := httptest.NewRecorder()
	NewHTTP(s).ServeHTTP(w, r)
	if said := w.Body.String(); w.Code != http.StatusGatewayTimeout || !strings.Contains(said, "EBB-3005") || !strings.Contains(said, "5 ids were changed, and the rest is refused: a shard is full") {
		t.Errorf("%d %s", w.Code, said)
	}
}

// What cannot be a change of a bitmap, or a question about one, is refused with its reason.
func TestBitmapsRefused(t *testing.T) {
	h := NewHTTP(newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"})))
	for _, c := range []struct{ method, path, body, says string }{
		{"POST", "/v1/ns/default/bits/a", `{"op":"set","ids":[-1]}`, `-1`},
		{"POST", "/v1/ns/default/bits/a", `{"op":"set","ids":[18446744073709551616]}`, `is not an integer from 0 to 18446744073709551615`},
		{"POST", "/v1/ns/default/bits/a", `{"op":"sett","ids":[1]}`, `set, clear, flip`},
		{"POST", "/v1/ns/default/bits/a", `{"op":"set"}`, `no ids`},
		{"POST", "/v1/ns/default/bits/a", `{"op":"set","key":"b","ids":[1]}`, `it stands in the path`},
		{"POST", "/v1/ns/default/bits/a", `{"op":"set","range":{"first":9,"last":3}}`, `upside down`},
		{"POST", "/v1/ns/default/bits/a", `{"op":"set","range":{"last":134217728}}`, `the limit is 134217728`},
		{"POST", "/v1/bits", `{}`, `no changes`},
		{"GET", "/v1/ns/default/bits/a?first=9&last=3", "", `upside down`},
		{"GET", "/v1/ns/default/bits/a?ids=true&limit=100001", "", `1 to 100000 ids`},
		{"GET", "/v1/ns/default/bits/a?limit=5", "", `they go with ids=true`},
		{"GET", "/v1/ns/default/bits/a?rank=1&ends=true", "", `only one of them`},
		{"GET", "/v1/ns/default/bits/a?contains=x", "", `is not an integer`},
		{"GET", "/v1/ns/default/bits/a?rank=-1", "", `is not an integer from 0`},
		{"POST", "/v1/ask", `{"questions":[{"bitmap":{"expr":{"range":{"last":5}},"count":true}}]}`, `names a bitmap at least`},
		{"POST", "/v1/ask", `{"questions":[{"bitmap":{"expr":{"or":{}},"count":true}}]}`, `without terms`},
		{"POST", "/v1/ask", `{"questions":[{"bitmap":{"expr":{"key":"a"}}}]}`, `asks for one of count, ids`},
		{"POST", "/v1/ask", `{"questions":[{"bitmap":{"expr":{"at_least":{"times":2,"of":[{"key":"a"}]}},"count":true}}]}`, `at least 2 of 1`},
		{"POST", "/v1/ask", `{"questions":[{"bitmap":{"expr":` + strings.Repeat(`{"or":{"of":[`, 70) + `{"key":"a"}` + strings.Repeat(`]}}`, 70) + `,"count":true}}]}`, `more than 64 deep`},
	} {
		r := jsonRequest(c.method, c.path, strings.NewReader(c.body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code/100 != 4 || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body[:min(len(c.body), 80)], w.Code, w.Body.String())
		}
	}
}
