package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"

	"github.com/ebbdb/ebb/proto"
)

// Network is how gossip reaches other nodes. Addresses are "host:port", and the host is an IP address. Port 0 takes any
// free port.
type Network interface {
	Listen(ctx context.Context, addr string) (net.Listener, error)
	ListenPacket(ctx context.Context, addr string) (net.PacketConn, error)
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// GossipConfig describes a node and the nodes to join.
type GossipConfig struct {
	Node    string // this node's name
	Boot    uint64 // identifies this start of the node; a later start has a greater number, e.g. the time in µs
	GRPC    string // where others reach it, "host:port"; an empty or unspecified host means gossip's
	HTTP    string // likewise
	Version string // version of the program
	Disk    string // the identity of its data directory; "" if gossip does not carry it

	Network Network
	Listen  string   // ip:port for streams and packets
	Addr    string   // ip:port where others reach it, if that differs from Listen
	Join    []string // host:port of nodes to join; names are resolved each time
	// Keys encrypt and decrypt gossip, see ParseGossipKeys; without keys, gossip is not encrypted.
	Keys [][]byte
	// Known returns the gossip addresses in the control group's records.
	Known func() []string
	// Resolve looks up a host name; LookupHost of net.DefaultResolver when nil.
	Resolve func(ctx context.Context, host string) ([]string, error)

	// OnChange is called with all members, by name, after each change of one of them. Calls do not overlap.
	OnChange func([]Member)
	// Cluster returns the identity of this node's cluster, "" while it has none. Gossip of another cluster is neither
	// accepted nor answered.
	Cluster func() string
	// DiskOf returns the identity of a node's disk in the control group's record, "" if it has none.
	DiskOf func(node string) string
	// Proven reports whether another node is connected now, at the gRPC address of this start. memberlist's locks are
	// held during the call. Nil means that no start is proven.
	Proven func(Member) bool
	// OnForeignCluster is called when all Join addresses that answer belong to another cluster.
	OnForeignCluster func(ForeignCluster)
	// OnDuplicate is called when two living processes seem to have the same node name, again at each check while this
	// lasts. A process whose disk was given up does not count. Do not trust the report more than gossip: without keys,
	// anyone in the network can send it.
	OnDuplicate func(Duplicate)
	Logger      *slog.Logger // slog.Default() when nil

	// ExchangeEvery is how often the full state is exchanged with one other node; 15 s when 0.
	ExchangeEvery time.Duration
	// RejoinEvery is how often nodes that are not known to be alive are joined again; 10 s when 0.
	RejoinEvery time.Duration
}

// Duplicate is two living processes with the same node name.
type Duplicate struct {
	Stays, Goes Member // see Member.outranks
}

// Err returns DUPLICATE_NODE with both addresses.
func (d Duplicate) Err() *proto.Error {
	why := "started later"
	if d.Stays.Cluster != "" && d.Goes.Cluster == "" {
		why = "does not belong to the cluster yet"
	}
	return proto.ErrDuplicateNode.Errorf("node %s runs twice: at %s, which stays, and at %s, which %s and has to end",
		d.Goes.Node, d.Stays.Gossip, d.Goes.Gossip, why).
		WithHint("give every node a name of its own, or stop one of the two")
}

// ForeignCluster is a node of another cluster, found at an address to join.
type ForeignCluster struct {
	Addr   string // address of one such node
	Node   string // its name
	GRPC   string // the gRPC address that this node announces
	Theirs string // the beginning of the other cluster's identity
	Ours   string // the beginning of this node's cluster identity
}

// Err returns WRONG_CLUSTER with both clusters.
func (s ForeignCluster) Err() *proto.Error {
	return proto.ErrWrongCluster.Errorf("the node to join at %s is of cluster %s...: this node's data is of cluster %s...", s.Addr, s.Theirs, s.Ours).
		WithHint("join nodes of its own cluster, or start with an empty --data-dir")
}

const (
	rejoinEvery   = 10 * time.Second // and up to a fifth more or less
	rejoinFirst   = time.Second      // while alone, then doubling
	rejoinAtOnce  = 3                // addresses a round
	joinAtFirst   = 16               // addresses in the first round
	streamTimeout = 2 * time.Second
	leaveTimeout  = 300 * time.Millisecond // one and a half rounds of gossip
	pingTries     = 3
	settledAfter  = 10 * time.Second // long enough to learn of another process of the same name
	// With memberlist's own 4, one node of five misses news in a few joins of a hundred, until the next full exchange.
	retransmitMult = 8
	exchangeEvery  = 15 * time.Second
)

// Gossip reports which nodes seem to be alive, and their addresses. It wraps memberlist, which does not heal network
// partitions longer than about 35 seconds. So every 10 seconds Gossip tries again to join the configured nodes, the
// nodes in the control group's records and nodes seen before.
type Gossip struct {
	cfg       GossipConfig
	self      Member // without its cluster, which may become known later
	log       *slog.Logger
	transport *gossipTransport
	list      *memberlist.Memberlist
	keys      *memberlist.Keyring // nil: gossip is in the clear
	refused   *refusals
	arrivals  *rate.Limiter // limits new starts
	evictions *rate.Limiter // limits evictions for other starts of the same node

	mu        sync.Mutex // guards what follows; never held while calling memberlist, which calls back under its locks
	known     *knownMembers
	foreign   map[string]Member // of another cluster, by gossip address
	warned    map[string]bool   // addresses that were logged
	tried     map[string]string // address -> why the last attempt to join it failed
	announced Member            // what was announced about this node

	opened   time.Time
	changed  chan struct{} // capacity 1: the known members changed
	ctx      context.Context
	cancel   context.CancelFunc
	loops    sync.WaitGroup
	leaving  sync.Once
	closing  sync.Once
	reported map[[2]string]bool // duplicates already logged, by the two processes; only watch uses it
}

// OpenGossip opens the sockets, starts to join, and returns without waiting for other nodes.
func OpenGossip(ctx context.Context, cfg GossipConfig) (*Gossip, error) {
	if err := CheckNodeName(cfg.Node); err != nil {
		return nil, err
	}
	logger := cmp.Or(cfg.Logger, slog.Default()).With("part", "gossip")
	g := &Gossip{
		cfg: cfg, known: newKnownMembers(), opened: time.Now(), arrivals: rate.NewLimiter(newStartsRate, newStartsBurst),
		evictions: rate.NewLimiter(evictRate, evictBurst),
		changed:   make(chan struct{}, 1), reported: make(map[[2]string]bool),
		foreign: make(map[string]Member),
		warned:  make(map[string]bool), tried: make(map[string]string),
		log: logger, refused: newRefusals(logger),
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.cfg.ExchangeEvery = cmp.Or(g.cfg.ExchangeEvery, exchangeEvery)
	g.cfg.RejoinEvery = cmp.Or(g.cfg.RejoinEvery, rejoinEvery)
	if g.cfg.Resolve == nil {
		g.cfg.Resolve = net.DefaultResolver.LookupHost
	}
	var err error
	if g.keys, err = keyring(cfg.Keys); err != nil {
		g.cancel()
		return nil, err
	}
	g.transport = &gossipTransport{
		network: cfg.Network, sums: g.keys == nil, keys: g.openedWith, refuse: g.refused.note,
		damaged: func(from net.Addr) { logger.Warn("dropping gossip packet: damaged on its way", "from", from) },
	}
	if err := g.transport.listen(ctx, cfg.Listen, cfg.Addr); err != nil {
		g.cancel()
		return nil, err
	}
	if err := g.start(); err != nil {
		g.cancel()
		return nil, errors.Join(err, g.transport.Shutdown())
	}
	return g, nil
}

// openedWith returns the keys that decrypt gossip; none if gossip is not encrypted.
func (g *Gossip) openedWith() [][]byte {
	if g.keys == nil {
		return nil
	}
	return g.keys.GetKeys()
}

// Refused counts the gossip that was refused since the start for one reason.
func (g *Gossip) Refused(why GossipRefusal) uint64 { return g.refused.count(why) }

func (g *Gossip) start() error {
	g.self = Member{
		Node: g.cfg.Node, Boot: g.cfg.Boot, GRPC: g.cfg.GRPC, HTTP: g.cfg.HTTP,
		Gossip: g.transport.addr.String(), Version: g.cfg.Version, Disk: diskMark(g.cfg.Disk), Alive: true,
	}
	if _, err := g.me(strings.Repeat("c", clusterMarkLen)).appendMeta(nil); err != nil {
		return err
	}
	g.announced = g.now()
	var err error
	if g.list, err = memberlist.Create(g.config()); err != nil {
		return fmt.Errorf("open gossip at %s: %w", g.self.Gossip, err)
	}
	g.loops.Go(g.watch)
	g.loops.Go(g.rejoin)
	return nil
}

func (g *Gossip) config() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.self.name()
	c.Transport = g.transport
	c.BindPort = int(g.transport.addr.Port())
	c.AdvertisePort = c.BindPort
	c.TCPTimeout = streamTimeout
	c.RetransmitMult = retransmitMult
	c.PushPullInterval = g.cfg.ExchangeEvery
	c.EnableCompression = false // saves little for packets of some hundred bytes, and allocates 20 KiB for each
	c.Delegate = gossipDelegate{g}
	c.Events = gossipDelegate{g}
	c.Alive = gossipDelegate{g}
	c.Merge = gossipDelegate{g}
	c.Keyring = g.keys
	c.Logger = log.New(&lineWriter{log: g.log}, "", 0)
	return c
}

// me returns this node as a member of the given cluster.
func (g *Gossip) me(cluster string) Member {
	m := g.self
	m.Cluster = clusterMark(cluster)
	m.Settled = time.Since(g.opened) >= settledAfter
	return m
}

// now returns this node as it is now.
func (g *Gossip) now() Member {
	if g.cfg.Cluster == nil {
		return g.me("")
	}
	return g.me(g.cfg.Cluster())
}

// Announce tells the other nodes at once which cluster this node belongs to and that it is settled, if that is new.
// Otherwise they learn of it within rejoinEvery.
func (g *Gossip) Announce() {
	now := g.now()
	g.mu.Lock()
	news := now != g.announced
	g.announced = now
	g.mu.Unlock()
	if !news || g.ctx.Err() != nil {
		return
	}
	if err := g.list.UpdateNode(streamTimeout); err != nil {
		g.log.Debug("announce", "err", err) // it goes out with the next exchange
	}
}

// Addr returns where others reach this node's gossip, as ip:port.
func (g *Gossip) Addr() string { return g.self.Gossip }

// Members returns every node ever seen, this one included, by name. Of several starts of a node it returns the best
// one: the newest that is alive, if any is.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known.members()
}

