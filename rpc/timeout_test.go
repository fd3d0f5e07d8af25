package rpc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A caller over HTTP says how long it waits, and the connection lasts as long, also beyond the limits of the server.
func TestCallersSayHowLongTheyWait(t *testing.T) {
	const never = time.Hour
	question, increment := `{"questions":[{"count_keys":{}}]}`, `{"increments":[{"key":"a","bin":"b"}]}`
	for _, c := range []struct {
		method, path, body string
		takes, ends        time.Duration
		status             int
	}{
		{"POST", "/v1/ask", question, never, QuestionTimeout, 504},
		{"POST", "/v1/ask", question, 9 * time.Second, 9 * time.Second, 200},
		{"POST", "/v1/ask?timeout=55s", question, 50 * time.Second, 50 * time.Second, 200},
		{"POST", "/v1/ask?timeout=500000", question, never, time.Second / 2, 504},
		{"GET", "/v1/ns/default/keys/a?timeout=1m", "", 50 * time.Second, 50 * time.Second, 200},
		{"GET", "/v1/ns/default/keys/a", "", never, QuestionTimeout, 504},
		{"POST", "/v1/increment", increment, never, DefaultTimeout, 504},
		{"POST", "/v1/increment?timeout=20s", increment, 15 * time.Second, 15 * time.Second, 200},
		{"POST", "/v1/ask?timeout=0", question, 0, 0, 400},
		{"POST", "/v1/ask?timeout=-1s", question, 0, 0, 400},
		{"POST", "/v1/ask?timeout=61s", question, 0, 0, 400},
		{"POST", "/v1/ask?timeout=soon", question, 0, 0, 400},
		{"POST", "/v1/ask?timeout=1s&timeout=2s", question, 0, 0, 400},
		{"POST", "/v1/watch?timeout=1s", "{}", 0, 0, 400},
	} {
		t.Run(c.method+c.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				waits := func(ctx context.Context) error {
					select {
					case <-time.After(c.takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				f := &fake{}
				f.ask = func(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
					err := waits(ctx)
					return &ebbv1.AskResponse{Answers: []*ebbv1.Answer{emptyAnswer(req.GetQuestions()[0])}}, err
				}
				f.increment = func(ctx context.Context, _ *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
					return &ebbv1.IncrementResponse{Applied: 1}, waits(ctx)
				}
				conn := slowServer(t, &http.Server{
					Handler: NewHTTP(f.services()), ReadTimeout: 5 * time.Second, WriteTimeout: 8 * time.Second,
				})(t.Context())
				start := time.Now()
				fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: ebb-0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
					c.method, c.path, len(c.body), c.body)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				if took := time.Since(start); err != nil || resp.StatusCode != c.status || took.Round(time.Millisecond) != c.ends {
					t.Errorf("%d after %v: %s %v", resp.StatusCode, took, body, err)
				}
				if c.status == 400 && !strings.Contains(string(body), "timeout") {
					t.Errorf("refused with %s", body)
				}
			})
		})
	}
}
