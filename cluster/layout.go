package cluster

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Disposition is what placement does with a node: the node keeps its replicas, accepts more, or is evacuated.
type Disposition int

const (
	DispositionHold     Disposition = iota // it does not answer: it keeps its replicas and gets no new ones
	DispositionAccept                      // it is alive and may get replicas
	DispositionEvacuate                    // it is drained, leaves, or has been dead for long: it is to hold nothing
)

// NodeDisposition is the disposition of a node, with a reason if it is DispositionEvacuate. The zero value is
// DispositionHold; it also applies to a node that is not listed.
type NodeDisposition struct {
	Disposition Disposition
	Why         string
}

// Dispositions returns the dispositions of the nodes of a table. Nodes that were drained, are to be removed or have
// been dead for long evacuate. Of the others, those that live accept replicas.
func Dispositions(t *Table, alive, longDead func(node string) bool) map[string]NodeDisposition {
	all := make(map[string]NodeDisposition)
	for _, n := range t.Nodes() {
		name := n.GetName()
		switch {
		case n.GetState() == ebbv1.NodeState_NODE_STATE_DRAINING:
			all[name] = NodeDisposition{DispositionEvacuate, name + " is drained"}
		case n.GetState() == ebbv1.NodeState_NODE_STATE_LEAVING:
			all[name] = NodeDisposition{DispositionEvacuate, name + " is to be removed"}
		case longDead(name):
			all[name] = NodeDisposition{DispositionEvacuate, name + " is dead"}
		case alive(name):
			all[name] = NodeDisposition{Disposition: DispositionAccept}
		}
	}
	return all
}

// RebalanceHalted returns why no replicas may move: at least a third of the nodes look dead. Then a network fault at
// this node is more likely than the death of all of them. Nodes that are to be removed do not count. "" if replicas may
// move.
func RebalanceHalted(t *Table, alive func(node string) bool) string {
	dead, all := 0, 0
	for _, n := range t.Nodes() {
		if n.GetState() == ebbv1.NodeState_NODE_STATE_LEAVING {
			continue
		}
		all++
		if !alive(n.GetName()) {
			dead++
		}
	}
	if 3*dead < all || dead == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d nodes do not answer: rebalancing is paused while a third of the nodes look dead", dead, all)
}

// ComputePlacement returns new targets for the groups whose targets should change, each with its reason:
//
//   - no replica is on a node that evacuates; a shard has as many replicas as the table's replication says, if there
//     are that many other nodes;
//   - replicas are in as many zones as there are; a node without a zone counts as a zone of its own;
//   - each node holds the mean number of replicas within 10%, or within one replica if level is set, if the zones allow
//     that;
//   - leaders are balanced in the same way.
//
// It starts from the present targets and changes few others. The result, and the table after it, depend on the
// arguments alone. A second call with the new targets in the table returns none.
func ComputePlacement(t *Table, dispositions map[string]NodeDisposition, level bool) []*ebbv1.SetTargets_Target {
	if t.Shards() == 0 {
		return nil
	}
	d := newLayout(t, dispositions, level)
	for _, s := range d.shards {
		d.evict(s)
	}
	for _, s := range d.shards {
		d.fit(s)
	}
	for _, s := range d.shards {
		d.spread(s)
	}
	d.balanceReplicas()
	d.assignLeaders()
	d.balanceLeaders()
	changed := d.voters(t)
	for _, s := range d.shards {
		if !slices.Equal(s.nodes, targetOf(t.Shard(s.id))) {
			changed = append(changed, &ebbv1.SetTargets_Target{Shard: s.id, Nodes: s.nodes, Why: cmp.Or(s.why, "leaders are levelled")})
		}
	}
	return changed
}

// targetOf returns the nodes that are to hold a group: its target, or the present nodes if it has no target.
func targetOf(record *ebbv1.ShardRecord) []string {
	if len(record.GetTarget()) > 0 {
		return record.GetTarget()
	}
	var nodes []string
	for _, r := range record.GetReplicas() {
		switch {
		case r.GetLeaving() || record.GetShard() == ControlShard && r.GetNonvoter():
		case r.GetNode() == record.GetPreferred():
			nodes = slices.Insert(nodes, 0, r.GetNode())
		default:
			nodes = append(nodes, r.GetNode())
		}
	}
	return nodes
}