// Member returns the best known start of a node, and false if the node is unknown.
func (g *Gossip) Member(node string) (Member, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if best := g.known.best(node); best != nil {
		return best.member, true
	}
	return Member{}, false
}

// Leave announces to the others, once, that this node leaves. Until Close the node still receives gossip, but reports
// no changes and joins no nodes.
func (g *Gossip) Leave() {
	g.leaving.Do(func() {
		g.cancel()
		if err := g.list.Leave(leaveTimeout); err != nil {
			g.log.Debug("leave", "err", err) // the others will notice by themselves
		}
	})
}

// Close leaves, stops and waits for all goroutines of Gossip. It cannot wait for the goroutines of memberlist: a probe
// under way may outlive Close by up to 8 seconds. The probe holds no resources, but a synctest bubble has to wait for
// it.
func (g *Gossip) Close() error {
	g.Leave()
	return g.stop()
}

// Kill stops without an announcement, as a crash would; the others have to detect it.
func (g *Gossip) Kill() error {
	g.leaving.Do(g.cancel) // so that Close announces nothing either
	return g.stop()
}

func (g *Gossip) stop() (err error) {
	g.closing.Do(func() {
		g.cancel()
		err = g.list.Shutdown()
		g.loops.Wait()
	})
	return err
}

// watch reports changes of members and checks nodes that seem to run twice.
func (g *Gossip) watch() {
	var reported []Member
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-g.changed:
		}
		reported = g.reportChanges(reported)
		if g.checkDuplicates() {
			reported = g.reportChanges(reported)
		}
	}
}

