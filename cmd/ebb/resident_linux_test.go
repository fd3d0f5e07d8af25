package main

import (
	"bytes"
	"cmp"
	"context"
	enc "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// What a node keeps to while 64 random requests are under way at a time, under GOMEMLIMIT=512MiB:
//
//	peak <= idle + residentFactor x (bytes of requests admitted at once + limits of their answers) + residentSlack
//	peak <= residentMax
const (
	residentLimit  = "512MiB"
	residentAtOnce = 64
	residentFactor = 4
	residentSlack  = 64 << 20
	residentMax    = 640 << 20
	// probeMax is how long a health probe takes at most, beside twice what the machine is late, where other tests have it, too. EBB_RESIDENT_PROBE
	// sets what is promised, 100ms, where nothing else runs.
	probeMax = time.Second
	// residentKinds are those that run unless EBB_RESIDENT_KINDS says otherwise: "all", or "tell", which asks nothing.
	residentKinds = "all"
)

// residentNode is a process of one node.
type residentNode struct {
	grpc, http, admin string
	pid               int
	conns             []*grpc.ClientConn // several, as clients have them
	client            *http.Client
}

func startResident(ctx context.Context, t *testing.T) *residentNode {
	t.Helper()
	n := &residentNode{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: residentAtOnce}}}
	for _, addr := range []*string{&n.grpc, &n.http, &n.admin} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*addr = l.Addr().String()
		l.Close()
	}
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, binary(t), "serve", "--data-dir", filepath.Join(dir, "data"), "--shards", "4",
		"--gossip", "-", "--grpc", n.grpc, "--http", n.http, "--admin", n.admin)
	cmd.Env = append(os.Environ(), "GOMEMLIMIT="+residentLimit)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		n.client.CloseIdleConnections()
		if said, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the node's log ends:\n%s", said[max(0, len(said)-4<<10):])
		}
		log.Close()
	})
	n.pid = cmd.Process.Pid
	for range 8 {
		conn, err := grpc.NewClient(n.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		n.conns = append(n.conns, conn)
	}
	for n.probe(ctx, "/readyz") != nil {
		if ctx.Err() != nil {
			t.Fatal("the node is not ready")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return n
}

// probe asks the admin listener.
func (n *residentNode) probe(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.admin+path, nil)
	if err != nil {
		return err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

var residentLine = regexp.MustCompile(`(?m)^(VmRSS|VmHWM):\s+(\d+) kB`)

// resident is how many bytes of memory the process takes, and the most it has taken since forget.
func (n *residentNode) resident(t *testing.T) (now, peak int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range residentLine.FindAllSubmatch(status, -1) {
		kb, err := strconv.ParseInt(string(m[2]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if string(m[1]) == "VmRSS" {
			now = kb << 10
		} else {
			peak = kb << 10
		}
	}
	return now, peak
}

// forget has the peak begin anew.
func (n *residentNode) forget(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

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

// furnish gives the node something to answer with.
func (n *residentNode) furnish(ctx context.Context, t *testing.T) {
	t.Helper()
	c := ebbv1grpc.NewEbbClient(n.conns[0])
	kinds := []ebbv1.Kind{
		ebbv1.Kind_KIND_UNSPECIFIED, ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_TOPK,
	}
	for k := range 20 {
		req := &ebbv1.IncrementRequest{}
		for i := range 5_000 {
			req.Increments = append(req.Increments, &ebbv1.Increment{
				Key:  fmt.Appendf(nil, "%d/%d", k%len(kinds), k),
				Bin:  fmt.Appendf(nil, "bin-%d", i),
				Kind: kinds[k%len(kinds)],
			})
		}
		resp, err := c.Increment(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, refusal := range resp.GetRefused() {
			t.Fatalf("furnish: %v", refusal.GetError())
		}
	}
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

// crowd is a message of a type with many small elements in some of its repeated fields, or below one of its messages.
// It has up to most bytes.
func crowd(r *rand.Rand, md protoreflect.MessageDescriptor, most, depth int) []byte {
	fields := md.Fields()
	if fields.Len() == 0 || most < 8 {
		return nil
	}
	var out []byte
	for range 1 + r.IntN(2) {
		fd := fields.Get(r.IntN(fields.Len()))
		var one []byte
		if fd.Message() != nil && depth > 0 && r.IntN(3) > 0 {
			one = crowd(r, fd.Message(), most-len(out)-8, depth-1)
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

// crowdJSON is the same as a document.
func crowdJSON(r *rand.Rand, md protoreflect.MessageDescriptor, most, depth int) []byte {
	fields := md.Fields()
	if fields.Len() == 0 || most < 32 {
		return []byte("{}")
	}
	fd := fields.Get(r.IntN(fields.Len()))
	one := []byte("1")
	switch {
	case fd.Message() != nil && depth > 0:
		one = crowdJSON(r, fd.Message(), most/2, depth-1)
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
	{"crowd", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		of := residentRequests[r.IntN(len(residentRequests))]
		raw := crowd(r, of.like.ProtoReflect().Descriptor(), proto.MessageBytesMax-64, 3)
		return n.invoke(ctx, r, "crowd", of.method, raw)
	}},
	{"empty elements", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		of := residentRequests[r.IntN(len(residentRequests))]
		fields := of.like.ProtoReflect().Descriptor().Fields()
		one := protowire.AppendTag(nil, fields.Get(r.IntN(fields.Len())).Number(), protowire.BytesType)
		raw := bytes.Repeat(append(one, 0), sizeUpTo(r, 4_000_000)/2)
		return n.invoke(ctx, r, "empty elements", of.method, raw)
	}},
	{"crowd, JSON", func(ctx context.Context, n *residentNode, r *rand.Rand) outcome {
		of := residentRequests[r.IntN(8)]
		doc := crowdJSON(r, of.like.ProtoReflect().Descriptor(), 4_000_000, 3)
		doc = doc[:min(len(doc), proto.MessageBytesMax)]
		return n.visit(ctx, "crowd, JSON", "POST", of.path, "application/json", doc)
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

// A node that is asked and told at random, at every door, 64 times at once, keeps to its memory and answers its probes.
// EBB_RESIDENT_SECONDS says for how long.
func TestResidentMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real process under load")
	}
	length := 8 * time.Second
	if v := os.Getenv("EBB_RESIDENT_SECONDS"); v != "" {
		s, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		length = time.Duration(s) * time.Second
	}
	patience := probeMax
	if v := os.Getenv("EBB_RESIDENT_PROBE"); v != "" {
		var err error
		if patience, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	kinds := telling
	if cmp.Or(os.Getenv("EBB_RESIDENT_KINDS"), residentKinds) == "all" {
		kinds = append(append([]residentKind(nil), telling...), questioning...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), length+2*time.Minute)
	defer cancel()
	n := startResident(ctx, t)
	n.furnish(ctx, t)
	idle := n.settled(ctx, t)
	seed := uint64(time.Now().UnixNano())
	n.forget(t)

	var mu sync.Mutex
	var sent, answers, most int64 // bytes in all, and the most of requests at once
	var now [residentAtOnce]int64 // bytes of the request of each caller that was admitted last
	counts := make(map[string][2]int)
	var running sync.WaitGroup
	stop := make(chan struct{})
	for i := range residentAtOnce {
		running.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				asking, done := context.WithTimeout(ctx, 5*time.Second)
				out := kinds[r.IntN(len(kinds))].ask(asking, n, r)
				done()
				mu.Lock()
				c := counts[out.kind]
				if out.admitted {
					c[0]++
					sent += int64(out.sent)
					answers += int64(out.answered)
					now[i] = int64(out.sent)
					atOnce := int64(0)
					for _, n := range now {
						atOnce += n
					}
					most = max(most, atOnce)
				} else {
					c[1]++
				}
				counts[out.kind] = c
				mu.Unlock()
			}
		})
	}
	worst, late := n.probeUntil(ctx, t, length)
	close(stop)
	_, peak := n.resident(t)
	running.Wait()
	t.Logf("seed %d: idle %d MiB, peak %d MiB, %d MiB under way at once", seed, idle>>20, peak>>20, most>>20)
	const limits = residentAtOnce * proto.MessageBytesMax // of answers
	grew := max(0, float64(peak-idle-residentSlack))
	t.Logf("c = %.2f, or %.2f of requests alone", grew/float64(most+limits), grew/float64(most))
	t.Logf("a probe took %v at most, and the machine was %v late", worst, late)
	for kind, c := range counts {
		t.Logf("%-20s %6d admitted, %6d refused for want of memory", kind, c[0], c[1])
	}
	t.Logf("%d MiB of requests and %d MiB of answers in all", sent>>20, answers>>20)
	if bound := idle + residentFactor*(most+limits) + residentSlack; peak > bound {
		t.Errorf("%d MiB are resident: the bound is %d", peak>>20, bound>>20)
	}
	if peak > residentMax {
		t.Errorf("%d MiB are resident: the limit is %d", peak>>20, int64(residentMax)>>20)
	}
	if worst > patience+2*late {
		t.Errorf("a probe took %v: the limit is %v, and the machine was %v late", worst, patience, late)
	}
}

// settled waits until the process takes no less any more, and returns what that is.
func (n *residentNode) settled(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	now, _ := n.resident(t)
	for ctx.Err() == nil {
		before := now
		time.Sleep(200 * time.Millisecond)
		if now, _ = n.resident(t); now >= before {
			break
		}
	}
	return now
}

// probeUntil probes the node for a time, and returns how long it took at most, and how late this process was woken at
// most.
func (n *residentNode) probeUntil(ctx context.Context, t *testing.T, length time.Duration) (worst, late time.Duration) {
	t.Helper()
	var lateness atomic.Int64
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		const nap = 5 * time.Millisecond
		for {
			select {
			case <-over:
				return
			default:
			}
			start := time.Now()
			time.Sleep(nap)
			lateness.Store(max(lateness.Load(), int64(time.Since(start)-nap)))
		}
	})
	for end := time.Now().Add(length); time.Now().Before(end); {
		start := time.Now()
		if err := n.probe(ctx, "/livez"); err != nil {
			t.Errorf("probe: %v", err)
			break
		}
		worst = max(worst, time.Since(start))
		time.Sleep(10 * time.Millisecond)
	}
	close(over)
	wg.Wait()
	return worst, time.Duration(lateness.Load())
}
