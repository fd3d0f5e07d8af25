package swarm

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/chaos/raw"
	ebb "github.com/ebbdb/ebb/client"
)

// unaidedClient writes and reads without the SDK: see package raw.
type unaidedClient struct {
	w   *world
	raw *raw.Client
	doors
}

func newUnaided(w *world) *unaidedClient {
	u := &unaidedClient{w: w, doors: doors{}}
	var nodes []grpc.ClientConnInterface
	for i := range w.plan.Nodes {
		if door, err := u.doors.to(w, i); err == nil {
			nodes = append(nodes, door.Conn())
		}
	}
	u.raw = raw.New(countsNamespace, "unaided", w.rng(8600), nodes...)
	return u
}

func (u *unaidedClient) work(*ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Second)
	defer cancel()
	if !u.raw.Write(ctx) {
		u.w.done(unknown)
		return
	}
	u.w.done(acked)
	u.look(ctx)
}

// look reads all keys once.
func (u *unaidedClient) look(ctx context.Context) (answered bool) {
	answered, wrong := u.raw.Read(ctx)
	u.w.read(answered)
	if answered {
		u.w.hold("unaided-exact", wrong == nil, "%v", wrong)
	}
	return answered
}

// settle checks, when all is mended, that all keys read as they were written.
func (u *unaidedClient) settle(ctx context.Context, _ *ebb.Client) {
	defer u.doors.close()
	for range 20 {
		if u.look(ctx) {
			return
		}
	}
	u.w.hold("healed-reads", false, "a client without the SDK gets no answer when all was mended")
}
