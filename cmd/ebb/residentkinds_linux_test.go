package main

import (
	"bytes"
	"context"
	enc "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// outcome is what came of a request.
type outcome struct {
	kind     string
	sent     int  // bytes of the request
	answered int  // bytes of the answer
	admitted bool // it was not refused for want of memory
}

// residentKind is a kind of request: it makes one, sends it and reads the answer.
type residentKind struct {
	name string
	ask  func(ctx context.Context, n *residentNode, r *rand.Rand) outcome
}

// requests are the types of requests, and the methods that take them.
var residentRequests = []struct {
	method string
	path   string // over HTTP
	like   protobuf.Message
}{
	{ebbv1grpc.Ebb_Increment_FullMethodName, "/v1/increment", &ebbv1.IncrementRequest{}},
	{ebbv1grpc.Ebb_Bits_FullMethodName, "/v1/bits", &ebbv1.BitsRequest{}},
	{ebbv1grpc.Ebb_Ask_FullMethodName, "/v1/ask", &ebbv1.AskRequest{}},
	{ebbv1grpc.Ebb_Query_FullMethodName, "/v1/query", &ebbv1.QueryRequest{}},
	{ebbv1grpc.Ebb_Feed_FullMethodName, "/v1/feed", &ebbv1.FeedRequest{}},
	{ebbv1grpc.Ebb_Delete_FullMethodName, "/v1/delete", &ebbv1.DeleteRequest{}},
	{ebbv1grpc.Ebb_Expire_FullMethodName, "/v1/expire", &ebbv1.ExpireRequest{}},
	{ebbv1grpc.Ebb_StoreBitmap_FullMethodName, "/v1/store", &ebbv1.StoreBitmapRequest{}},
	{ebbv1grpc.Shards_Apply_FullMethodName, "", &ebbv1.ApplyRequest{}},
	{ebbv1grpc.Shards_Ask_FullMethodName, "", &ebbv1.ShardAskRequest{}},
	{ebbv1grpc.Shards_RestoreNamespaces_FullMethodName, "", &ebbv1.RestoreNamespacesRequest{}},
	{ebbv1grpc.Shards_ReadIndex_FullMethodName, "", &ebbv1.ReadIndexRequest{}},
}

// sizes are drawn so that small and large are as likely.
func sizeUpTo(r *rand.Rand, most int) int {
	n := 1
	for n < most && r.IntN(8) > 0 {
		n *= 4
	}
	return min(most, 1+r.IntN(n))
}

// manyElements returns a message of up to most bytes. Some of its repeated fields, or those of a message in it, have
// many small elements.
func manyElements(r *rand.Rand, md protoreflect.MessageDescriptor, most, depth int) []byte {
	fields := md.Fields()
	if fields.Len() == 0 || most < 8 {
		return nil
	}
	var out []byte
	for range 1 + r.IntN(2) {
		fd := fields.Get(r.IntN(fields.Len()))
		var one []byte
		if fd.Message() != nil && depth > 0 && r.IntN(3) > 0 {
			one = manyElements(r, fd.Message(), most-len(out)-8, depth-1)
		} else if fd.Kind() == protoreflect.BytesKind || fd.Kind() == protoreflect.StringKind {
			one = make([]byte, sizeUpTo(r, 64))
			for i := range one {
				one[i] = 'a'
			}
		}
		if fd.Message() == nil && fd.Kind() != protoreflect.BytesKind && fd.Kind() != protoreflect.StringKind {
			one = bytes.Repeat([]byte{1}, sizeUpTo(r, max(1, most-len(out)-8)))
		}
		elements := 1
		if fd.IsList() {
			elements = sizeUpTo(r, max(1, (most-len(out))/(len(one)+2)))
		}
		element := protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), one)
		for range elements {
			if len(out)+len(element) > most {
				break
			}
			out = append(out, element...)
		}
	}
	return out
}

