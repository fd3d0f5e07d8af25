package node

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Addresses are where a node listens; empty where it does not.
type Addresses struct {
	GRPC, HTTP, Gossip, Admin string
}

// advertised returns the address that other nodes get: the advertised one, else the one listened on. An unspecified
// listen address is replaced by one address of this machine.
func (c *Config) advertised(address, listening string) string {
	if address != "" {
		return address
	}
	addr, err := netip.ParseAddrPort(listening)
	if err != nil || !addr.Addr().IsUnspecified() {
		return listening // also "", where nothing listens
	}
	return netip.AddrPortFrom(c.ip(), addr.Port()).String()
}

// ip returns the address of gossip, if one is configured, else the one that gossip would choose.
func (c *Config) ip() netip.Addr {
	for _, a := range []string{c.AdvertiseGossip, c.Gossip} {
		addr, err := netip.ParseAddrPort(a)
		if err == nil && !addr.Addr().IsUnspecified() && !addr.Addr().IsLoopback() {
			return addr.Addr()
		}
	}
	return cluster.MachineIP()
}

// checkAdvertised refuses an address that others could not dial.
func checkAdvertised(flag, address string) error {
	if address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host) // a name is none
	if err != nil || host == "" || ip.IsUnspecified() {
		return proto.ErrBadRequest.Errorf("%s %q: it must be the host:port at which others reach this node", flag, address)
	}
	return nil
}

// named reports whether the host of an address is a name, not an IP address.
func named(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return false
	}
	_, err = netip.ParseAddr(host)
	return err != nil
}

// unnamed returns what gossip carries of an address. If the host is a name, gossip carries only the port, since it
// knows the host's IP address itself. So other nodes learn at once where the node is now. A name stands for the last
// address for as long as DNS caches keep it.
func unnamed(address string) string {
	if !named(address) {
		return address
	}
	_, port, _ := net.SplitHostPort(address)
	return ":" + port
}

// reaches reports whether an address in a node's record agrees with gossip, as far as that can be decided: of a named
// host only the port is compared.
func reaches(record, gossip string) bool {
	if !named(record) {
		return record == gossip
	}
	_, port, _ := net.SplitHostPort(record)
	_, heard, _ := net.SplitHostPort(gossip)
	return port == heard
}

// directory finds nodes: by gossip, or else by the control group's records, whose names DNS resolves. Its answers are
// hints. They change when a node returns at another address.
type directory struct {
	self string
	own  string // this node's gRPC address
	// advertised is the address that others get instead of own, if set.
	advertised string
	connect    func(ctx context.Context, address string) (net.Conn, error)
	table      func() *cluster.Table
	gossip     atomic.Pointer[cluster.Gossip] // nil in a cluster of one
	linked     func(node string) bool         // reports whether raft has a session to a node now

	mu   sync.Mutex // guards used
	used map[string]dialled
}

// dialled is the address at which a node is dialled.
type dialled struct {
	session string    // the address that raft dialled last
	lost    time.Time // since when raft has no session; zero while it has one
}

// turnOf is how long one address of a node is tried before the next one.
const turnOf = 2 * time.Second

// grpc returns the address of a node's gRPC server. While raft has a session, its address stays, whatever gossip
// reports: without keys anyone can send gossip. Without a session, the address in gossip and the address in the control
// group's record are tried in turn.
func (d *directory) grpc(node string) (string, error) {
	if node == d.self {
		return d.own, nil
	}
	linked := d.linked(node)
	known := d.candidates(node)
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.used[node]
	if linked && was.session != "" {
		d.used[node] = dialled{session: was.session}
		return was.session, nil
	}
	if len(known) == 0 {
		return "", proto.ErrUnreachable.Errorf("nothing was heard of node %s yet", node)
	}
	now := time.Now()
	if was.lost.IsZero() {
		was.lost = now
	}
	d.used[node] = was
	return known[int(now.Sub(was.lost)/turnOf)%len(known)], nil
}

// connectedAt reports whether raft has a session with a node now, at the address that gossip has for it.
func (d *directory) connectedAt(m cluster.Member) bool {
	if m.Node == d.self || m.GRPC == "" || !d.linked(m.Node) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	session := d.used[m.Node].session
	return session != "" && reaches(session, m.GRPC)
}

// candidates returns the possible addresses of a node, the most likely first.
func (d *directory) candidates(node string) (known []string) {
	if m, ok := d.member(node); ok && m.GRPC != "" {
		known = append(known, m.GRPC)
	}
	if at := d.table().Node(node).GetGrpcAddress(); at != "" && (len(known) == 0 || !reaches(at, known[0])) {
		known = append(known, at)
	}
	return known
}

func (d *directory) member(node string) (cluster.Member, bool) {
	if g := d.gossip.Load(); g != nil {
		return g.Member(node)
	}
	return cluster.Member{}, false
}

// alive reports whether gossip considers a node alive.
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

// has reports whether a node is known to be at a host.
func (d *directory) has(host string) bool {
	at := func(address string) bool { return address != "" && trust.HostAt(address) == host }
	for _, m := range d.members() {
		if at(m.GRPC) || at(m.Gossip) {
			return true
		}
	}
	return slices.ContainsFunc(d.table().Nodes(), func(r *ebbv1.NodeRecord) bool { return at(r.GetGrpcAddress()) || at(r.GetGossipAddress()) })
}

// dial opens a stream to a node's gRPC server, for raft.
func (d *directory) dial(ctx context.Context, node string) (net.Conn, error) {
	address, err := d.grpc(node)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.used[node] = dialled{session: address, lost: d.used[node].lost}
	d.mu.Unlock()
	return d.connect(ctx, address)
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
