package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ebbdb/ebb/chaos/history"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The story of each seed: leadership of the only shard moves every second, mostly by force. Another replica campaigns,
// and the old leader is made to hear of it late. At the same time each node is asked to write and to read a few
// strings, as leader and as follower. porcupine finds an order of all those operations that explains every answer.
func TestMovingLeadersReadLinearizably(t *testing.T) {
	first, seeds := seedRange(3, 10)
	began := time.Now()
	var sum moving
	for seed := first; seed < first+seeds; seed++ {
		got := runMoving(t, seed, false)
		sum.add(got)
		for _, e := range got.errs {
			t.Errorf("seed %d: %s", seed, e)
		}
		if verdict, of := got.texts.Check(checkMax); verdict != porcupine.Ok {
			picture := filepath.Join(t.ArtifactDir(), "history.html")
			t.Errorf("seed %d (%v): porcupine says %s of %d operations; -artifacts keeps %s (%v)", seed, got.how, verdict, of, picture, got.texts.Picture(picture, checkMax))
		}
		if t.Failed() {
			t.Fatalf("replay (explores the same faults, other interleavings): EBB_SEED=%d go test ./chaos/sim -run %s -artifacts", seed, t.Name())
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds in %v, %.1f seeds/s, %.0fx the clock: leadership moved %d times, %d writes acknowledged, %d not, %d reads answered by leaders, %d by followers, %d refused",
		seeds, took.Round(time.Millisecond), float64(seeds)/took.Seconds(), float64(sum.virtual)/float64(took),
		sum.moved, sum.written, sum.unacked, sum.led, sum.followed, sum.refused)
	if sum.moved < int(seeds)*movingMoves*2/5 { // it fails where the heir lacks entries, or is not heard
		t.Errorf("leadership moved %d times in %d attempts", sum.moved, seeds*movingMoves)
	}
}

// The same run finds no such order once reads trust raft's VerifyLeader.
func TestMovingLeadersFindVerifyLeaderMutant(t *testing.T) {
	first, seeds := seedRange(60, 200)
	wrong, tried := 0, uint64(0)
	for seed := first; seed < first+seeds; seed++ {
		got := runMoving(t, seed, true)
		tried++
		if verdict, _ := got.texts.Check(checkMax); verdict == porcupine.Illegal {
			wrong++
			t.Logf("seed %d found it: %v", seed, got.how)
			if os.Getenv("EBB_SEEDS") == "" {
				break
			}
		}
	}
	t.Logf("%d of %d seeds found a stale read", wrong, tried)
	if wrong == 0 {
		t.Errorf("%d seeds did not find a stale read although reads trust VerifyLeader", tried)
	}
}

const (
	movingNamespace = "texts"
	movingMoves     = 10 // one a second
	// checkMax is how long porcupine may think of one history; it takes milliseconds.
	checkMax = time.Minute
)

// movingKeys are strings of one shard.
var (
	movingKeys  = []string{"a", "b"}
	movingShard = proto.ShardOf(movingNamespace, []byte("a"), 3)
)

// moving is one run and what it has seen.
type moving struct {
	t       *testing.T
	rng     *rand.Rand // of the goroutine that moves leaders
	c       *Cluster
	texts   *history.Texts
	how     []string
	virtual time.Duration
	moved   int

	mu                     sync.Mutex // guards what follows
	errs                   []string
	written, unacked       int
	led, followed, refused int
}

func (m *moving) add(o *moving) {
	m.virtual += o.virtual
	m.moved += o.moved
	m.written += o.written
	m.unacked += o.unacked
	m.led += o.led
	m.followed += o.followed
	m.refused += o.refused
}

func runMoving(t *testing.T, seed uint64, mutant bool) (m *moving) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		m = &moving{t: t, rng: rand.New(rand.NewPCG(seed, 0x6d6f7665)), texts: history.New(func() time.Duration { return time.Since(start) })}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var err error
		if m.c, err = Start(ctx, Options{Shards: 3, Seed: seed, Logger: testLogger()}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		defer func() {
			m.c.Stop()
			m.virtual = time.Since(start)
			time.Sleep(Linger)
		}()
		if mutant {
			for i := range m.c.Nodes() {
				m.c.Fail(i).Arm("mutant.verify-leader", 0, fail.Error(fail.ErrKilled))
			}
		}
		m.run(ctx, seed)
	})
	return m
}

