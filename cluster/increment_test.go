package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// count reads one bin straight from the shard's state.
func (e *fakeCluster) count(key, bin []byte) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	number := e.table.ShardOf("", key)
	answer := e.states[number].Ask(&ebbv1.ShardQuestion{Shard: number, Question: &ebbv1.Question{
		Namespace: "default",
		Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: [][]byte{key}, Select: &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: [][]byte{bin}}},
		}},
	}}, sketch.Tick(e.stamp))
	return answer.GetAnswer().GetDistribution().GetBins()[0].GetCount()
}

// Whatever the batch, each increment is counted on its own shard, or refused
// under the position it has in the request.
func TestIncrementCountsOrRefusesEveryOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := newFakeCluster(t, 16)
		req := new(ebbv1.IncrementRequest)
		want := map[[2]string]float64{}
		refused := map[uint32]bool{}
		for i := range rapid.IntRange(0, 60).Draw(rt, "increments") {
			key := fmt.Sprint("key-", rapid.IntRange(0, 20).Draw(rt, "key"))
			bin := fmt.Sprint("bin-", rapid.IntRange(0, 2).Draw(rt, "bin"))
			amount := float64(rapid.IntRange(-1, 3).Draw(rt, "amount"))
			req.Increments = append(req.Increments, &ebbv1.Increment{Key: []byte(key), Bin: []byte(bin), Amount: &amount})
			if amount < 0 {
				refused[uint32(i)] = true
			} else {
				want[[2]string{key, bin}] += amount
			}
		}
		resp, err := e.router("ebb-0").Increment(t.Context(), req)
		if err != nil {
			rt.Fatal(err)
		}
		if int(resp.GetApplied()) != len(req.Increments)-len(refused) || len(resp.GetRefused()) != len(refused) {
			rt.Fatalf("applied %d, refused %d of %d and %d", resp.GetApplied(), len(resp.GetRefused()), len(req.Increments), len(refused))
		}
		last := -1
		for _, refusal := range resp.GetRefused() {
			if !refused[refusal.GetIndex()] || int(refusal.GetIndex()) <= last {
				rt.Fatalf("refused %v", refusal)
			}
			last = int(refusal.GetIndex())
		}
		for at, n := range want {
			if got := e.count([]byte(at[0]), []byte(at[1])); math.Abs(got-n) > 1e-9 {
				rt.Fatalf("%v: %g, want %g", at, got, n)
			}
		}
	})
}

// A share too large for one log entry becomes several commands of one shard,
// each with an idempotency key of its own.
func TestIncrementCountsOnceUnderAnIdempotencyKey(t *testing.T) {
	e := newFakeCluster(t, 16)
	req := &ebbv1.IncrementRequest{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: 1, Lo: 2}}
	hot := e.keyOn(3, 0)
	for i := range 2000 {
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: hot, Bin: fmt.Appendf(nil, "%s%d", strings.Repeat("b", 100), i)})
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: fmt.Appendf(nil, "cold-%d", i), Bin: []byte("x")})
	}
	split, err := splitIncrements(e.table, req)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, cmd := range split.request.Commands {
		if err := proto.CheckCommand(cmd.Command); err != nil {
			t.Fatal(err)
		}
		var c ebbv1.Command
		if err := pb.Unmarshal(cmd.Command, &c); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(cmd.Shard, c.GetIdempotencyKey()); keys[got] {
			t.Fatalf("two commands under %s", got)
		} else {
			keys[got] = true
		}
	}
	if len(keys) < 16+3 {
		t.Errorf("%d commands: the hot key's should be several", len(keys))
	}
	router := e.router("ebb-1")
	for try := range 3 {
		resp, err := router.Increment(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetApplied()+resp.GetDuplicates() != 4000 || len(resp.GetRefused()) > 0 {
			t.Errorf("try %d: applied %d, duplicates %d, refused %d", try, resp.GetApplied(), resp.GetDuplicates(), len(resp.GetRefused()))
		}
	}
	for _, in := range req.Increments {
		if n := e.count(in.Key, in.Bin); n != 1 {
			t.Fatalf("%s of %s counted %g times", in.Bin, in.Key, n)
		}
	}
}

