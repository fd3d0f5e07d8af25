package rpc

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// lockedBuffer is a log that several write.
type lockedBuffer struct {
	mu sync.Mutex // guards what follows
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// await waits until so many denials are written.
func (l *lockedBuffer) await(t *testing.T, denials int) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); strings.Count(l.String(), "denied: ") != denials; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d denials are written, want %d", strings.Count(l.String(), "denied: "), denials)
		}
	}
}

// A watch ends within recheckEvery when its token is revoked, ends or is made anew with less, and when callers begin to
// need one, however seldom it asks.
func TestWatchesEndWithTheirToken(t *testing.T) {
	ended := tokenRecord("reader", grant(reader, "clicks"))
	ended.ExpiresUs = 1
	fewer := tokenRecord("reader", grant(reader, "other"))
	for name, c := range map[string]struct {
		who           string
		before, after []*ebbv1.TokenRecord
		want          error
	}{
		"revoked":             {"reader", boxOf().records, boxOf().records[1:], proto.ErrUnauthenticated},
		"ended":               {"reader", boxOf().records, []*ebbv1.TokenRecord{ended}, proto.ErrUnauthenticated},
		"fewer roles":         {"reader", boxOf().records, []*ebbv1.TokenRecord{fewer}, proto.ErrPermissionDenied},
		"the first token":     {"", nil, boxOf().records, proto.ErrUnauthenticated},
		"nothing has changed": {"reader", boxOf().records, boxOf().records, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				records := c.before
				s := (&fake{}).services()
				s.Watches = NewWatches(nil)
				s.Access = NewAccess(AccessConfig{Node: "ebb-0", Tokens: func() *cluster.Tokens {
					mu.Lock()
					defer mu.Unlock()
					return cluster.NewTokens(records)
				}})
				who := &caller{}
				if c.who != "" {
					who.token = s.Access.cfg.Tokens().Named(c.who)
				}
				ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), callerKey{}, who), time.Minute)
				defer cancel()
				done := make(chan error, 1)
				go func() {
					req := &ebbv1.WatchRequest{Question: clicksKey, MinIntervalUs: proto.WatchIntervalMaxUS}
					done <- (&ebbServer{Services: &s}).watch(ctx, req, func(context.Context, *ebbv1.WatchEvent) error { return nil })
				}()
				time.Sleep(7 * time.Second)
				mu.Lock()
				records = c.after
				mu.Unlock()
				changed := time.Now()
				err := <-done
				if verdict(err) != verdict(c.want) || c.want == context.DeadlineExceeded && err != c.want {
					t.Errorf("the watch ends with %v, want %v", err, c.want)
				}
				if took := time.Since(changed); c.want != context.DeadlineExceeded && took > recheckEvery {
					t.Errorf("it goes on for %v, want %v at most", took, recheckEvery)
				}
			})
		})
	}
}
