package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Bad input, at each door: a clear error that names the thing and the limit,
// under the same code everywhere, and nothing handed over.

// A door carries a request in, or returns errCannotSay when its language has no
// words for that. The error is a *proto.Error.
type door struct {
	name  string
	write func(t *testing.T, e *edges, in []*ebbv1.Increment) error
	ask   func(t *testing.T, e *edges, q []*ebbv1.Question) error
}

var errCannotSay = errors.New("this door has no words for it")

// edges are all doors to one fake.
type edges struct {
	conn *grpc.ClientConn
	http http.Handler
}

// request sends one request to the HTTP doors.
func (e *edges) request(method, target, content, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("Content-Type", content)
	w := httptest.NewRecorder()
	e.http.ServeHTTP(w, r)
	return w
}

var doors = []door{
	{name: "grpc", write: grpcIncrement, ask: grpcAsk},
	{name: "shards", write: shardsApply, ask: shardsAsk},
	{name: "http", write: httpIncrement, ask: httpAsk},
	{name: "path", write: nil, ask: pathAsk},
	{name: "forgettable", write: forgettableIncr, ask: forgettableAsk},
}

func increment(key, bin string, amount float64, timeUS int64) []*ebbv1.Increment {
	return []*ebbv1.Increment{{Key: []byte(key), Bin: []byte(bin), Amount: &amount, TimeUs: timeUS}}
}

func TestBadWrites(t *testing.T) {
	long := strings.Repeat
	many := func(n int, bin string) []*ebbv1.Increment {
		var in []*ebbv1.Increment
		for range n {
			in = append(in, &ebbv1.Increment{Key: []byte("k"), Bin: []byte(bin)})
		}
		return in
	}
	for _, c := range []struct {
		name string
		in   []*ebbv1.Increment
		want *proto.Error
		says []string
	}{
		{"empty key", increment("", "b", 1, 0), proto.ErrBadKey, nil}, // forgettable: the argument is missing
		{"long key", increment(long("k", 513), "b", 1, 0), proto.ErrBadKey, []string{"key of 513 bytes", "512"}},
		{"empty bin", increment("k", "", 1, 0), proto.ErrBadBin, []string{"empty bin", "256"}},
		{"long bin", increment("k", long("b", 257), 1, 0), proto.ErrBadBin, []string{"bin of 257 bytes", "256"}},
		{"NaN", increment("k", "b", math.NaN(), 0), proto.ErrBadAmount, []string{"amount is NaN", "finite"}},
		{"infinite", increment("k", "b", math.Inf(1), 0), proto.ErrBadAmount, []string{"amount is infinite", "finite"}},
		{"minus infinite", increment("k", "b", math.Inf(-1), 0), proto.ErrBadAmount, []string{"amount is infinite", "finite"}},
		{"overflowing", increment("k", "b", 1e16, 0), proto.ErrBadAmount, []string{"amount 1e+16", "1e+15"}},
		{"overflowing below", increment("k", "b", -1e16, 0), proto.ErrBadAmount, []string{"amount -1e+16", "1e+15"}},
		{"before 1970", increment("k", "b", 1, -1), proto.ErrBadTime, []string{"time -1", "1970"}},
		{"too many", many(10_001, "b"), proto.ErrBatchTooLarge, []string{"10000"}},
		{"none", nil, nil, nil}, // forgettable: the argument is missing
		{"one of many", append(many(3, "b"), increment("k", long("b", 300), 1, 0)...), proto.ErrBadBin, []string{"increment 3", "bin of 300 bytes", "256"}},
	} {
		for _, d := range doors {
			if d.write == nil {
				continue
			}
			t.Run(c.name+"/"+d.name, func(t *testing.T) {
				e := untouchable(t)
				checkRefusal(t, d.write(t, e, c.in), c.want, c.says)
			})
		}
	}
}