// reportChanges reports the members if they have changed, and returns them.
func (g *Gossip) reportChanges(reported []Member) []Member {
	now := g.Members()
	if slices.Equal(now, reported) || g.ctx.Err() != nil {
		return reported
	}
	g.log.Debug("members changed", "members", len(now))
	if g.cfg.OnChange != nil {
		g.cfg.OnChange(slices.Clone(now))
	}
	return now
}

// checkDuplicates pings all starts of a node that seem to be alive. A process that died does not answer, though
// memberlist takes seconds to find out. If two starts answer, the node runs twice, unless the disk of one was replaced:
// that one must not stop its successor. checkDuplicates reports whether there was anything to compare.
func (g *Gossip) checkDuplicates() bool {
	g.mu.Lock()
	duplicates := g.known.duplicates()
	g.mu.Unlock()
	for _, starts := range duplicates {
		var answering []Member
		for _, m := range starts {
			answered := g.answers(m)
			if answered && !m.diskReplaced(g.diskOf(m.Node)) {
				answering = append(answering, m)
			}
			g.mu.Lock()
			g.known.noteAnswer(m, answered)
			g.mu.Unlock()
		}
		sort.SliceStable(answering, func(i, j int) bool { return answering[i].outranks(answering[j]) })
		for i := 1; i < len(answering); i++ {
			g.reportDuplicate(Duplicate{Stays: answering[i-1], Goes: answering[i]})
		}
	}
	return len(duplicates) > 0
}

