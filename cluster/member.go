package cluster

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ebbdb/ebb/proto"
)

// Member is one node as gossip sees it. It is a hint and decides nothing.
type Member struct {
	Node    string // its name
	Boot    uint64 // identifies this start of the node; a later start has a greater number
	GRPC    string // host:port
	HTTP    string // host:port
	Gossip  string // ip:port
	Version string // version of the program
	Cluster string // the first clusterMarkLen characters of its cluster's identity; "" before it has one
	Settled bool   // it has run for settledAfter
	Disk    string // the first diskMarkLen characters of its disk's identity; "" if its build is older
	Alive   bool
}

// clusterMarkLen and diskMarkLen are how many characters of a cluster's and of a disk's identity gossip carries.
const (
	clusterMarkLen = 16
	diskMarkLen    = 8
)

// clusterMark shortens a cluster's identity for gossip.
func clusterMark(id string) string { return id[:min(len(id), clusterMarkLen)] }

// diskMark shortens a disk's identity for gossip.
func diskMark(id string) string { return id[:min(len(id), diskMarkLen)] }

// diskReplaced reports whether a member of a cluster has another disk than known, the disk that the cluster has
// recorded for its node. The cluster gave up the member's disk while the member did not answer; the member stops when
// it learns this.
func (m Member) diskReplaced(known string) bool {
	return m.Cluster != "" && m.Disk != "" && known != "" && m.Disk != diskMark(known)
}

// foreign reports whether two members are known to be of different clusters.
func (m Member) foreign(other Member) bool {
	return m.Cluster != "" && other.Cluster != "" && m.Cluster != other.Cluster
}

// outranks reports which of two processes with the same node name stays: true if m does. A process that belongs to a
// cluster stays before one that does not, since it has the node's data, or is about to get it. Then a settled process
// stays: it came first, whatever the clocks say. Otherwise the one with the older boot id stays. All nodes that know
// the same facts decide the same.
func (m Member) outranks(other Member) bool {
	switch {
	case (m.Cluster != "") != (other.Cluster != ""):
		return m.Cluster != ""
	case m.Settled != other.Settled:
		return m.Settled
	}
	return m.Boot < other.Boot
}

// name is the member's name in memberlist. Every start of a node has another name there; otherwise memberlist would
// refuse a restarted node that has a new address.
func (m Member) name() string { return m.Node + "+" + strconv.FormatUint(m.Boot, 36) }

func parseMemberName(name string) (node string, boot uint64, ok bool) {
	node, suffix, found := strings.Cut(name, "+")
	boot, err := strconv.ParseUint(suffix, 36, 64)
	return node, boot, found && err == nil && CheckNodeName(node) == nil
}

// Metadata travels with every liveness message, so it must be small:
//
//	version 1 | len grpc | grpc | len http | http | len version | version | len cluster | cluster | settled [| len disk | disk]
//
// Each length is one byte, and settled is a byte of 0 or 1. The disk is left out if there is no room for it; older
// builds ignore it. An address on the gossip's own host is written ":port", and so is http on grpc's host.
const (
	metaVersion = 1
	metaLenMax  = 128
)

func (m Member) appendMeta(b []byte) ([]byte, error) {
	gossipHost, _, _ := net.SplitHostPort(m.Gossip)
	grpc := shorten(m.GRPC, gossipHost)
	http := shorten(m.HTTP, gossipHost)
	if grpcHost, _, _ := net.SplitHostPort(grpc); grpcHost != "" {
		http = shorten(http, grpcHost)
	}
	b = append(b, metaVersion)
	for _, s := range []string{grpc, http, m.Version, m.Cluster} {
		if len(s) >= metaLenMax {
			return nil, errMeta(len(s))
		}
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	settled := byte(0)
	if m.Settled {
		settled = 1
	}
	b = append(b, settled)
	if m.Disk != "" && len(b)+1+len(m.Disk) <= metaLenMax {
		b = append(append(b, byte(len(m.Disk))), m.Disk...)
	}
	if len(b) > metaLenMax {
		return nil, errMeta(len(b))
	}
	return b, nil
}

func errMeta(n int) error {
	return proto.ErrBadRequest.Errorf("addresses and version of the node take %d bytes of gossip metadata: the limit is %d", n, metaLenMax)
}

// parseMeta fills in the fields that the metadata holds. If the version is unknown, the member has no addresses.
func (m *Member) parseMeta(b []byte) {
	if len(b) == 0 || b[0] != metaVersion {
		return
	}
	var fields [4]string
	b = b[1:]
	for i := range fields {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return
		}
		fields[i], b = string(b[1:1+int(b[0])]), b[1+int(b[0]):]
	}
	gossipHost, _, _ := net.SplitHostPort(m.Gossip)
	m.GRPC = lengthen(fields[0], gossipHost)
	grpcHost, _, _ := net.SplitHostPort(m.GRPC)
	m.HTTP = lengthen(fields[1], cmp.Or(grpcHost, gossipHost))
	m.Version, m.Cluster = fields[2], fields[3]
	m.Settled = len(b) > 0 && b[0] == 1
	if len(b) > 1 && len(b) >= 2+int(b[1]) {
		m.Disk = string(b[2 : 2+int(b[1])])
	}
}

