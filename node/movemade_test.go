package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// TestReplicasThatAreBeingMadeHideNoLeader: a node has made a replica, and its leader has not added it yet, which may
// take long. The node knows no leader, and others do. It takes to them what it is asked until then.
func TestReplicasThatAreBeingMadeHideNoLeader(t *testing.T) {
	inBubble(t, 4, 4, func(b *bubble) {
		for i := range b.config {
			b.config[i].Replication = 2
			b.config[i].Fail.Arm("move.before.add", 0, fail.Error(errors.New("not yet")))
		}
		b.openAll()
		b.plain(b.client())
		b.change(0, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 3}})
		i, key := 0, ""
		b.until("a replica that waits for its data", func() bool {
			for shard := uint32(1); shard <= 4; shard++ {
				for _, r := range b.table(0).Replicas(shard) {
					if !r.GetJoining() {
						continue
					}
					for n := range b.nodes {
						waits := slices.ContainsFunc(b.nodes[n].Status().GetReplicas(), func(has *ebbv1.ReplicaStatus) bool { return has.GetShard() == shard })
						if b.config[n].Name == r.GetNode() && waits {
							i, key = n, b.keyOn(shard)
							return true
						}
					}
				}
			}
			return false
		})
		me := b.net.Host("10.0.9.8")
		conn, err := grpc.NewClient("passthrough:///"+b.host(i)+":7070", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		receiver := ebbv1grpc.NewEbbClient(conn)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		resp, err := receiver.Increment(ctx, &ebbv1.IncrementRequest{Namespace: "plain", Increments: []*ebbv1.Increment{{Key: []byte(key), Bin: []byte("x"), Amount: new(1.0)}}})
		if err != nil || resp.GetApplied() != 1 {
			t.Errorf("an increment of %s: %v, %v", key, resp, err)
		}
		for consistency, staleness := range map[ebbv1.Consistency]time.Duration{ebbv1.Consistency_CONSISTENCY_LINEARIZABLE: 0, ebbv1.Consistency_CONSISTENCY_BOUNDED: time.Hour} {
			resp, err := receiver.Ask(ctx, &ebbv1.AskRequest{Consistency: consistency, MaxStalenessUs: staleness.Microseconds(), Questions: []*ebbv1.Question{
				{Namespace: "plain", Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_All{All: true}}}},
			}})
			if err != nil || resp.GetAnswers()[0].GetError() != nil {
				t.Errorf("a question about %s, %v: %v, %v", key, consistency, resp, err)
			}
		}
	})
}

// keyOn returns a key of a shard.
func (b *bubble) keyOn(shard uint32) string {
	for k := 0; ; k++ {
		if key := fmt.Sprintf("k%d", k); b.table(0).ShardOf("plain", []byte(key)) == shard {
			return key
		}
	}
}
