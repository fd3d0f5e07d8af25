package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// largeAnswer takes about so many bytes.
func largeAnswer(size int) *ebbv1.Answer {
	d := &ebbv1.Distribution{Found: true}
	for range size / 200 {
		d.Bins = append(d.Bins, &ebbv1.Bin{Bin: []byte(strings.Repeat("b", 150)), Count: 1, P: 0.5, PLow: 0.25, PHigh: 0.75})
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}}
}

func answering(a *ebbv1.Answer) func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	return func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
		return &ebbv1.AskResponse{Answers: []*ebbv1.Answer{a}}, nil
	}
}

var aKey = &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
	Keys: [][]byte{[]byte("k")}, Select: &ebbv1.DistributionQuestion_All{All: true},
}}}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// A question that is put to one shard many times is answered once, whether it says so itself or in other questions, and
// everyone who asks gets the answer.
func TestRepeatedShardsAreAnsweredOnce(t *testing.T) {
	f := &fake{}
	var asked []uint32
	f.shardAsk = func(_ context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
		resp := &ebbv1.ShardAskResponse{}
		for _, q := range req.GetQuestions() {
			asked = append(asked, q.GetShard())
			resp.Answers = append(resp.Answers, &ebbv1.ShardAnswer{AsOfUs: int64(q.GetShard()), Value: &ebbv1.ShardAnswer_Part{Part: []byte("part")}})
		}
		return resp, nil
	}
	c := ebbv1grpc.NewShardsClient(serve(t, f.services()))
	named := &ebbv1.Question{Namespace: "default", Ask: aKey.GetAsk()}
	req := &ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: 3, Question: named}, {Shard: 1, Question: named}}}
	for i := range 900 {
		req.Questions[1].Also = append(req.Questions[1].Also, uint32(1+i%3))
	}
	resp, err := c.Ask(t.Context(), req)
	if err != nil || len(asked) != 3 {
		t.Fatalf("%v: %d questions were asked of 3 shards", err, len(asked))
	}
	if n := len(resp.GetAnswers()); n != 902 {
		t.Fatalf("%d answers", n)
	}
	for i, a := range resp.GetAnswers() {
		want := int64(3)
		if i > 0 {
			want = int64(1)
		}
		if i > 1 {
			want = int64(1 + (i-2)%3)
		}
		if a.GetAsOfUs() != want {
			t.Fatalf("answer %d is that of shard %d, want %d", i, a.GetAsOfUs(), want)
		}
	}
}

// Answers that repeat count each time for what a call may take; those that do not fit are to be asked for again.
func TestRepeatedAnswersFitACall(t *testing.T) {
	f := &fake{}
	part := make([]byte, 1<<20)
	f.shardAsk = func(_ context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
		if most := req.GetAnswerBytes(); most != 8<<20 {
			t.Errorf("the node is told to answer with %d bytes at most", most)
		}
		return &ebbv1.ShardAskResponse{Answers: []*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: part}}}}, nil
	}
	c := ebbv1grpc.NewShardsClient(serve(t, f.services()))
	named := &ebbv1.Question{Namespace: "default", Ask: aKey.GetAsk()}
	req := &ebbv1.ShardAskRequest{AnswerBytes: 8 << 20, Questions: []*ebbv1.ShardQuestion{{Shard: 1, Question: named, Also: make([]uint32, 900)}}}
	for i := range req.Questions[0].Also {
		req.Questions[0].Also[i] = 1
	}
	resp, err := c.Ask(t.Context(), req, grpc.MaxCallRecvMsgSize(peerRecvBytesMax))
	if err != nil {
		t.Fatal(err)
	}
	whole := 0
	for _, a := range resp.GetAnswers() {
		switch e := a.GetError(); {
		case e == nil:
			whole++
		case e.GetCode() != ebbv1.Code_CODE_OVERLOADED || e.GetRetryAfterUs() != 0:
			t.Fatal(e)
		}
	}
	if whole != 7 {
		t.Errorf("%d answers of 1 MiB in 8 MiB", whole)
	}
}

