package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto"
)

// led counts the shards that a node leads.
func (b *bubble) led(i int) int {
	n := 0
	for _, r := range b.nodes[i].Status().Replicas {
		if r.Role == "leader" {
			n++
		}
	}
	return n
}

// metric returns the value of one of a node's metrics, over all labels.
func (b *bubble) metric(i int, name string) float64 {
	b.Helper()
	families, err := b.config[i].Registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			sum := 0.0
			for _, m := range f.Metric {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
			return sum
		}
	}
	b.Fatalf("no metric %s", name)
	return 0
}

// busiest returns the node that leads most shards.
func (b *bubble) busiest() int {
	best := 0
	for i := range b.nodes {
		if b.led(i) > b.led(best) {
			best = i
		}
	}
	return best
}

// A leader whose disk hangs would keep its lease for ever, and its shards could
// not be written (hashicorp/raft #503). It falls silent after two seconds, and
// the others go on; after twenty it gives up.
func TestHangingDiskStopsHeartbeats(t *testing.T) {
	inBubble(t, 3, 6, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		victim := b.busiest()
		release := make(chan struct{})
		b.disks[victim].HangSync(release)
		start := time.Now()
		for k := range 20 { // on all shards
			b.write(c, fmt.Sprintf("k%d", k), "x", 1)
		}
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("writes took %v after a disk began to hang", took)
		}
		led := func() int { return b.led((victim+1)%3) + b.led((victim+2)%3) }
		for led() != 7 && time.Since(start) < 8*time.Second { // the control group has no writes to wait for
			time.Sleep(10 * time.Millisecond)
		}
		if n := led(); n != 7 {
			t.Errorf("the nodes whose disks work lead %d groups, want 7", n)
		}
		if b.said(victim) != nil {
			t.Errorf("given up after %v: %v", time.Since(start), b.said(victim))
		}
		time.Sleep(20 * time.Second)
		if !errors.Is(b.said(victim), proto.ErrDisk) {
			t.Errorf("after 20 s the node says %v, want DISK", b.said(victim))
		}
		b.disks[victim].HangSync(nil)
		close(release)
		time.Sleep(5 * time.Second)
		b.verify(c, 20, 1)
	})
}

// A short hang costs nothing but time.
func TestSlowDisk(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		stop := b.writing(c, 8)
		for i := range 3 {
			release := make(chan struct{})
			b.disks[i].HangSync(release)
			time.Sleep(1500 * time.Millisecond)
			b.disks[i].HangSync(nil)
			close(release)
			time.Sleep(2 * time.Second)
		}
		b.verify(c, 8, stop())
		for i := range 3 {
			if b.said(i) != nil {
				t.Errorf("node %d: %v", i, b.said(i))
			}
		}
	})
}

// A failing disk ends its node, and only that.
func TestFailingDisk(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		stop := b.writing(c, 8)
		time.Sleep(time.Second)
		victim := b.busiest()
		b.config[victim].Fail.Arm("wal.sync", 1, fail.Error(errors.New("input/output error")))
		time.Sleep(5 * time.Second)
		if !errors.Is(b.said(victim), proto.ErrDisk) {
			t.Fatalf("the node says %v, want DISK", b.said(victim))
		}
		b.crash(victim)
		time.Sleep(2 * time.Second)
		b.open(victim)
		b.ready(victim)
		b.verify(c, 8, stop())
	})
}

// A node's failpoints reach its transport: one that may not ask the others
// leads nothing, and leads again when it may.
func TestTransportFailpoints(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		for i := range b.config {
			b.config[i].Fail.Record()
		}
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		time.Sleep(10 * time.Second) // each leads what it prefers
		for i := range b.config {
			for _, point := range []string{"transport.open", "transport.ask", "transport.answer"} {
				if b.config[i].Fail.Hits()[point] == 0 {
					t.Errorf("node %d never passed %s", i, point)
				}
			}
		}
		victim := b.busiest()
		b.config[victim].Fail.Arm("transport.ask", 0, fail.Error(errors.New("mute")))
		time.Sleep(10 * time.Second)
		if led := b.led(victim); led > 0 {
			t.Errorf("a node that may not ask leads %d groups", led)
		}
		b.config[victim].Fail.Disarm("transport.ask")
		time.Sleep(time.Minute)
		if b.led(victim) == 0 {
			t.Error("a node that may ask again leads nothing")
		}
		b.write(c, "k", "x", 1)
		if got := b.count(c, "k", "x"); got != 1 {
			t.Errorf("%v counted", got)
		}
	})
}

