package node

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// A connection ends if its request keeps arriving, or its answer is not read, whatever its handler waits for.
func TestSlowConnectionsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		limit   time.Duration
	}{
		"a body that trickles": {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, httpReadMax},
		"an answer that is not read": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, httpWriteMax},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := bufconn.Listen(1 << 10)
				ended := make(chan time.Time, 1)
				s := new(servers)
				srv := s.serveHTTP(l, httpServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c.handler(w, r)
					ended <- time.Now()
				})))
				conn, err := l.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: ebb-0\r\nContent-Length: 1000000\r\n\r\n")
				go func() {
					for {
						if _, err := conn.Write([]byte("x")); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}()
				if took := (<-ended).Sub(start); took > c.limit {
					t.Errorf("it took %v: the limit is %v", took, c.limit)
				}
				_ = conn.Close()
				if err := srv.Close(); err != nil {
					t.Error(err)
				}
				s.wg.Wait()
				time.Sleep(2 * time.Second) // net/http lingers before it closes, and the writer wakes up
			})
		})
	}
}