// An answer is charged until it has left the node: a client that does not read holds its charge, and only that.
func TestAnswersAreChargedUntilTheyAreWritten(t *testing.T) {
	f := &fake{ask: answering(largeAnswer(3 << 20))}
	s := f.services()
	s.Answers = budget.New("answers", 64<<20)
	srv := NewGRPC(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		srv.Stop()
		<-served
	}()
	stuck := make(chan struct{})
	dial := func(wait bool) *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
			grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "tcp", a)
				if wait && err == nil {
					c = &stopped{Conn: c, after: 32 << 10, until: stuck}
				}
				return c, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	reads, waits := dial(false), dial(true)
	defer func() { _ = reads.Close() }()
	if _, err := ebbv1grpc.NewEbbClient(reads).Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{aKey}}); err != nil {
		t.Fatal(err)
	}
	until(t, "an answer that was read is charged", func() bool { return s.Answers.Used() == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		_, _ = ebbv1grpc.NewEbbClient(waits).Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{aKey}})
		close(gone)
	}()
	until(t, "an answer that is not read is not charged", func() bool { return s.Answers.Used() > 2<<20 })
	if used := s.Answers.Used(); used > 4<<20 {
		t.Errorf("%d bytes are charged for an encoded answer of 3 MiB", used)
	}
	cancel()
	close(stuck)
	<-gone
	_ = waits.Close()
	until(t, "an answer nobody waits for is charged", func() bool {
		runtime.GC() // which finds what a broken connection had to send
		return s.Answers.Used() == 0
	})
}

// stopped is a connection from which nothing is read after so many bytes, until it may go on.
type stopped struct {
	net.Conn
	after int
	until chan struct{}
}

func (c *stopped) Read(b []byte) (int, error) {
	if c.after <= 0 {
		<-c.until
	}
	n, err := c.Conn.Read(b[:min(len(b), 4<<10)])
	c.after -= n
	return n, err
}

// A node that has no memory for an answer says so, at every door, with a retry time.
func TestNoRoomForAnAnswer(t *testing.T) {
	f := &fake{ask: answering(largeAnswer(3 << 20))}
	s := f.services()
	s.Answers = budget.New("answers", 64<<20)
	full := []*budget.Request{s.Answers.Begin(0), s.Answers.Begin(0)}
	for _, r := range full {
		if err := r.Charge(t.Context(), 32<<20-64<<10); err != nil {
			t.Fatal(err)
		}
	}
	_, err := ebbv1grpc.NewEbbClient(serve(t, s)).Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{aKey}})
	if e := proto.AsError(ebbv1grpc.FromStatus(err)); !e.Is(proto.ErrOverloaded) || e.RetryAfterUS == 0 {
		t.Errorf("gRPC: %v", err)
	}
	h := httptest.NewServer(NewHTTP(s))
	defer h.Close()
	for _, path := range []string{"/v1/ns/default/distribution/k", "/dist?distribution=k"} {
		resp, err := http.Get(h.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode/100 == 2 || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body)+resp.Header.Get("Ebb-Error"), "EBB-1004") {
			t.Errorf("%s: %s: %.200s", path, resp.Status, body)
		}
	}
	for _, r := range full {
		r.Close()
	}
	if resp, err := http.Get(h.URL + "/v1/ns/default/distribution/k"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v: there is room again", resp, err)
	} else {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	until(t, "answers that were written are charged", func() bool { return s.Answers.Used() == 0 })
}

