package node

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// heldHere is a replica of a test: what namespaces hold, in the order in which the shard learned of them.
type heldHere struct {
	names []string
	has   map[string]shard.Usage
	led   bool
}

func (h *heldHere) leads() bool { return h.led }

func (h *heldHere) usage(visit func(space int, name string, u shard.Usage)) {
	for space, name := range h.names {
		if has := h.has[name]; has != (shard.Usage{}) {
			visit(space, name, has)
		}
	}
}

// put sets what a namespace holds.
func (h *heldHere) put(name string, keys, bytes uint64) {
	if _, known := h.has[name]; !known {
		h.names = append(h.names, name)
	}
	h.has[name] = shard.Usage{Keys: keys, Bytes: bytes}
}

func replicaHolding(led bool) *heldHere { return &heldHere{has: map[string]shard.Usage{}, led: led} }

func rawOf(t *testing.T, c *ebbv1.Command) []byte {
	t.Helper()
	raw, err := protobuf.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// growing is a command of so many bytes that makes a namespace larger.
func growing(t *testing.T, namespace string, bytes int) []byte {
	t.Helper()
	batch := &ebbv1.Increments{Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: make([]byte, bytes)}}}
	return rawOf(t, &ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Increments{Increments: batch}})
}

func freeing(t *testing.T, namespace string) []byte {
	t.Helper()
	keys := &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}}
	return rawOf(t, &ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Delete{Delete: keys}})
}

// memoryAdmissionOf returns the memoryAdmission of a node with a limit and one replica.
func memoryAdmissionOf(limit int64, here *heldHere, peers *fakePeers) *memoryAdmission {
	r := newMemoryAdmission("ebb-0", limit, func() (sum int64) {
		for _, u := range here.has {
			sum += int64(u.Bytes)
		}
		return sum
	}, peers, slog.New(slog.DiscardHandler))
	r.replicas = func() []usageSource { return []usageSource{here} }
	return r
}

// Under pressure a namespace grows as long as it takes less than an equal part; one that is alone has all.
func TestShareOfMemory(t *testing.T) {
	const limit = 1_000_000
	for name, c := range map[string]struct {
		greedy, modest uint64
		peerPressed    bool
		refused        []string
	}{
		"below three quarters":           {greedy: 700, modest: 40},
		"the larger one stops":           {greedy: 700, modest: 60, refused: []string{"greedy"}},
		"both have their part":           {greedy: 400, modest: 380, refused: []string{"greedy", "modest"}},
		"alone":                          {greedy: 890},
		"full":                           {greedy: 850, modest: 60, refused: []string{"greedy", "modest"}},
		"another node is under pressure": {greedy: 300, modest: 10, peerPressed: true, refused: []string{"greedy"}},
		"another node is under pressure, and it alone": {greedy: 300, peerPressed: true},
	} {
		t.Run(name, func(t *testing.T) {
			here, peers := replicaHolding(true), &fakePeers{}
			here.put("greedy", 10, c.greedy*limit/1000)
			if c.modest > 0 {
				here.put("modest", 1, c.modest*limit/1000)
			}
			if c.peerPressed {
				peers.pressers = []string{"ebb-1"}
			}
			r := memoryAdmissionOf(limit, here, peers)
			r.look()
			var refused []string
			for _, namespace := range []string{"greedy", "modest"} {
				if err := r.admit(7, voting{"ebb-0", "ebb-1"}, growing(t, namespace, 0)); err != nil {
					refused = append(refused, namespace)
					over := c.greedy+c.modest >= 900
					if over != errors.Is(err, proto.ErrOutOfMemory) || over == errors.Is(err, proto.ErrBudgetExceeded) ||
						err.RetryAfterUS == 0 || err.Hint == "" || err.Shard != 7 {
						t.Errorf("%s: %v", namespace, err)
					}
				}
				if err := r.admit(7, voting{"ebb-0", "ebb-1"}, freeing(t, namespace)); err != nil {
					t.Errorf("%s: a delete: %v", namespace, err)
				}
				if err := r.admit(7, voting{"ebb-2"}, growing(t, namespace, 0)); err != nil {
					t.Errorf("%s: a shard of others: %v", namespace, err)
				}
			}
			if fmt.Sprint(refused) != fmt.Sprint(c.refused) {
				t.Errorf("refused %v, want %v", refused, c.refused)
			}
			if own := c.greedy+c.modest >= 750; r.pressed() != own || peers.press != own {
				t.Errorf("pressed %v, reported %v", r.pressed(), peers.press)
			}
		})
	}
}

