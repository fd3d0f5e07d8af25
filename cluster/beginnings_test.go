package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

const (
	hourUS = int64(3600e6)
	dayUS  = 24 * hourUS
)

// united is a fakeCluster in which all shards together say when rates begin.
func united(t testing.TB, shards uint32) *fakeCluster {
	e := newFakeClusterOf(t, min(3, int(shards)), shards)
	e.index++
	raise := raiseCommand(proto.VersionUnited, e.table.Epoch())
	if err := e.control.Apply(e.index+1, encode(t, raise)).GetError(); err != nil {
		t.Fatal(err)
	}
	e.table = e.control.Table()
	for number := range e.states {
		e.mustEnter(number, &ebbv1.Command{Body: &ebbv1.Command_Behaviour{
			Behaviour: &ebbv1.Behaviour{Version: shard.BehaviourUnited},
		}})
	}
	return e
}

func (e *fakeCluster) mustEnter(number uint32, c *ebbv1.Command) {
	e.t.Helper()
	raw, err := pb.Marshal(c)
	if err != nil {
		e.t.Fatal(err)
	}
	if r := e.enter(number, raw); r.GetError() != nil || len(r.GetRefused()) > 0 {
		e.t.Fatal(r)
	}
}

// twoHalfLives makes a namespace on event time.
func (e *fakeCluster) twoHalfLives(name string) {
	e.t.Helper()
	e.create(&ebbv1.Namespace{
		Name: name, Clock: ebbv1.Clock_CLOCK_EVENT, HalfLifeUs: 30 * dayUS, SlowHalfLifeUs: new(300 * dayUS),
		MaxJumpUs: new(int64(0)), Threshold: 1e-12,
	})
}

// dated is an event.
type dated struct {
	key, bin string
	at       int64
}

// bring brings events to their shards, in their order.
func (e *fakeCluster) bring(namespace string, events []dated) {
	e.t.Helper()
	for len(events) > 0 {
		n := min(len(events), 50)
		batches := map[uint32][]*ebbv1.Increment{}
		for _, ev := range events[:n] {
			number := e.table.ShardOf(namespace, []byte(ev.key))
			batches[number] = append(batches[number],
				&ebbv1.Increment{Key: []byte(ev.key), Bin: []byte(ev.bin), TimeUs: ev.at})
		}
		for number, in := range batches {
			e.mustEnter(number, &ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Increments{
				Increments: &ebbv1.Increments{Increments: in},
			}})
		}
		events = events[n:]
	}
}

// trends are those of some keys, one by one in one request, and of all together at last.
func (e *fakeCluster) trends(namespace string, keys ...string) (out []*ebbv1.Trend) {
	e.t.Helper()
	req := &ebbv1.AskRequest{}
	ask := func(keys ...string) {
		q := &ebbv1.TrendQuestion{Bins: [][]byte{[]byte("b0")}}
		for _, key := range keys {
			q.Keys = append(q.Keys, []byte(key))
		}
		req.Questions = append(req.Questions,
			&ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Trend{Trend: q}})
	}
	for _, key := range keys {
		ask(key)
	}
	ask(keys...)
	resp, err := e.coordinator("ebb-0").Ask(e.t.Context(), req)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, a := range resp.GetAnswers() {
		if a.GetError() != nil {
			e.t.Fatal(a.GetError())
		}
		if c := a.GetCoverage(); c.ShardsTotal != e.table.Shards() || c.ShardsAnswered != c.ShardsTotal {
			e.t.Fatalf("coverage of %d shards: %v", e.table.Shards(), c)
		}
		out = append(out, a.GetTrend())
	}
	return out
}

// livesOfKeys are events of keys with lives of their own, some with a wrong date.
func livesOfKeys(rng *rand.Rand) (keys []string, events []dated) {
	for i := range 12 {
		key := fmt.Sprintf("k%d", i)
		keys = append(keys, key)
		first := year2026 - int64(math.Exp(rng.Float64()*4)*10)*dayUS
		n := 1 + rng.IntN(80)
		for range n {
			at := first + rng.Int64N(year2026-first)
			events = append(events, dated{key, fmt.Sprintf("b%d", rng.IntN(3)), at})
		}
		if rng.IntN(3) == 0 {
			events = append(events, dated{key, "b0", 1 + rng.Int64N(5000*dayUS)})
		}
	}
	events = append(events, dated{"k0", "b0", year2026 - 1})
	rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	return keys, events
}

// plainly is when rates begin, by the rule in docs/kinds.md, of all events together.
func plainly(events []dated) (began int64) {
	var all []int64
	for _, ev := range events {
		all = append(all, ev.at)
	}
	slices.Sort(all)
	slices.Reverse(all)
	for i := 0; i < len(all); {
		first := i
		for i++; i < len(all) && all[i-1]-all[i] <= max(all[0]-all[i-1], 60e6); i++ {
		}
		if i-first >= first/64 {
			began = all[i-1]
		}
	}
	return began
}