// layout is the state of one computation of a placement.
type layout struct {
	dispositions map[string]NodeDisposition
	zone         map[string]string
	stay         []string // nodes that do not evacuate, by name
	get          []string // of them, those that accept
	zones        int      // of stay
	want         int      // replicas of a shard
	level        bool
	shards       []*shardPlan
	held         map[string]int
	led          map[string]int
}

// shardPlan is one shard of a layout. Its first node is to lead; "" stands for a leader that is not chosen yet.
type shardPlan struct {
	id    uint32
	nodes []string
	why   string
}

func (s *shardPlan) because(why string) {
	if s.why == "" {
		s.why = why
	}
}

func newLayout(t *Table, dispositions map[string]NodeDisposition, level bool) *layout {
	d := &layout{dispositions: dispositions, level: level, zone: make(map[string]string), held: make(map[string]int), led: make(map[string]int)}
	zones := make(map[string]bool)
	for _, n := range t.Nodes() {
		name := n.GetName()
		d.zone[name] = "zone " + n.GetZone()
		if n.GetZone() == "" {
			d.zone[name] = "node " + name
		}
		if dispositions[name].Disposition == DispositionEvacuate {
			continue
		}
		zones[d.zone[name]] = true
		d.stay = append(d.stay, name)
		if dispositions[name].Disposition == DispositionAccept {
			d.get = append(d.get, name)
		}
	}
	d.zones = len(zones)
	d.want = min(int(t.Replication()), len(d.stay))
	for id := uint32(1); id <= t.Shards(); id++ {
		s := &shardPlan{id: id, nodes: slices.Clone(targetOf(t.Shard(id)))}
		d.shards = append(d.shards, s)
		for _, n := range s.nodes {
			d.held[n]++
		}
	}
	return d
}

// evict takes a shard from nodes that evacuate, unless no node accepts replicas.
func (d *layout) evict(s *shardPlan) {
	if len(d.get) == 0 {
		return
	}
	for _, n := range slices.Clone(s.nodes) {
		if o := d.dispositions[n]; o.Disposition == DispositionEvacuate {
			d.drop(s, n, o.Why)
		}
	}
}

// drop takes a shard from a node. If the node was to lead, assignLeaders chooses another leader.
func (d *layout) drop(s *shardPlan, node, why string) {
	at := slices.Index(s.nodes, node)
	s.nodes[at] = ""
	if at > 0 {
		s.nodes = slices.Delete(s.nodes, at, at+1)
	}
	d.held[node]--
	s.because(why)
}

func (d *layout) give(s *shardPlan, node, why string) {
	if s.nodes == nil {
		s.nodes = []string{""}
	}
	s.nodes = append(s.nodes, node)
	d.held[node]++
	s.because(why)
}

// holders returns the nodes of a shard, without the place of a leader that is not chosen yet.
func (s *shardPlan) holders() []string {
	if len(s.nodes) > 0 && s.nodes[0] == "" {
		return s.nodes[1:]
	}
	return s.nodes
}

// fit gives a shard as many replicas as it should have. It drops replicas on nodes that do not answer first.
func (d *layout) fit(s *shardPlan) {
	for len(s.holders()) > d.want && d.want > 0 {
		d.drop(s, d.expendable(s, d.unreachable(s)), fmt.Sprintf("it is to have %d replicas", d.want))
	}
	for len(s.holders()) < d.want {
		node := d.candidate(s)
		if node == "" {
			return
		}
		d.give(s, node, fmt.Sprintf("it is to have %d replicas", d.want))
	}
}

// unreachable returns the holders of a shard that do not answer, or all holders if each of them answers.
func (d *layout) unreachable(s *shardPlan) []string {
	silent := slices.DeleteFunc(slices.Clone(s.holders()), func(n string) bool { return d.dispositions[n].Disposition == DispositionAccept })
	if len(silent) == 0 {
		return s.holders()
	}
	return silent
}

// expendable returns the node of some that a shard needs least: a node whose zone has another replica, then the node
// that holds most, then the node of the lowest hash.
func (d *layout) expendable(s *shardPlan, some []string) string {
	holders := s.holders()
	return slices.MinFunc(some, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(min(2, d.inZone(holders, b)), min(2, d.inZone(holders, a))),
			cmp.Compare(d.held[b], d.held[a]),
			cmp.Compare(weight(a, s.id), weight(b, s.id)))
	})
}

