package swarm

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/chaos/sim"
	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func inBubble(t *testing.T) Bubble {
	return func(f func()) { synctest.Test(t, func(*testing.T) { f() }) }
}

// seedRange is which seeds to run: EBB_SEEDS of them from EBB_SEED on, or by default few with -short and some without.
func seedRange(short, usual uint64) (first, count uint64) {
	first, count = 1, usual
	if testing.Short() {
		count = short
	}
	if n, err := strconv.ParseUint(os.Getenv("EBB_SEED"), 10, 64); err == nil {
		first, count = n, 1
	}
	if n, err := strconv.ParseUint(os.Getenv("EBB_SEEDS"), 10, 64); err == nil {
		count = n
	}
	return first, count
}

// Whatever a seed breaks, everything holds. `ebb chaos sim` runs more of them.
func TestSwarm(t *testing.T) {
	first, seeds := seedRange(1, 4)
	var sum Sum
	began := time.Now()
	for seed := first; seed < first+seeds; seed++ {
		v := Run(inBubble(t), Draw(seed), Options{})
		sum.Add(v)
		t.Logf("seed %d: %s: %v", seed, v.Plan, v.Tally)
		if v.Failed() {
			t.Fatalf("seed %d: %s\nreplay (explores the same faults, other interleavings): EBB_SEED=%d go test ./chaos/swarm -run 'TestSwarm$' -v\n%s",
				seed, v.Breaches[0], seed, v.Tell())
		}
	}
	t.Logf("%d seeds, %v of virtual time, %.2f seeds/s", sum.Seeds, sum.Virtual.Round(time.Second), float64(sum.Seeds)/time.Since(began).Seconds())
	if sum.Tally.Acked == 0 || sum.Tally.Reads == 0 {
		t.Errorf("nothing was written or read: %v", sum.Tally)
	}
}

// A node whose disk is full is not started while another dies and comes back; it must start when all is mended.
func TestStartOnAFullDisk(t *testing.T) {
	full := Fault{Number: 1, Family: "full-disk", Wait: 591 * time.Millisecond, Hold: 3765 * time.Millisecond, Dose: Dose{Shard: 3, Node: 656, Pick: 683226}}
	install := Fault{Number: 2, Family: "install", Wait: 640 * time.Millisecond, Hold: time.Second, Mend: true, Dose: Dose{Shard: 3, Node: 792, Pick: 844754, Time: 1265 * time.Millisecond}}
	v := Run(inBubble(t), Plan{Seed: 1180, Nodes: 3, Shards: 5, Segment: 64 << 10, Faults: []Fault{full, install}}, Options{})
	if v.Failed() {
		t.Fatal(v.Tell())
	}
}

// The swarm notices if retries count again, and if a disk lies about what it has synced; and it says which invariant
// did not hold.
func TestSwarmFindsMutants(t *testing.T) {
	for _, c := range []struct {
		name     string
		families []string
		opts     Options
		breaks   string
	}{
		{
			"retries count again",
			[]string{"leader-cut", "kill", "loss", "clients-cut"},
			Options{Client: []ebb.Option{ebb.WithGRPC(grpc.WithUnaryInterceptor(anonymous))}},
			"counted-once read-possible any-possible estimate-bound topk-bounds quantile-bounds coverage-honest whole-or-not " +
				"answer-right repeat-same owner-reads decayed-sum bits-answer imported-once command-once ranking-right " +
				"aged-right trend-right watch-fresh deletion-right",
		},
		{
			"syncs do nothing",
			[]string{"power-quorum", "power-all"},
			Options{Configure: func(_ int, cfg *node.Config) { cfg.FS = lyingFS{cfg.FS} }},
			"",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, seeds := seedRange(20, 20)
			for seed := first; seed < first+seeds; seed++ {
				v := Run(inBubble(t), Draw(seed, c.families...), c.opts)
				if !v.Failed() {
					continue
				}
				t.Logf("seed %d found it: %s", seed, v.Breaches[0])
				if c.breaks != "" && !strings.Contains(c.breaks, v.Breaches[0].Invariant) {
					t.Errorf("it broke %s, and not one of %s", v.Breaches[0].Invariant, c.breaks)
				}
				return
			}
			t.Errorf("%d seeds did not find it", seeds)
		})
	}
}

// No order explains what is read of strings once reads trust hashicorp/raft's VerifyLeader, and the story says what has
// no place in one.
func TestSwarmFindsReadsOutOfOrder(t *testing.T) {
	trusting := Options{Inject: func(_ context.Context, c *sim.Cluster) {
		for i := range c.Nodes() {
			c.Fail(i).Arm("mutant.verify-leader", 0, fail.Error(fail.ErrKilled))
		}
	}}
	found := 0
	first, seeds := seedRange(60, 60)
	for seed := first; seed < first+seeds; seed++ {
		p := Plan{Seed: seed, Nodes: 3, Shards: 5}
		for k := range 6 {
			p.Faults = append(p.Faults,
				Fault{Number: 2*k + 1, Family: "late-leader", Wait: 500 * time.Millisecond, Dose: Dose{Shard: 3, Time: time.Duration(150+50*k) * time.Millisecond}},
				Fault{Number: 2*k + 2, Family: "campaign", Wait: 200 * time.Millisecond, Hold: time.Second, Mend: true, Dose: Dose{Shard: 3, Node: seed + uint64(k), Part: 1}})
		}
		v := Run(inBubble(t), p, trusting)
		if !slices.Contains(v.breached(), "linearizable") {
			continue
		}
		found++
		t.Logf("seed %d found it: %v", seed, v.breached())
		if story := v.Tell(); !strings.Contains(story, "not placed: ") {
			t.Errorf("the story does not tell what has no place:\n%s", story)
		}
		if os.Getenv("EBB_SEEDS") == "" {
			return
		}
	}
	t.Logf("%d of %d seeds found it", found, seeds)
	if found == 0 {
		t.Errorf("%d seeds did not find it", seeds)
	}
}

// lyingFS says that it has synced.
type lyingFS struct{ fs.FS }

type lyingFile struct{ fs.File }

func (f lyingFS) OpenFile(name string, flag int) (fs.File, error) {
	file, err := f.FS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return lyingFile{file}, nil
}

func (lyingFile) Sync() error { return nil }

// anonymous takes the identity off commands, so that a retry counts again.
func anonymous(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if apply, ok := req.(*ebbv1.ApplyRequest); ok {
		apply = protobuf.CloneOf(apply)
		for _, sc := range apply.GetCommands() {
			var c ebbv1.Command
			if protobuf.Unmarshal(sc.GetCommand(), &c) == nil && c.GetIncrements() != nil {
				c.Identity = nil
				sc.Command, _ = protobuf.Marshal(&c)
			}
		}
		req = apply
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}
