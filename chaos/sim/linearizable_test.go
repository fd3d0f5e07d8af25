package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"

	protobuf "google.golang.org/protobuf/proto"
)

// The story of each seed: writers and readers at each of three nodes, and the
// leader is cut off from both followers, in one of several ways that leave late
// answers in the network. Its linearizable reads then fail or wait; the
// majority's succeed; and no read ever misses an increment acknowledged before
// it began.
func TestLeaderCutOffNeverReadsStale(t *testing.T) {
	first, seeds := seedRange(6, 20)
	began := time.Now()
	var virtual time.Duration
	var sum cutOffSum
	for seed := first; seed < first+seeds; seed++ {
		got := runCutOff(t, seed, false)
		virtual += got.virtual
		sum.add(got)
		for _, e := range got.errs {
			t.Errorf("seed %d (%s): %s; replay: EBB_SEED=%d EBB_SEEDS=1 go test ./chaos/sim -run %s", seed, got.how, e, seed, t.Name())
		}
		if t.Failed() {
			break
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds in %v, %.1f seeds/s, %.0fx the clock: %d increments acknowledged, %d reads answered, %d at a majority during the cut, %d refused at the leader cut off",
		seeds, took.Round(time.Millisecond), float64(seeds)/took.Seconds(), float64(virtual)/float64(took), sum.acked, sum.reads, sum.majority, sum.refused)
}

// The same run finds a stale read once reads trust raft's VerifyLeader: it
// counts answers that were sent before the read began.
func TestVerifyLeaderMutantIsFound(t *testing.T) {
	first, seeds := seedRange(60, 200)
	stale, tried := 0, uint64(0)
	for seed := first; seed < first+seeds; seed++ {
		got := runCutOff(t, seed, true)
		tried++
		if got.stale > 0 {
			stale++
			t.Logf("seed %d (%s) found it: %d stale reads, the first: %s", seed, got.how, got.stale, got.errs[0])
			if os.Getenv("EBB_SEEDS") == "" {
				break
			}
		}
	}
	t.Logf("%d of %d seeds found a stale read", stale, tried)
	if stale == 0 {
		t.Errorf("%d seeds did not find a stale read although reads trust VerifyLeader", tried)
	}
}

// seedRange is which seeds to run: EBB_SEEDS of them from EBB_SEED on, or by
// default few with -short and some without.
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

// cutOff is one run and what it has seen.
type cutOff struct {
	t   *testing.T
	rng *rand.Rand
	c   *Cluster
	how string

	shard   uint32
	acked   atomic.Int64 // increments acknowledged
	sent    atomic.Int64
	leader  int          // cut off
	alone   atomic.Int64 // since when it is (ns since start); 0 while it is not
	healed  atomic.Int64
	hush    atomic.Bool // no client reads at the leader
	start   time.Time
	virtual time.Duration

	mu       sync.Mutex // guards what follows
	errs     []string
	stale    int
	reads    int
	majority int
	refused  int
}

// cutOffSum adds runs up.
type cutOffSum struct {
	acked                    int64
	reads, majority, refused int
}

func (s *cutOffSum) add(r *cutOff) {
	s.acked += r.acked.Load()
	s.reads += r.reads
	s.majority += r.majority
	s.refused += r.refused
}

const (
	cutOffNamespace = "counts"
	cutOffKey       = "link"
)

func runCutOff(t *testing.T, seed uint64, mutant bool) (r *cutOff) {
	synctest.Test(t, func(t *testing.T) {
		r = &cutOff{t: t, rng: rand.New(rand.NewPCG(seed, 0x637574)), start: time.Now()}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var err error
		if r.c, err = Start(ctx, Options{Shards: 3, Seed: seed, Logger: testLogger()}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		defer func() {
			r.c.Stop()
			r.virtual = time.Since(r.start)
			time.Sleep(Linger)
		}()
		r.shard = proto.ShardOf(cutOffNamespace, []byte(cutOffKey), 3)
		if mutant {
			for i := range r.c.Nodes() {
				r.c.Fail(i).Arm("mutant.verify-leader", 0, fail.Error(fail.ErrKilled))
			}
		}
		r.run(ctx)
	})
	return r
}

func (r *cutOff) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var doors []*Door
	var wg sync.WaitGroup
	for i := range r.c.Nodes() {
		d, err := r.c.Door("10.0.1.1", i)
		if err != nil {
			r.t.Fatal(err)
		}
		doors = append(doors, d)
	}
	defer func() {
		stop()
		wg.Wait()
		for _, d := range doors {
			d.Close()
		}
	}()
	if err := doors[0].Create(ctx, &ebbv1.Namespace{Name: cutOffNamespace, Decay: ebbv1.Decay_DECAY_NONE}); err != nil {
		r.note("create namespace: %v", err)
		return
	}
	for _, d := range doors {
		wg.Go(func() { r.write(ctx, d) })
	}
	if !r.await("a first increment", func() bool { return r.acked.Load() > 0 }) {
		return
	}
	r.leader = r.c.Leader(r.shard)
	for i, d := range doors {
		wg.Go(func() { r.read(ctx, d, i) })
	}
	r.sleep(0, 300)
	r.attack()
	before := r.acked.Load()
	r.await("increments after the cut", func() bool { return r.acked.Load() > before+3 })
	r.await("reads at the majority", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.majority > 3 })
	r.sleep(0, 500)
	r.healed.Store(int64(time.Since(r.start)))
	r.c.Heal()
	r.c.Clock(r.leader).Set(0)
	before = r.acked.Load()
	r.await("increments after healing", func() bool { return r.acked.Load() > before+3 })
}