func TestIncrementRefusesBadInputWhole(t *testing.T) {
	good := func() *ebbv1.Increment { return &ebbv1.Increment{Key: []byte("k"), Bin: []byte("b")} }
	amount := func(a float64) *ebbv1.Increment {
		in := good()
		in.Amount = &a
		return in
	}
	for what, c := range map[string]struct {
		namespace string
		in        []*ebbv1.Increment
		want      *proto.Error
	}{
		"an empty key":            {"", []*ebbv1.Increment{good(), {Bin: []byte("b")}}, proto.ErrBadKey},
		"a long key":              {"", []*ebbv1.Increment{{Key: make([]byte, 513), Bin: []byte("b")}}, proto.ErrBadKey},
		"an empty bin":            {"", []*ebbv1.Increment{{Key: []byte("k")}}, proto.ErrBadBin},
		"a long bin":              {"", []*ebbv1.Increment{{Key: []byte("k"), Bin: make([]byte, 257)}}, proto.ErrBadBin},
		"NaN":                     {"", []*ebbv1.Increment{amount(math.NaN())}, proto.ErrBadAmount},
		"infinity":                {"", []*ebbv1.Increment{amount(math.Inf(-1))}, proto.ErrBadAmount},
		"an overflowing amount":   {"", []*ebbv1.Increment{amount(1e16)}, proto.ErrBadAmount},
		"a time before 1970":      {"", []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b"), TimeUs: -1}}, proto.ErrBadTime},
		"an offset":               {"", []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b"), Offset: 1}}, proto.ErrBadRequest},
		"too many":                {"", repeat(good(), proto.BatchOpsMax+1), proto.ErrBatchTooLarge},
		"too many bytes":          {"", repeat(&ebbv1.Increment{Key: make([]byte, 512), Bin: make([]byte, 256)}, 1400), proto.ErrBatchTooLarge},
		"an unknown namespace":    {"clicks", []*ebbv1.Increment{good()}, proto.ErrNamespaceNotFound},
		"a namespace that cannot": {"a/b", []*ebbv1.Increment{good()}, proto.ErrBadNamespace},
	} {
		e := newFakeCluster(t, 16)
		resp, err := e.router("ebb-0").Increment(t.Context(), &ebbv1.IncrementRequest{Namespace: c.namespace, Increments: c.in})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", what, resp, err)
		}
		if calls := e.takeCalls(); len(calls) > 0 {
			t.Errorf("%s: half applied: %q", what, calls)
		}
	}
}

func repeat(in *ebbv1.Increment, n int) []*ebbv1.Increment {
	list := make([]*ebbv1.Increment, n)
	for i := range list {
		list[i] = in
	}
	return list
}

func TestIncrementWaitsForAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		number := e.table.ShardOf("", []byte("k"))
		e.leads[number] = ""
		time.AfterFunc(1300*time.Millisecond, func() { e.with(func() { e.leads[number] = "ebb-2" }) })
		start := time.Now()
		resp, err := e.router("ebb-0").Increment(t.Context(), &ebbv1.IncrementRequest{
			Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}},
		})
		if err != nil || resp.GetApplied() != 1 {
			t.Errorf("%v, %v", resp, err)
		}
		if took := time.Since(start); took > 1600*time.Millisecond {
			t.Errorf("the leader was there after 1.3 s and found after %v", took)
		}
	})
}

func TestIncrementGivesUpAtItsTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		away := e.table.ShardOf("", []byte("k"))
		e.leads[away] = ""
		start := time.Now()
		increments := []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}}
		_, err := e.router("ebb-0").Increment(t.Context(), &ebbv1.IncrementRequest{Increments: increments})
		if !errors.Is(err, proto.ErrNoLeader) || time.Since(start) != incrementTimeout {
			t.Errorf("after %v: %v", time.Since(start), err)
		}

		// With another shard's share applied, the rest is refused one by one.
		for n := range 20 {
			increments = append(increments, &ebbv1.Increment{Key: fmt.Appendf(nil, "k%d", n), Bin: []byte("b")})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := e.router("ebb-0").Increment(ctx, &ebbv1.IncrementRequest{Increments: increments})
		if err != nil {
			t.Fatal(err)
		}
		var want []uint32
		for i, in := range increments {
			if e.table.ShardOf("", in.Key) == away {
				want = append(want, uint32(i))
			}
		}
		var got []uint32
		for _, refusal := range resp.GetRefused() {
			got = append(got, refusal.GetIndex())
			if code(refusal.GetError()) != "NO_LEADER" {
				t.Errorf("refused with %v", refusal.GetError())
			}
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || int(resp.GetApplied()) != len(increments)-len(want) {
			t.Errorf("applied %d, refused (-want +got):\n%s", resp.GetApplied(), diff)
		}
	})
}

func TestIncrementOfNothing(t *testing.T) {
	e := newFakeCluster(t, 16)
	resp, err := e.router("ebb-0").Increment(t.Context(), new(ebbv1.IncrementRequest))
	if err != nil || resp.GetApplied() != 0 || len(resp.GetRefused()) != 0 {
		t.Errorf("%v, %v", resp, err)
	}
}