func (m *moving) run(ctx context.Context, seed uint64) {
	ctx, stop := context.WithCancel(ctx)
	var doors []*Door
	var wg sync.WaitGroup
	defer func() {
		stop()
		wg.Wait()
		for _, d := range doors {
			d.Close()
		}
	}()
	for i := range m.c.Nodes() {
		d, err := m.c.Door("10.0.1.1", i)
		if err != nil {
			m.t.Fatal(err)
		}
		doors = append(doors, d)
	}
	if err := doors[0].Create(ctx, &ebbv1.Namespace{Name: movingNamespace}); err != nil {
		m.errs = append(m.errs, fmt.Sprintf("create namespace: %v", err))
		return
	}
	for i, d := range doors {
		for j, work := range []func(context.Context, *Door, int, *rand.Rand){m.write, m.readLeader, m.readFollower} {
			client := 3*i + j
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			wg.Go(func() {
				for ctx.Err() == nil {
					work(ctx, d, client, rng)
					time.Sleep(time.Duration(10+rng.IntN(40)) * time.Millisecond)
				}
			})
		}
	}
	for range movingMoves {
		m.move()
	}
	m.mend()
	time.Sleep(time.Second)
}

// move gives leadership to another replica, and takes a second.
func (m *moving) move() {
	end := time.Now().Add(time.Second)
	m.mend()
	old := m.c.Leader(movingShard)
	if old < 0 {
		old = 0
	}
	heir := (old + 1 + m.rng.IntN(m.c.Nodes()-1)) % m.c.Nodes()
	others := func(f func(other int)) {
		for i := range m.c.Nodes() {
			if i != old {
				f(i)
			}
		}
	}
	how := ""
	switch m.rng.IntN(6) {
	case 0:
		how = "by force"
	case 1:
		how = "all are slow"
		m.c.Net.SetUsual(Link{Delay: m.millis(5, 40), Jitter: m.millis(1, 40)})
	case 2:
		how = "the old leader is answered late"
		others(func(i int) {
			m.c.Net.SetLink(m.c.IP(i), m.c.IP(old), Link{Delay: m.millis(50, 600), Jitter: m.millis(0, 50)})
		})
		m.sleep(0, 400)
	case 3:
		how = "the old leader hears nobody"
		m.sleep(0, 100)
		others(func(i int) { m.c.CutOneWay(i, old) })
	case 4:
		how = "only the heir is heard late"
		m.c.Net.SetLink(m.c.IP(heir), m.c.IP(old), Link{Delay: m.millis(100, 800)})
		m.sleep(0, 100)
	case 5:
		how = "in order"
		m.c.Clock(old).Set(time.Hour) // it may not lead, and hands over
	}
	m.how = append(m.how, how)
	if how != "in order" {
		m.c.Node(heir).Campaign(movingShard)
	}
	time.Sleep(time.Until(end))
	if now := m.c.Leader(movingShard); now >= 0 && now != old {
		m.moved++
	}
}

func (m *moving) mend() {
	m.c.Heal()
	m.c.Net.SetUsual(UsualLink)
	for i := range m.c.Nodes() {
		m.c.Clock(i).Set(0)
	}
}

func (m *moving) millis(low, high int) time.Duration {
	return time.Duration(low+m.rng.IntN(high-low+1)) * time.Millisecond
}

func (m *moving) sleep(low, high int) { time.Sleep(m.millis(low, high)) }

// write gives a string a value that no other write has.
func (m *moving) write(ctx context.Context, d *Door, client int, rng *rand.Rand) {
	op := m.texts.Write(client, d.node, movingKeys[rng.IntN(len(movingKeys))])
	try, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := d.SetText(try, movingNamespace, op.Key(), op.Value()); err != nil {
		op.Unknown()
		m.count(&m.unacked)
		return
	}
	op.Done("")
	m.count(&m.written)
}

func (m *moving) readLeader(ctx context.Context, d *Door, client int, rng *rand.Rand) {
	m.read(ctx, d, client, rng, false)
}

func (m *moving) readFollower(ctx context.Context, d *Door, client int, rng *rand.Rand) {
	m.read(ctx, d, client, rng, true)
}

// read reads a string at one node: if follow is set also where that does not lead.
func (m *moving) read(ctx context.Context, d *Door, client int, rng *rand.Rand, follow bool) {
	op := m.texts.Read(client, d.node, movingKeys[rng.IntN(len(movingKeys))])
	try, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	got, err := d.Text(try, movingNamespace, op.Key(), &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, Follow: follow})
	if err != nil {
		m.count(&m.refused)
		return
	}
	op.Done(got)
	if follow {
		m.count(&m.followed)
	} else {
		m.count(&m.led)
	}
}

func (m *moving) count(what *int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*what++
}
