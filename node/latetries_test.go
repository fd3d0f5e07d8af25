package node_test

import (
	"context"
	"net"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// lateTries holds the first try of each change of the cluster back, as a network does that is slow for a moment.
type lateTries struct {
	holds atomic.Bool // also read by what the client asks by itself

	seen []any    // requests that had a try held back
	late []func() // those tries
}

func (l *lateTries) intercept(
	ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	changes := []string{
		"SetNamespace", "DeleteNamespace", "UndeleteNamespace", "CreateToken", "RevokeToken", "ChangeCluster",
	}
	if !l.holds.Load() || !slices.Contains(changes, path.Base(method)) || slices.Contains(l.seen, req) {
		return next(ctx, method, req, resp, cc, opts...)
	}
	l.seen = append(l.seen, req)
	l.late = append(l.late, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = next(ctx, method, req, resp, cc, opts...) // the client has forgotten it
	})
	return status.Error(codes.Unavailable, "no answer")
}

// around makes a change, then a later one, and then lets the first try of the first one come.
func (l *lateTries) around(t interface{ Fatal(...any) }, change, later func() error) {
	l.holds.Store(true)
	if err := change(); err != nil {
		t.Fatal(err)
	}
	l.holds.Store(false)
	if err := later(); err != nil {
		t.Fatal(err)
	}
	if len(l.late) == 0 {
		t.Fatal("no try was held back")
	}
	for _, try := range l.late {
		try()
	}
	l.late = nil
}

// A client sends a change of the cluster again that is not answered. If the first try comes after all, later changes
// stay as they were acknowledged.
func TestLateTriesOfTheClient(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		b.until("the newest version", func() bool { return b.table(0).Version() >= proto.VersionClientChanges })
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		b.plain(b.client())
		tries, me := new(lateTries), b.net.Host("10.0.1.9")
		c, err := ebb.DialOptions(ctx, []string{b.host(0) + ":7070", b.host(1) + ":7070", b.host(2) + ":7070"},
			ebb.WithGRPC(grpc.WithUnaryInterceptor(tries.intercept)),
			ebb.WithDialer(func(ctx context.Context, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }))
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		tries.around(b, func() error {
			_, err := c.DeleteNamespace(ctx, "plain", time.Hour)
			return err
		}, func() error {
			_, err := c.UndeleteNamespace(ctx, "plain")
			return err
		})
		if d := b.table(0).Defined("plain").GetDeletion(); d != nil {
			b.Errorf("a late deletion counts after it was undeleted: %v", d)
		}

		change := func(req *ebbv1.ChangeClusterRequest) func() error {
			return func() error {
				_, err := c.ChangeCluster(ctx, req)
				return err
			}
		}
		tries.around(b, change(&ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 1}}),
			change(&ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 3}}))
		if got := b.table(0).Wire().GetReplication(); got != 3 {
			b.Errorf("%d replicas of each shard after a late try", got)
		}

		set := func(halfLife time.Duration) func() error {
			return func() error {
				_, err := c.SetNamespace(ctx, ebb.Namespace{Name: "faded", Decay: ebb.DecayHalfLife, HalfLife: halfLife})
				return err
			}
		}
		tries.around(b, set(time.Hour), set(2*time.Hour))
		if got := time.Duration(b.table(0).Defined("faded").GetHalfLifeUs()) * time.Microsecond; got != 2*time.Hour {
			b.Errorf("the half-life is %v after a late try", got)
		}
	})
}
