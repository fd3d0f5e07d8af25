package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// floodGrows is how many bytes a node may grow under requests that are each within their limits. So a node never takes
// more than 640 MiB with a limit of 512.
const floodGrows = 540 * mib

// raw is a message that is sent and received without a change of its bytes.
type raw []byte

// rawCodec sends and receives raw messages.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	if m, ok := v.(*raw); ok {
		return *m, nil
	}
	return nil, fmt.Errorf("%T is not raw", v)
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	if m, ok := v.(*raw); ok {
		*m = bytes.Clone(data)
	}
	return nil
}

// Name implements encoding.Codec. By this name the server decodes the bytes as a protobuf message.
func (rawCodec) Name() string { return "proto" }

var _ encoding.Codec = rawCodec{}

// send calls a method with an encoded message, and returns the encoded answer.
func (a *Arena) send(ctx context.Context, role, method string, message []byte) (answer []byte, err error) {
	conn, err := a.grpc(role)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	in, out := raw(message), raw(nil)
	err = conn.Invoke(a.show(ctx, role), method, &in, &out, grpc.ForceCodec(rawCodec{}))
	return out, err
}

// invoke calls a method, and ignores its answer.
func (a *Arena) invoke(ctx context.Context, role, method string, req protobuf.Message) error {
	b, err := protobuf.Marshal(req)
	if err != nil {
		return err
	}
	_, err = a.send(ctx, role, method, b)
	return err
}

// together runs n calls at the same time, and returns the errors of those that failed.
func together(n int, call func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = call(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

const wideBins = 20_000

// widen makes a distribution of many bins, once, and returns its shard.
func (a *Arena) widen(ctx context.Context) (shard uint32, err error) {
	conn, err := a.grpc("operator")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ctx = a.show(ctx, "operator")
	req := &ebbv1.IncrementRequest{Namespace: own}
	for i := range wideBins {
		req.Increments = append(req.Increments, &ebbv1.Increment{
			Key: []byte("wide"),
			Bin: []byte(fmt.Sprintf("bin-%06d-%s", i, strings.Repeat("x", 30))),
		})
		if len(req.GetIncrements()) == 5_000 {
			if _, err := ebbv1grpc.NewEbbClient(conn).Increment(ctx, req); err != nil {
				return 0, err
			}
			req.Increments = nil
		}
	}
	for shard = 1; shard <= 4; shard++ {
		resp, err := ebbv1grpc.NewShardsClient(conn).Ask(ctx,
			&ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: shard, Question: wideQuestion()}}})
		if err != nil {
			return 0, err
		}
		if resp.GetAnswers()[0].GetAnswer().GetDistribution().GetFound() {
			return shard, nil
		}
	}
	return 0, errors.New("no shard has the distribution")
}

func wideQuestion() *ebbv1.Question {
	return &ebbv1.Question{Namespace: own, Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte("wide")}, Select: &ebbv1.DistributionQuestion_All{All: true},
	}}}
}

// answers returns attempts with small requests for large answers.
func answers() (out []Attempt) {
	for _, mode := range []Mode{Open, Tokens} {
		out = append(out, Attempt{
			Group: "answers", Name: "one shard 900 times in one question", Mode: mode, Long: mode != Open, Fresh: true, Grows: 192 * mib,
			Within: 30 * time.Second,
			Run: func(ctx context.Context, a *Arena) error {
				shard, err := a.widen(ctx)
				if err != nil {
					return err
				}
				q := &ebbv1.ShardQuestion{Shard: shard, Question: wideQuestion()}
				for range 900 {
					q.Also = append(q.Also, shard)
				}
				_ = a.call(ctx, "reader", ebbv1grpc.Shards_Ask_FullMethodName,
					&ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{q}}, &ebbv1.ShardAskResponse{})
				return nil
			},
		})
	}
	parts := func(ctx context.Context, a *Arena) error {
		shard, err := a.widen(ctx)
		if err != nil {
			return err
		}
		req := &ebbv1.ShardAskRequest{}
		for range 300 {
			req.Questions = append(req.Questions, &ebbv1.ShardQuestion{Shard: shard, Question: wideQuestion(), Partial: true})
		}
		_ = a.call(ctx, "reader", ebbv1grpc.Shards_Ask_FullMethodName, req, &ebbv1.ShardAskResponse{})
		return nil
	}
	equal := func(ctx context.Context, a *Arena) error {
		if _, err := a.widen(ctx); err != nil {
			return err
		}
		req := &ebbv1.AskRequest{}
		for range 300 {
			req.Questions = append(req.Questions, wideQuestion())
		}
		_ = a.call(ctx, "reader", ebbv1grpc.Ebb_Ask_FullMethodName, req, &ebbv1.AskResponse{})
		return nil
	}
	return append(out,
		Attempt{
			Group: "answers", Name: "300 equal questions", Mode: Open, Fresh: true, Grows: 192 * mib,
			Within: 30 * time.Second, Run: equal,
		},
		Attempt{
			Group: "answers", Name: "300 parts of one shard", Mode: Open, Fresh: true, Grows: 192 * mib,
			Within: 30 * time.Second, Long: true, Run: parts,
		},
		Attempt{
			Group: "answers", Name: "answers that are not read", Mode: Open, Long: true, Fresh: true, Grows: floodGrows,
			Within: 30 * time.Second, Run: unread,
		},
	)
}

