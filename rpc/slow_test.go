package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// slowServer serves h, in memory, with limits of time that a test chooses.
func slowServer(t *testing.T, srv *http.Server) func(context.Context) net.Conn {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return func(ctx context.Context) net.Conn {
		conn, err := l.DialContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// A body that does not arrive is waited for as long as any request has, and its
// connection is closed.
func TestSlowBodiesAreCut(t *testing.T) {
	for _, content := range []string{"application/json", "application/x-www-form-urlencoded"} {
		path := map[string]string{"application/json": "/v1/increment", "application/x-www-form-urlencoded": "/incr"}[content]
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := slowServer(t, &http.Server{Handler: NewHTTP((&fake{}).services())})(t.Context())
				start := time.Now()
				fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: ebb-0\r\nContent-Type: %s\r\nContent-Length: 1000\r\n\r\n{", path, content)
				r := bufio.NewReader(conn)
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				said := string(body) + resp.Header.Get("Ebb-Error")
				if err != nil || resp.StatusCode < 500 || path == "/v1/increment" && !strings.Contains(said, "had not arrived after 1 bytes") {
					t.Errorf("%d %s, %v", resp.StatusCode, said, err)
				}
				if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
					t.Errorf("the connection goes on: %v", err)
				}
				if took := time.Since(start); took > DefaultTimeout+time.Second {
					t.Errorf("cut after %v", took)
				}
			})
		})
	}
}

// Profiles take as long as they are asked to, whatever limits the server has.
func TestProfilesAreNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &http.Server{Handler: NewAdmin((&fake{}).services()), ReadTimeout: time.Second, WriteTimeout: time.Second}
		conn := slowServer(t, srv)(t.Context())
		start := time.Now()
		fmt.Fprint(conn, "GET /debug/pprof/allocs?seconds=10 HTTP/1.1\r\nHost: ebb-0\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%d %s, %v", resp.StatusCode, body, err)
		}
		if took := time.Since(start); took < 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
