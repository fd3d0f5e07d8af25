package rpc

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/query"
)

// nestedOr is an expression about one key in so many unions; all of them are written where whole says so, else nothing
// that begins has an end.
func nestedOr(unions int, whole bool) string {
	begun := strings.Repeat(`{"or":{"of":[`, unions)
	if !whole {
		return begun
	}
	return begun + `{"key":"a"}` + strings.Repeat(`]}}`, unions)
}

// nestedNot is an expression of a plan about one key in so many complements.
func nestedNot(complements int) string {
	return strings.Repeat(`{"operation":{"operator":"complement","operands":[`, complements) + `{"term":{"key":"a"}}` + strings.Repeat(`]}}`, complements)
}

// However deep a document is, the door goes no deeper into it than the limit, wherever in it that is, and says what the
// limit is.
func TestDepthOfDocuments(t *testing.T) {
	const around = `{"key":"k","expr":%s}`
	const deepest = (proto.DocumentDepthMax - 2) / 2 // unions: the request and the key stand around and in them
	for _, c := range []struct {
		name, target, body, refused string
	}{
		{"expression as deep as one may be", "/v1/store", fmt.Sprintf(around, nestedOr(proto.BitDepthMax-1, true)), ""},
		{"question about one", "/v1/ask", `{"questions":[{"bitmap":{"count":true,"expr":` + nestedOr(proto.BitDepthMax-1, true) + `}}]}`, ""},
		{"expression too deep", "/v1/store", fmt.Sprintf(around, nestedOr(proto.BitDepthMax, true)), "64 deep"},
		{"plan as deep as a question may be", "/v1/query", `{"explain":true,"plan":{"count":{"of":` + nestedNot(query.DepthMax-1) + `}}}`, ""},
		{"plan too deep", "/v1/query", `{"explain":true,"plan":{"count":{"of":` + nestedNot(query.DepthMax) + `}}}`, "1000 levels"},
		{"at the limit", "/v1/store", fmt.Sprintf(around, nestedOr(deepest, true)), "64 deep"},
		{"a level more", "/v1/store", fmt.Sprintf(around, nestedOr(deepest+1, true)), "2050 objects"},
		{"without end", "/v1/store", `{"expr":` + nestedOr(proto.MessageBytesMax/14, false), "2050 objects"},
		{"plan without end", "/v1/query", `{"plan":{"count":{"of":` + strings.Repeat(`{"operation":{"operands":[`, proto.MessageBytesMax/30), "2050 objects"},
		{"watch without end", "/v1/watch", `{"question":{"bitmap":{"expr":` + nestedOr(proto.MessageBytesMax/14, false), "2050 objects"},
		{"second of two without end", "/v1/ask", `{"questions":[{"count_keys":{}},{"bitmap":{"expr":` + nestedOr(proto.MessageBytesMax/14, false), "2050 objects"},
		{"beside each other", "/v1/store", fmt.Sprintf(around, `{"or":{"of":[`+strings.Repeat(`{"key":"a"},`, 2*proto.DocumentDepthMax)+`{"key":"a"}]}}`), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fixture()
			f.ask = nil // its answers are about distributions
			e := &edges{http: NewHTTP(f.services())}
			w := e.request("POST", c.target, "application/json", c.body)
			said := w.Body.String()
			switch {
			case c.refused == "" && w.Code != 200:
				t.Errorf("%d: %s", w.Code, said)
			case c.refused != "" && (w.Code != 400 || !strings.Contains(said, `"code":"EBB-2`) || !strings.Contains(said, c.refused)):
				t.Errorf("%d: %s, want 400 and %q", w.Code, said, c.refused)
			case c.refused != "" && len(said) > 1000:
				t.Errorf("a refusal of %d bytes", len(said))
			}
		})
	}
}

