package node

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// usageEvery is how often a node asks the others how much namespaces with a budget hold there.
const usageEvery = time.Second

// budgets are the budgets of a table's namespaces, by name, and the table.
type budgets struct {
	table *cluster.Table
	of    map[string]*ebbv1.NamespaceBudget // nil: no namespace has one
}

// budgetsOf returns the budgets of a table.
func budgetsOf(table *cluster.Table) *budgets {
	b := &budgets{table: table}
	for _, ns := range table.Namespaces() {
		if ns.GetBudget() == nil {
			continue
		}
		if b.of == nil {
			b.of = make(map[string]*ebbv1.NamespaceBudget)
		}
		b.of[ns.GetName()] = ns.GetBudget()
	}
	return b
}

// budgets returns the budgets of all namespaces that have one; nil if none has.
func (n *Node) budgets() map[string]*ebbv1.NamespaceBudget {
	table, b := n.Table(), n.budgeted.Load()
	if b == nil || b.table != table {
		b = budgetsOf(table)
		n.budgeted.Store(b)
	}
	return b.of
}

// usageSources returns the replicas of this node.
func (n *Node) usageSources() []usageSource {
	g := n.groups.Load()
	if g == nil {
		return nil
	}
	out := make([]usageSource, len(g.replicas))
	for i, r := range g.replicas {
		out[i] = r
	}
	return out
}

// connectMemoryAdmission connects a memoryAdmission to this node.
func (n *Node) connectMemoryAdmission(a *memoryAdmission) {
	a.replicas, a.unapplied, a.budgets = n.usageSources, n.counts.propose.unapplied, n.budgets
	a.peersUnderstand = func() bool { return n.Table().Version() >= proto.VersionDeletion }
}

// askUsage asks the other nodes how much namespaces with a budget hold there, while there are such namespaces.
func (n *Node) askUsage(ctx context.Context) {
	if n.budgets() == nil {
		return
	}
	said := make(map[string][]*ebbv1.NodeNamespace)
	for node, resp := range n.usages(ctx, &ebbv1.NodeUsageRequest{Budgeted: true}) {
		said[node] = resp.GetNamespaces()
	}
	n.memoryAdmission.usage.recordReports(time.Now(), said)
}

// usages asks the other nodes at the same time how much namespaces hold there; nodes that do not answer are missing.
func (n *Node) usages(ctx context.Context, req *ebbv1.NodeUsageRequest) map[string]*ebbv1.NodeUsageResponse {
	ctx, cancel := reporting(ctx, statusMax)
	defer cancel()
	var mu sync.Mutex // guards out
	out := make(map[string]*ebbv1.NodeUsageResponse)
	var wg sync.WaitGroup
	for _, name := range n.others() {
		wg.Go(func() {
			peer, err := n.peers.Peer(name)
			if err != nil {
				return
			}
			resp, err := peer.NodeUsage(ctx, req)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = resp
		})
	}
	wg.Wait()
	return out
}

// NodeUsage returns how much namespaces hold on this node.
func (v clusterView) NodeUsage(_ context.Context, req *ebbv1.NodeUsageRequest) (*ebbv1.NodeUsageResponse, error) {
	r := v.n.memoryAdmission
	r.again()
	wanted := func(string) bool { return true }
	if req.GetBudgeted() {
		limits := v.n.budgets()
		wanted = func(name string) bool { return limits[name] != nil }
	}
	return &ebbv1.NodeUsageResponse{
		Node: v.n.cfg.Name, MemoryLimit: uint64(r.limit), Namespaces: r.usage.report(wanted),
	}, nil
}