func TestBadQuestions(t *testing.T) {
	ask := func(q *ebbv1.DistributionQuestion) []*ebbv1.Question {
		return []*ebbv1.Question{{Ask: &ebbv1.Question_Distribution{Distribution: q}}}
	}
	keys := func(keys ...string) (b [][]byte) {
		for _, k := range keys {
			b = append(b, []byte(k))
		}
		return b
	}
	top := func(n uint32) *ebbv1.DistributionQuestion {
		return &ebbv1.DistributionQuestion{Keys: keys("k"), Select: &ebbv1.DistributionQuestion_Top{Top: n}}
	}
	bins := func(bins ...string) *ebbv1.DistributionQuestion {
		return &ebbv1.DistributionQuestion{Keys: keys("k"), Select: &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: keys(bins...)}}}
	}
	rate := -1.0
	for _, c := range []struct {
		name string
		q    []*ebbv1.Question
		want *proto.Error
		says []string
	}{
		{"n = 0", ask(top(0)), proto.ErrBadCount, []string{"n = 0", "1 to 100000"}},
		{"a million", ask(top(1_000_000)), proto.ErrBadCount, []string{"n = 1000000", "1 to 100000"}},
		{"empty key", ask(&ebbv1.DistributionQuestion{Keys: keys("")}), proto.ErrBadKey, nil},
		{"long key", ask(&ebbv1.DistributionQuestion{Keys: keys(strings.Repeat("k", 600))}), proto.ErrBadKey, []string{"key of 600 bytes", "512"}},
		{"no key", ask(&ebbv1.DistributionQuestion{}), nil, nil},
		{"empty bin", ask(bins("")), proto.ErrBadBin, nil},
		{"long bin", ask(bins(strings.Repeat("b", 300))), proto.ErrBadBin, []string{"bin of 300 bytes", "256"}},
		{"confidence 1", ask(&ebbv1.DistributionQuestion{Keys: keys("k"), Confidence: 1}), proto.ErrBadRequest, []string{"confidence 1", "0.9999"}},
		{"negative rate", ask(&ebbv1.DistributionQuestion{Keys: keys("k"), Rate: &rate}), proto.ErrBadRequest, []string{"rate", "-1", "from 0 to"}},
		{"before 1970", ask(&ebbv1.DistributionQuestion{Keys: keys("k"), AsOfUs: -5}), proto.ErrBadTime, []string{"-5", "1970"}},
		{"namespace", []*ebbv1.Question{{Namespace: "no where", Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}}, proto.ErrBadNamespace, []string{`"no where"`, "letters"}},
		{"long namespace", []*ebbv1.Question{{Namespace: strings.Repeat("n", 65), Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}}, proto.ErrBadNamespace, []string{"65 bytes", "64"}},
		{"none", nil, proto.ErrBadCount, []string{"0 questions"}},
	} {
		for _, d := range doors {
			t.Run(c.name+"/"+d.name, func(t *testing.T) {
				checkRefusal(t, d.ask(t, untouchable(t), c.q), c.want, c.says)
			})
		}
	}
}

// untouchable is an edge in front of services that must not be reached.
func untouchable(t *testing.T) *edges {
	t.Helper()
	f := &fake{
		table: fixture().table,
		apply: func(context.Context, *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
			t.Error("a bad command was handed over")
			return nil, proto.ErrInternal
		},
		increment: func(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
			t.Error("a bad batch was handed over")
			return nil, proto.ErrInternal
		},
		ask: func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
			t.Error("a bad question was handed over")
			return nil, proto.ErrInternal
		},
		shardAsk: func(context.Context, *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
			t.Error("a bad question was handed over")
			return nil, proto.ErrInternal
		},
	}
	return &edges{conn: serve(t, f.services()), http: NewHTTP(f.services())}
}

