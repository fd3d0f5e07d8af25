package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
)

// Requests that came before the doors shut are answered, those that come after are
// refused and not served, and shutting waits for the former only.
func TestInflightTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tracker inflightTracker
		var s servers
		call := func(handler grpc.UnaryHandler) (any, error) {
			return tracker.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/ebb.v1.Ebb/Ask"}, handler)
		}
		answered := make(chan any, 1)
		go func() {
			resp, _ := call(func(context.Context, any) (any, error) { time.Sleep(time.Second); return "late", nil })
			answered <- resp
		}()
		synctest.Wait()
		tracker.close()
		_, err := call(func(context.Context, any) (any, error) { t.Error("served after the doors were shut"); return nil, nil })
		if !errors.Is(err, proto.ErrShuttingDown) {
			t.Errorf("refused with %v", err)
		}
		start := time.Now()
		s.shut(&tracker)
		if got := time.Since(start); got < time.Second || got >= drainMax {
			t.Errorf("waited %v for a request of a second", got)
		}
		synctest.Wait()
		if got := <-answered; got != "late" {
			t.Errorf("the request under way was answered %v", got)
		}
	})
}

// A request that never ends is not waited for longer than drainMax.
func TestInflightTrackerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tracker inflightTracker
		var s servers
		go func() {
			_, _ = tracker.unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) { <-ctx.Done(); return nil, nil })
		}()
		synctest.Wait()
		tracker.close()
		start := time.Now()
		s.shut(&tracker)
		if got := time.Since(start); got < drainMax || got > 2*drainMax {
			t.Errorf("waited %v, want %v", got, drainMax)
		}
	})
}