// The same events have the same rates under any name of the namespace and with any number of shards, and these begin
// as the rule says of all events.
func TestRatesDoNotDependOnShards(t *testing.T) {
	for seed := range uint64(12) {
		keys, events := livesOfKeys(rand.New(rand.NewPCG(seed, 61)))
		want := plainly(events)
		var first []*ebbv1.Trend
		for _, shards := range []uint32{1, 3, 16} {
			e := united(t, shards)
			for _, name := range []string{"movies", "films"} {
				e.twoHalfLives(name)
				e.bring(name, events)
				got := e.trends(name, keys...)
				if first == nil {
					first = got
				}
				for i := range got {
					if got[i].SinceUs != want {
						t.Fatalf("seed %d, %s in %d shards: rates begin %d us late", seed, name, shards, got[i].SinceUs-want)
					}
					what := fmt.Sprintf("seed %d, %s in %d shards, answer %d", seed, name, shards, i)
					sameTrend(t, what, first[i], got[i])
				}
			}
		}
	}
}

// sameTrend compares rates, but for what is rounded when parts are added up.
func sameTrend(t *testing.T, what string, want, got *ebbv1.Trend) {
	t.Helper()
	same := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1e-9) }
	changes := func(tr *ebbv1.Trend) []*ebbv1.Change {
		return slices.Concat([]*ebbv1.Change{tr.Total}, tr.Bins)
	}
	if want.Warming != got.Warming || want.SinceUs != got.SinceUs || want.Found != got.Found {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for i, w := range changes(want) {
		g := changes(got)[i]
		if !same(w.FastRate, g.FastRate) || !same(w.SlowRate, g.SlowRate) || !same(w.ZScore, g.ZScore) {
			t.Fatalf("%s: %v, want %v", what, g, w)
		}
	}
}

// A key that is renamed across shards changes the rates of no other key, and keeps its own.
func TestRenamesLeaveRates(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 62))
		keys, events := livesOfKeys(rng)
		e := united(t, 16)
		e.twoHalfLives("n")
		e.bring("n", events)
		before := e.trends("n", keys...)
		for i, key := range keys[:4] {
			to := fmt.Sprintf("moved-%d", i)
			for e.table.ShardOf("n", []byte(to)) == e.table.ShardOf("n", []byte(key)) {
				to += "x"
			}
			if _, err := e.keys("ebb-0").Rename(t.Context(), &ebbv1.RenameRequest{
				Namespace: "n", Key: []byte(key), To: []byte(to),
			}); err != nil {
				t.Fatal(err)
			}
			keys[i] = to
			for j, got := range e.trends("n", keys...) {
				sameTrend(t, fmt.Sprintf("seed %d, renamed %s, answer %d", seed, key, j), before[j], got)
			}
		}
		later := dated{keys[0], "b0", year2026}
		e.bring("n", []dated{later})
		if got, want := e.trends("n", keys[0])[0].SinceUs, plainly(append(events, later)); got != want {
			t.Errorf("seed %d: rates begin %d us later than they should", seed, got-want)
		}
	}
}

// While a shard is away that holds no key of the question, the answer is refused, or says so if it may be partial.
func TestRatesWithoutAShard(t *testing.T) {
	e := united(t, 4)
	e.twoHalfLives("n")
	e.bring("n", []dated{{"a", "b0", year2026 - 100*dayUS}, {"a", "b0", year2026 - dayUS}})
	home := e.table.ShardOf("n", []byte("a"))
	away := home%4 + 1
	e.with(func() { e.leads[away] = "" })
	ask := func(partial bool) *ebbv1.Answer {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		resp, err := e.coordinator("ebb-0").Ask(ctx, &ebbv1.AskRequest{
			AllowPartial: partial,
			Questions: []*ebbv1.Question{{Namespace: "n", Ask: &ebbv1.Question_Trend{
				Trend: &ebbv1.TrendQuestion{Keys: [][]byte{[]byte("a")}},
			}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetAnswers()[0]
	}
	for _, partial := range []bool{false, true} {
		a := ask(partial)
		c := a.GetCoverage()
		if c.ShardsTotal != 4 || c.ShardsAnswered != 3 || !slices.Equal(c.ShardsFailed, []uint32{away}) {
			t.Errorf("partial %v: %v", partial, c)
		}
		err := proto.FromWire(a.GetError())
		if partial != (err == nil) || err != nil && !errors.Is(err, proto.ErrIncomplete) {
			t.Errorf("partial %v: %v", partial, err)
		}
		if partial && a.GetTrend().GetSinceUs() != year2026-100*dayUS {
			t.Errorf("since %d", a.GetTrend().GetSinceUs())
		}
	}
	e.with(func() { e.leads[home] = "" })
	if a := ask(true); !errors.Is(proto.FromWire(a.GetError()), proto.ErrNoLeader) {
		t.Errorf("without the shard of the key: %v", a)
	}
}
