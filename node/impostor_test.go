package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// inOpenGossip runs f with clusters of three whose gossip is in the clear: with nothing else, with a root token, with
// a cluster secret, and with TLS.
func inOpenGossip(t *testing.T, f func(t *testing.T, b *bubble)) {
	t.Run("nothing", func(t *testing.T) {
		inBubble(t, 3, 4, func(b *bubble) { f(b.T, b) })
	})
	t.Run("root token", func(t *testing.T) {
		inBubble(t, 3, 4, func(b *bubble) {
			for i := range b.config {
				b.config[i].RootTokens = []string{strings.Repeat("root", 10)}
			}
			f(b.T, b)
		})
	})
	t.Run("cluster secret", func(t *testing.T) {
		inBubble(t, 3, 4, func(b *bubble) {
			for i := range b.config {
				b.config[i].ClusterSecrets = []string{strings.Repeat("peer", 10)}
			}
			f(b.T, b)
		})
	})
	t.Run("TLS", func(t *testing.T) {
		inSecureBubble(t, 3, 4, func(s *secureBubble) {
			for i := range s.config {
				s.config[i].GossipKeys = ""
			}
			f(s.T, s.bubble)
		})
	})
}

const impostorHost = "10.0.9.9"

// liar answers whatever it is asked as the first start of a node would, in the clear and without a proof.
type liar struct {
	ebbv1grpc.UnimplementedShardsServer
	record  *ebbv1.NodeRecord
	cluster string
	asked   chan struct{}
	shown   []string // fingerprints of keys for proofs, in a cluster with tokens; none in one without
}

func (l *liar) NodeStatus(context.Context, *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	select {
	case l.asked <- struct{}{}:
	default:
	}
	own := &ebbv1.NodeStatus{
		Node: l.record, StartedUs: 1, Phase: "serving", Guarded: len(l.shown) > 0,
		ProofsShown: l.shown,
	}
	return &ebbv1.StatusResponse{ClusterId: l.cluster, Nodes: []*ebbv1.NodeStatus{own}}, nil
}

// impostor poses by gossip as a start of a node, with the marks of a cluster, and answers over gRPC as that start.
func (b *bubble) impostor(record *ebbv1.NodeRecord, boot uint64, clusterID string, join ...string) chan struct{} {
	b.Helper()
	l := &liar{record: record, cluster: clusterID, asked: make(chan struct{}, 1000)}
	b.lies(l, boot, join...)
	return l.asked
}

// lies has an impostor answer.
func (b *bubble) lies(l *liar, boot uint64, join ...string) {
	b.Helper()
	record, clusterID := l.record, l.cluster
	me := b.net.Host(impostorHost)
	at := impostorHost + ":7070"
	lis, err := me.Listen(context.Background(), at)
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer()
	ebbv1grpc.RegisterShardsServer(server, l)
	go func() { _ = server.Serve(lis) }()
	g, err := cluster.OpenGossip(context.Background(), cluster.GossipConfig{
		Node: record.GetName(), Boot: boot, GRPC: at, HTTP: at, Version: record.GetVersion(), Disk: record.GetDisk(),
		Network: me, Listen: impostorHost + ":7071", Join: join, Cluster: func() string { return clusterID },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.impostors = append(b.impostors, func() { server.Stop(); _ = g.Kill() })
}

// TestTokensOfAnImpostorEndNoNode: what answers for a node says that callers need tokens there, and shows a foreign
// key. It proves nothing, so that it ends neither a founder with a secret nor a node that joins; they say why they
// leave it out.
func TestTokensOfAnImpostorEndNoNode(t *testing.T) {
	for name, clusterID := range map[string]string{"founding": "", "joining": "0123456789abcdef0123456789abcdef"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, 3, func(b *bubble) {
				record := &ebbv1.NodeRecord{
					Name: "ebb-2", GrpcAddress: impostorHost + ":7070",
					GossipAddress: impostorHost + ":7071",
				}
				b.lies(&liar{
					record: record, cluster: clusterID, asked: make(chan struct{}, 1000),
					shown: []string{"foreign"},
				}, 1)
				waits := func(i int) {
					b.config[i].ClusterSecrets = []string{secretOne}
					b.config[i].Join = append(b.config[i].Join, impostorHost+":7071")
					b.open(i)
					b.until("why it waits", func() bool {
						return b.said(i) != nil || strings.Contains(b.nodes[i].Status().GetDetail(),
							"that it is a node: it has another secret")
					})
					if err := b.said(i); err != nil {
						t.Errorf("%s: node %d ends: %v", name, i, err)
					}
				}
				if name == "joining" {
					b.config[0].Join, b.config[0].BootstrapExpect = nil, 0
					waits(0)
					b.nodes[0].Kill()
					b.nodes[0] = nil
					return
				}
				waits(0)
				b.config[1].ClusterSecrets = []string{secretOne}
				b.open(1)
				b.ready(0)
				b.ready(1)
			})
		})
	}
}