// unread asks on many streams of connections that give the server no window, and reads nothing.
func unread(ctx context.Context, a *Arena) error {
	if _, err := a.widen(ctx); err != nil {
		return err
	}
	req := &ebbv1.AskRequest{Questions: []*ebbv1.Question{wideQuestion(), wideQuestion()}}
	conn, err := a.grpc("reader", grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		return err
	}
	defer conn.Close()
	limited, cancel := context.WithTimeout(a.show(ctx, "reader"), 4*time.Second)
	defer cancel()
	for range 100 {
		stream, err := conn.NewStream(limited, &grpc.StreamDesc{ServerStreams: true}, ebbv1grpc.Ebb_Ask_FullMethodName)
		if err != nil {
			return nil // refused
		}
		_ = stream.SendMsg(req)
		_ = stream.CloseSend()
	}
	<-limited.Done()
	return nil
}

const emptyIncrements = 1_300_000 // {}, in 3.9 MB

// decoding returns attempts with small messages that would need much memory to decode.
func decoding() []Attempt {
	jsonBody := `{"increments":[` + strings.Repeat("{},", emptyIncrements-1) + `{}]}`
	var wire []byte
	for range 1_900_000 { // two bytes each
		wire = protowire.AppendBytes(protowire.AppendTag(wire, 2, protowire.BytesType), nil)
	}
	post := func(role, path, body string, n int) func(context.Context, *Arena) error {
		return func(ctx context.Context, a *Arena) error {
			err := together(n, func(int) error {
				r, err := a.http(ctx, request{
					method: "POST", path: path, role: role, body: body,
					header: map[string]string{"Content-Type": "application/json"},
				})
				if err == nil && r.status < 400 {
					return broke("%s took a body that is over its limits: %d", path, r.status)
				}
				return nil
			})
			return err
		}
	}
	binary := func(role, method string, n int) func(context.Context, *Arena) error {
		return func(ctx context.Context, a *Arena) error {
			return together(n, func(int) error {
				if _, err := a.send(ctx, role, method, wire); err == nil {
					return broke("%s took a message that is over its limits", method)
				}
				return nil
			})
		}
	}
	const of = "decoding"
	return []Attempt{
		{
			Group: of, Name: "8 bodies of 1,300,000 empty increments", Mode: Open, Fresh: true, Grows: 192 * mib,
			Within: 40 * time.Second, Run: post("", "/v1/increment", jsonBody, 8),
		},
		{
			Group: of, Name: "8 bodies of a reader", Mode: Tokens, Fresh: true, Grows: 96 * mib, Within: 40 * time.Second,
			Run: post("reader", "/v1/increment", jsonBody, 8),
		},
		{
			Group: of, Name: "8 messages of 1,900,000 empty increments", Mode: Open, Fresh: true, Grows: 192 * mib,
			Run: binary("", ebbv1grpc.Ebb_Increment_FullMethodName, 8),
		},
		{
			Group: of, Name: "8 messages of a reader", Mode: Tokens, Fresh: true, Grows: 96 * mib,
			Run: binary("reader", ebbv1grpc.Ebb_Increment_FullMethodName, 8),
		},
		{
			Group: of, Name: "8 messages of 1,900,000 empty changes of bits", Mode: Open, Fresh: true, Grows: 192 * mib,
			Long: true, Run: binary("", ebbv1grpc.Ebb_Bits_FullMethodName, 8),
		},
		{
			Group: of, Name: "8 bodies of empty questions", Mode: Open, Fresh: true, Grows: 192 * mib, Within: 40 * time.Second,
			Long: true,
			Run:  post("", "/v1/ask", `{"questions":[`+strings.Repeat("{},", emptyIncrements-1)+`{}]}`, 8),
		},
		{Group: of, Name: "gzip of 512 MiB over gRPC", Mode: Open, Grows: 64 * mib, Run: gzipGRPC},
		{Group: of, Name: "gzip of 512 MiB over HTTP", Mode: Open, Grows: 64 * mib, Run: gzipHTTP},
	}
}