// candidate returns the node that should get a replica of a shard: in a zone without a replica, with room left, of the
// highest hash. If no node has room, it is the node that holds least. "" if there is none.
func (d *layout) candidate(s *shardPlan) string {
	holders := s.holders()
	free := slices.DeleteFunc(slices.Clone(d.get), func(n string) bool { return slices.Contains(holders, n) })
	if len(free) == 0 {
		return ""
	}
	room := int(math.Ceil(d.mean() * replicaLoad))
	return slices.MinFunc(free, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(min(1, d.inZone(holders, a)), min(1, d.inZone(holders, b))),
			cmp.Compare(max(d.held[a], room-1), max(d.held[b], room-1)),
			cmp.Compare(weight(b, s.id), weight(a, s.id)))
	})
}

// mean is how many replicas a node should hold.
func (d *layout) mean() float64 { return float64(len(d.shards)*d.want) / float64(max(1, len(d.stay))) }

// inZone counts the nodes that are in the zone of the node of.
func (d *layout) inZone(nodes []string, of string) (n int) {
	for _, other := range nodes {
		if d.zone[other] == d.zone[of] {
			n++
		}
	}
	return n
}

// sharedZones returns how many replicas of a shard are more than one per zone.
func (d *layout) sharedZones(nodes []string) int {
	seen := make(map[string]bool)
	for _, n := range nodes {
		seen[d.zone[n]] = true
	}
	return len(nodes) - len(seen)
}

// spread moves replicas of a shard out of a zone that has several, while there is a zone that has none.
func (d *layout) spread(s *shardPlan) {
	for d.sharedZones(s.holders()) > 0 {
		from, to := d.expendable(s, s.holders()), d.candidate(s)
		if to == "" || d.inZone(s.holders(), to) > 0 || d.inZone(s.holders(), from) < 2 {
			return
		}
		d.swap(s, from, to, "two of its replicas are in one zone")
	}
}

// swap replaces one node of a shard by another.
func (d *layout) swap(s *shardPlan, from, to, why string) {
	d.drop(s, from, why)
	d.give(s, to, why)
}

// balanceReplicas moves replicas from nodes that hold too many to those that hold too few.
func (d *layout) balanceReplicas() {
	for d.unbalanced(d.held, d.mean()) && d.balanceOnce(d.held, d.moveReplica) {
	}
}

// unbalanced reports whether the count of some node is outside the bounds.
func (d *layout) unbalanced(count map[string]int, mean float64) bool {
	if len(d.get) == 0 {
		return false
	}
	low, high := math.Floor(mean*leastLoad), math.Ceil(mean*replicaLoad)
	if d.level {
		low, high = math.Floor(mean), math.Ceil(mean)
	}
	return float64(count[leastLoaded(d.get, count)]) < low || float64(count[mostLoaded(d.stay, count)]) > high
}

// balanceOnce moves one replica or leadership, from the most loaded node that can give one to the least loaded node
// that can take it. It returns false if no such move helps.
func (d *layout) balanceOnce(count map[string]int, move func(from, to string) bool) bool {
	to := slices.Clone(d.get)
	slices.SortStableFunc(to, func(a, b string) int { return cmp.Compare(count[a], count[b]) })
	from := slices.Clone(d.stay)
	slices.SortStableFunc(from, func(a, b string) int { return cmp.Compare(count[b], count[a]) })
	for _, p := range to {
		for _, r := range from {
			if count[r]-count[p] >= 2 && move(r, p) {
				return true
			}
		}
	}
	return false
}

// moveReplica moves one shard between two nodes, if its replicas do not share more zones than before. It chooses the
// shard for which the receiving node has the highest hash.
func (d *layout) moveReplica(from, to string) bool {
	var best *shardPlan
	for _, s := range d.shards {
		holders := s.holders()
		if !slices.Contains(holders, from) || slices.Contains(holders, to) || best != nil && weight(to, s.id) <= weight(to, best.id) {
			continue
		}
		after := slices.Clone(holders)
		after[slices.Index(after, from)] = to
		if d.sharedZones(after) <= d.sharedZones(holders) {
			best = s
		}
	}
	if best == nil {
		return false
	}
	d.swap(best, from, to, fmt.Sprintf("%s has room: it holds less than its share", to))
	return true
}

