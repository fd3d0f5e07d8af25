package proc

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// doors are connections to single nodes: who asks through one is answered by that node, or not at all. They follow who joins and who leaves.
type doors struct {
	options []grpc.DialOption

	mu  sync.RWMutex // guards all
	all []door
}

type door struct {
	node string
	conn *grpc.ClientConn
}

func (d door) ebb() ebbv1grpc.EbbClient       { return ebbv1grpc.NewEbbClient(d.conn) }
func (d door) shards() ebbv1grpc.ShardsClient { return ebbv1grpc.NewShardsClient(d.conn) }

// newDoors returns none yet. Without creds they will be in the clear.
func newDoors(dial func(ctx context.Context, addr string) (net.Conn, error), creds credentials.TransportCredentials) *doors {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return &doors{options: []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithContextDialer(dial), grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: attemptMax}),
	}}
}

// open adds a node's.
func (d *doors) open(node, addr string) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, d.options...)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(slices.Clone(d.all), door{node, conn})
	return nil
}

// shut takes away that of a node which does not come back.
func (d *doors) shut(node string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.IndexFunc(d.all, func(o door) bool { return o.node == node })
	if at < 0 {
		return nil
	}
	conn := d.all[at].conn
	d.all = slices.Delete(slices.Clone(d.all), at, at+1)
	return conn.Close()
}

// list returns all, in the order in which they were opened. It is not to be changed.
func (d *doors) list() []door {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.all
}

// close shuts all.
func (d *doors) close() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.all {
		err = errors.Join(err, o.conn.Close())
	}
	d.all = nil
	return err
}