func checkRefusal(t *testing.T, err error, want *proto.Error, says []string) {
	t.Helper()
	if errors.Is(err, errCannotSay) {
		t.Skip(err)
	}
	if err == nil {
		t.Fatal("accepted")
	}
	e := proto.AsError(err)
	if want != nil && e.Code != want.Code {
		t.Errorf("%v: not the code of %v", err, want)
	}
	if e.Code/1000 != 2 {
		t.Errorf("%v is not about the request", err)
	}
	for _, s := range says {
		if !strings.Contains(e.Message, s) {
			t.Errorf("%q does not say %q", e.Message, s)
		}
	}
}

func grpcIncrement(t *testing.T, e *edges, in []*ebbv1.Increment) error {
	_, err := ebbv1grpc.NewEbbClient(e.conn).Increment(t.Context(), &ebbv1.IncrementRequest{Increments: in})
	return ebbv1grpc.FromStatus(err)
}

func grpcAsk(t *testing.T, e *edges, q []*ebbv1.Question) error {
	_, err := ebbv1grpc.NewEbbClient(e.conn).Ask(t.Context(), &ebbv1.AskRequest{Questions: q})
	return ebbv1grpc.FromStatus(err)
}

func shardsApply(t *testing.T, e *edges, in []*ebbv1.Increment) error {
	if in == nil {
		return errCannotSay // a command without increments does nothing, and is no mistake
	}
	raw := marshal(t, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: in}}})
	resp, err := NewPeer("ebb-0", e.conn).Apply(t.Context(), &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: 1, Command: raw}}})
	if err != nil {
		return err
	}
	if werr := resp.GetResults()[0].GetError(); werr != nil {
		return proto.FromWire(werr)
	}
	return nil
}

func shardsAsk(t *testing.T, e *edges, q []*ebbv1.Question) error {
	req := &ebbv1.ShardAskRequest{}
	for _, q := range q {
		req.Questions = append(req.Questions, &ebbv1.ShardQuestion{Shard: 1, Question: q})
	}
	_, err := NewPeer("ebb-0", e.conn).Ask(t.Context(), req)
	return err
}

func httpIncrement(t *testing.T, e *edges, in []*ebbv1.Increment) error {
	return post(t, e, "/v1/increment", appendTestJSON(t, &ebbv1.IncrementRequest{Increments: in}))
}

func httpAsk(t *testing.T, e *edges, q []*ebbv1.Question) error {
	return post(t, e, "/v1/ask", appendTestJSON(t, &ebbv1.AskRequest{Questions: q}))
}

func pathAsk(t *testing.T, e *edges, qs []*ebbv1.Question) error {
	if len(qs) != 1 {
		return errCannotSay
	}
	q := qs[0]
	ns := q.GetNamespace()
	if ns == "" {
		ns = "default"
	}
	if q.GetCountKeys() != nil {
		return get1(e, "/v1/ns/"+url.PathEscape(ns)+"/keys")
	}
	d, args := q.GetDistribution(), url.Values{}
	for _, key := range d.GetKeys() {
		args.Add("key", string(key))
	}
	switch s := d.GetSelect().(type) {
	case *ebbv1.DistributionQuestion_Top:
		args.Set("top", strconv.Itoa(int(s.Top)))
	case *ebbv1.DistributionQuestion_Bins:
		for _, bin := range s.Bins.GetBins() {
			args.Add("bin", string(bin))
		}
	}
	if d.GetConfidence() != 0 {
		args.Set("confidence", fmt.Sprint(d.GetConfidence()))
	}
	if d.Rate != nil {
		args.Set("rate", fmt.Sprint(d.GetRate()))
	}
	if d.GetAsOfUs() != 0 {
		args.Set("as_of", fmt.Sprint(d.GetAsOfUs()))
	}
	return get1(e, "/v1/ns/"+url.PathEscape(ns)+"/distribution?"+args.Encode())
}