// TestGossipEndsNoNode: whoever can send gossip poses as ebb-1 with boot 1, which outranks the process that lives,
// with the marks of its cluster and disk, and as a newer start of ebb-2. No node ends, none is dialled elsewhere, and
// few questions are asked.
func TestGossipEndsNoNode(t *testing.T) {
	for _, boot := range []uint64{1, 1 << 60} {
		t.Run(fmt.Sprint("boot ", boot), func(t *testing.T) {
			inOpenGossip(t, func(t *testing.T, b *bubble) {
				b.openAll()
				b.until("a record of its disk", func() bool { return b.table(1).Node("ebb-1").GetDisk() != "" })
				time.Sleep(3 * time.Second)
				table := b.table(1)
				asked := b.impostor(table.Node("ebb-1"), boot, table.ClusterID(), b.host(0)+":7071")
				const long = 60
				for range long {
					time.Sleep(time.Second)
					for i := range b.nodes {
						if err := b.said(i); err != nil {
							t.Fatalf("node %d ends: %v", i, err)
						}
						if up := b.nodes[i].Readiness(); up != nil {
							t.Fatalf("node %d is not ready: %v", i, up)
						}
					}
				}
				if n := len(asked); n > long {
					t.Errorf("the impostor was asked %d times in %d seconds", n, long)
				}
				for i := range b.nodes {
					if at := b.table(i).Node("ebb-1").GetGrpcAddress(); at != b.host(1)+":7070" {
						t.Errorf("node %d has ebb-1 at %s", i, at)
					}
				}
			})
		})
	}
}

// TestGossipMovesNoConnection: while gossip has a newer start of ebb-1 elsewhere, two of three nodes, which need each
// other, find each other, also when one of them starts anew: what answers there is no session of raft's, and the
// control group's record has another address.
func TestGossipMovesNoConnection(t *testing.T) {
	inOpenGossip(t, func(t *testing.T, b *bubble) {
		b.openAll()
		b.until("a record of its disk", func() bool { return b.table(1).Node("ebb-1").GetDisk() != "" })
		time.Sleep(3 * time.Second)
		table := b.table(1)
		b.impostor(table.Node("ebb-1"), 1<<60, table.ClusterID(), b.host(0)+":7071")
		time.Sleep(10 * time.Second)
		b.crash(2)
		time.Sleep(5 * time.Second)
		b.crash(0)
		b.open(0)
		b.ready(0)
		time.Sleep(10 * time.Second)
		for range 30 {
			time.Sleep(time.Second)
			if got, want := b.nodes[0].StartedOn("ebb-1"), b.nodes[1].Status().GetStartedUs(); got != want {
				t.Fatalf("ebb-0 asks ebb-1, and a process answers that started at %d: want %d", got, want)
			}
		}
		b.open(2)
		b.ready(2)
	})
}

// TestOneOfTwoProcessesEnds: of two processes on copies of one disk the one ends that is not where the cluster has the
// node, also where gossip proves nothing.
func TestOneOfTwoProcessesEnds(t *testing.T) {
	inOpenGossip(t, func(t *testing.T, b *bubble) {
		b.openAll()
		const first = 1
		b.until("a record of its disk", func() bool { return b.table(first).Node("ebb-1").GetDisk() != "" })
		time.Sleep(time.Second)
		dead := b.disks[first]
		b.crash(first)
		second := b.newcomer("ebb-1")
		like, c := b.config[first], &b.config[second]
		c.TLS, c.RootTokens, c.ClusterSecrets = like.TLS, like.RootTokens, like.ClusterSecrets
		b.disks[second] = dead.Crash(first + 1) // as crash did
		b.config[second].FS = b.disks[second]
		b.config[second].BootstrapExpect = b.config[first].BootstrapExpect
		b.open(first)
		b.ready(first)
		time.Sleep(20 * time.Second)
		b.open(second)
		b.until("the end of the second", func() bool { return b.said(second) != nil })
		if err := b.said(second); !errors.Is(err, proto.ErrDuplicateNode) {
			t.Errorf("the second says %v, want DUPLICATE_NODE", err)
		}
		b.nodes[second].Kill()
		time.Sleep(20 * time.Second)
		if err := b.said(first); err != nil {
			t.Errorf("the first says %v", err)
		}
	})
}

// TestStrangersByGossipAlone: a node that comes back, and finds gossip of another cluster at the address it was told
// to join, keeps running: nothing there proves to be a node.
func TestStrangersByGossipAlone(t *testing.T) {
	inOpenGossip(t, func(t *testing.T, b *bubble) {
		b.openAll()
		b.until("a record of its disk", func() bool { return b.table(1).Node("ebb-1").GetDisk() != "" })
		time.Sleep(3 * time.Second)
		for i := range b.nodes {
			b.crash(i)
		}
		b.impostor(&ebbv1.NodeRecord{Name: "ebb-7"}, 1, strings.Repeat("f", 32))
		b.config[1].Join = []string{impostorHost + ":7071"}
		b.open(1)
		time.Sleep(15 * time.Second)
		if err := b.said(1); err != nil {
			t.Errorf("the node ends: %v", err)
		}
		b.open(0)
		b.open(2)
		b.ready(1)
	})
}