// gzipGRPC sends a compressed message in frames of its own. A client of gRPC could not send it, because it would have
// to hold the message uncompressed.
func gzipGRPC(ctx context.Context, a *Arena) error {
	small, err := gzipZeros(512 * mib)
	if err != nil {
		return err
	}
	c, err := dialFrames(ctx, a, "grpc")
	if err != nil {
		return err
	}
	defer c.Close()
	message := append([]byte{1, byte(len(small) >> 24), byte(len(small) >> 16), byte(len(small) >> 8), byte(len(small))},
		small...)
	stream, err := c.request(ebbv1grpc.Ebb_Increment_FullMethodName, [2]string{"grpc-encoding", "gzip"})
	if err != nil {
		return err
	}
	if err := c.body(stream, message); err != nil {
		return nil // it was cut off
	}
	grpcStatus, err := c.status(ctx, stream)
	if err == nil && grpcStatus == "0" {
		return broke("a message of 512 MiB was taken")
	}
	return nil
}

func gzipHTTP(ctx context.Context, a *Arena) error {
	small, err := gzipZeros(512 * mib)
	if err != nil {
		return err
	}
	r, err := a.http(ctx, request{method: "POST", path: "/v1/increment", body: string(small), header: map[string]string{
		"Content-Type": "application/json", "Content-Encoding": "gzip",
	}})
	if err == nil && r.status < 400 {
		return broke("a body of 512 MiB was taken")
	}
	return nil
}

// inFlight returns attempts that hold nearly complete bodies open.
func inFlight() []Attempt {
	const of = "bytes in flight"
	return []Attempt{
		{
			Group: of, Name: "300 bodies of 4 MiB held open", Mode: Open, Fresh: true, Grows: floodGrows,
			Within: 40 * time.Second,
			Run:    func(ctx context.Context, a *Arena) error { return heldBodies(ctx, a, 300, "") },
		},
		{
			Group: of, Name: "300 bodies of 4 MiB held open by a reader", Mode: Tokens, Fresh: true, Grows: floodGrows,
			Within: 40 * time.Second, Long: true,
			Run: func(ctx context.Context, a *Arena) error { return heldBodies(ctx, a, 300, "reader") },
		},
		{
			Group: of, Name: "300 messages of 4 MiB held open", Mode: Open, Fresh: true, Grows: floodGrows,
			Within: 40 * time.Second, Long: true,
			Run: heldMessages,
		},
	}
}

