package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

const (
	// lostAfter is how long no node may have had contact with a disk before it is given up as lost.
	lostAfter = 5 * time.Second
	// lostGap is the longest time between two checks: after a longer one, lostAfter begins again.
	lostGap = 5 * time.Second
	// evidenceMax is how much longer to wait for a leader of a group whose members are being changed, and which may
	// need the disk.
	evidenceMax = 15 * time.Second
)

// lostDisks decides, on the control leader, whether a member's disk is lost when a node of its name asks to join with
// another disk. An unanswered call proves little: the old process may be slow, or only this node may be cut off from
// it. So a majority of the members must report, repeatedly for lostAfter, that their replicas have no contact with
// replicas on the old disk.
type lostDisks struct {
	mu     sync.Mutex // guards silent
	silent map[string]silence
}

// silence records since when no node has had contact with a disk, and which nodes lead groups during that time.
type silence struct {
	disk        string
	since, last time.Time
	led         map[uint32]lead // by group
}

// lead is a node that has reported at each check since then that it leads a group. A leader without contact to a
// majority reports that for an election timeout at most.
type lead struct {
	node  string
	term  uint64
	since time.Time
}

// judge reports as taken whether a process with the disk of the node's record answers. If the record has no disk yet, a
// process with another disk than the joining one counts. If none answers, led are the groups that have a leader without
// the disk, though their records leave that in doubt. judge returns an error as long as it is not certain.
func (l *lostDisks) judge(ctx context.Context, n *Node, have *ebbv1.NodeRecord, joins string) (taken bool, led []uint32, err error) {
	namesake := func(disk string) bool { return disk == have.GetDisk() }
	if have.GetDisk() == "" {
		namesake = func(disk string) bool { return disk != joins }
	}
	if have.GetName() == n.cfg.Name || n.answersWith(ctx, have, namesake) {
		l.forget(have.GetName())
		return true, nil, nil
	}
	members := append(n.others(), n.cfg.Name)
	asked := slices.DeleteFunc(slices.Clone(members), func(node string) bool { return node == have.GetName() })
	silent, hears := 0, ""
	reports := slices.DeleteFunc(n.survey(ctx, asked), func(r report) bool { return !n.trusts(&r) })
	reports = append(reports, report{node: n.cfg.Name, hears: n.groups.Load().hears(), leads: ledBy(n.Status())})
	for _, r := range reports {
		if silent++; slices.Contains(r.hears, have.GetName()) {
			hears = r.node
		}
	}
	if hears != "" {
		l.forget(have.GetName())
		return false, nil, proto.ErrDiskNotLost.Errorf("node %s had another disk, and node %s still hears of it: two processes may bear the name", have.GetName(), hears)
	}
	if 2*silent <= len(members) {
		l.forget(have.GetName())
		return false, nil, proto.ErrDiskNotLost.Errorf("node %s had another disk: only %d of %d nodes can say that it is gone", have.GetName(), silent, len(members))
	}
	now := time.Now()
	d := l.lasts(have, now)
	led = l.leads(have.GetName(), reports, now, cluster.ElectionTimeout(n.Table().Shards()))
	if d < lostAfter {
		return false, nil, proto.ErrDiskNotLost.Errorf("node %s had another disk: nobody has heard of it for %v, and after %v it is given up", have.GetName(), d.Round(time.Second), lostAfter)
	}
	if group, missing := unproven(n.Table(), have.GetName(), led); missing && d < lostAfter+evidenceMax {
		return false, nil, proto.ErrDiskNotLost.Errorf("node %s had another disk, and the members of group %d are being changed: whether that does without it is seen when it has a leader", have.GetName(), group)
	}
	return false, led, nil
}

// unproven returns a group in doubt that has no leader without the node's disk yet. If the disk could not be given up
// even with leaders in all such groups, there is nothing to wait for, and missing is false.
func unproven(table *cluster.Table, node string, led []uint32) (group uint32, missing bool) {
	doubts := table.InDoubt(node)
	at := slices.IndexFunc(doubts, func(group uint32) bool { return !slices.Contains(led, group) })
	if at < 0 || table.Survives(node, doubts) != nil {
		return 0, false
	}
	return doubts[at], true
}

// lasts records that no node has contact with a node's disk now, and returns for how long that has been so.
func (l *lostDisks) lasts(have *ebbv1.NodeRecord, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.silent[have.GetName()]
	if !known || s.disk != have.GetDisk() || now.Sub(s.last) > lostGap {
		s = silence{disk: have.GetDisk(), since: now}
	}
	s.last = now
	if l.silent == nil {
		l.silent = make(map[string]silence)
	}
	l.silent[have.GetName()] = s
	return now.Sub(s.since)
}

// leads records which nodes report that they lead, while no node has contact with a node's disk. It returns the groups
// that the same node has led, in one term, for longer than while.
func (l *lostDisks) leads(node string, reports []report, now time.Time, while time.Duration) (led []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.silent[node]
	before := s.led
	s.led = make(map[uint32]lead)
	for _, r := range reports {
		for group, term := range r.leads {
			if s.led[group].term > term {
				continue // r.node does not know the leader of the newer term yet
			}
			is := lead{r.node, term, now}
			if was := before[group]; was.node == r.node && was.term == term {
				is.since = was.since
			}
			s.led[group] = is
		}
	}
	l.silent[node] = s
	for group, is := range s.led {
		if now.Sub(is.since) > while {
			led = append(led, group)
		}
	}
	slices.Sort(led)
	return led
}

func (l *lostDisks) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.silent, node)
}

// answersWith reports whether a process with such a disk answers. It asks at the address that gossip has of the node,
// and at the recorded one: gossip may have the address of the new process already.
func (n *Node) answersWith(ctx context.Context, have *ebbv1.NodeRecord, such func(disk string) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	recorded := rpc.NewPeers(rpc.PeersConfig{
		Address: func(string) (string, error) { return have.GetGrpcAddress(), nil }, Dial: n.dial, Options: n.peerOptions(),
	})
	defer recorded.Close() //nolint:errcheck // it was only read from
	var wg sync.WaitGroup
	var answers atomic.Bool
	for _, peers := range []*rpc.Peers{n.peers, recorded} {
		wg.Go(func() {
			r, err := n.askStatus(ctx, peers, have.GetName())
			if err == nil && (peers == recorded || n.trusts(&r)) && such(r.record.GetDisk()) {
				answers.Store(true)
				cancel()
			}
		})
	}
	wg.Wait()
	return answers.Load()
}