// A mistake deep in a document is named in words that can be read.
func TestPathOfAMistakeIsShort(t *testing.T) {
	err := parseJSON(new(charge), []byte(`{"expr":`+strings.Repeat(`{"or":{"of":[`, 1000)+`{"key":1}`), &ebbv1.StoreBitmapRequest{})
	if err == nil || !strings.HasPrefix(err.Message, "expr.or.of[0].or") || !strings.Contains(err.Message, "of[0].key: it must be a string") || len(err.Message) > 400 {
		t.Errorf("%v", err)
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (b unread) Read([]byte) (int, error) {
	b.t.Error("the body is read")
	return 0, io.EOF
}

// Where callers need a token, nothing is read of a request that shows none, or none that is known, at either of the
// HTTP doors.
func TestNothingIsReadOfStrangers(t *testing.T) {
	s, _ := guardedServices(boxOf())
	h := NewHTTP(s)
	for _, shown := range []string{"", "Bearer " + secretOf("somebody"), "Basic x"} {
		for _, target := range []string{"/v1/store", "/v1/query", "/v1/watch", "/v1/increment?n=%zz", "/v1/ns/clicks/bits/k", "/incr", "/ns/clicks/dist"} {
			r := httptest.NewRequest("POST", target, unread{t})
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if shown != "" {
				r.Header.Set("Authorization", shown)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if said := w.Body.String() + w.Header().Get("Ebb-Error"); w.Code != 401 || !strings.Contains(said, "EBB-2050") {
				t.Errorf("%s with %q: %d: %s", target, shown, w.Code, said)
			}
		}
	}
	r := jsonRequest("POST", "/v1/query", strings.NewReader(`{"text":"top 10 k",`))
	r.Header.Set("Authorization", "Bearer "+secretOf("reader"))
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 400 {
		t.Errorf("what somebody who is known sends is not read: %d: %s", w.Code, w.Body)
	}
}

// If a caller is known, nothing is read of a request that none of its roles allows. Either none allows the method in
// any namespace, or none in the namespace that the path names.
func TestNothingIsReadOfWhoMayNot(t *testing.T) {
	s, _ := guardedServices(boxOf())
	h := NewHTTP(s)
	for _, who := range []struct{ name, target string }{
		{"reader", "/v1/increment"},
		{"reader", "/v1/feed"},
		{"reader", "/v1/bits"},
		{"reader", "/v1/store"},
		{"reader", "/v1/delete"},
		{"reader", "/v1/ns/clicks/bits/k"},
		{"reader", "/incr"},
		{"reader", "/ns/clicks/incr"},
		{"writer", "/v1/ns/other/bits/k"},
		{"writer", "/ns/other/incr"},
		{"writer", "/ns/other/dist"},
		{"writer", "/v1/namespaces"},
		{"admin", "/v1/tokens"},
		{"admin", "/v1/cluster"},
	} {
		r := jsonRequest("POST", who.target, unread{t})
		if !strings.HasPrefix(who.target, "/v1") {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		r.Header.Set("Authorization", "Bearer "+secretOf(who.name))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if said := w.Body.String() + w.Header().Get("Ebb-Error"); w.Code != 403 || !strings.Contains(said, "EBB-2051") {
			t.Errorf("%s of %s: %d: %s", who.target, who.name, w.Code, said)
		}
	}
	for _, rt := range routes {
		if rt.body != nil && rules[rt.calls].who == nobody {
			t.Errorf("%s %s has a body, and no rule says for whom it is read", rt.method, rt.pattern)
		}
	}
	client := rawHTTP2(t, s)
	for method, name := range map[string]string{
		ebbv1grpc.Ebb_Increment_FullMethodName: "reader", ebbv1grpc.Shards_Apply_FullMethodName: "reader",
		ebbv1grpc.Ebb_SetNamespace_FullMethodName: "writer", ebbv1grpc.Shards_RestoreNamespaces_FullMethodName: "writer",
		ebbv1grpc.Ebb_CreateToken_FullMethodName: "admin", ebbv1grpc.Shards_Snapshot_FullMethodName: "admin",
	} {
		body, never := io.Pipe() // nothing comes from it
		req := grpcRequest(t, method, body)
		req.Header.Set("Authorization", "Bearer "+secretOf(name))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		never.Close()
		if got := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status"); got != "7" {
			t.Errorf("%s of %s: status %q: it is not refused for want of a role", method, name, got)
		}
	}
}

// deepExpression is a BitmapExpr of so many messages in each other, as protobuf has it.
func deepExpression(messages int) []byte {
	lens := []int{0}
	for i := range messages - 1 {
		lens = append(lens, protowire.SizeTag(3)+protowire.SizeBytes(lens[i]))
	}
	var b []byte
	for i := messages - 1; i > 0; i-- {
		field := protowire.Number(3) // BitmapExpr.or
		if (messages-1-i)%2 == 1 {
			field = 1 // BitmapExprs.of
		}
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(lens[i-1]))
	}
	return b
}

// Over gRPC the generated code goes 10,000 messages deep and no deeper; what it has read so is refused for its depth.
func TestDepthOverGRPC(t *testing.T) {
	if err := protobuf.Unmarshal(deepExpression(10_000), &ebbv1.BitmapExpr{}); err != nil {
		t.Fatalf("the deepest that is read: %v", err)
	}
	x := &ebbv1.BitmapExpr{}
	if err := protobuf.Unmarshal(deepExpression(10_001), x); err == nil {
		t.Error("10,001 messages deep, and read")
	}
	x = &ebbv1.BitmapExpr{}
	if err := protobuf.Unmarshal(deepExpression(9_998), x); err != nil {
		t.Fatal(err)
	}
	e := &edges{conn: serve(t, fixture().services())}
	q := []*ebbv1.Question{{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Count{Count: true}}}}}
	if err := grpcAsk(t, e, q); err == nil {
		t.Error("taken")
	}
	q[0].GetBitmap().Expr = &ebbv1.BitmapExpr{}
	if err := protobuf.Unmarshal(deepExpression(9_901), q[0].GetBitmap().Expr); err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, grpcAsk(t, e, q), proto.ErrBadRequest, []string{"64 deep"})
}
