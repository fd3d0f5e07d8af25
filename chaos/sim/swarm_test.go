package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Clients count, readers look, and a nemesis breaks whatever the seed says;
// then all is mended and must work. The oracle is exact: for each key
//
//	acknowledged <= counted <= acknowledged + unknown outcomes
//	a read >= what was acknowledged, or read, before it began
//
// A majority goes on while the leader is cut off; afterwards all replicas are
// equal, and no shard's clock is ahead of the time.
//
// A seed decides the faults and the network's chances, not how goroutines
// interleave: it explores the same neighbourhood again, not the same run.
func TestSwarm(t *testing.T) {
	first, seeds := seedRange(2, 5)
	began := time.Now()
	var virtual time.Duration
	var sum tally
	for seed := first; seed < first+seeds; seed++ {
		s := runSwarm(t, seed, mutation{})
		virtual += s.virtual
		sum.add(&s.tally)
		if os.Getenv("EBB_SEEDS") == "" || len(s.errs) > 0 {
			t.Logf("seed %d: %d nodes, %v: %s", seed, s.nodes, &s.tally, strings.Join(s.faults, ", "))
		}
		for _, e := range s.errs {
			t.Errorf("seed %d: %s", seed, e)
		}
		if t.Failed() {
			t.Fatalf("replay (explores the same faults, other interleavings): EBB_SEED=%d go test ./chaos/sim -run 'TestSwarm$' -v", seed)
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds, %v of virtual time in %v: %.0fx the clock, %.2f seeds/s; %v",
		seeds, virtual.Round(time.Second), took.Round(time.Millisecond), float64(virtual)/float64(took), float64(seeds)/took.Seconds(), &sum)
}

// The swarm would notice if retries counted again, and if a disk lied about
// what it has synced.
func TestSwarmFindsMutants(t *testing.T) {
	for name, m := range map[string]mutation{
		"retries count again": {noDedup: true},
		"syncs do nothing":    {noSync: true},
	} {
		t.Run(name, func(t *testing.T) {
			first, seeds := seedRange(20, 20)
			for seed := first; seed < first+seeds; seed++ {
				if s := runSwarm(t, seed, m); len(s.errs) > 0 {
					t.Logf("seed %d found it: %s", seed, s.errs[0])
					return
				}
			}
			t.Errorf("%d seeds did not find it", seeds)
		})
	}
}

// mutation is a bug planted on purpose.
type mutation struct {
	noDedup bool // commands travel without their identity
	noSync  bool // disks sync nothing
}

// tally is what happened in a run.
type tally struct {
	acked, unknown, failed, reads, unread int
	deeds                                 int           // of owners, answered
	outMax                                time.Duration // the longest outage of a key whose leader was cut off
}

func (a *tally) add(b *tally) {
	a.acked += b.acked
	a.unknown += b.unknown
	a.failed += b.failed
	a.reads += b.reads
	a.unread += b.unread
	a.deeds += b.deeds
	a.outMax = max(a.outMax, b.outMax)
}

func (a *tally) String() string {
	return fmt.Sprintf("%d increments acknowledged, %d unknown, %d failed, %d reads answered, %d not, %d commands of owners, %v without a leader at most",
		a.acked, a.unknown, a.failed, a.reads, a.unread, a.deeds, a.outMax.Round(10*time.Millisecond))
}

const (
	swarmNamespace = "counts"
	swarmKeys      = 8
	swarmWriters   = 4
	swarmReaders   = 2
	swarmFaults    = 6 // one after the other
)

// swarm is one run.
type swarm struct {
	seed    uint64
	rng     *rand.Rand // of the nemesis
	mutant  mutation
	nodes   int
	c       *Cluster
	start   time.Time
	virtual time.Duration
	faults  []string
	skewed  map[int]bool // nodes whose clocks are wrong
	// manySkewed is set when no majority of clocks was right at some time: then
	// the shards' clocks may be wrong.
	manySkewed bool

	mu   sync.Mutex // guards what follows
	keys [swarmKeys]account
	tally
	errs []string
}

// account is what the oracle knows of a key.
type account struct {
	acked, unknown, open float64
	seen                 float64 // the largest sum read
}

func runSwarm(t *testing.T, seed uint64, m mutation) (s *swarm) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s = &swarm{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x737761726d)), mutant: m, nodes: 3, start: time.Now(), skewed: map[int]bool{}}
		if s.rng.IntN(4) == 0 {
			s.nodes = 5
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var err error
		s.c, err = Start(ctx, Options{Nodes: s.nodes, Shards: 6, Seed: seed, Logger: testLogger(), Sync: 300 * time.Microsecond, Configure: s.configure})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		s.run(t)
		s.c.Stop()
		for _, err := range s.c.Collapses() {
			s.note("a node collapsed: %v", err)
		}
		s.virtual = time.Since(s.start)
		time.Sleep(Linger)
	})
	return s
}