// A leader whose clock runs ahead refuses writes and hands its shards over; no
// shard's time jumps.
func TestClockAhead(t *testing.T) {
	long(t)
	inBubble(t, 3, 6, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		stop := b.writing(c, 20)
		time.Sleep(2 * time.Second)
		victim := b.busiest()
		b.skews[victim].Store(int64(10 * 365 * 24 * time.Hour))
		time.Sleep(10 * time.Second)
		n := stop()
		if led := b.led(victim); led > 1 { // of the control group the clock does not matter
			t.Errorf("the node that is ten years ahead leads %d groups", led)
		}
		for i, node := range b.nodes {
			for _, r := range node.Status().Replicas {
				if ahead := time.Until(time.UnixMicro(r.NowUs)); ahead > time.Second {
					t.Errorf("node %d, shard %d: its clock is %v ahead", i, r.Shard, ahead)
				}
			}
		}
		b.verify(c, 20, n)
	})
}

// When all clocks are moved together, as a test's are, nothing is refused for long.
func TestAllClocksMove(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		b.write(c, "k0", "x", 1)
		for i := range b.skews {
			b.skews[i].Store(int64(time.Hour))
		}
		start := time.Now()
		b.write(c, "k0", "x", 1)
		if took := time.Since(start); took > time.Second {
			t.Errorf("the first write after it took %v", took)
		}
		for _, r := range b.nodes[b.busiest()].Status().Replicas {
			if r.Role == "leader" && r.Shard > 0 && r.NowUs > time.Now().Add(2*time.Hour).UnixMicro() {
				t.Errorf("shard %d: its clock is at %v", r.Shard, time.UnixMicro(r.NowUs))
			}
		}
	})
}

// A namespace can be used at every node as soon as its creation is acknowledged. Followers of the idle control group
// learn of it at once, and not after the commit timeout.
func TestNamespaceIsKnownEverywhereAtOnce(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		for n := range 5 {
			start := time.Now()
			if _, err := c.CreateNamespace(context.Background(), ebb.Namespace{Name: fmt.Sprintf("ns%d", n)}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 200*time.Millisecond {
				t.Errorf("creation took %v", took)
			}
			for i, node := range b.nodes {
				if node.Table().Namespace(fmt.Sprintf("ns%d", n)) == nil {
					t.Errorf("node %d does not know ns%d", i, n)
				}
			}
		}
	})
}

// Snapshots come by bytes, though Raft would count entries; the log is cut behind
// them, and a node that was away gets one.
func TestSnapshotsByBytes(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		b.crash(2)
		w := c.Writer(ebb.WriterOptions{Namespace: "plain", NoAggregate: true})
		bin := strings.Repeat("b", 200)
		const rows = 100_000 // 22 MB
		for i := range rows {
			if err := w.Add(context.Background(), fmt.Sprintf("k%d", i%20), bin, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		for i := range 2 {
			infos, err := b.disks[i].ReadDir("/data/snap/1")
			if err != nil || len(infos) == 0 {
				t.Errorf("node %d has no snapshot of shard 1 (%v)", i, err)
			}
			if bytes := b.metric(i, "ebb_node_log_live_bytes"); bytes > 14<<20 {
				t.Errorf("node %d holds %.0f bytes of log", i, bytes)
			}
		}
		b.open(2)
		b.ready(2)
		b.crash(0) // the newcomer is needed now
		if got := b.count(c, "k3", bin); got != rows/20 {
			t.Errorf("%v counted, want %d", got, rows/20)
		}
		b.open(0)
		b.ready(0)
		if got := b.count(c, "k3", bin); got != rows/20 {
			t.Errorf("%v counted, want %d", got, rows/20)
		}
	})
}