// shorten drops the host of an address if it equals host or is an unspecified IP address.
func shorten(addr, host string) string {
	h, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(h); h == host || err == nil && ip.IsUnspecified() {
		return ":" + port
	}
	return addr
}

func lengthen(addr, host string) string {
	if strings.HasPrefix(addr, ":") {
		return net.JoinHostPort(host, addr[1:])
	}
	return addr
}

// knownMembers records all known starts of all nodes. It does no I/O.
type knownMembers struct {
	boots    map[string]map[uint64]*boot // node -> boot -> record
	arrivals uint64
}

type boot struct {
	member  Member
	silent  bool   // it did not answer when its node's starts were compared
	arrival uint64 // the order in which starts were first seen
	evicted bool   // replaced by a later start: it represents its node only if no other does
}

func newKnownMembers() *knownMembers { return &knownMembers{boots: make(map[string]map[uint64]*boot)} }

// put records the present state of a member and removes starts that no longer matter. Of a node's dead starts it keeps
// only the best, as the place to look for the node.
func (r *knownMembers) put(m Member) {
	of := r.boots[m.Node]
	if of == nil {
		of = make(map[uint64]*boot)
		r.boots[m.Node] = of
	}
	b := &boot{member: m}
	if old := of[m.Boot]; old != nil {
		b.arrival, b.evicted = old.arrival, old.evicted
	} else {
		r.arrivals++
		b.arrival = r.arrivals
	}
	of[m.Boot] = b
	best := r.best(m.Node)
	for id, b := range of {
		if !b.member.Alive && b != best {
			delete(of, id)
		}
	}
}

// living reports whether a start is known and alive.
func (r *knownMembers) living(node string, start uint64) bool {
	b := r.boots[node][start]
	return b != nil && b.member.Alive
}

// starts counts a node's living starts that were not evicted and are not known to be silent.
func (r *knownMembers) starts(node string) (n int) {
	for _, b := range r.boots[node] {
		if b.counts() {
			n++
		}
	}
	return n
}

func (b *boot) counts() bool { return b.member.Alive && !b.silent && !b.evicted }

// evict makes room for another start of a node: of the starts that count it evicts the one that was seen first. Two
// starts are never evicted: own, and the first one seen for which proven holds, whose gRPC address is the one where the
// node is connected. It returns false if there is none to evict.
func (r *knownMembers) evict(node string, proven func(Member) bool, own uint64) bool {
	var first, stays *boot
	for _, b := range r.boots[node] {
		if proven != nil && proven(b.member) && (stays == nil || b.arrival < stays.arrival) {
			stays = b
		}
	}
	for _, b := range r.boots[node] {
		if b.counts() && b != stays && b.member.Boot != own && (first == nil || b.arrival < first.arrival) {
			first = b
		}
	}
	if first == nil {
		return false
	}
	first.evicted = true
	return true
}

// evicted counts the living starts that were evicted, of all nodes.
func (r *knownMembers) evicted() (n int) {
	for _, of := range r.boots {
		for _, b := range of {
			if b.evicted && b.member.Alive {
				n++
			}
		}
	}
	return n
}

// forget drops nodes that look dead and for which known returns false.
func (r *knownMembers) forget(known func(node string) bool) {
	for node := range r.boots {
		if best := r.best(node); !best.member.Alive && !known(node) {
			delete(r.boots, node)
		}
	}
}

// all counts the starts of all nodes.
func (r *knownMembers) all() (n int) {
	for _, of := range r.boots {
		n += len(of)
	}
	return n
}

// best returns the start that represents a node: a living one before a dead, then one that answers, then one not
// evicted, then the newest. Nil if the node is unknown.
func (r *knownMembers) best(node string) *boot {
	var best *boot
	for _, b := range r.boots[node] {
		if best == nil || b.better(best) {
			best = b
		}
	}
	return best
}

func (b *boot) better(other *boot) bool {
	switch {
	case b.member.Alive != other.member.Alive:
		return b.member.Alive
	case b.silent != other.silent:
		return other.silent
	case b.evicted != other.evicted:
		return other.evicted
	}
	return b.member.Boot > other.member.Boot
}

// members returns the best start of every node, by name.
func (r *knownMembers) members() []Member {
	members := make([]Member, 0, len(r.boots))
	for node := range r.boots {
		members = append(members, r.best(node).member)
	}
	sortMembers(members)
	return members
}

// duplicates returns the living starts of every node that has several, oldest first, without evicted ones.
func (r *knownMembers) duplicates() [][]Member {
	var all [][]Member
	for _, of := range r.boots {
		var alive []Member
		for _, b := range of {
			if b.member.Alive && !b.evicted {
				alive = append(alive, b.member)
			}
		}
		if len(alive) > 1 {
			sortMembers(alive)
			all = append(all, alive)
		}
	}
	return all
}

// noteAnswer notes whether a start answered.
func (r *knownMembers) noteAnswer(m Member, answered bool) {
	if b := r.boots[m.Node][m.Boot]; b != nil {
		b.silent = !answered
	}
}

// addresses returns the gossip addresses of living members, and the last known ones of dead members.
func (r *knownMembers) addresses() (alive map[string]bool, dead []string) {
	alive = make(map[string]bool)
	for _, m := range r.members() {
		if m.Alive {
			alive[m.Gossip] = true
		} else {
			dead = append(dead, m.Gossip)
		}
	}
	return alive, dead
}
