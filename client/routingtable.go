package client

import (
	"slices"
	"sync"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// routingTable is the client's view of the cluster: the newest placement table that a node has sent, corrected by the
// answers of leaders and followers since. All of it is hints: a node forwards or refuses requests for other nodes.
type routingTable struct {
	mu      sync.RWMutex // guards all below
	table   *ebbv1.Table // never changed in place
	fetched time.Time
	address map[string]string // node name -> gRPC address
	routes  []route           // by shard; 0 is the control group
}

// route is the leader and the replicas of one shard, as far as the client knows them.
type route struct {
	leader           string // "" if unknown
	term             uint64 // the newest in any table
	leaderUnverified bool   // a node named leader without its term, which may be newer than term
	replicas         []string

	lostLeader string    // the last leader that failed
	lostUntil  time.Time // until then, ignore tables that name it as the leader in the same term: they may be outdated
}

// recentlyLost reports whether a node has just failed as the leader.
func (s *route) recentlyLost(node string, now time.Time) bool {
	return node != "" && node == s.lostLeader && now.Before(s.lostUntil)
}

// lostFor is how long the client ignores tables that name a node as the leader, after that node failed as the leader.
const lostFor = time.Second

// adopt takes over a table that a node has sent, unless its epoch is older than the current one. It takes the leader of
// a shard from the table if the term is newer, or if no leader is known. A leader that failed recently may be ignored
// (see route).
func (rt *routingTable) adopt(t *ebbv1.Table, now time.Time) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.fetched = now
	if rt.table != nil && t.GetEpoch() < rt.table.GetEpoch() {
		return
	}
	rt.table = t
	rt.address = make(map[string]string, len(t.GetNodes()))
	for _, n := range t.GetNodes() {
		rt.address[n.GetName()] = n.GetGrpcAddress()
	}
	routes := make([]route, t.GetShards()+1)
	copy(routes, rt.routes)
	for _, r := range t.GetPlacement() {
		if int(r.GetShard()) < len(routes) {
			routes[r.GetShard()] = routes[r.GetShard()].with(r, now)
		}
	}
	rt.routes = routes
}

func (s route) with(r *ebbv1.ShardRecord, now time.Time) route {
	next := s
	next.replicas = nil
	if leader := r.GetLeader(); leader != "" {
		newer := r.GetTerm() > s.term
		recentlyLost := s.recentlyLost(leader, now)
		elected := newer && !(recentlyLost && s.leaderUnverified) // a lost leader may have been named without its term
		if elected || s.leader == "" && !recentlyLost {
			next.leader = leader
		}
		if newer {
			next.term, next.leaderUnverified = r.GetTerm(), false
		}
	}
	if p := r.GetPreferred(); next.leader == "" && next.term == 0 && !s.recentlyLost(p, now) {
		next.leader = p
	}
	if p := r.GetPreferred(); p != "" {
		next.replicas = append(next.replicas, p)
	}
	for _, rep := range r.GetReplicas() {
		if !slices.Contains(next.replicas, rep.GetNode()) {
			next.replicas = append(next.replicas, rep.GetNode())
		}
	}
	return next
}

// learn records the answer of node that leader leads the shard; leader is "" if node named none. It reports whether
// there is now another node to ask.
func (rt *routingTable) learn(shard uint32, node, leader string) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if int(shard) >= len(rt.routes) {
		return false
	}
	s := &rt.routes[shard]
	if leader == "" || leader == node {
		if s.leader == node {
			s.leader = ""
		}
		return false
	}
	s.leaderUnverified = s.leaderUnverified || s.leader != leader
	s.leader = leader
	return true
}

// lost records that node failed as the leader of the shard. It does nothing if node is not believed to lead the shard.
func (rt *routingTable) lost(shard uint32, node string, now time.Time) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if int(shard) < len(rt.routes) && rt.routes[shard].leader == node {
		s := &rt.routes[shard]
		s.leader, s.lostLeader, s.lostUntil = "", node, now.Add(lostFor)
	}
}

// candidates returns the nodes to try for a shard: the leader ("" if unknown) and the other replicas. lost is the one
// that recently failed as the leader ("" if none).
func (rt *routingTable) candidates(shard uint32, now time.Time) (leader string, others []string, lost string) {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	if int(shard) >= len(rt.routes) {
		return "", nil, ""
	}
	s := &rt.routes[shard]
	for _, r := range s.replicas {
		if r != s.leader {
			others = append(others, r)
		}
	}
	if s.recentlyLost(s.lostLeader, now) {
		lost = s.lostLeader
	}
	return s.leader, others, lost
}

// leaderless reports whether the leader of the shard is unknown and a newer table may name it. That is so if the last
// fetch is older than lostFor, or older than the end of lostUntil.
func (rt *routingTable) leaderless(shard uint32, now time.Time) bool {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	if int(shard) >= len(rt.routes) || rt.routes[shard].leader != "" {
		return false
	}
	until := rt.routes[shard].lostUntil
	return now.Sub(rt.fetched) > lostFor || !now.Before(until) && rt.fetched.Before(until)
}

// leads reports whether the node is believed to lead the shard.
func (rt *routingTable) leads(shard uint32, node string) bool {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	return node != "" && int(shard) < len(rt.routes) && rt.routes[shard].leader == node
}

// led appends the shards of those commands whose node is believed to lead the shard.
func (rt *routingTable) led(shards []uint32, commands []*pendingCommand) []uint32 {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	for _, p := range commands {
		if p.node != "" && int(p.shard) < len(rt.routes) && rt.routes[p.shard].leader == p.node {
			shards = append(shards, p.shard)
		}
	}
	return shards
}

// deposed reports whether each of the shards is believed to be led by another node.
func (rt *routingTable) deposed(node string, shards []uint32) bool {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	for _, shard := range shards {
		if int(shard) >= len(rt.routes) || rt.routes[shard].leader == "" || rt.routes[shard].leader == node {
			return false
		}
	}
	return true
}

func (rt *routingTable) addressOf(node string) string {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	return rt.address[node]
}

func (rt *routingTable) nodes() []string {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	out := make([]string, 0, len(rt.table.GetNodes()))
	for _, n := range rt.table.GetNodes() {
		out = append(out, n.GetName())
	}
	return out
}

func (rt *routingTable) shards() uint32 {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	return rt.table.GetShards()
}

func (rt *routingTable) age(now time.Time) time.Duration {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	return now.Sub(rt.fetched)
}

// copyTable returns the table with the leaders as they are believed to be now.
func (rt *routingTable) copyTable() *ebbv1.Table {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	t := protobuf.CloneOf(rt.table)
	for _, r := range t.GetPlacement() {
		if int(r.GetShard()) < len(rt.routes) {
			r.Leader = rt.routes[r.GetShard()].leader
		}
	}
	return t
}

func (rt *routingTable) clusterID() string {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	return rt.table.GetClusterId()
}

// nodeAt returns the name of the node at an address, or the address itself.
func (rt *routingTable) nodeAt(addr string) string {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	for name, a := range rt.address {
		if a == addr {
			return name
		}
	}
	return addr
}