func forgettableIncr(_ *testing.T, e *edges, in []*ebbv1.Increment) error {
	args := url.Values{}
	for _, in := range in {
		if in.GetTimeUs() != 0 || math.IsNaN(in.GetAmount()) || math.IsInf(in.GetAmount(), 0) {
			return errCannotSay
		}
		args.Set("distribution", string(in.GetKey()))
		args.Add("field", string(in.GetBin()))
		if in.Amount != nil {
			args.Set("N", strconv.FormatFloat(in.GetAmount(), 'f', 0, 64))
		}
	}
	if in == nil {
		args.Set("distribution", "k")
	}
	w := e.request("POST", "/incr", "application/x-www-form-urlencoded", args.Encode())
	return headerError(w)
}

func forgettableAsk(_ *testing.T, e *edges, qs []*ebbv1.Question) error {
	if len(qs) != 1 {
		return errCannotSay
	}
	prefix := ""
	if ns := qs[0].GetNamespace(); ns != "" {
		prefix = "/ns/" + url.PathEscape(ns)
	}
	d, op, args := qs[0].GetDistribution(), "dist", url.Values{}
	for _, key := range d.GetKeys() {
		args.Set("distribution", string(key))
	}
	switch s := d.GetSelect().(type) {
	case *ebbv1.DistributionQuestion_Top:
		op = "nmostprobable"
		args.Set("N", strconv.Itoa(int(s.Top)))
	case *ebbv1.DistributionQuestion_Bins:
		op = "get"
		for _, bin := range s.Bins.GetBins() {
			args.Add("field", string(bin))
		}
	}
	if qs[0].GetCountKeys() != nil {
		op = "dbsize"
	}
	if d.GetConfidence() != 0 || d.GetAsOfUs() != 0 {
		return errCannotSay
	}
	if d != nil && d.Rate != nil {
		args.Set("rate", fmt.Sprint(d.GetRate()))
	}
	w := e.request("GET", prefix+"/"+op+"?"+args.Encode(), "", "")
	return headerError(w)
}

func post(t *testing.T, e *edges, path string, body []byte) error {
	t.Helper()
	w := e.request("POST", path, "application/json", string(body))
	return bodyError(w)
}

func get1(e *edges, target string) error {
	w := e.request("GET", target, "", "")
	return bodyError(w)
}

// bodyError reads {"error":{...}}.
func bodyError(w *httptest.ResponseRecorder) error {
	if w.Code == 200 {
		return nil
	}
	var body struct {
		Error struct{ Code, Message string }
	}
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&body); err != nil {
		return err
	}
	return codedError(body.Error.Code, body.Error.Message)
}

// headerError reads the error that the forgettable door puts into a header.
func headerError(w *httptest.ResponseRecorder) error {
	if w.Code == 200 {
		return nil
	}
	code, message, _ := strings.Cut(w.Header().Get("Ebb-Error"), " ")
	return codedError(code, message)
}

func codedError(code, message string) error {
	n, err := strconv.Atoi(strings.TrimPrefix(code, "EBB-"))
	if err != nil {
		return err
	}
	return &proto.Error{Code: ebbv1.Code(n), Message: message}
}