func (g *Gossip) diskOf(node string) string {
	if g.cfg.DiskOf == nil {
		return ""
	}
	return g.cfg.DiskOf(node)
}

// answers reports whether exactly this start of a node answers a ping.
func (g *Gossip) answers(m Member) bool {
	if m.Boot == g.self.Boot && m.Node == g.self.Node {
		return true
	}
	at, err := netip.ParseAddrPort(m.Gossip)
	if err != nil {
		return false
	}
	for range pingTries {
		if _, err := g.list.Ping(m.name(), net.UDPAddrFromAddrPort(at)); err == nil {
			return true
		}
		if g.ctx.Err() != nil {
			return false
		}
	}
	return false
}

func (g *Gossip) reportDuplicate(d Duplicate) {
	if g.ctx.Err() != nil {
		return
	}
	if pair := [2]string{d.Stays.name(), d.Goes.name()}; !g.reported[pair] && len(g.reported) < reportedMax {
		g.reported[pair] = true
		g.log.Error("gossip has two nodes with one name", "err", d.Err())
	}
	if g.cfg.OnDuplicate != nil {
		g.cfg.OnDuplicate(d)
	}
}

// rejoin joins missing nodes: at once, then often while this node is alone, then every RejoinEvery.
func (g *Gossip) rejoin() {
	next := rejoinFirst
	for most := joinAtFirst; ; most = rejoinAtOnce {
		g.Announce()
		g.join(most)
		wait := next
		if next < g.cfg.RejoinEvery && g.list.NumMembers() <= 1 {
			next *= 2
		} else {
			wait, next = g.cfg.RejoinEvery, g.cfg.RejoinEvery
		}
		jitter := 1 + (rand.Float64()*2-1)/5
		timer := time.NewTimer(time.Duration(float64(wait) * jitter))
		select {
		case <-timer.C:
		case <-g.ctx.Done():
			timer.Stop()
			return
		}
		g.wake() // duplicates that did not answer may answer now
	}
}

// join exchanges state with a few of the addresses at which no living node is known.
func (g *Gossip) join(most int) {
	missing := g.missing()
	rand.Shuffle(len(missing), func(i, j int) { missing[i], missing[j] = missing[j], missing[i] })
	for _, addr := range missing[:min(len(missing), most)] {
		if g.ctx.Err() != nil {
			return
		}
		_, err := g.list.Join([]string{addr})
		if err != nil {
			g.log.Debug("join", "addr", addr, "err", err)
		}
		g.tries(addr, err)
		g.mu.Lock()
		theirs, foreign := g.foreign[addr]
		news := foreign && !g.warned[addr]
		if news {
			g.warned[addr] = true
		}
		g.mu.Unlock()
		if news {
			g.warn(ForeignCluster{Addr: addr, Node: theirs.Node, GRPC: theirs.GRPC, Theirs: theirs.Cluster, Ours: g.now().Cluster})
		}
	}
}

// warn logs that an address belongs to another cluster. It also calls OnForeignCluster if the address was to be joined,
// and no node of this cluster answers at any address to join.
func (g *Gossip) warn(s ForeignCluster) {
	g.log.Error("found a node of another cluster", "err", s.Err())
	g.mu.Lock()
	alive, _ := g.known.addresses()
	g.mu.Unlock()
	meant := false
	for _, name := range g.cfg.Join {
		for _, at := range g.resolve(name) {
			if at != g.self.Gossip && alive[at] {
				return
			}
			meant = meant || at == s.Addr
		}
	}
	if meant && g.cfg.OnForeignCluster != nil {
		g.cfg.OnForeignCluster(s)
	}
}

// foreignClusterError is the refusal of a member of another cluster.
type foreignClusterError struct{ member, theirs string }

func (e foreignClusterError) Error() string {
	return fmt.Sprintf("%s is of cluster %s...", e.member, e.theirs)
}