// manyElementsJSON returns such a message as a JSON document.
func manyElementsJSON(r *rand.Rand, md protoreflect.MessageDescriptor, most, depth int) []byte {
	fields := md.Fields()
	if fields.Len() == 0 || most < 32 {
		return []byte("{}")
	}
	fd := fields.Get(r.IntN(fields.Len()))
	one := []byte("1")
	switch {
	case fd.Message() != nil && depth > 0:
		one = manyElementsJSON(r, fd.Message(), most/2, depth-1)
	case fd.Message() != nil:
		one = []byte("{}")
	case fd.Kind() == protoreflect.BytesKind || fd.Kind() == protoreflect.StringKind:
		one = []byte(strconv.Quote(strings.Repeat("a", sizeUpTo(r, 64))))
	case fd.Kind() == protoreflect.BoolKind:
		one = []byte("true")
	}
	out := fmt.Appendf(nil, `{%q:`, fd.Name())
	if !fd.IsList() {
		return append(append(out, one...), '}')
	}
	out = append(append(out, '['), one...)
	for range sizeUpTo(r, max(1, most/(len(one)+1))) {
		if len(out) > most {
			break
		}
		out = append(append(out, ','), one...)
	}
	return append(out, ']', '}')
}

// invoke sends bytes as a request of a method, whatever they are.
func (n *residentNode) invoke(ctx context.Context, r *rand.Rand, kind, method string, raw []byte) outcome {
	req := new(ebbv1.TableRequest) // what it does not know travels as it is
	req.ProtoReflect().SetUnknown(raw)
	answer := new(ebbv1.TableResponse)
	err := n.conns[r.IntN(len(n.conns))].Invoke(ctx, method, req, answer, grpc.MaxCallRecvMsgSize(64<<20))
	return outcome{kind, len(raw), protobuf.Size(answer), !errors.Is(ebbv1grpc.FromStatus(err), proto.ErrOverloaded)}
}

func (n *residentNode) visit(ctx context.Context, kind, method, path, content string, body []byte) outcome {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.http+path, bytes.NewReader(body))
	if err != nil {
		return outcome{kind: kind}
	}
	req.Header.Set("Content-Type", content)
	resp, err := n.client.Do(req)
	if err != nil {
		return outcome{kind: kind, sent: len(body), admitted: true}
	}
	defer resp.Body.Close()
	read, _ := io.Copy(io.Discard, resp.Body)
	return outcome{kind, len(body) + len(path), int(read), resp.StatusCode != http.StatusTooManyRequests}
}

// held begins a body of many bytes, and lets go of it unfinished.
func (n *residentNode) held(ctx context.Context, r *rand.Rand) outcome {
	out := outcome{kind: "held body", admitted: true}
	conn, err := net.Dial("tcp", n.http)
	if err != nil {
		return out
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
	const head = "POST /v1/increment HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
	fmt.Fprintf(conn, head, proto.MessageBytesMax)
	out.sent, _ = conn.Write(make([]byte, proto.MessageBytesMax-1))
	answer, _ := io.ReadAll(conn)
	out.answered, out.admitted = len(answer), !bytes.Contains(answer, []byte("EBB-1004"))
	return out
}

// whole makes a batch of increments as clients send them.
func whole(r *rand.Rand) *ebbv1.IncrementRequest {
	req := &ebbv1.IncrementRequest{}
	for range sizeUpTo(r, proto.BatchOpsMax) {
		key, bin := fmt.Appendf(nil, "w/%d", r.IntN(1_000)), fmt.Appendf(nil, "%d", r.IntN(1_000))
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: key, Bin: bin})
	}
	return req
}