// appendTestJSON writes a request as a caller would.
func appendTestJSON(t *testing.T, m protobuf.Message) []byte {
	t.Helper()
	b, err := appendJSON(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBadNamespaces(t *testing.T) {
	ns := func(ns *ebbv1.Namespace) *ebbv1.SetNamespaceRequest {
		ns.Name = "n"
		return &ebbv1.SetNamespaceRequest{Namespace: ns}
	}
	for _, c := range []struct {
		name string
		req  *ebbv1.SetNamespaceRequest
		want *proto.Error
		says []string
	}{
		{"half-life negative", ns(&ebbv1.Namespace{HalfLifeUs: -1e6}), proto.ErrBadHalfLife, []string{"-1 s", "1 s to 100 years"}},
		{"half-life below 1 s", ns(&ebbv1.Namespace{HalfLifeUs: 999_999}), proto.ErrBadHalfLife, []string{"0.999999 s", "1 s to 100 years"}},
		{"half-life above 100 years", ns(&ebbv1.Namespace{HalfLifeUs: 4e15}), proto.ErrBadHalfLife, []string{"4e+09 s", "1 s to 100 years"}},
		{"threshold", ns(&ebbv1.Namespace{Threshold: -1}), proto.ErrBadNamespace, []string{"threshold -1"}},
		{"threshold NaN", ns(&ebbv1.Namespace{Threshold: math.NaN()}), proto.ErrBadNamespace, []string{"threshold NaN"}},
		{"prior", ns(&ebbv1.Namespace{Prior: -1}), proto.ErrBadNamespace, []string{"prior -1"}},
		{"bins_max", ns(&ebbv1.Namespace{BinsMax: 1e8}), proto.ErrBadNamespace, []string{"bins_max 100000000", "10000000"}},
		{"decay", ns(&ebbv1.Namespace{Decay: 9}), proto.ErrBadNamespace, []string{"decay"}},
		{"no name", &ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{}}, proto.ErrBadNamespace, []string{"0 bytes", "64"}},
		{"nothing", &ebbv1.SetNamespaceRequest{}, proto.ErrBadNamespace, []string{"no namespace"}},
	} {
		f := &fake{setNamespace: func(context.Context, *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
			t.Error("a bad namespace was handed over")
			return nil, proto.ErrInternal
		}}
		t.Run(c.name+"/grpc", func(t *testing.T) {
			_, err := ebbv1grpc.NewEbbClient(serve(t, f.services())).SetNamespace(t.Context(), c.req)
			checkRefusal(t, ebbv1grpc.FromStatus(err), c.want, c.says)
		})
		t.Run(c.name+"/http", func(t *testing.T) {
			doc := strings.ReplaceAll(string(appendTestJSON(t, c.req)), `"half_life_us":0,`, "")
			checkRefusal(t, post(t, &edges{http: NewHTTP(f.services())}, "/v1/namespaces", []byte(doc)), c.want, c.says[:min(1, len(c.says))])
		})
	}
}

// What this version does not know of a namespace is kept, so it is bounded too.
func TestNamespacesThatSayTooMuch(t *testing.T) {
	ns := &ebbv1.Namespace{Name: "n", Rollups: new(ebbv1.Rollups)}
	ns.Rollups.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 2047, protowire.BytesType), make([]byte, proto.NamespaceBytesMax)))
	conn := serve(t, new(fake).services())
	_, err := ebbv1grpc.NewEbbClient(conn).SetNamespace(t.Context(), &ebbv1.SetNamespaceRequest{Namespace: ns})
	checkRefusal(t, ebbv1grpc.FromStatus(err), proto.ErrBadNamespace, []string{"namespace of 41", "4096"})
	_, err = ebbv1grpc.NewShardsClient(conn).RestoreNamespaces(t.Context(), &ebbv1.RestoreNamespacesRequest{Namespaces: []*ebbv1.Namespace{{Name: "a"}, ns}})
	checkRefusal(t, ebbv1grpc.FromStatus(err), proto.ErrBadNamespace, []string{"namespace 1: ", "4096"})
}

func TestTooLarge(t *testing.T) {
	e := untouchable(t)
	ebb, peer := ebbv1grpc.NewEbbClient(e.conn), NewPeer("ebb-0", e.conn)
	fill := func(n, size int) *ebbv1.ApplyRequest {
		req := &ebbv1.ApplyRequest{}
		for range n {
			req.Commands = append(req.Commands, &ebbv1.ShardCommand{Shard: 1, Command: make([]byte, size)})
		}
		return req
	}
	var batch []*ebbv1.Increment
	for range 5_000 {
		batch = append(batch, &ebbv1.Increment{Key: []byte("k"), Bin: bytes.Repeat([]byte("b"), 250)})
	}
	_, err := ebb.Increment(t.Context(), &ebbv1.IncrementRequest{Increments: batch})
	checkRefusal(t, ebbv1grpc.FromStatus(err), proto.ErrBatchTooLarge, []string{"bytes", "1048576"})
	_, err = peer.Apply(t.Context(), fill(20, 250_000))
	checkRefusal(t, err, proto.ErrMessageTooLarge, []string{"message of 5000", "4194304"})
	_, err = peer.Apply(t.Context(), fill(40, 250_000)) // gRPC itself says no
	checkRefusal(t, err, proto.ErrMessageTooLarge, []string{"message of 10", "4194304"})
	var keys [][]byte
	for range 10_000 {
		keys = append(keys, bytes.Repeat([]byte("k"), 500))
	}
	q := &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{Keys: keys}}}
	checkRefusal(t, grpcAsk(t, e, []*ebbv1.Question{q}), proto.ErrMessageTooLarge, []string{"message of 50", "4194304"})

	body := append(bytes.Repeat([]byte(" "), proto.MessageBytesMax), "{}"...)
	checkRefusal(t, post(t, e, "/v1/increment", body), proto.ErrMessageTooLarge, []string{"4194304"})
	w := e.request("POST", "/incr", "application/x-www-form-urlencoded", string(body))
	checkRefusal(t, headerError(w), proto.ErrMessageTooLarge, []string{"4194304"})
}