// A node that was away gets from a snapshot what has changed since, though the leader has no log of it.
func TestInstallsOfWhatChanged(t *testing.T) {
	long(t)
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		bin := strings.Repeat("b", 200)
		write := func(rows, keys int) {
			w := c.Writer(ebb.WriterOptions{Namespace: "plain", NoAggregate: true})
			for i := range rows {
				if err := w.Add(context.Background(), fmt.Sprintf("a key of some length, so that there is more of the state %d", i%keys), bin, 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(15 * time.Second)
		}
		sum := func(name string) float64 { // of those that can lead
			return b.metric(0, "ebb_node_snapshot_"+name) + b.metric(1, "ebb_node_snapshot_"+name)
		}
		write(60_000, 10_000)
		for round := range 2 {
			b.crash(2)
			write(60_000, 50)
			sent, skipped := sum("install_sent_bytes_total"), sum("install_skipped_bytes_total")
			b.open(2)
			b.ready(2)
			time.Sleep(5 * time.Second)
			sent, skipped = sum("install_sent_bytes_total")-sent, sum("install_skipped_bytes_total")-skipped
			if sent == 0 || sent > skipped/4 {
				t.Errorf("round %d: %.0f bytes were sent and %.0f not, of a state of which few keys changed", round, sent, skipped)
			}
			if in, reused := b.metric(2, "ebb_node_snapshot_installs"), b.metric(2, "ebb_node_snapshot_reused_bytes_total"); in != 0 || reused == 0 {
				t.Errorf("round %d: %.0f installs are under way; %.0f bytes were reused", round, in, reused)
			}
		}
		b.crash(0) // the newcomer is needed now
		if got := b.count(c, "a key of some length, so that there is more of the state 3", bin); got != 6+2*1200 {
			t.Errorf("%v counted", got)
		}
		b.open(0)
		b.ready(0)
	})
}

// A damaged snapshot whose log is gone is not taken for an empty shard.
func TestDamagedSnapshot(t *testing.T) {
	inBubble(t, 1, 1, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		w := c.Writer(ebb.WriterOptions{Namespace: "plain", NoAggregate: true})
		bin := strings.Repeat("b", 200)
		for i := range 40_000 {
			if err := w.Add(context.Background(), fmt.Sprintf("k%d", i%10), bin, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		c.Close()
		time.Sleep(15 * time.Second)
		if err := b.nodes[0].Close(); err != nil {
			t.Fatal(err)
		}
		infos, err := b.disks[0].ReadDir("/data/snap/1")
		if err != nil || len(infos) == 0 {
			t.Fatalf("no snapshot: %v", err)
		}
		for _, info := range infos {
			if err := b.disks[0].FlipByte("/data/snap/1/"+info.Name, info.Size/2, 3); err != nil {
				t.Fatal(err)
			}
		}
		b.open(0)
		time.Sleep(5 * time.Second)
		if !errors.Is(b.said(0), proto.ErrCorrupt) {
			t.Errorf("the node says %v, want CORRUPT", b.said(0))
		}
	})
}

// Leaders come to be where the table wants them, gently, and nothing is lost or
// of unknown outcome on the way.
func TestLeadersMoveHome(t *testing.T) {
	inBubble(t, 3, 12, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		b.crash(1)
		time.Sleep(5 * time.Second)
		b.open(1)
		b.ready(1)
		stop := b.writing(c, 5)
		time.Sleep(30 * time.Second)
		n := stop()
		table := b.nodes[0].Table()
		for _, node := range b.nodes {
			for _, r := range node.Status().Replicas {
				if r.Role == "leader" && r.Shard > 0 && table.Preferred(r.Shard) != node.Name() {
					t.Errorf("shard %d is led by %s, and prefers %s", r.Shard, node.Name(), table.Preferred(r.Shard))
				}
			}
		}
		b.verify(c, 5, n)
	})
}

// A node that closes hands over what it leads: writes go on without a pause.
func TestCloseHandsOver(t *testing.T) {
	inBubble(t, 3, 6, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		time.Sleep(15 * time.Second)
		victim := b.busiest()
		if err := b.nodes[victim].Close(); err != nil {
			t.Error(err)
		}
		b.nodes[victim] = nil
		start := time.Now()
		for k := range 20 {
			b.write(c, fmt.Sprintf("k%d", k), "x", 1)
		}
		if took := time.Since(start); took > 900*time.Millisecond {
			t.Errorf("20 writes after a node closed took %v: that is an election", took)
		}
		b.open(victim)
		b.ready(victim)
		b.verify(c, 20, 1)
	})
}

