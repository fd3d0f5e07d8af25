package client

import (
	"slices"
	"sync"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// chart is what the client believes about the cluster: the table as a node told
// it, corrected by what leaders and followers answered since. All of it is
// hints; a node that gets what is not its own forwards or refuses it.
type chart struct {
	mu      sync.RWMutex // guards all below
	table   *ebbv1.Table // never changed in place
	fetched time.Time
	address map[string]string // node name -> gRPC address
	seats   []seat            // by shard; 0 is the control group
}

// seat is who sits where in one shard's group.
type seat struct {
	leader   string // "" if nobody is known to lead
	term     uint64 // the newest that a table has told of
	hearsay  bool   // leader was named without its term, which may be newer than term
	replicas []string

	lost  string    // the node that led last and did not do what it should
	until time.Time // tables that say that it leads in the same term are not believed: the others may not have noticed
}

// doubted reports whether a node has just been lost as the leader.
func (s *seat) doubted(node string, now time.Time) bool {
	return node != "" && node == s.lost && now.Before(s.until)
}

// lostFor is how long a node that was lost as a leader is not taken for one because a table says so.
const lostFor = time.Second

// adopt takes over a table that a node has sent, unless it is of another epoch
// in the past. A leader hint is taken when its term is not older than what is known.
func (ch *chart) adopt(t *ebbv1.Table, now time.Time) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.fetched = now
	if ch.table != nil && t.GetEpoch() < ch.table.GetEpoch() {
		return
	}
	ch.table = t
	ch.address = make(map[string]string, len(t.GetNodes()))
	for _, n := range t.GetNodes() {
		ch.address[n.GetName()] = n.GetGrpcAddress()
	}
	seats := make([]seat, t.GetShards()+1)
	copy(seats, ch.seats)
	for _, r := range t.GetPlacement() {
		if int(r.GetShard()) < len(seats) {
			seats[r.GetShard()] = seats[r.GetShard()].with(r, now)
		}
	}
	ch.seats = seats
}

func (s seat) with(r *ebbv1.ShardRecord, now time.Time) seat {
	next := s
	next.replicas = nil
	if leader := r.GetLeader(); leader != "" {
		newer := r.GetTerm() > s.term
		doubted := s.doubted(leader, now)
		elected := newer && !(doubted && s.hearsay) // who was lost was named without its term: now that is known
		if elected || s.leader == "" && !doubted {
			next.leader = leader
		}
		if newer {
			next.term, next.hearsay = r.GetTerm(), false
		}
	}
	if p := r.GetPreferred(); next.leader == "" && next.term == 0 && !s.doubted(p, now) {
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

// learn notes that node said leader leads the shard ("" if it did not know).
// It reports whether there is now somebody else to ask.
func (ch *chart) learn(shard uint32, node, leader string) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if int(shard) >= len(ch.seats) {
		return false
	}
	s := &ch.seats[shard]
	if leader == "" || leader == node {
		if s.leader == node {
			s.leader = ""
		}
		return false
	}
	s.hearsay = s.hearsay || s.leader != leader
	s.leader = leader
	return true
}

// lost notes that node cannot be the leader of anything just now.
func (ch *chart) lost(shard uint32, node string, now time.Time) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if int(shard) < len(ch.seats) && ch.seats[shard].leader == node {
		s := &ch.seats[shard]
		s.leader, s.lost, s.until = "", node, now.Add(lostFor)
	}
}

// candidates returns who to try for a shard: the leader ("" if unknown) and the
// other replicas, and which of them has just been lost as the leader ("" if none).
func (ch *chart) candidates(shard uint32, now time.Time) (leader string, others []string, lost string) {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	if int(shard) >= len(ch.seats) {
		return "", nil, ""
	}
	s := &ch.seats[shard]
	for _, r := range s.replicas {
		if r != s.leader {
			others = append(others, r)
		}
	}
	if s.doubted(s.lost, now) {
		lost = s.lost
	}
	return s.leader, others, lost
}

// leaderless reports whether nobody is known to lead the shard and the table may tell: it has not been fetched for a
// while, or not since it is believed again of the node that was lost.
func (ch *chart) leaderless(shard uint32, now time.Time) bool {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	if int(shard) >= len(ch.seats) || ch.seats[shard].leader != "" {
		return false
	}
	until := ch.seats[shard].until
	return now.Sub(ch.fetched) > lostFor || !now.Before(until) && ch.fetched.Before(until)
}

// leads reports whether the node is believed to lead the shard.
func (ch *chart) leads(shard uint32, node string) bool {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	return node != "" && int(shard) < len(ch.seats) && ch.seats[shard].leader == node
}

// led appends the shards of parcels that their node is believed to lead.
func (ch *chart) led(shards []uint32, parcels []*parcel) []uint32 {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	for _, p := range parcels {
		if p.node != "" && int(p.shard) < len(ch.seats) && ch.seats[p.shard].leader == p.node {
			shards = append(shards, p.shard)
		}
	}
	return shards
}

// deposed reports whether each of the shards is believed to be led by another node.
func (ch *chart) deposed(node string, shards []uint32) bool {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	for _, shard := range shards {
		if int(shard) >= len(ch.seats) || ch.seats[shard].leader == "" || ch.seats[shard].leader == node {
			return false
		}
	}
	return true
}

func (ch *chart) addressOf(node string) string {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	return ch.address[node]
}

func (ch *chart) nodes() []string {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	out := make([]string, 0, len(ch.table.GetNodes()))
	for _, n := range ch.table.GetNodes() {
		out = append(out, n.GetName())
	}
	return out
}

func (ch *chart) shards() uint32 {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	return ch.table.GetShards()
}

func (ch *chart) age(now time.Time) time.Duration {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	return now.Sub(ch.fetched)
}

// copyTable returns the table with the leaders as they are believed to be now.
func (ch *chart) copyTable() *ebbv1.Table {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	t := protobuf.CloneOf(ch.table)
	for _, r := range t.GetPlacement() {
		if int(r.GetShard()) < len(ch.seats) {
			r.Leader = ch.seats[r.GetShard()].leader
		}
	}
	return t
}

func (ch *chart) clusterID() string {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	return ch.table.GetClusterId()
}

// nodeAt returns the name of the node at an address, or the address itself.
func (ch *chart) nodeAt(addr string) string {
	ch.mu.RLock()
	defer ch.mu.RUnlock()
	for name, a := range ch.address {
		if a == addr {
			return name
		}
	}
	return addr
}