// NamespaceUsage returns how much namespaces hold in the whole cluster, the largest first.
func (v clusterView) NamespaceUsage(
	ctx context.Context, req *ebbv1.NamespaceUsageRequest,
) (*ebbv1.NamespaceUsageResponse, error) {
	n := v.n
	table := n.Table()
	if name := req.GetName(); name != "" && table.Defined(name) == nil {
		return nil, table.NamespaceNotFound(name)
	}
	said := n.usages(ctx, &ebbv1.NodeUsageRequest{})
	own, err := v.NodeUsage(ctx, &ebbv1.NodeUsageRequest{})
	if err != nil {
		return nil, err
	}
	said[n.cfg.Name] = own
	out := &ebbv1.NamespaceUsageResponse{}
	for _, name := range n.others() {
		if said[name] == nil {
			out.Unreachable = append(out.Unreachable, name)
		}
	}
	slices.Sort(out.Unreachable)
	all := make(map[string]*ebbv1.NamespaceUsage)
	for _, ns := range table.AllNamespaces() { // the keys of a deleted one take memory until it is purged
		all[ns.GetName()] = &ebbv1.NamespaceUsage{Name: ns.GetName(), Budget: ns.GetBudget()}
	}
	for _, node := range slices.Sorted(maps.Keys(said)) {
		limit := float64(said[node].GetMemoryLimit())
		for _, s := range said[node].GetNamespaces() {
			u := all[s.GetName()]
			if u == nil {
				continue // purged, or too new to be in this node's table
			}
			u.Keys += s.GetKeys()
			u.Bytes += s.GetBytes()
			if limit == 0 {
				continue
			}
			if share := float64(s.GetHeld()) / limit; share > u.Share {
				u.Share, u.Node = share, node
			}
		}
	}
	for name, u := range all {
		if req.GetName() == "" || req.GetName() == name {
			out.Namespaces = append(out.Namespaces, u)
		}
	}
	slices.SortFunc(out.Namespaces, func(a, b *ebbv1.NamespaceUsage) int {
		return cmp.Or(cmp.Compare(b.GetBytes(), a.GetBytes()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out, nil
}

// roomy refuses sets larger than nodes of older builds would make them.
func (n *Node) roomy(ns *ebbv1.Namespace) error {
	members, version := ns.GetSizes().GetSetMembers(), n.Table().Version()
	if members <= proto.SetMembersEbbing || version >= proto.VersionAdds {
		return nil
	}
	return proto.ErrStarting.Errorf("sets of %d members need storage version %d, and %d is in force: until then %d "+
		"is the limit",
		members, proto.VersionAdds, version, proto.SetMembersEbbing).
		WithHint("wait until ebb status shows the newer version: all nodes have to run the newer ebb for some seconds")
}

// hashable refuses a hash of sets that nodes of older builds would not keep.
func (n *Node) hashable(ns *ebbv1.Namespace) error {
	if version := n.Table().Version(); proto.ByMurmur3(ns) && version < proto.VersionSetHash {
		return proto.ErrStarting.Errorf("set hashes of namespaces need storage version %d, and %d is in force",
			proto.VersionSetHash, version).
			WithHint("wait until ebb status shows the newer version: all nodes have to run the newer ebb for a while")
	}
	return nil
}

// clockable refuses settings of event clocks that nodes of older builds would not keep, and a clock set to a future
// time.
func (n *Node) clockable(ns *ebbv1.Namespace) error {
	if at := ns.GetClockSetting().GetTimeUs(); at > n.keeper.nowUS()+proto.FutureMaxUS &&
		ns.GetClockSetting().GetEpoch() == 0 {
		return proto.ErrBadTime.Errorf("an event clock is not set to %s, which is still to come",
			time.UnixMicro(at).UTC().Format(time.RFC3339))
	}
	version := n.Table().Version()
	if version >= proto.VersionEventClocks || ns.MaxJumpUs == nil && ns.GetClockSetting() == nil {
		return nil
	}
	return proto.ErrStarting.Errorf("max_jump and clock_setting of namespaces need storage version %d, and %d is in "+
		"force",
		proto.VersionEventClocks, version).
		WithHint("wait until ebb status shows the newer version: all nodes have to run the newer ebb for some seconds")
}

// budgetable refuses a budget that nodes of older builds would not keep.
func (n *Node) budgetable(ns *ebbv1.Namespace) error {
	b, version := ns.GetBudget(), n.Table().Version()
	if b == nil || b.Bytes == nil && b.Keys == nil || version >= proto.VersionDeletion {
		return nil
	}
	return proto.ErrStarting.Errorf("budgets of namespaces need storage version %d, and %d is in force",
		proto.VersionDeletion, version).
		WithHint("wait until ebb status shows the newer version: all nodes have to run the newer ebb for some seconds")
}