// A minority accepts nothing and answers nothing; healed, it catches up.
func TestMinority(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		b.write(c, "k0", "x", 1)
		time.Sleep(3 * time.Second)
		for i := 1; i < 3; i++ {
			b.net.Cut(b.host(0), b.host(i))
		}
		b.net.Cut("10.0.1.2", b.host(1))
		b.net.Cut("10.0.1.2", b.host(2))
		lonely := b.clientAt("10.0.1.2", b.host(0)+":7070")
		defer lonely.Close()
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if d, err := lonely.Distribution(ctx, "plain", "k0"); err == nil {
			t.Errorf("the minority answered: %v", d)
		}
		err := lonely.Increment(ctx, "plain", ebb.One("k0", "x"))
		if err == nil {
			t.Error("the minority accepted a write")
		}
		b.write(c, "k0", "x", 1)
		if d, err := lonely.Distribution(context.Background(), "plain", "k0", ebb.Any()); err != nil || d.Z != 1 {
			t.Errorf("whatever the minority has: %v, %v; want 1", d.Z, err)
		}
		b.net.Heal()
		time.Sleep(20 * time.Second)
		want := 2.0
		if errors.Is(err, ebb.ErrUnknownOutcome) {
			want = b.count(c, "k0", "x") // either is right
		}
		if got := b.count(c, "k0", "x"); got != want {
			t.Errorf("%v counted, want %v", got, want)
		}
		if d, err := lonely.Distribution(context.Background(), "plain", "k0"); err != nil || d.Z != want {
			t.Errorf("after healing: %v, %v; want %v", d.Z, err, want)
		}
	})
}

// Status tells what every node does; the one that is away is named.
func TestStatus(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		time.Sleep(5 * time.Second)
		b.crash(2)
		time.Sleep(5 * time.Second)
		s, err := c.Status(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Nodes) != 2 || len(s.Unreachable) != 1 || s.Unreachable[0] != "ebb-2" || s.ClusterId == "" {
			t.Errorf("status %v", s)
		}
		leaders := map[uint32]int{}
		for _, n := range s.Nodes {
			if n.Phase != "serving" || len(n.Replicas) != 5 {
				t.Errorf("node %v", n)
			}
			for _, r := range n.Replicas {
				if r.Role == "leader" {
					leaders[r.Shard]++
				}
			}
		}
		if len(leaders) != 5 {
			t.Errorf("leaders of %d groups, want 5", len(leaders))
		}
		table, err := c.Table(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range table.Placement {
			if r.Leader == "" || r.Leader == "ebb-2" {
				t.Errorf("shard %d: leader %q", r.Shard, r.Leader)
			}
		}
		alive := map[string]bool{}
		for _, n := range table.Nodes {
			alive[n.Name] = n.Alive
		}
		if !alive["ebb-0"] || !alive["ebb-1"] {
			t.Errorf("alive: %v", alive)
		}
		b.open(2)
		b.ready(2)
	})
}

// The death of the node that leads most shards is over in five seconds, at
// default settings.
func TestFailover(t *testing.T) {
	inBubble(t, 3, 64, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		stop := b.writing(c, 8)
		time.Sleep(time.Second)
		rounds := 3
		if testing.Short() {
			rounds = 1
		}
		for range rounds {
			victim := b.busiest()
			b.crash(victim)
			start := time.Now()
			var wg sync.WaitGroup
			for k := range 300 { // on all shards
				wg.Go(func() { b.write(c, fmt.Sprintf("w%d", k), "x", 1) })
			}
			wg.Wait()
			took := time.Since(start)
			t.Logf("all shards written %v after the death", took)
			if took > 5*time.Second {
				t.Errorf("writes to all shards took %v after the death of a node", took)
			}
			b.open(victim)
			b.ready(victim)
			time.Sleep(5 * time.Second)
		}
		b.verify(c, 8, stop())
	})
}