// A node stays under pressure until it takes clearly less.
func TestPressureEnds(t *testing.T) {
	here, peers := replicaHolding(true), &fakePeers{}
	r := memoryAdmissionOf(1000, here, peers)
	for _, c := range []struct {
		bytes   uint64
		pressed bool
	}{{749, false}, {750, true}, {701, true}, {699, false}, {749, false}} {
		here.put("a", 1, c.bytes)
		r.look()
		if r.pressed() != c.pressed || peers.press != c.pressed {
			t.Errorf("%d bytes: %v", c.bytes, r.pressed())
		}
	}
	r.peersUnderstand = func() bool { return false }
	here.put("a", 1, 800)
	r.look()
	if !r.pressed() || peers.press {
		t.Error("nodes of older builds are told of pressure")
	}
}

// A burst between two looks does not take a node from below three quarters to full, whether or not time passes.
func TestBurstUnderPressure(t *testing.T) {
	const mib = 1 << 20
	for _, pause := range []time.Duration{0, time.Millisecond} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here := replicaHolding(true)
				here.put("greedy", 10, 500*mib)
				here.put("modest", 1, 10*mib)
				r := memoryAdmissionOf(1000*mib, here, &fakePeers{})
				r.look()
				time.Sleep(time.Second)
				command, refused := growing(t, "greedy", mib), 0
				for range 500 {
					if r.admit(1, voting{"ebb-0"}, command) == nil {
						here.put("greedy", 10, here.has["greedy"].Bytes+growthFactor*mib)
					} else {
						refused++
					}
					time.Sleep(pause)
				}
				if used := r.used(); used >= 800*mib || refused == 0 {
					t.Errorf("a burst took %d MiB, %d refused", used/mib, refused)
				}
				if err := r.admit(1, voting{"ebb-0"}, growing(t, "modest", 100)); err != nil {
					t.Errorf("the other: %v", err)
				}
			})
		})
	}
}

// A namespace keeps to its budget in all shards of the cluster, whoever leads them; other replicas do not count.
func TestExplicitBudgets(t *testing.T) {
	led, follows := replicaHolding(true), replicaHolding(false)
	r := memoryAdmissionOf(0, led, &fakePeers{})
	r.replicas = func() []usageSource { return []usageSource{led, follows} }
	limits := map[string]*ebbv1.NamespaceBudget{"bytes": {Bytes: new(uint64(1000))}, "keys": {Keys: new(uint64(100))}}
	r.budgets = func() map[string]*ebbv1.NamespaceBudget { return limits }
	refuses := func(namespace string) bool {
		err := r.admit(3, voting{"ebb-0"}, growing(t, namespace, 1))
		if err != nil && (!errors.Is(err, proto.ErrBudgetExceeded) || err.Hint == "" || err.RetryAfterUS == 0) {
			t.Errorf("%s: %v", namespace, err)
		}
		if e := r.admit(3, voting{"ebb-0"}, freeing(t, namespace)); e != nil {
			t.Errorf("a delete: %v", e)
		}
		return err != nil
	}
	start := time.Now()
	for _, c := range []struct {
		what                string
		bytes, keys         uint64
		elsewhere           uint64 // bytes and keys of another node
		overBytes, overKeys bool
	}{
		{what: "below", bytes: 999, keys: 99},
		{what: "reached", bytes: 1000, keys: 100, overBytes: true, overKeys: true},
		{what: "with another node", bytes: 950, keys: 50, elsewhere: 50, overBytes: true, overKeys: true},
		{what: "less than with another node", bytes: 900, keys: 49, elsewhere: 50},
	} {
		for _, name := range []string{"bytes", "keys", "none"} {
			led.put(name, c.keys, c.bytes)
			follows.put(name, 10_000, 10_000)
		}
		r.usage.recordReports(start, map[string][]*ebbv1.NodeNamespace{"ebb-1": {
			{Name: "bytes", Bytes: c.elsewhere},
			{Name: "keys", Keys: c.elsewhere},
			{Name: "none", Keys: 1e9, Bytes: 1e9},
		}})
		r.look()
		if refuses("bytes") != c.overBytes || refuses("keys") != c.overKeys || refuses("none") || refuses("new") {
			t.Errorf("%s: bytes %v, keys %v, without a budget %v",
				c.what, refuses("bytes"), refuses("keys"), refuses("none"))
		}
	}
	// What another node said counts for a while after it has fallen silent.
	led.put("bytes", 1, 960)
	r.look()
	for _, c := range []struct {
		after   time.Duration
		refused bool
	}{{usageKept, true}, {usageKept + time.Second, false}} {
		r.usage.recordReports(start.Add(c.after), nil)
		if refuses("bytes") != c.refused {
			t.Errorf("%v after word of another node: refused %v", c.after, !c.refused)
		}
	}
	limits = nil
	led.put("bytes", 1, 1e6)
	r.look()
	if refuses("bytes") {
		t.Error("refused after the budget was lifted")
	}
}