// missing returns every address worth a try: configured, in the control group's records or seen before, except those of
// living nodes.
func (g *Gossip) missing() []string {
	g.mu.Lock()
	alive, missing := g.known.addresses()
	g.mu.Unlock()
	named := slices.Clone(g.cfg.Join)
	if g.cfg.Known != nil {
		named = append(named, g.cfg.Known()...)
	}
	for _, name := range named {
		missing = append(missing, g.resolve(name)...)
	}
	missing = slices.DeleteFunc(missing, func(addr string) bool { return alive[addr] || addr == g.self.Gossip })
	slices.Sort(missing)
	return slices.Compact(missing)
}

// resolve returns the addresses of a host:port; none if the name cannot be resolved now.
func (g *Gossip) resolve(name string) []string {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, strconv.Itoa(int(g.transport.addr.Port()))
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{net.JoinHostPort(host, port)}
	}
	ctx, cancel := context.WithTimeout(g.ctx, streamTimeout)
	defer cancel()
	ips, err := g.cfg.Resolve(ctx, host)
	if err != nil {
		if g.mu.Lock(); !g.warned[name] {
			g.warned[name] = true
			g.log.Warn("an address to join does not resolve, yet", "addr", name, "err", err)
		}
		g.mu.Unlock()
		return nil
	}
	for i, ip := range ips {
		ips[i] = net.JoinHostPort(ip, port)
	}
	return ips
}

func (g *Gossip) wake() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// gossipDelegate has the callbacks of memberlist, which often calls them under its own locks: they must not block or
// call memberlist.
type gossipDelegate struct{ g *Gossip }

func (d gossipDelegate) NotifyJoin(n *memberlist.Node)   { d.note(n, true) }
func (d gossipDelegate) NotifyUpdate(n *memberlist.Node) { d.note(n, true) }
func (d gossipDelegate) NotifyLeave(n *memberlist.Node)  { d.note(n, false) }

func (d gossipDelegate) note(n *memberlist.Node, alive bool) {
	node, boot, ok := parseMemberName(n.Name)
	if !ok {
		return
	}
	m := Member{Node: node, Boot: boot, Gossip: net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port))), Alive: alive}
	m.parseMeta(n.Meta)
	d.g.mu.Lock()
	d.g.known.put(m)
	d.g.mu.Unlock()
	d.g.wake()
}

func (d gossipDelegate) NodeMeta(limit int) []byte {
	meta, err := d.g.now().appendMeta(nil)
	if err != nil || len(meta) > limit {
		return nil
	}
	return meta
}

// NotifyAlive refuses members of another cluster, and new members if there is no room for more.
func (d gossipDelegate) NotifyAlive(n *memberlist.Node) error {
	if err := d.ours(n); err != nil {
		return err
	}
	if !d.g.admits(n.Name) {
		d.g.refused.note(RefusedMembers, nil)
		return RefusedMembers
	}
	return nil
}

// ours refuses a member of another cluster.
func (d gossipDelegate) ours(n *memberlist.Node) error {
	m := Member{Gossip: net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))}
	m.Node, m.Boot, _ = parseMemberName(n.Name)
	m.parseMeta(n.Meta)
	if d.g.now().foreign(m) {
		d.g.noteForeign(m)
		return foreignClusterError{n.Name, m.Cluster}
	}
	return nil
}

// NotifyMerge refuses to exchange members with another cluster.
func (d gossipDelegate) NotifyMerge(peers []*memberlist.Node) error {
	for _, n := range peers {
		if n.State != memberlist.StateAlive {
			continue
		}
		if err := d.ours(n); err != nil {
			return err
		}
	}
	return nil
}

// foreignMax is how many addresses of other clusters are kept.
const foreignMax = 256

// reportedMax is how many pairs of processes with the same node name are logged.
const reportedMax = 256

func (g *Gossip) noteForeign(m Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.foreign) < foreignMax {
		g.foreign[m.Gossip] = m
	}
}

func (gossipDelegate) NotifyMsg([]byte)                {}
func (gossipDelegate) GetBroadcasts(_, _ int) [][]byte { return nil }
func (gossipDelegate) LocalState(bool) []byte          { return nil }
func (gossipDelegate) MergeRemoteState([]byte, bool)   {}

func sortMembers(members []Member) {
	sort.Slice(members, func(i, j int) bool {
		a, b := &members[i], &members[j]
		return cmp.Or(strings.Compare(a.Node, b.Node), cmp.Compare(a.Boot, b.Boot)) < 0
	})
}
