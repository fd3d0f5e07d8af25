package node

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
)

// Addresses are where a node is reached; empty where it does not listen.
type Addresses struct {
	GRPC, HTTP, Gossip, Admin string
}

// directory finds nodes: by gossip, or else by the control group's records. Its
// answers are hints, and change when a node comes back elsewhere.
type directory struct {
	self    string
	own     string // this node's gRPC address
	network Network
	table   func() *cluster.Table
	gossip  atomic.Pointer[cluster.Gossip] // nil in a cluster of one
}

// grpc returns the address of a node's gRPC server.
func (d *directory) grpc(node string) (string, error) {
	if node == d.self {
		return d.own, nil
	}
	if m, ok := d.member(node); ok && m.GRPC != "" {
		return m.GRPC, nil
	}
	if record := d.table().Node(node); record.GetGrpcAddress() != "" {
		return record.GetGrpcAddress(), nil
	}
	return "", proto.ErrUnreachable.Errorf("nothing was heard of node %s yet", node)
}

func (d *directory) member(node string) (cluster.Member, bool) {
	if g := d.gossip.Load(); g != nil {
		return g.Member(node)
	}
	return cluster.Member{}, false
}

// alive reports whether gossip believes that a node lives.
func (d *directory) alive(node string) bool {
	if node == d.self {
		return true
	}
	m, ok := d.member(node)
	return ok && m.Alive
}

// members returns what gossip knows of all nodes.
func (d *directory) members() []cluster.Member {
	if g := d.gossip.Load(); g != nil {
		return g.Members()
	}
	return nil
}

// dial opens a stream to a node's gRPC server.
func (d *directory) dial(ctx context.Context, node string) (net.Conn, error) {
	address, err := d.grpc(node)
	if err != nil {
		return nil, err
	}
	return d.network.Dial(ctx, address)
}

// known returns the gossip addresses in the control group's records.
func (d *directory) known() []string {
	var addresses []string
	for _, record := range d.table().Nodes() {
		if a := record.GetGossipAddress(); a != "" && record.GetName() != d.self {
			addresses = append(addresses, a)
		}
	}
	return addresses
}
