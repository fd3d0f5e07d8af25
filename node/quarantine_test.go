package node_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// anyAnswer asks one node for a bin as it has it, however old that is.
func (b *bubble) anyAnswer(i int, key, bin string) (float64, error) {
	peer, done := b.peer(i)
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	q := question(key).Questions[0]
	q.Namespace = "plain"
	resp, err := peer.Ask(ctx, &ebbv1.ShardAskRequest{
		Consistency: ebbv1.Consistency_CONSISTENCY_ANY, Questions: []*ebbv1.ShardQuestion{{Shard: b.table(i).ShardOf("plain", []byte(key)), Question: q}},
	})
	if err != nil {
		return 0, err
	}
	if e := resp.Answers[0].GetError(); e != nil {
		return 0, proto.FromWire(e)
	}
	for _, x := range resp.Answers[0].GetAnswer().GetDistribution().GetBins() {
		if string(x.GetBin()) == bin {
			return x.GetCount(), nil
		}
	}
	return 0, nil
}

func leads(n *node.Node, shard uint32) bool {
	return slices.ContainsFunc(n.Status().Replicas, func(r *ebbv1.ReplicaStatus) bool { return r.Shard == shard && r.Role == "leader" })
}

// What another build computes says nothing of damage: a replica that is asked for a checksum of another format has
// none.
func TestAuditsOfOtherBuilds(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		peer, done := b.peer(0)
		defer done()
		for format, absent := range map[uint32]bool{shard.AuditFormat: false, shard.AuditFormat - 1: true, 0: true} {
			resp, err := peer.Audited(b.Context(), &ebbv1.AuditedRequest{Shard: 1, Index: 1 << 40, Format: format})
			if err != nil || resp.GetKnown() || resp.GetAbsent() != absent {
				t.Errorf("format %d: %v, %v; want it to be absent: %v", format, resp, err, absent)
			}
		}
	})
}

// A replica that differs answers nothing until it is repaired. This also holds when its node crashes before the repair,
// and knows nothing of what the replica differed in. After the repair, a crash does not put it into quarantine again.
func TestQuarantineOutlivesACrash(t *testing.T) {
	long(t)
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		b.write(c, "link", "de", 1)
		home := b.table(0).ShardOf("plain", []byte("link"))
		broken := slices.IndexFunc(b.nodes, func(n *node.Node) bool { return !leads(n, home) })
		b.config[broken].Fail.Arm("mutant.lose-entry", 1, fail.Error(errors.New("lost")))
		b.config[broken].Fail.Arm("repair.fetched", 0, fail.Error(errors.New("not yet")))
		b.write(c, "link", "de", 1)
		differs := func() bool { return b.metric(broken, "ebb_node_replicas_quarantined") == 1 }
		for i := 0; !differs(); i++ {
			if time.Sleep(10 * time.Second); i == 180 {
				t.Fatal("no replica differs")
			}
		}
		silent := func(when string) {
			t.Helper()
			if n, err := b.anyAnswer(broken, "link", "de"); !errors.Is(err, proto.ErrTooStale) && !errors.Is(err, proto.ErrNoLeader) {
				t.Errorf("%s it answers %v, %v", when, n, err)
			}
		}
		silent("in quarantine")
		b.crash(broken)
		b.open(broken)
		b.ready(broken)
		silent("after a crash")
		for i := range 3000 {
			if time.Sleep(10 * time.Millisecond); i > 1000 && leads(b.nodes[broken], home) {
				t.Fatal("it leads, though others can") // first it may, if it was elected
			}
		}
		silent("30 s later")

		b.config[broken].Fail.Disarm("repair.fetched")
		b.until("its repair", func() bool { return !differs() })
		b.crash(broken)
		b.open(broken)
		b.ready(broken)
		if n, err := b.anyAnswer(broken, "link", "de"); n != 2 || err != nil || differs() {
			t.Errorf("repaired and started again, it counts %v, %v, and is in quarantine: %v", n, err, differs())
		}
		b.equal(0, 1, 2)
	})
}