func (s *swarm) configure(_ int, cfg *node.Config) {
	if s.mutant.noSync {
		cfg.FS = lyingFS{cfg.FS}
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

func (s *swarm) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, fmt.Sprintf("%v: ", time.Since(s.start).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (s *swarm) dial(t *testing.T, ip string) *ebb.Client {
	opts := []ebb.Option{ebb.WithDialer(s.c.Dialer(ip)), ebb.WithAttemptTimeout(time.Second)}
	if s.mutant.noDedup {
		opts = append(opts, ebb.WithGRPC(grpc.WithUnaryInterceptor(anonymous)))
	}
	c, err := ebb.DialOptions(t.Context(), s.c.Addrs(), opts...)
	if err != nil {
		t.Fatalf("seed %d: %v", s.seed, err)
	}
	return c
}

func (s *swarm) run(t *testing.T) {
	admin := s.dial(t, "10.0.1.100")
	defer admin.Close()
	if _, err := admin.CreateNamespace(t.Context(), ebb.Namespace{Name: swarmNamespace, Decay: ebb.DecayNone}); err != nil {
		t.Fatalf("seed %d: %v", s.seed, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for i := range swarmWriters + swarmReaders {
		client := s.dial(t, clientIP(i))
		rng := rand.New(rand.NewPCG(s.seed, uint64(i)+1))
		work := s.write
		if i >= swarmWriters {
			work = s.read
		}
		wg.Go(func() {
			defer client.Close()
			for ctx.Err() == nil {
				work(client, rng)
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
		})
	}
	var owners []*owner
	for i := range swarmOwners {
		client := s.dial(t, clientIP(swarmWriters+swarmReaders+i))
		o := s.newOwner(i)
		owners = append(owners, o)
		wg.Go(func() {
			defer client.Close()
			for ctx.Err() == nil {
				o.work(client)
				time.Sleep(time.Duration(o.rng.IntN(100)) * time.Millisecond)
			}
		})
	}
	s.outage()
	s.nemesis(t.Context())
	s.mend(t.Context())
	// All is well now: clients must be served, soon.
	time.Sleep(5 * time.Second)
	before := s.acknowledged()
	time.Sleep(3 * time.Second)
	if s.acknowledged() == before {
		s.note("nothing was acknowledged in the 8 s after all was mended")
	}
	stop()
	wg.Wait()
	s.settle(t.Context(), admin)
	for _, o := range owners {
		o.settle(t.Context(), admin)
	}
}

func clientIP(i int) string { return fmt.Sprintf("10.0.1.%d", i+1) }

func keyName(k int) string { return fmt.Sprintf("key-%d", k) }

// Every key holds one kind; each of them knows its sum, or how many members it has, exactly or about.
func kindOf(k int) ebb.Kind {
	return []ebb.Kind{
		ebb.KindDistribution, ebb.KindCountMin, ebb.KindQuantile, ebb.KindTopK,
		ebb.KindDistinct, ebb.KindLinear, ebb.KindBloom, ebb.KindMorris,
	}[k%8]
}

// event adds n to the sum of a key: n members that nobody else adds, of a kind that counts members.
func event(k, n int, rng *rand.Rand) []ebb.Increment {
	in := ebb.Increment{Key: keyName(k), Bin: "b", Amount: float64(n), Kind: kindOf(k), Value: rng.Float64()}
	switch in.Kind {
	case ebb.KindDistinct, ebb.KindLinear, ebb.KindBloom:
	default:
		return []ebb.Increment{in}
	}
	var members []ebb.Increment
	for range n {
		in.Bin = fmt.Sprintf("%x", rng.Uint64())
		members = append(members, in)
	}
	return members
}

// sum asks a key for its sum, and for how much it may be off.
func sum(ctx context.Context, c *ebb.Client, k int) (z, off float64, err error) {
	if kindOf(k) == ebb.KindDistribution {
		d, err := c.Distribution(ctx, swarmNamespace, keyName(k))
		return d.Z, 0, err
	}
	s, err := c.Summary(ctx, swarmNamespace, ebb.SummaryQuery{Keys: []string{keyName(k)}})
	switch kindOf(k) {
	case ebb.KindLinear, ebb.KindBloom, ebb.KindMorris:
		return s.Total.Value, 6*s.Total.StdErr + 1, err
	}
	return math.Round(s.Total.Value), 0, err
}

func (s *swarm) acknowledged() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked
}

// write increments one key once, and takes its outcome down.
func (s *swarm) write(c *ebb.Client, rng *rand.Rand) {
	k, many := rng.IntN(swarmKeys), 1+rng.IntN(5)
	n := float64(many)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(500+rng.IntN(8000))*time.Millisecond)
	defer cancel()
	s.mu.Lock()
	s.keys[k].open += n
	s.mu.Unlock()
	err := c.Increment(ctx, swarmNamespace, event(k, many, rng)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.keys[k]
	a.open -= n
	switch {
	case err == nil:
		a.acked += n
		s.acked++
	case errors.Is(err, ebb.ErrUnknownOutcome):
		a.unknown += n
		s.unknown++
	default: // it was not applied, says the SDK: the oracle takes its word
		s.failed++
	}
}

// read reads one key, and holds it against the oracle.
func (s *swarm) read(c *ebb.Client, rng *rand.Rand) {
	k := rng.IntN(swarmKeys)
	s.mu.Lock()
	floor := max(s.keys[k].acked, s.keys[k].seen)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	z, off, err := sum(ctx, c, k)
	if err != nil {
		s.mu.Lock()
		s.unread++
		s.mu.Unlock()
		return
	}
	s.judge(k, z, off, floor)
}

// judge holds a sum against the oracle. What was seen once, less what it may have been off, must not be missing later.
func (s *swarm) judge(k int, z, off, floor float64) {
	s.mu.Lock()
	a := &s.keys[k]
	a.seen = max(a.seen, z-off)
	s.reads++
	ceiling := a.acked + a.unknown + a.open
	s.mu.Unlock()
	switch {
	case z+off < floor:
		s.note("stale read of %s: %v, and %v was acknowledged or read before it began", keyName(k), z, floor)
	case z-off > ceiling && s.nothingFailed():
		s.note("%s counts %v, and at most %v was sent", keyName(k), z, ceiling)
	}
}

// nothingFailed reports whether no increment has failed for certain: one that
// has might have been read before it was known to fail, if the SDK were wrong.
// The last reckoning finds that.
func (s *swarm) nothingFailed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed == 0
}

// outageMax is how long a shard may be without acknowledgements when its leader
// is cut off: an election, and a try of the SDK at the old leader.
const outageMax = 8 * time.Second

// outage cuts the leader of one key off from the others, and sees the majority
// acknowledge increments of that key again.
func (s *swarm) outage() {
	s.pause(500, 2000)
	acked := func() float64 { s.mu.Lock(); defer s.mu.Unlock(); return s.keys[0].acked }
	s.c.Isolate(max(0, s.c.LeaderOf(swarmNamespace, keyName(0))))
	time.Sleep(time.Second) // what was on its way has arrived
	before, cut := acked(), time.Now()
	for acked() == before {
		if time.Since(cut) > outageMax {
			s.note("the majority acknowledged nothing in %v after the leader was cut off", outageMax+time.Second)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.outMax = time.Since(cut) + time.Second
	s.c.Heal()
}

// nemesis breaks things, one after the other, and some of them at once.
func (s *swarm) nemesis(ctx context.Context) {
	for range swarmFaults {
		s.pause(200, 3000)
		s.strike()
		if s.rng.IntN(3) == 0 {
			s.pause(0, 1000)
			s.strike()
		}
		s.pause(500, 8000)
		if s.rng.IntN(4) > 0 {
			s.mend(ctx)
		}
	}
}

func (s *swarm) pause(low, high int) {
	time.Sleep(time.Duration(low+s.rng.IntN(high-low+1)) * time.Millisecond)
}

// mend makes everything usual again.
func (s *swarm) mend(ctx context.Context) {
	s.c.Net.SetUsual(UsualLink)
	s.c.Heal()
	clear(s.skewed)
	for i := range s.nodes {
		s.c.Clock(i).Set(0)
		s.c.SlowDisk(i, 0)
		if err := s.c.Restart(ctx, i); err != nil {
			s.note("%v", err)
		}
	}
}

// strike does one harm.
func (s *swarm) strike() {
	leader := s.c.Leader(1 + uint32(s.rng.IntN(6)))
	some := s.rng.IntN(s.nodes)
	if leader < 0 {
		leader = some
	}
	order := s.rng.Perm(s.nodes)
	others := func(of int, f func(i int)) {
		for i := range s.nodes {
			if i != of {
				f(i)
			}
		}
	}
	harms := []struct {
		name string
		do   func()
	}{
		{"leader cut off", func() { s.c.Isolate(leader) }},
		{"leader hears nobody", func() { others(leader, func(i int) { s.c.CutOneWay(i, leader) }) }},
		{"nobody hears the leader", func() { others(leader, func(i int) { s.c.CutOneWay(leader, i) }) }},
		{"halves", func() {
			for _, a := range order[:s.nodes/2] {
				for _, b := range order[s.nodes/2:] {
					s.c.Cut(a, b)
				}
			}
		}},
		{"one pair cut", func() { s.c.Cut(order[0], order[1]) }},
		{"ring", func() {
			for i := range order {
				for j := range i {
					if i-j != 1 && i-j != s.nodes-1 || s.nodes == 3 && i-j == 2 {
						s.c.Cut(order[i], order[j])
					}
				}
			}
		}},
		{"clients do not hear the leader", func() {
			for i := range swarmWriters + swarmReaders + swarmOwners {
				s.c.Net.CutOneWay(s.c.IP(leader), clientIP(i))
			}
		}},
		{"leader killed", func() { s.c.Kill(leader) }},
		{"a node killed", func() { s.c.Kill(some) }},
		{"all killed", func() {
			for i := range s.nodes {
				s.c.Kill(i)
			}
		}},
		{"leader loses power", func() { s.c.PowerLoss(leader) }},
		{"all lose power", func() {
			for i := range s.nodes {
				s.c.PowerLoss(i)
			}
		}},
		{"leader's disk is slow", func() { s.c.SlowDisk(leader, time.Duration(20+s.rng.IntN(1500))*time.Millisecond) }},
		{"loss and delay", func() {
			s.c.Net.SetUsual(Link{
				Delay:  time.Duration(s.rng.IntN(60)) * time.Millisecond,
				Jitter: time.Duration(1+s.rng.IntN(100)) * time.Millisecond,
				Loss:   s.rng.Float64() * 0.3, Dup: s.rng.Float64() * 0.5,
			})
		}},
		{"leader's clock jumps", func() {
			s.c.Clock(leader).Set([]time.Duration{time.Hour, -time.Hour, 10 * 365 * 24 * time.Hour, 2 * time.Second}[s.rng.IntN(4)])
			s.skewed[leader] = true
			s.manySkewed = s.manySkewed || 2*len(s.skewed) >= s.nodes
		}},
	}
	h := harms[s.rng.IntN(len(harms))]
	s.faults = append(s.faults, fmt.Sprintf("%v %s", time.Since(s.start).Round(100*time.Millisecond), h.name))
	h.do()
}

// settle is the last reckoning.
func (s *swarm) settle(ctx context.Context, c *ebb.Client) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for k := range s.keys {
		z, off, err := sum(ctx, c, k)
		if err != nil {
			s.note("read %s when all was mended: %v", keyName(k), err)
			continue
		}
		a := s.keys[k]
		switch {
		case z+off < a.acked:
			s.note("lost: %s counts %v, and %v was acknowledged", keyName(k), z, a.acked)
		case z-off > a.acked+a.unknown:
			s.note("counted twice: %s counts %v, and only %v was acknowledged and %v unknown", keyName(k), z, a.acked, a.unknown)
		case z+off < a.seen:
			s.note("lost: %s counts %v, and %v was read once", keyName(k), z, a.seen)
		}
	}
	if err := s.c.Agree(ctx); err != nil {
		s.note("%v", err)
	}
	if shard, ahead := s.c.Ahead(); ahead > 500*time.Millisecond && !s.manySkewed {
		s.note("the clock of shard %d is %v ahead of the time", shard, ahead)
	}
}