// telling are requests that write, or are refused.
var telling = []residentKind{
	{"batch", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		raw, err := protobuf.Marshal(whole(r))
		if err != nil {
			panic(err)
		}
		return n.invoke(ctx, r, "batch", ebbv1grpc.Ebb_Increment_FullMethodName, raw)
	}},
	{"batch, JSON", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		doc := []byte(`{"increments":[`)
		for i, in := range whole(r).GetIncrements() {
			if i > 0 {
				doc = append(doc, ',')
			}
			doc = fmt.Appendf(doc, `{"key":%q,"bin":%q}`, in.GetKey(), in.GetBin())
		}
		return n.visit(ctx, "batch, JSON", "POST", "/v1/increment", "application/json", append(doc, "]}"...))
	}},
	{"many elements", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		of := residentRequests[r.IntN(len(residentRequests))]
		raw := manyElements(r, of.like.ProtoReflect().Descriptor(), proto.MessageBytesMax-64, 3)
		return n.invoke(ctx, r, "many elements", of.method, raw)
	}},
	{"empty elements", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		of := residentRequests[r.IntN(len(residentRequests))]
		fields := of.like.ProtoReflect().Descriptor().Fields()
		one := protowire.AppendTag(nil, fields.Get(r.IntN(fields.Len())).Number(), protowire.BytesType)
		raw := bytes.Repeat(append(one, 0), sizeUpTo(r, 4_000_000)/2)
		return n.invoke(ctx, r, "empty elements", of.method, raw)
	}},
	{"many elements, JSON", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		of := residentRequests[r.IntN(8)]
		doc := manyElementsJSON(r, of.like.ProtoReflect().Descriptor(), 4_000_000, 3)
		doc = doc[:min(len(doc), proto.MessageBytesMax)]
		return n.visit(ctx, "many elements, JSON", "POST", of.path, "application/json", doc)
	}},
	{"form", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		form := "distribution=w&" + strings.Repeat("field=a&", sizeUpTo(r, 9_000))
		form += "field=" + strings.Repeat("x", sizeUpTo(r, 2<<20))
		return n.visit(ctx, "form", "POST", "/incr", "application/x-www-form-urlencoded", []byte(form))
	}},
	{"held body", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome { return n.held(ctx, r) }},
	{"held message", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		body, send := io.Pipe()
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		tr := &http.Transport{Protocols: &protocols}
		defer tr.CloseIdleConnections()
		target := "http://" + n.grpc + ebbv1grpc.Ebb_Increment_FullMethodName
		req, err := http.NewRequestWithContext(ctx, "POST", target, body)
		if err != nil {
			panic(err)
		}
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Te", "trailers")
		const size = proto.MessageBytesMax
		go func() {
			_, _ = send.Write(append(enc.BigEndian.AppendUint32([]byte{0}, size), make([]byte, size-1)...))
		}()
		defer send.Close()
		out := outcome{kind: "held message", sent: size, admitted: true}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return out
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		out.admitted = !strings.Contains(resp.Header.Get("Grpc-Message")+resp.Trailer.Get("Grpc-Message"), "EBB-1004")
		return out
	}},
}

// wholeDistribution asks for all bins of a distribution.
func wholeDistribution(r *rand.Rand) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{fmt.Appendf(nil, "0/%d", 4*r.IntN(5))}, Select: &ebbv1.DistributionQuestion_All{All: true},
	}}}
}

// questioning are requests that are answered from what the node holds.
var questioning = []residentKind{
	{"questions", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		req := &ebbv1.AskRequest{}
		for range sizeUpTo(r, proto.QuestionsMax) {
			req.Questions = append(req.Questions, wholeDistribution(r))
		}
		raw, err := protobuf.Marshal(req)
		if err != nil {
			panic(err)
		}
		return n.invoke(ctx, r, "questions", ebbv1grpc.Ebb_Ask_FullMethodName, raw)
	}},
	{"questions of shards", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		q := &ebbv1.ShardQuestion{Shard: 1 + r.Uint32N(4), Question: wholeDistribution(r)}
		for range sizeUpTo(r, 900) {
			q.Also = append(q.Also, q.Shard)
		}
		raw, err := protobuf.Marshal(&ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{q}})
		if err != nil {
			panic(err)
		}
		return n.invoke(ctx, r, "questions of shards", ebbv1grpc.Shards_Ask_FullMethodName, raw)
	}},
	{"summary", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		k := r.IntN(20)
		path := []string{
			fmt.Sprintf("/v1/ns/default/summary/%d/%d?members=true", k%4, k),
			fmt.Sprintf("/v1/ns/default/distribution/0/%d", 4*(k%5)),
			"/v1/ns/default/keys/**?limit=1000",
			"/v1/ns/default/graph?pattern=2/*",
			"/v1/ns/default/overlap?key=2/2&key=2/6",
			fmt.Sprintf("/dist?distribution=%s", url.QueryEscape(fmt.Sprintf("0/%d", 4*(k%5)))),
		}[r.IntN(6)]
		return n.visit(ctx, "summary", "GET", path, "", nil)
	}},
}
