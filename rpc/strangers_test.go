package rpc

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// healthStream is a watch of health from an address.
type healthStream struct {
	grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]
	ctx context.Context
}

func (s *healthStream) Context() context.Context                       { return s.ctx }
func (s *healthStream) Send(*grpc_health_v1.HealthCheckResponse) error { return nil }

type strangerAddr string

func (strangerAddr) Network() string  { return "tcp" }
func (a strangerAddr) String() string { return string(a) }

// Watches of health need no token. One host may have so many of them, and all hosts so many together; each makes room
// when it ends.
func TestHealthWatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		h := newHealth(func() error { return nil }, registry)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var refused atomic.Int64
		var wg sync.WaitGroup
		watch := func(ctx context.Context, from string) {
			wg.Go(func() {
				err := h.Watch(&grpc_health_v1.HealthCheckRequest{}, &healthStream{ctx: peer.NewContext(ctx, &peer.Peer{Addr: strangerAddr(from)})})
				if errors.Is(ebbv1grpc.FromStatus(err), proto.ErrOverloaded) {
					refused.Add(1)
				}
			})
		}
		expect := func(what string, open, turned int64) {
			t.Helper()
			synctest.Wait()
			if got := testutil.ToFloat64(h.open); got != float64(open) || refused.Load() != turned || testutil.ToFloat64(h.refused) != float64(turned) {
				t.Errorf("%s: %v are open and %d refused (%v counted), want %d and %d", what, got, refused.Load(), testutil.ToFloat64(h.refused), open, turned)
			}
		}
		for range healthWatchesOfHostMax + 3 {
			watch(ctx, "[2001:db8::1]:1")
		}
		expect("one host", healthWatchesOfHostMax, 3)
		one, end := context.WithCancel(ctx)
		watch(one, "10.0.0.1:1")
		expect("another", healthWatchesOfHostMax+1, 3)
		end()
		expect("another that has ended", healthWatchesOfHostMax, 3)
		for host := range 20 {
			for range healthWatchesOfHostMax / 2 {
				watch(ctx, "10.0.1."+string(rune('0'+host%10))+string(rune('0'+host/10))+":1")
			}
		}
		expect("many hosts", healthWatchesMax, 3+healthWatchesOfHostMax)
		cancel()
		wg.Wait()
		expect("nobody", 0, 3+healthWatchesOfHostMax)
	})
}

// What panics while the first message of a stream is looked at ends that stream, and not the node.
func TestAPanicOverAFirstMessage(t *testing.T) {
	s, access := guardedServices(boxOf())
	var armed atomic.Bool
	const method = ebbv1grpc.Ebb_Watch_FullMethodName
	was := rules[method]
	rules[method] = rule{who: granted, check: func(*caller, any) error {
		armed.Store(true)
		panic("a rule that cannot be")
	}}
	defer func() { rules[method] = was }()
	stream, err := ebbv1grpc.NewEbbClient(serve(t, s)).Watch(as(t, access, "operator"), &ebbv1.WatchRequest{Question: clicksKey})
	if err == nil {
		_, err = stream.Recv()
	}
	if err := ebbv1grpc.FromStatus(err); !armed.Load() || !errors.Is(err, proto.ErrInternal) {
		t.Errorf("the stream ends with %v", err)
	}
}

// slowBackups send a piece each second.
type slowBackups struct{ noBackups }

func (slowBackups) Snapshot(ctx context.Context, _ *ebbv1.SnapshotRequest, send func(*ebbv1.SnapshotPart) error) error {
	for range 60 {
		if err := send(&ebbv1.SnapshotPart{}); err != nil {
			return err
		}
		time.Sleep(time.Second)
	}
	return ctx.Err()
}

// A backup of a shard ends soon after the token of its caller was revoked.
func TestSnapshotsEndWithTheirToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var revoked atomic.Bool
		box := boxOf()
		s, access := guardedServices(box)
		s.Backups = slowBackups{}
		all, fewer := box.tokens(), cluster.NewTokens(box.records[:4])
		access.cfg.Tokens = func() *cluster.Tokens {
			if revoked.Load() {
				return fewer
			}
			return all
		}
		ctx, cancel := context.WithTimeout(as(t, access, "operator"), 2*time.Minute)
		defer cancel()
		stream, err := ebbv1grpc.NewShardsClient(serve(t, s)).Snapshot(ctx, &ebbv1.SnapshotRequest{Shard: 1})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		revoked.Store(true)
		start := time.Now()
		for err == nil {
			_, err = stream.Recv()
		}
		if took := time.Since(start); !errors.Is(ebbv1grpc.FromStatus(err), proto.ErrUnauthenticated) || took > recheckEvery+time.Second {
			t.Errorf("it ends after %v with %v", took, err)
		}
	})
}

// A node that may not have heard yet that callers need a token shows what is in its memory to its own machine alone.
func TestProfilesBeforeTokensAreKnown(t *testing.T) {
	var known atomic.Bool
	s := fixture().services()
	s.Access = NewAccess(AccessConfig{Tokens: (&tokenBox{}).tokens, Node: "ebb-0", Known: known.Load})
	h := NewAdmin(s)
	visit := func(from string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	if code, body := visit("10.0.0.9:1"); code != http.StatusServiceUnavailable || !strings.Contains(body, "does not know yet whether callers need a token") {
		t.Errorf("another machine, before: %d %s", code, body)
	}
	for _, from := range []string{"127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		if code, body := visit(from); code != http.StatusOK {
			t.Errorf("%s, before: %d %s", from, code, body)
		}
	}
	known.Store(true)
	if code, body := visit("10.0.0.9:1"); code != http.StatusOK {
		t.Errorf("another machine, when it is known that they do not: %d %s", code, body)
	}
}

// If no caller gets in without a certificate, its roles are what a caller may do, also before there is a token.
func TestRolesOfRequiredCertificates(t *testing.T) {
	access := NewAccess(AccessConfig{Tokens: (&tokenBox{}).tokens, Node: "ebb-0", Certified: true})
	for _, c := range []struct {
		ctx          context.Context
		method, want string
	}{
		{overTLS("ada", "reader"), ebbv1grpc.Ebb_Ask_FullMethodName, "yes"},
		{overTLS("ada", "reader"), ebbv1grpc.Ebb_Delete_FullMethodName, "no"},
		{overTLS("ada", "operator"), ebbv1grpc.Ebb_CreateToken_FullMethodName, "yes"},
		{overTLS("ada", "king"), ebbv1grpc.Ebb_Ask_FullMethodName, "no"},
		{overTLS("ada", trust.RoleNode), ebbv1grpc.Ebb_Delete_FullMethodName, "no"},
	} {
		var who caller
		in, _, _ := sample(t, c.method)
		err := access.identify(c.ctx, c.method, nil, &who)
		if err == nil {
			err = access.admit(context.WithValue(c.ctx, callerKey{}, &who), c.method, in)
		}
		if got := verdict(err); got != c.want {
			t.Errorf("%s by %s: %s (%v), want %s", c.method, who.name(), got, err, c.want)
		}
	}
}