// A namespace that was empty at the last look is counted as soon as it is written to again.
func TestBudgetOfNewNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := replicaHolding(true)
		r := memoryAdmissionOf(0, here, &fakePeers{})
		r.budgets = func() map[string]*ebbv1.NamespaceBudget {
			return map[string]*ebbv1.NamespaceBudget{"new": {Keys: new(uint64(5))}}
		}
		r.look()
		time.Sleep(2 * lookAgain)
		if err := r.admit(1, voting{"ebb-0"}, growing(t, "new", 1)); err != nil {
			t.Error(err)
		}
		here.put("new", 6, 600)
		time.Sleep(2 * lookAgain)
		if err := r.admit(1, voting{"ebb-0"}, growing(t, "new", 1)); !errors.Is(err, proto.ErrBudgetExceeded) {
			t.Errorf("over its budget: %v", err)
		}
	})
}

// A restore is of all namespaces: none of them is to blame.
func TestRestoreHasNoBudget(t *testing.T) {
	here := replicaHolding(true)
	here.put(proto.DefaultNamespace, 10, 700)
	here.put("other", 10, 100)
	r := memoryAdmissionOf(1000, here, &fakePeers{})
	r.look()
	piece := &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Piece{Piece: &ebbv1.RestorePiece{}}}
	raw := rawOf(t, &ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: piece}})
	if err := r.admit(1, voting{"ebb-0"}, growing(t, "", 0)); !errors.Is(err, proto.ErrBudgetExceeded) {
		t.Errorf("namespace default: %v", err)
	}
	if err := r.admit(1, voting{"ebb-0"}, raw); err != nil {
		t.Errorf("a restore: %v", err)
	}
}

// Namespaces that are gone are forgotten, and figures follow what replicas hold.
func TestUsageFollows(t *testing.T) {
	one, two := replicaHolding(true), replicaHolding(false)
	one.put("a", 1, 10)
	two.put("b", 2, 20)
	two.put("a", 3, 30)
	u := newUsage()
	u.look([]usageSource{one, two})
	figures := func(name string) [3]uint64 {
		s := u.of([]byte(name))
		if s == nil {
			return [3]uint64{}
		}
		return [3]uint64{s.held.Load(), s.keys.Load(), s.bytes.Load()}
	}
	if figures("a") != [3]uint64{40, 1, 10} || figures("b") != [3]uint64{20, 0, 0} || u.inhabited.Load() != 2 {
		t.Errorf("a %v, b %v, %d inhabited", figures("a"), figures("b"), u.inhabited.Load())
	}
	two.led = true
	two.names[0] = "c" // another state, in which the number is that of another namespace
	two.has["c"] = shard.Usage{Keys: 4, Bytes: 40}
	delete(two.has, "b")
	u.look([]usageSource{two})
	if figures("a") != [3]uint64{30, 3, 30} || figures("b") != [3]uint64{} || figures("c") != [3]uint64{40, 4, 40} {
		t.Errorf("a %v, b %v, c %v", figures("a"), figures("b"), figures("c"))
	}
	if got := u.report(func(name string) bool { return name != "a" }); len(got) != 1 || got[0].GetName() != "c" {
		t.Errorf("reports %v", got)
	}
}

// manyHere is a replica of a benchmark: names of namespaces that hold the same.
type manyHere []string

func (h *manyHere) leads() bool { return true }

func (h *manyHere) usage(visit func(space int, name string, u shard.Usage)) {
	for space, name := range *h {
		visit(space, name, shard.Usage{Keys: 1, Bytes: 100})
	}
}

func BenchmarkUsageLook(b *testing.B) {
	for _, namespaces := range []int{100, 10_000} {
		b.Run(fmt.Sprint(namespaces), func(b *testing.B) {
			var sources []usageSource
			for range 64 {
				h := new(manyHere)
				for i := range namespaces {
					*h = append(*h, fmt.Sprintf("namespace-%d", i))
				}
				sources = append(sources, h)
			}
			u := newUsage()
			for b.Loop() {
				u.look(sources)
			}
		})
	}
}