// assignLeaders counts leaders. A shard without a leader gets the holder that leads fewest shards.
func (d *layout) assignLeaders() {
	for _, s := range d.shards {
		if len(s.nodes) > 0 && s.nodes[0] != "" {
			d.led[s.nodes[0]]++
		}
	}
	for _, s := range d.shards {
		holders := s.holders()
		if len(holders) == len(s.nodes) || len(holders) == 0 {
			continue
		}
		leader := slices.MinFunc(holders, func(a, b string) int {
			return cmp.Or(cmp.Compare(d.led[a], d.led[b]), cmp.Compare(weight(b, s.id), weight(a, s.id)))
		})
		s.nodes = append([]string{leader}, slices.DeleteFunc(slices.Clone(holders), func(n string) bool { return n == leader })...)
		d.led[leader]++
	}
}

// balanceLeaders balances leaders as balanceReplicas balances replicas. No data moves.
func (d *layout) balanceLeaders() {
	mean := float64(len(d.shards)) / float64(max(1, len(d.stay)))
	for d.unbalanced(d.led, mean) && d.balanceOnce(d.led, d.moveLeadership) {
	}
}

// moveLeadership makes to the leader of a shard that from leads and both hold. It chooses the shard for which to has
// the highest hash.
func (d *layout) moveLeadership(from, to string) bool {
	var best *shardPlan
	for _, s := range d.shards {
		if s.nodes[0] == from && slices.Contains(s.nodes, to) && (best == nil || weight(to, s.id) > weight(to, best.id)) {
			best = s
		}
	}
	if best == nil {
		return false
	}
	at := slices.Index(best.nodes, to)
	best.nodes[0], best.nodes[at] = to, from
	d.led[from]--
	d.led[to]++
	return true
}

// voters returns the control group's new target, the nodes that vote: an odd number, at most five; of two nodes both.
func (d *layout) voters(t *Table) []*ebbv1.SetTargets_Target {
	have := targetOf(t.Shard(ControlShard))
	voters := slices.DeleteFunc(slices.Clone(have), func(n string) bool { return d.dispositions[n].Disposition == DispositionEvacuate && len(d.get) > 0 })
	want := controlVoters(len(d.stay))
	s := &shardPlan{id: ControlShard}
	better := func(a, b string) int {
		return cmp.Or(
			cmp.Compare(d.dispositions[b].Disposition, d.dispositions[a].Disposition),
			cmp.Compare(weight(b, s.id), weight(a, s.id)))
	}
	for len(voters) > want && want > 0 {
		worst := slices.MaxFunc(voters, func(a, b string) int {
			return cmp.Or(cmp.Compare(min(2, d.inZone(voters, a)), min(2, d.inZone(voters, b))), better(a, b))
		})
		voters = slices.DeleteFunc(voters, func(n string) bool { return n == worst })
	}
	for len(voters) < want {
		free := slices.DeleteFunc(slices.Clone(d.get), func(n string) bool { return slices.Contains(voters, n) })
		if len(free) == 0 {
			break
		}
		voters = append(voters, slices.MinFunc(free, func(a, b string) int {
			return cmp.Or(cmp.Compare(min(1, d.inZone(voters, a)), min(1, d.inZone(voters, b))), better(a, b))
		}))
	}
	if len(voters) == 0 || slices.Equal(voters, have) {
		return nil
	}
	return []*ebbv1.SetTargets_Target{{Shard: ControlShard, Nodes: voters, Why: fmt.Sprintf("%d of %d nodes vote in the control group", len(voters), len(d.stay))}}
}

// controlVoters returns how many nodes vote in the control group of a cluster with so many nodes.
func controlVoters(nodes int) int {
	voters := min(nodes, controlVotersMax)
	if voters > 2 && voters%2 == 0 {
		voters--
	}
	return voters
}

// Foresee returns the table as it would be after a command and the targets that follow from it. A nil command stands
// for the present table. If the command would be refused, the refusal is returned as an error. t is not changed.
func Foresee(t *Table, cmd *ebbv1.ControlCommand, dispositions func(*Table) map[string]NodeDisposition, level bool) (*Table, error) {
	c := NewControl()
	c.table.Store(t)
	if cmd != nil {
		raw, err := pb.Marshal(cmd)
		if err != nil {
			return nil, proto.ErrInternal.Errorf("encode control command: %v", err)
		}
		if err := proto.FromWire(c.Apply(1, raw).GetError()); err != nil {
			return nil, err
		}
	}
	if err := c.setTargets(&ebbv1.SetTargets{Targets: ComputePlacement(c.Table(), dispositions(c.Table()), level)}); err != nil {
		return nil, err
	}
	return c.Table(), nil
}