func TestAnswerTooLarge(t *testing.T) {
	f := &fake{ask: func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
		d := &ebbv1.Distribution{Found: true}
		for range 20_000 {
			d.Bins = append(d.Bins, &ebbv1.Bin{Bin: bytes.Repeat([]byte("b"), 250)})
		}
		return &ebbv1.AskResponse{Answers: []*ebbv1.Answer{{Value: &ebbv1.Answer_Distribution{Distribution: d}}}}, nil
	}}
	e := &edges{conn: serve(t, f.services()), http: NewHTTP(f.services())}
	for _, d := range doors {
		if d.name == "shards" {
			continue // its answers are for nodes, who fold them
		}
		t.Run(d.name, func(t *testing.T) {
			checkRefusal(t, d.ask(t, e, topQuestion("k", 20_000).GetQuestions()), proto.ErrResponseTooLarge, []string{"answer of", "4194304"})
		})
	}
}

// What the shards refuse is an error to a caller that sent nothing else.
func TestRefusedIncrements(t *testing.T) {
	refuse := func(_ context.Context, req *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
		resp := &ebbv1.IncrementResponse{Applied: uint64(len(req.GetIncrements()) - 1)}
		e := proto.ErrTooManyBins.Errorf("k has 100000 bins: that is the limit").Wire()
		resp.Refused = append(resp.Refused, &ebbv1.Refusal{Index: uint32(len(req.GetIncrements()) - 1), Error: e})
		return resp, nil
	}
	e := &edges{http: NewHTTP((&fake{increment: refuse}).services())}
	for _, c := range []struct{ target, body, want string }{
		{"/v1/increment", `{"increments":[{"key":"k","bin":"b"}]}`, `409 {"error":{"code":"EBB-2016","message":"k has 100000 bins: that is the limit"},"applied":0,"duplicates":0,"refused":[{"index":0,"error":{"code":"EBB-2016","message":"k has 100000 bins: that is the limit"}}],"faded":0}`},
		{"/v1/increment", `{"increments":[{"key":"k","bin":"a"},{"key":"k","bin":"b"}]}`, `200 {"applied":1,"duplicates":0,"refused":[{"index":1,"error":{"code":"EBB-2016","message":"k has 100000 bins: that is the limit"}}],"faded":0}`},
		{"/incr?distribution=k&field=b", "", "500 FAIL: k has 100000 bins: that is the limit (EBB-2016)"},
		{"/incr?distribution=k&field=a&field=b", "", "500 FAIL: 1 of 2 fields were not counted; field 1: k has 100000 bins: that is the limit (EBB-2016)"},
	} {
		w := e.request("POST", c.target, "application/json", c.body)
		if got := fmt.Sprintf("%d %s", w.Code, strings.TrimSpace(w.Body.String())); got != c.want {
			t.Errorf("%s %s:\n%s\nnot\n%s", c.target, c.body, got, c.want)
		}
	}
}