// attack cuts the leader off.
func (r *cutOff) attack() {
	l := r.leader
	others := func(f func(other int)) {
		for i := range r.c.Nodes() {
			if i != l {
				f(i)
			}
		}
	}
	answersLate := func(low, high int) {
		others(func(i int) {
			r.c.Net.SetLink(r.c.IP(i), r.c.IP(l), Link{Delay: r.millis(low, high), Jitter: r.millis(0, 20)})
		})
	}
	switch r.rng.IntN(6) {
	case 0:
		r.how = "cut at once"
	case 1:
		r.how = "hears nobody, then cut"
		others(func(i int) { r.c.CutOneWay(i, l) })
		r.sleep(0, 2000)
	case 2:
		r.how = "nobody hears it, then cut"
		others(func(i int) { r.c.CutOneWay(l, i) })
		r.sleep(0, 2000)
	case 3:
		r.how = "late answers, then nobody hears it, then cut"
		answersLate(100, 900)
		r.sleep(50, 600)
		others(func(i int) { r.c.CutOneWay(l, i) })
		r.sleep(500, 2500)
	case 4:
		r.how = "slow links, then cut"
		r.c.Net.SetUsual(Link{Delay: r.millis(5, 60), Jitter: r.millis(1, 60)})
		r.sleep(0, 1000)
	case 5:
		r.how = "leadership moved away under late answers, then cut"
		r.hush.Store(true) // the reader of this node comes back when another leads
		answersLate(100, 400)
		r.c.Clock(l).Set(time.Hour)
		r.await("another leader", func() bool { return r.c.Leader(r.shard) != l })
		before := r.acked.Load()
		r.await("increments at another leader", func() bool { return r.acked.Load() > before })
		r.hush.Store(false)
		r.sleep(0, 500)
	}
	r.c.Isolate(l)
	r.alone.Store(int64(time.Since(r.start)))
}

func (r *cutOff) millis(low, high int) time.Duration {
	return time.Duration(low+r.rng.IntN(high-low+1)) * time.Millisecond
}

func (r *cutOff) sleep(low, high int) { time.Sleep(r.millis(low, high)) }

// await waits until something is so, which must be soon.
func (r *cutOff) await(what string, so func() bool) bool {
	for range 4000 {
		if so() {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.note("20 s without %s", what)
	return false
}

func (r *cutOff) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, fmt.Sprintf("%v: ", time.Since(r.start).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// write increments by one at one node, as often as it takes that.
func (r *cutOff) write(ctx context.Context, d *Door) {
	command, err := protobuf.Marshal(&ebbv1.Command{Namespace: cutOffNamespace, Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
		Increments: []*ebbv1.Increment{{Key: []byte(cutOffKey), Bin: []byte("b")}},
	}}})
	if err != nil {
		r.t.Error(err)
		return
	}
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, time.Second)
		r.sent.Add(1)
		_, err := d.Apply(try, r.shard, command)
		cancel()
		if err == nil {
			r.acked.Add(1)
		}
		time.Sleep(15 * time.Millisecond)
	}
}

// read reads at one node, over and over: every other time also if the node does not lead.
func (r *cutOff) read(ctx context.Context, d *Door, i int) {
	for follow := false; ctx.Err() == nil; follow = !follow {
		for i == r.leader && r.hush.Load() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		floor, begun := r.acked.Load(), int64(time.Since(r.start))
		try, cancel := context.WithTimeout(ctx, time.Second)
		got, err := d.Sum(try, cutOffNamespace, cutOffKey, &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, Follow: follow})
		cancel()
		r.judge(i, begun, floor, got, err)
		time.Sleep(25 * time.Millisecond)
	}
}

func (r *cutOff) judge(i int, begun, floor int64, got float64, err error) {
	sent, alone := r.sent.Load(), r.alone.Load()
	during := alone != 0 && begun > alone && r.healed.Load() == 0
	switch {
	case err != nil && during && i == r.leader:
		r.mu.Lock()
		r.refused++
		r.mu.Unlock()
	case err != nil:
	case got < float64(floor):
		r.note("stale read at %s: %v, although %d were acknowledged before it began", r.c.Name(i), got, floor)
		r.mu.Lock()
		r.stale++
		r.mu.Unlock()
	case got > float64(sent):
		r.note("read %v at %s, and only %d were ever sent", got, r.c.Name(i), sent)
	case during && i == r.leader:
		r.note("%s answered a linearizable read while it was cut off", r.c.Name(i))
	default:
		r.mu.Lock()
		r.reads++
		if during {
			r.majority++
		}
		r.mu.Unlock()
	}
}
