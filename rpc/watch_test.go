package rpc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// rising is a cluster whose every answer differs from the one before; n counts them.
func rising(n *atomic.Int64) *fake {
	return &fake{ask: func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
		return &ebbv1.AskResponse{Answers: []*ebbv1.Answer{distributionOf(float64(uint64(1)<<min(n.Add(1), 60)), "a")}}, nil
	}}
}

func watchTop(key string) *ebbv1.WatchRequest {
	return &ebbv1.WatchRequest{Question: topQuestion(key, 10).GetQuestions()[0]}
}

// openWatches is what the metrics say.
func openWatches(t *testing.T, metrics prometheus.Gatherer) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ebb_watches_open" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("ebb_watches_open is not there")
	return 0
}

// next is the next event of a watch; its error is coded.
func next(s grpc.ServerStreamingClient[ebbv1.WatchEvent]) (*ebbv1.WatchEvent, error) {
	e, err := s.Recv()
	if err != nil {
		return nil, ebbv1grpc.FromStatus(err)
	}
	return e, nil
}

// A watch asks once an interval, the first time at once, and continues until its caller leaves.
func TestWatchAsksOnceAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		s := rising(&asked).services()
		metrics := prometheus.NewRegistry()
		s.Watches = NewWatches(metrics)
		ctx, leave := context.WithCancel(t.Context())
		req := watchTop("k")
		req.MinIntervalUs = 250_000
		stream, err := ebbv1grpc.NewEbbClient(serve(t, s)).Watch(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for i := range 9 {
			e, err := next(stream)
			if err != nil || e.GetAnswer().GetDistribution().GetZ() != float64(uint64(2)<<i) {
				t.Fatalf("event %d: %v, %v", i, e, err)
			}
		}
		if took := time.Since(start); took < 2*time.Second || took > 2*time.Second+100*time.Millisecond {
			t.Errorf("8 intervals of 250 ms took %v", took)
		}
		if n := openWatches(t, metrics); n != 1 {
			t.Errorf("%g watches are open", n)
		}
		leave()
		if _, err := next(stream); err == nil {
			t.Error("it goes on")
		}
		synctest.Wait()
		if n := openWatches(t, metrics); n != 0 || s.Watches.open.Load() != 0 {
			t.Errorf("%g watches are open after their end", n)
		}
		before := asked.Load()
		time.Sleep(time.Minute)
		if asked.Load() != before {
			t.Error("it still asks")
		}
	})
}

// A question that takes longer than its interval is not asked without a pause: the cluster has as long for others.
func TestWatchRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		f := rising(&asked)
		answer := f.ask
		f.ask = func(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
			time.Sleep(3 * time.Second)
			return answer(ctx, req)
		}
		req := watchTop("k")
		req.MinIntervalUs = 1_000_000
		stream, err := ebbv1grpc.NewEbbClient(serve(t, f.services())).Watch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 5 {
			if _, err := next(stream); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < 27*time.Second || took > 28*time.Second {
			t.Errorf("5 answers of 3 s with as much between them took %v", took)
		}
	})
}

// A watch that is over says why: the question is wrong, the node stops, or there are too many of them. What may pass
// does not end it.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		codes := []*proto.Error{proto.ErrNoLeader, proto.ErrDeadline, proto.ErrNamespaceNotFound}
		asked := 0
		s := (&fake{ask: func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
			e := codes[min(asked, len(codes)-1)]
			asked++
			if e == proto.ErrDeadline {
				return nil, e.Errorf("of the request")
			}
			return &ebbv1.AskResponse{Answers: []*ebbv1.Answer{{Error: e.Errorf("of the question").Wire()}}}, nil
		}}).services()
		c := ebbv1grpc.NewEbbClient(serve(t, s))
		stream, err := c.Watch(t.Context(), watchTop("k"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range codes[:2] {
			if e, err := next(stream); err != nil || e.GetAnswer().GetError().GetCode() != want.Code {
				t.Fatalf("%v, %v", e, err)
			}
		}
		if _, err := next(stream); !errors.Is(err, proto.ErrNamespaceNotFound) {
			t.Errorf("a wrong question ends with %v", err)
		}
		for _, bad := range []*ebbv1.WatchRequest{
			{},
			{Question: watchTop("").Question},
			{Question: watchTop("k").Question, MinIntervalUs: 99_999},
			{Question: watchTop("k").Question, MinIntervalUs: -1},
			{Question: watchTop("k").Question, Tolerance: new(-0.1)},
			{Question: watchTop("k").Question, Alert: &ebbv1.Alert{PValue: 0.1}},
			{Question: watchTop("k").Question, Consistency: 77},
		} {
			stream, err := c.Watch(t.Context(), bad)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := next(stream); err == nil || proto.AsError(err).Code/1000 != 2 {
				t.Errorf("%v ends with %v", bad, err)
			}
		}
	})
}

func TestWatchesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		s := rising(&asked).services()
		s.Watches = NewWatches(nil)
		s.Watches.open.Store(proto.WatchesMax - 1)
		c := ebbv1grpc.NewEbbClient(serve(t, s))
		first, err := c.Watch(t.Context(), watchTop("k"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := next(first); err != nil {
			t.Fatal(err)
		}
		second, err := c.Watch(t.Context(), watchTop("k"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := next(second); !errors.Is(err, proto.ErrOverloaded) {
			t.Errorf("one too many: %v", err)
		}
		s.Watches.Close()
		for err = nil; err == nil; {
			_, err = next(first)
		}
		if !errors.Is(err, proto.ErrShuttingDown) {
			t.Errorf("at the end of the node: %v", err)
		}
	})
}

// A watch stops asking while its caller does not read: a handful of events wait in the connection, and no more are
// made.
func TestWatchWaitsForSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		s := rising(&asked).services()
		inner := s.Coordinator
		s.Coordinator = coordinatorFunc(func(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
			resp, err := inner.Ask(ctx, req)
			for range 2000 { // some 100 KB an event
				resp.Answers[0].GetDistribution().Bins = append(resp.Answers[0].GetDistribution().Bins, &ebbv1.Bin{Bin: make([]byte, 50)})
			}
			return resp, err
		})
		req := watchTop("k")
		req.Every = true
		stream, err := ebbv1grpc.NewEbbClient(serve(t, s)).Watch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		before := asked.Load()
		time.Sleep(time.Hour)
		if asked.Load() != before || before > 200 {
			t.Errorf("%d answers wait after an hour, %d after two", before, asked.Load())
		}
		if _, err := next(stream); err != nil {
			t.Error(err)
		}
	})
}

type coordinatorFunc func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error)

func (f coordinatorFunc) Ask(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	return f(ctx, req)
}

// Over HTTP a watch is a stream of server-sent events, which gives a sign of life when there is no news, outlives the
// limits of other requests, and says at its end why.
func TestWatchOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := f.services()
		s.Watches = NewWatches(nil)
		dial := slowServer(t, &http.Server{Handler: NewHTTP(s), ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second})
		conn := dial(t.Context())
		if _, err := io.WriteString(conn, "GET /v1/ns/default/watch/clicks/country?top=3&interval=500ms HTTP/1.1\r\nHost: ebb-0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%v, %v", resp, err)
		}
		lines := bufio.NewReader(resp.Body)
		expect := func(want string) string {
			t.Helper()
			line, err := lines.ReadString('\n')
			if err != nil || !strings.HasPrefix(line, want) {
				t.Fatalf("%q, %v, not %q", line, err, want)
			}
			return line
		}
		expect("event: answer")
		if data := expect("data: {"); !strings.Contains(data, `"clicks/country"`) {
			t.Error(data)
		}
		expect("\n")
		start := time.Now()
		expect(":")
		if quiet := time.Since(start); quiet < watchIdleMax || quiet > watchIdleMax+time.Second {
			t.Errorf("a sign of life after %v", quiet)
		}
		expect("\n")
		s.Watches.Close()
		expect("event: end")
		if data := expect("data: {\"error\":"); !strings.Contains(data, "stopping") {
			t.Error(data)
		}
	})
}

// A watch over HTTP that cannot begin is refused like any other request.
func TestWatchOverHTTPRefused(t *testing.T) {
	h := NewHTTP((&fake{}).services())
	for request, want := range map[string]int{
		`POST /v1/watch {"question":{"surprise":{"keys":["k"],"against":["l"]}},"alert":{}}`: http.StatusBadRequest,
		`POST /v1/watch {"question":{"trend":{"keys":[""]}}}`:                                http.StatusBadRequest,
		`POST /v1/watch {"min_interval_us":"1ms","question":{"count_keys":{}}}`:              http.StatusBadRequest,
		`POST /v1/watch nonsense`:                  http.StatusBadRequest,
		`GET /v1/ns/default/watch/k?interval=2h`:   http.StatusBadRequest,
		`GET /v1/ns/default/watch/k?every=perhaps`: http.StatusBadRequest,
		`GET /v1/ns/default/watch/k?tolerance=2`:   http.StatusBadRequest,
		`GET /v1/ns/default/watch/k?colour=blue`:   http.StatusBadRequest,
		`PUT /v1/watch`:                            http.StatusMethodNotAllowed,
	} {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, jsonRequest(method, path, strings.NewReader(body)))
		if w.Code != want || !strings.Contains(w.Body.String(), `{"error":{"code":"EBB-`) {
			t.Errorf("%s: %d %s", request, w.Code, w.Body)
		}
	}
}