func heldBodies(ctx context.Context, a *Arena, n int, role string) error {
	const size = 4 * mib
	body := bytes.Repeat([]byte(" "), size-1)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	authorization := ""
	if text := a.tokens[role]; text != "" {
		authorization = "Authorization: Bearer " + text + "\r\n"
	}
	for range n {
		c, err := a.raw(ctx, "http")
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_ = together(n, func(i int) error {
		deadline, _ := limited.Deadline()
		_ = conns[i].SetDeadline(deadline)
		fmt.Fprintf(conns[i],
			"POST /v1/increment HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n", a.at["http"], authorization, size)
		_, err := conns[i].Write(body)
		return err // refused
	})
	return nil
}

func heldMessages(ctx context.Context, a *Arena) error {
	chunk := make([]byte, 16<<10)
	return together(30, func(int) error {
		c, err := dialFrames(ctx, a, "grpc")
		if err != nil {
			return err
		}
		defer c.Close()
		var streams []uint32
		for range 10 {
			stream, err := c.request(ebbv1grpc.Ebb_Increment_FullMethodName)
			if err != nil {
				return nil // it was cut off
			}
			streams = append(streams, stream)
			if err := c.data(stream, []byte{0, 0, 0x40, 0, 0}, false); err != nil {
				return nil // it was cut off
			}
		}
		for range 4 * mib / len(chunk) {
			for _, stream := range streams {
				if c.data(stream, chunk, false) != nil {
					return nil // it was cut off
				}
			}
		}
		return nil
	})
}

// budgets returns attempts to take memory that other namespaces need.
func budgets() []Attempt {
	const of = "budgets"
	return []Attempt{
		{
			Group: of, Name: "a namespace takes all memory, and another one writes", Mode: Open, Fresh: true,
			Grows: floodGrows, Within: 2 * time.Minute, Run: starveOthers,
		},
		{
			Group: of, Name: "a batch of large sketches, and another namespace", Mode: Open, Fresh: true,
			Grows: floodGrows, Within: 40 * time.Second, Run: reserveAll,
		},
		{
			Group: of, Name: "a namespace can be deleted", Mode: Open, Grows: 64 * mib,
			Within: 40 * time.Second, Run: deleteNamespace,
		},
	}
}

// starveOthers fills a namespace until its writes are refused. Another namespace, which has a key, must still accept
// writes.
func starveOthers(ctx context.Context, a *Arena) error {
	writeOwn := func(key string) error {
		return a.call(ctx, "", ebbv1grpc.Ebb_Increment_FullMethodName, &ebbv1.IncrementRequest{
			Namespace: own, Increments: []*ebbv1.Increment{{Key: []byte(key), Bin: []byte("b")}},
		}, &ebbv1.IncrementResponse{})
	}
	if err := writeOwn("kept"); err != nil {
		return err
	}
	if err := a.until(ctx, "operator", "namespace", "create", "greedy"); err != nil {
		return err
	}
	const (
		keys  = 120 // in a batch
		bytes = 4 << 10
		all   = 1 << 30 // twice what the node may take
	)
	text := []byte(strings.Repeat("x", bytes))
	var taken atomic.Int64
	err := together(8, func(writer int) error {
		for batch := 0; taken.Add(keys*bytes) <= all; batch++ {
			req := &ebbv1.IncrementRequest{Namespace: "greedy"}
			for i := range keys {
				req.Increments = append(req.Increments, &ebbv1.Increment{
					Key: fmt.Appendf(nil, "%d/%d/%d", writer, batch, i), Kind: ebbv1.Kind_KIND_STRING, Text: text,
				})
			}
			if err := a.call(ctx, "", ebbv1grpc.Ebb_Increment_FullMethodName, req, &ebbv1.IncrementResponse{}); err != nil {
				if !codeIs(err, codes.ResourceExhausted) {
					return err
				}
				if strings.Contains(err.Error(), "EBB-1014") {
					return nil
				}
				if strings.Contains(err.Error(), "EBB-1012") {
					return broke("the node is full before the namespace is refused: %v", err)
				}
			}
		}
		return broke("a namespace takes %d MiB", taken.Load()/mib)
	})
	if err != nil {
		return err
	}
	for i := range 100 {
		if err := writeOwn(fmt.Sprint("new", i)); err != nil {
			return broke("a writer of another namespace is refused: %v", err)
		}
	}
	return nil
}

func reserveAll(ctx context.Context, a *Arena) error {
	if err := a.until(ctx, "operator", "namespace", "create", "large-sketches"); err != nil {
		return err
	}
	ns := &ebbv1.Namespace{Name: "large-sketches", Sizes: &ebbv1.Sizes{CountminEpsilon: 0.00002, CountminDelta: 0.01}}
	if err := a.call(ctx, "operator", ebbv1grpc.Ebb_SetNamespace_FullMethodName, &ebbv1.SetNamespaceRequest{Namespace: ns},
		&ebbv1.SetNamespaceResponse{}); err != nil {
		return err
	}
	req := &ebbv1.IncrementRequest{Namespace: "large-sketches"}
	for i := range 4_000 {
		req.Increments = append(req.Increments, &ebbv1.Increment{
			Key: fmt.Appendf(nil, "k%d", i), Bin: []byte("b"),
			Kind: ebbv1.Kind_KIND_COUNTMIN,
		})
	}
	_ = a.call(ctx, "", ebbv1grpc.Ebb_Increment_FullMethodName, req, &ebbv1.IncrementResponse{})
	resp := &ebbv1.IncrementResponse{}
	other := &ebbv1.IncrementRequest{
		Namespace:  own,
		Increments: []*ebbv1.Increment{{Key: []byte("new"), Bin: []byte("b"), Kind: ebbv1.Kind_KIND_COUNTMIN}},
	}
	err := a.call(ctx, "", ebbv1grpc.Ebb_Increment_FullMethodName, other, resp)
	if err == nil && len(resp.GetRefused()) > 0 {
		err = proto.FromWire(resp.GetRefused()[0].GetError())
	}
	if err != nil {
		return broke("a writer of another namespace is refused: %v", err)
	}
	return nil
}

func deleteNamespace(ctx context.Context, a *Arena) error {
	if err := a.until(ctx, "operator", "namespace", "create", "doomed"); err != nil {
		return err
	}
	if err := a.until(ctx, "operator", "namespace", "delete", "doomed", "--now", "--yes"); err != nil {
		return broke("it cannot: %v", err)
	}
	return nil
}

// codeIs reports whether a call was answered with one of these codes.
func codeIs(err error, want ...codes.Code) bool {
	for _, code := range want {
		if status.Code(err) == code {
			return true
		}
	}
	return false
}

// drainConn reads what comes until the connection ends or limit bytes have come.
func drainConn(c net.Conn, limit int64) []byte {
	b, _ := io.ReadAll(io.LimitReader(c, limit)) // how it ends does not matter
	return b
}
