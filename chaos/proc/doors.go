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

// doors are gRPC connections to single nodes. A request on a door is answered by its node, or not at all. Doors are
// added for nodes that join, and removed for nodes that leave.
type doors struct {
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	client credentials.TransportCredentials
	node   credentials.TransportCredentials // for requests to shards; nil: as client

	mu  sync.RWMutex // guards all
	all []door
}

// door is the connections to one node: conn for requests of clients, inner for requests to shards. Both are one
// connection if the same credentials serve for both.
type door struct {
	node        string
	conn, inner *grpc.ClientConn
}

func (d door) ebb() ebbv1grpc.EbbClient       { return ebbv1grpc.NewEbbClient(d.conn) }
func (d door) shards() ebbv1grpc.ShardsClient { return ebbv1grpc.NewShardsClient(d.inner) }

func (d door) close() error {
	err := d.conn.Close()
	if d.inner != d.conn {
		err = errors.Join(err, d.inner.Close())
	}
	return err
}

// newDoors returns an empty set of doors. Without certificates the doors use no TLS.
func newDoors(dial func(ctx context.Context, addr string) (net.Conn, error), c *certificates) (*doors, error) {
	d := &doors{dial: dial, client: insecure.NewCredentials()}
	if c == nil {
		return d, nil
	}
	of := func(name string) (credentials.TransportCredentials, error) {
		cfg, err := c.config(name)
		return credentials.NewTLS(cfg), err
	}
	var err, nodeErr error
	d.client, err = of("client")
	d.node, nodeErr = of("node")
	return d, errors.Join(err, nodeErr)
}

// open adds the door of a node.
func (d *doors) open(node, addr string) error {
	to := func(creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(d.dial),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: attemptMax}))
	}
	o := door{node: node}
	var err error
	if o.conn, err = to(d.client); err != nil {
		return err
	}
	o.inner = o.conn
	if d.node != nil {
		if o.inner, err = to(d.node); err != nil {
			return errors.Join(err, o.conn.Close())
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(slices.Clone(d.all), o)
	return nil
}

// shut closes and removes the door of a node that does not come back.
func (d *doors) shut(node string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.IndexFunc(d.all, func(o door) bool { return o.node == node })
	if at < 0 {
		return nil
	}
	gone := d.all[at]
	d.all = slices.Delete(slices.Clone(d.all), at, at+1)
	return gone.close()
}

// list returns all doors, in the order in which they were opened. The caller must not change the slice.
func (d *doors) list() []door {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.all
}

// close closes all doors.
func (d *doors) close() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.all {
		err = errors.Join(err, o.close())
	}
	d.all = nil
	return err
}
