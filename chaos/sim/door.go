package sim

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Door is a direct gRPC connection to one node. Tests use it for what the SDK never does: ask a node that should not
// answer, or send the same command twice.
type Door struct {
	node   string
	conn   *grpc.ClientConn
	shards ebbv1grpc.ShardsClient
	total  uint32
}

// Door opens a connection to node i from a client with this IP address. Each attempt dials the node's current address.
func (c *Cluster) Door(ip string, i int) (*Door, error) {
	host := c.Net.Host(ip)
	conn, err := grpc.NewClient("passthrough:///"+c.Name(i),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return host.Dial(ctx, net.JoinHostPort(c.IP(i), portGRPC))
		}))
	if err != nil {
		return nil, err
	}
	return &Door{node: c.Name(i), conn: conn, shards: ebbv1grpc.NewShardsClient(conn), total: c.opts.Shards}, nil
}

// Create creates a namespace.
func (d *Door) Create(ctx context.Context, ns *ebbv1.Namespace) error {
	_, err := ebbv1grpc.NewEbbClient(d.conn).SetNamespace(ctx, &ebbv1.SetNamespaceRequest{Namespace: ns})
	if err != nil {
		return ebbv1grpc.FromStatus(err)
	}
	return nil
}

// Bits changes bitmaps through this node. The response says how many ids each change has added or removed.
func (d *Door) Bits(ctx context.Context, req *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error) {
	resp, err := ebbv1grpc.NewEbbClient(d.conn).Bits(ctx, req)
	if err != nil {
		return nil, ebbv1grpc.FromStatus(err)
	}
	return resp, nil
}

// Alive returns the names of the nodes that this node believes to be alive. It learns this from gossip.
func (d *Door) Alive(ctx context.Context) ([]string, error) {
	resp, err := ebbv1grpc.NewEbbClient(d.conn).Table(ctx, &ebbv1.TableRequest{})
	if err != nil {
		return nil, ebbv1grpc.FromStatus(err)
	}
	var names []string
	for _, n := range resp.GetTable().GetNodes() {
		if n.GetAlive() {
			names = append(names, n.GetName())
		}
	}
	return names, nil
}

// Conn returns the gRPC connection.
func (d *Door) Conn() grpc.ClientConnInterface { return d.conn }

// Close closes the connection.
func (d *Door) Close() error { return d.conn.Close() }

// Sum asks this node, and no other, for the total that was added to a key. The request how has no questions; it sets
// how to read.
func (d *Door) Sum(ctx context.Context, ns, key string, how *ebbv1.ShardAskRequest) (float64, error) {
	a, err := d.ask(ctx, key, how, &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: 1},
	}}})
	return a.GetDistribution().GetZ(), err
}

// Text asks this node, and no other, for the value of a string, which is empty if there is none. The request how has no
// questions; it sets how to read.
func (d *Door) Text(ctx context.Context, ns, key string, how *ebbv1.ShardAskRequest) (string, error) {
	a, err := d.ask(ctx, key, how, &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte(key)}}}})
	return string(a.GetSummary().GetText()), err
}

// SetText sets the value of a string through this node, which must lead the key's shard.
func (d *Door) SetText(ctx context.Context, ns, key, value string) error {
	command, err := protobuf.Marshal(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
		Increments: []*ebbv1.Increment{{Key: []byte(key), Kind: ebbv1.Kind_KIND_STRING, Text: []byte(value)}},
	}}})
	if err != nil {
		return err
	}
	_, err = d.Apply(ctx, proto.ShardOf(ns, []byte(key), d.total), command)
	return err
}

// ask sends one question to the shard of a key, at this node.
func (d *Door) ask(ctx context.Context, key string, how *ebbv1.ShardAskRequest, q *ebbv1.Question) (*ebbv1.Answer, error) {
	questions := []*ebbv1.ShardQuestion{{Shard: proto.ShardOf(q.GetNamespace(), []byte(key), d.total), Question: q}}
	resp, err := d.shards.Ask(ctx, proto.WithQuestions(how, questions))
	if err != nil {
		return nil, ebbv1grpc.FromStatus(err)
	}
	a := resp.GetAnswers()[0]
	for _, wire := range []*ebbv1.Error{a.GetError(), a.GetAnswer().GetError()} {
		if e := proto.FromWire(wire); e != nil {
			return nil, e
		}
	}
	return a.GetAnswer(), nil
}

// Apply sends one command to this node, which must lead the shard: the node does not forward it.
func (d *Door) Apply(ctx context.Context, shard uint32, command []byte) (*ebbv1.CommandResult, error) {
	return d.apply(ctx, shard, command, true)
}

// Send sends one command to this node, which forwards it to the leader of the shard.
func (d *Door) Send(ctx context.Context, shard uint32, command []byte) (*ebbv1.CommandResult, error) {
	return d.apply(ctx, shard, command, false)
}

func (d *Door) apply(ctx context.Context, shard uint32, command []byte, forwarded bool) (*ebbv1.CommandResult, error) {
	resp, err := d.shards.Apply(ctx, &ebbv1.ApplyRequest{
		Forwarded: forwarded, Commands: []*ebbv1.ShardCommand{{Shard: shard, Command: command}},
	})
	if err != nil {
		return nil, ebbv1grpc.FromStatus(err)
	}
	r := resp.GetResults()[0]
	if e := proto.FromWire(r.GetError()); e != nil {
		return r, e
	}
	return r, nil
}
