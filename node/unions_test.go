package node

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

const unionsNow = 1_700_000_000_000_000

// periodsMachine is a machine with eight days of 4 million ids each, which follow each other.
func periodsMachine(t *testing.T, kept *unions) *shardMachine { return periodsWithout(t, kept, 0) }

// periodsWithout lacks so many of the ids of the fourth day.
func periodsWithout(t *testing.T, kept *unions, lost uint64) *shardMachine {
	t.Helper()
	m := newShardMachine(1, func() shard.Memory { return shard.Heap{} }, nil, new(applyMetrics), kept, nil)
	applyCommand(t, m, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}})
	for day := range uint64(8) {
		last := day<<22 + 1<<22 - 1
		if day == 3 {
			last -= lost
		}
		applyCommand(t, m, bitsCommand(day, day<<22, last))
	}
	return m
}

func applyCommand(t *testing.T, m *shardMachine, c *ebbv1.Command) {
	t.Helper()
	raw, err := pb.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := pb.Marshal(&ebbv1.Entry{StampUs: unionsNow, Commands: [][]byte{raw}})
	if err != nil {
		t.Fatal(err)
	}
	results := m.Apply(&raft.Log{Index: m.index() + 1, Type: raft.LogCommand, Data: entry}).([]*ebbv1.CommandResult)
	if r := results[0]; r.Error != nil || len(r.Refused) > 0 {
		t.Fatal(r)
	}
}

func bitsCommand(day, first, last uint64) *ebbv1.Command {
	return &ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{
		{Key: playKey(day), Op: ebbv1.BitOp_BIT_OP_SET, Range: &ebbv1.BitRange{First: first, Last: last}},
	}}}}
}

func playKey(day uint64) []byte { return fmt.Appendf(nil, "play/2011-11-%02d", day+1) }

func (m *shardMachine) countDays(first, last uint64) uint64 {
	or := &ebbv1.BitmapExprs{}
	for day := first; day <= last; day++ {
		or.Of = append(or.Of, &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: playKey(day)}})
	}
	return m.askView(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: or}}, Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}}}}, sketch.Tick(unionsNow), 2, math.MaxInt, new(readMetrics)).GetAnswer().GetBitmap().GetCount()
}

// The second question about a window makes unions, and those that follow use them until a bitmap changes.
func TestUnionsOfANode(t *testing.T) {
	kept := newUnions(64 << 20)
	m := periodsMachine(t, kept)
	for question, want := range []shard.UnionCacheStats{{Windows: 1}, {Windows: 2, Made: 2, Kept: 2}, {Windows: 3, Made: 2, Kept: 2, Answered: 1}} {
		if n := m.countDays(1, 6); n != 6<<22 {
			t.Fatalf("question %d: %d ids", question, n)
		}
		got := kept.stats()
		if got.Bytes = 0; got != want {
			t.Errorf("question %d: %+v, want %+v", question, got, want)
		}
	}
	applyCommand(t, m, bitsCommand(3, 1<<30, 1<<30))
	if n := m.countDays(1, 6); n != 6<<22+1 || kept.stats().Outdated != 2 || kept.stats().Bytes != 0 {
		t.Errorf("after one more: %d ids, %+v", n, kept.stats())
	}
	if none := periodsMachine(t, newUnions(-1)); none.countDays(1, 6) != 6<<22 {
		t.Error("without unions the count is another")
	}
}

// A replica that differed has other bitmaps under the same versions when it is repaired: what was kept of the old ones
// goes.
func TestUnionsAfterARepair(t *testing.T) {
	kept := newUnions(64 << 20)
	m := periodsWithout(t, kept, 1<<20)
	for range 3 {
		if n := m.countDays(1, 6); n != 6<<22-1<<20 {
			t.Fatalf("%d ids", n)
		}
	}
	m.record(true)
	if _, err := m.replace(periodsMachine(t, nil).state); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n := m.countDays(1, 6); n != 6<<22 {
			t.Errorf("repaired, it counts %d ids, want %d", n, 6<<22)
		}
	}
}

// Questions about windows run at the same time as edits and as each other. They count what was there at some moment
// since they were asked.
func TestUnionsBesideEdits(t *testing.T) {
	kept := newUnions(16 << 20)
	m := periodsMachine(t, kept)
	var begun, done atomic.Uint64 // ids added to the last day
	var all sync.WaitGroup
	for asker := range uint64(2) {
		all.Go(func() {
			for round := range uint64(40) {
				first := (asker + round) % 3
				least := done.Load()
				n := m.countDays(first, 7) - (8-first)<<22
				if most := begun.Load(); n < least || n > most {
					t.Errorf("days %d to 7: %d ids more, it was %d to %d", first, n, least, most)
				}
			}
		})
	}
	for i := range uint64(60) {
		begun.Store(i + 1)
		applyCommand(t, m, bitsCommand(7, 1<<30+i<<16, 1<<30+i<<16))
		done.Store(i + 1)
	}
	all.Wait()
	if s := kept.stats(); s.Made == 0 || s.Bytes > 16<<20 {
		t.Errorf("%+v", s)
	}
}
