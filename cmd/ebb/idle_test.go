package main

import (
	"context"
	"maps"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
)

// idleGroups are the shards and the control group.
const (
	idleGroups   = 512
	idleCores    = 0.1              // a node, at most
	idleLeaders  = 15 * time.Second // until every group has a leader after a cold start
	idleSettling = 30 * time.Second // without a change, until leaders count as being where they belong
)

// ledBy says which node leads a group, in which term.
type ledBy struct {
	node string
	term uint64
}

// leadersOf returns who leads each group that has a leader.
func leadersOf(ctx context.Context, c *client.Client) map[uint32]ledBy {
	out := map[uint32]ledBy{}
	status, err := c.Status(ctx)
	if err != nil {
		return out // no node serves yet
	}
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			if r.GetRole() == "leader" && r.GetTerm() > out[r.GetShard()].term {
				out[r.GetShard()] = ledBy{r.GetNode(), r.GetTerm()}
			}
		}
	}
	return out
}

// TestIdleFleet: three real processes with 512 groups start with data while none of them runs; then they are left alone
// for EBB_IDLE (10m). It prints and checks how long leaders took, what a node used, and that no leader changed.
func TestIdleFleet(t *testing.T) {
	idle, err := time.ParseDuration(os.Getenv("EBB_IDLE"))
	if err != nil {
		t.Skip("set EBB_IDLE to how long to leave 512 groups alone, such as 10m")
	}
	ctx, cancel := context.WithTimeout(t.Context(), idle+10*time.Minute)
	defer cancel()
	f := startFleet(t, "--shards", strconv.Itoa(idleGroups-1))
	for i := range f.Nodes() {
		f.Kill(i)
	}
	start := time.Now()
	for i := range f.Nodes() {
		if err := f.Launch(i); err != nil {
			t.Fatal(err)
		}
	}
	took := awaitLeaders(ctx, t, f, start)
	settled := settledLeaders(ctx, t, f)
	before, from := nodeCPUs(ctx, t, f), time.Now()
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	after, span := nodeCPUs(ctx, t, f), time.Since(from)
	changed := 0
	now := leadersOf(ctx, dialFleet(ctx, t, f))
	for group, was := range settled {
		if now[group] != was {
			changed++
			t.Errorf("group %d: led by %v, and by %v after %v", group, was, now[group], span.Round(time.Second))
		}
	}
	for i := range before {
		cores := (after[i] - before[i]).Seconds() / span.Seconds()
		t.Logf("%s: %.4f of a core over %v", f.Name(i), cores, span.Round(time.Second))
		if cores > idleCores {
			t.Errorf("%s: %.3f of a core, want at most %.2f", f.Name(i), cores, idleCores)
		}
	}
	t.Logf("%d groups: leaders of all %v after a cold start; %d changed in %v", idleGroups, took.Round(10*time.Millisecond), changed, span.Round(time.Second))
	if took > idleLeaders {
		t.Errorf("leaders took %v, want at most %v", took, idleLeaders)
	}
}

// awaitLeaders waits until every group has a leader, and returns how long that took.
func awaitLeaders(ctx context.Context, t *testing.T, f *proc.Fleet, start time.Time) time.Duration {
	t.Helper()
	for {
		if c, err := client.Dial(ctx, f.Addrs()...); err == nil {
			n := len(leadersOf(ctx, c))
			c.Close()
			if n == idleGroups {
				return time.Since(start)
			}
		}
		pauseOr(ctx, t, 100*time.Millisecond)
	}
}

// settledLeaders waits until no leader changes any more.
func settledLeaders(ctx context.Context, t *testing.T, f *proc.Fleet) map[uint32]ledBy {
	t.Helper()
	c := dialFleet(ctx, t, f)
	was, since := leadersOf(ctx, c), time.Now()
	for time.Since(since) < idleSettling {
		pauseOr(ctx, t, time.Second)
		if now := leadersOf(ctx, c); !maps.Equal(now, was) {
			was, since = now, time.Now()
		}
	}
	return was
}

func pauseOr(ctx context.Context, t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

func nodeCPUs(ctx context.Context, t *testing.T, f *proc.Fleet) []time.Duration {
	t.Helper()
	var out []time.Duration
	for i := range f.Nodes() {
		used, err := f.NodeCPU(ctx, i)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, used)
	}
	return out
}