// What a watch was charged to build an answer is given back before its client reads it, over HTTP but for the text that
// is written.
func TestWatchesGiveBackWhatAnAnswerTook(t *testing.T) {
	const built = 8 << 20
	f := &fake{ask: func(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
		if err := budget.From(ctx).Charge(ctx, built); err != nil {
			return nil, err
		}
		return answering(largeAnswer(1<<20))(ctx, req)
	}}
	s := f.services()
	s.Watches, s.Answers, s.Kept = NewWatches(nil), budget.New("answers",
		64<<20), budget.New("the last answers of watches", 4<<20)
	e := &ebbServer{Services: &s}
	done := errors.New("done")
	for name, write := range map[string]func(context.Context, *ebbv1.WatchEvent) error{
		"gRPC": func(context.Context, *ebbv1.WatchEvent) error { return nil },
		"HTTP": func(ctx context.Context, e *ebbv1.WatchEvent) error { _, err := chargedJSON(ctx, nil, e); return err },
	} {
		err := e.watch(t.Context(), &ebbv1.WatchRequest{Question: aKey},
			func(ctx context.Context, event *ebbv1.WatchEvent) error {
				if err := write(ctx, event); err != nil {
					return err
				}
				if used := s.Answers.Used(); used >= built || (used > 0) != (name == "HTTP") {
					t.Errorf("%s: %d bytes are charged while the client does not read", name, used)
				}
				if s.Kept.Used() < 1<<20 {
					t.Errorf("%s: %d bytes are charged for the last answer", name, s.Kept.Used())
				}
				return done
			})
		if !errors.Is(err, done) || s.Answers.Used() != 0 || s.Kept.Used() != 0 {
			t.Errorf("%s: %v, and %d and %d bytes are charged in the end", name, err, s.Answers.Used(), s.Kept.Used())
		}
	}
}

// A connection whose client does not read a charged answer ends after sendMax, though it answers pings, and one whose
// client reads stays.
func TestAnswersThatAreNotReadEndTheirConnection(t *testing.T) {
	for name, reads := range map[string]bool{"reads": true, "does not read": false} {
		synctest.Test(t, func(t *testing.T) {
			s := (&fake{ask: answering(largeAnswer(3 << 20))}).services()
			s.Answers, s.Budget, s.Watches = budget.New("answers", 64<<20), NewBudget(0, nil), NewWatches(nil)
			conn := serve(t, s, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := ebbv1grpc.NewEbbClient(conn).Watch(ctx, &ebbv1.WatchRequest{Question: aKey})
			if err != nil {
				t.Fatal(err)
			}
			var ended error
			if reads {
				go func() {
					for ended == nil {
						_, ended = stream.Recv()
					}
				}()
			}
			time.Sleep(sendMax - time.Second)
			synctest.Wait()
			if state, used := conn.GetState(), s.Answers.Used(); state != connectivity.Ready ||
				(used > 3<<20/2) == reads {
				t.Errorf("a client that %s: before the end: %v, and %d bytes are charged", name, state, used)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if state := conn.GetState(); (state == connectivity.Ready) != reads {
				t.Errorf("a client that %s: after it: %v", name, state)
			}
			cancel()
			synctest.Wait()
		})
	}
}

// The last answers of watches are charged for as long as the watches last.
func TestWatchesAreChargedForTheirLastAnswer(t *testing.T) {
	f := &fake{ask: answering(largeAnswer(1 << 20))}
	s := f.services()
	s.Watches, s.Answers, s.Kept = NewWatches(nil), budget.New("answers", 64<<20), budget.New("the last answers of watches", 4<<20)
	e := &ebbServer{Services: &s}
	watch := func(ctx context.Context) <-chan error {
		sent, end := make(chan error, 1), make(chan error, 1)
		go func() {
			end <- e.watch(ctx, &ebbv1.WatchRequest{Question: aKey, MinIntervalUs: proto.WatchIntervalMaxUS}, func(context.Context, *ebbv1.WatchEvent) error {
				sent <- nil
				return nil
			})
		}()
		select {
		case <-sent:
		case err := <-end:
			end <- err
		}
		return end
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ends []<-chan error
	for len(ends) < 2 {
		ends = append(ends, watch(ctx))
	}
	if used := s.Kept.Used(); used < 2<<20 {
		t.Errorf("%d bytes are charged for two answers of 1 MiB", used)
	}
	for range 8 { // there is no room for all of them
		ends = append(ends, watch(ctx))
	}
	if used := s.Kept.Used(); used > s.Kept.Size() {
		t.Errorf("%d bytes are charged, of %d", used, s.Kept.Size())
	}
	cancel()
	refused := 0
	for _, end := range ends {
		if errors.Is(<-end, proto.ErrOverloaded) {
			refused++
		}
	}
	if refused == 0 || s.Kept.Used() != 0 || s.Answers.Used() != 0 {
		t.Errorf("%d watches were refused, %d and %d bytes are charged in the end", refused, s.Kept.Used(), s.Answers.Used())
	}
}
