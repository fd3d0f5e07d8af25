package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

const (
	// lostAfter is for how long nobody may have heard of a disk before it is given up as lost.
	lostAfter = 5 * time.Second
	// lostGap is how long there may be between two looks: after more it begins anew.
	lostGap = 5 * time.Second
)

// lostDisks judges, on the control leader, whether the disk of a member is lost, when a node of its name asks to join with another one. A call that is not
// answered says little: the old process may be slow, or only this node may be cut off from it. So a majority of the members has to say, again and
// again for lostAfter, that none of its replicas hears any of the old disk's.
type lostDisks struct {
	mu     sync.Mutex // guards silent
	silent map[string]silence
}

// silence is since when nobody hears of a disk.
type silence struct {
	disk        string
	since, last time.Time
}

// judge reports whether a process that has the disk of a node's record answers, or, if the record does not know it yet, one with another disk than the one
// that asks to join. It returns an error as long as that is not certain.
func (l *lostDisks) judge(ctx context.Context, n *Node, have *ebbv1.NodeRecord, joins string) (taken bool, err error) {
	namesake := func(disk string) bool { return disk == have.GetDisk() }
	if have.GetDisk() == "" {
		namesake = func(disk string) bool { return disk != joins }
	}
	if have.GetName() == n.cfg.Name || n.answersWith(ctx, have, namesake) {
		l.forget(have.GetName())
		return true, nil
	}
	members := append(n.others(), n.cfg.Name)
	asked := slices.DeleteFunc(slices.Clone(members), func(node string) bool { return node == have.GetName() })
	silent, hears := 0, ""
	for _, r := range append(n.survey(ctx, asked), report{node: n.cfg.Name, hears: n.groups.Load().hears()}) {
		if silent++; slices.Contains(r.hears, have.GetName()) {
			hears = r.node
		}
	}
	if hears != "" {
		l.forget(have.GetName())
		return false, proto.ErrStarting.Errorf("node %s had another disk, and node %s still hears of it: two processes may bear the name", have.GetName(), hears)
	}
	if 2*silent <= len(members) {
		l.forget(have.GetName())
		return false, proto.ErrStarting.Errorf("node %s had another disk: only %d of %d nodes can say that it is gone", have.GetName(), silent, len(members))
	}
	if d := l.lasts(have, time.Now()); d < lostAfter {
		return false, proto.ErrStarting.Errorf("node %s had another disk: nobody has heard of it for %v, and after %v it is given up", have.GetName(), d.Round(time.Second), lostAfter)
	}
	return false, nil
}

// lasts notes that nobody hears of a node's disk now, and returns for how long that has been so.
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

func (l *lostDisks) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.silent, node)
}

// answersWith reports whether a process answers that has such a disk, at the address that gossip has of a node or at that of its record: gossip
// may have heard of the new process already.
func (n *Node) answersWith(ctx context.Context, have *ebbv1.NodeRecord, such func(disk string) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	recorded := rpc.NewPeers(rpc.PeersConfig{
		Address: func(string) (string, error) { return have.GetGrpcAddress(), nil }, Dial: n.cfg.Network.Dial, Options: n.peerOptions(),
	})
	defer recorded.Close() //nolint:errcheck // it was only read from
	var wg sync.WaitGroup
	var answers atomic.Bool
	for _, peers := range []*rpc.Peers{n.peers, recorded} {
		wg.Go(func() {
			if r, err := askStatus(ctx, peers, have.GetName()); err == nil && such(r.record.GetDisk()) {
				answers.Store(true)
				cancel()
			}
		})
	}
	wg.Wait()
	return answers.Load()
}
