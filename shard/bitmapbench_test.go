package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// loadEntries are the entries of a bulk load: sorted ids, 65,536 to a command.
func loadEntries(b *testing.B, ids []uint64) (entries [][]byte) {
	b.Helper()
	for chunk := range slices.Chunk(ids, proto.BitIDsMax) {
		e := &ebbv1.BitEdit{Key: []byte("k"), Op: setOp, Ids: proto.AppendBitIDs(nil, chunk)}
		entries = append(entries, encodeEntry(b, beginning, []*ebbv1.Command{edits(e)}))
	}
	return entries
}

// Ids a second that a shard takes off its log, sorted and at random.
func BenchmarkBitmapLoad(b *testing.B) {
	const n = 8 << 20
	r := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		name   string
		sorted bool
		next   func(last uint64) uint64
	}{
		{"dense", true, func(last uint64) uint64 { return last + 1 + r.Uint64N(3) }},
		{"sparse", true, func(last uint64) uint64 { return last + 1 + r.Uint64N(1000) }},
		{"runs", true, func(last uint64) uint64 {
			if r.IntN(100) == 0 {
				return last + 100
			}
			return last + 1
		}},
		{"random", false, func(uint64) uint64 { return r.Uint64N(128 << 20) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			ids := make([]uint64, n)
			last := uint64(0)
			for i := range ids {
				last = c.next(last)
				ids[i] = last
			}
			var entries [][]byte
			if c.sorted {
				entries = loadEntries(b, ids)
			} else {
				for chunk := range slices.Chunk(ids, 32<<10) { // as a BitWriter sorts them
					slices.Sort(chunk)
					entries = append(entries, loadEntries(b, slices.Compact(chunk))...)
				}
			}
			b.ResetTimer()
			for range b.N {
				s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1})
				for _, e := range entries {
					s.Apply(s.Applied()+1, e, nil)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mids/s")
		})
	}
}

// BenchmarkBitmapSmall measures what a million small bitmaps take in addition to 4 bytes an id: in records, and in all
// pages. They have 20 ids below 2^32 on average, with a Pareto distribution.
func BenchmarkBitmapSmall(b *testing.B) {
	const keys = 1 << 20
	for range b.N {
		r := rand.New(rand.NewPCG(1, 1))
		s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1})
		ids := 0
		var commands []*ebbv1.Command
		for key := range keys {
			n := int(min(math.Pow(1-r.Float64(), -1/1.2)*20*0.2/1.2+1, 1000))
			list := make([]uint64, n)
			for i := range list {
				list[i] = r.Uint64N(1 << 32)
			}
			commands = append(commands, edits(bitsOf(fmt.Sprintf("u/%07d", key), setOp, list...)))
			ids += n
			if len(commands) == 1000 {
				s.Apply(s.Applied()+1, encodeEntry(b, beginning, commands), nil)
				commands = commands[:0]
			}
		}
		taken := 8 * s.summaries.bins.taken
		b.ReportMetric(float64(ids)/keys, "ids/bitmap")
		all := taken + PageBytes*(len(s.summaries.keys.pages)+int(s.keys.index.slots.len()))
		b.ReportMetric((float64(taken)-4*float64(ids))/keys, "recordB/bitmap")
		b.ReportMetric((float64(all)-4*float64(ids))/keys, "allB/bitmap")
	}
}

// What is counted over days of 32 million ids, all of it in one shard and on one core.
func BenchmarkBitmapCount(b *testing.B) {
	const users = 32 << 20
	for _, density := range []int{2} {
		s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1})
		r := rand.New(rand.NewPCG(1, 1))
		var days []*ebbv1.BitmapExpr
		for day := range 30 {
			key := fmt.Sprintf("play/2011-11-%02d", day+1)
			days = append(days, keyExpr(key))
			for from := uint64(0); from < users; from += 1 << 17 {
				ids := make([]uint64, 0, 1<<17)
				for id := from + r.Uint64N(uint64(density)); id < from+1<<17; id += 1 + r.Uint64N(2*uint64(density)-1) {
					ids = append(ids, id)
				}
				for chunk := range slices.Chunk(ids, proto.BitIDsMax) {
					e := &ebbv1.BitEdit{Key: []byte(key), Op: setOp, Ids: proto.AppendBitIDs(nil, chunk)}
					s.Apply(s.Applied()+1, encodeEntry(b, beginning, []*ebbv1.Command{edits(e)}), nil)
				}
			}
		}
		for _, n := range []int{1, 7, 30} {
			b.Run(fmt.Sprintf("1-in-%d/%d-days", density, n), func(b *testing.B) {
				or := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: days[:n]}}}
				x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{or, keyExpr("play/2011-11-30")}}}}
				for range b.N {
					askBits(b, &s.frame, &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Count{Count: true}})
				}
			})
		}
	}
}

// What a question about 30 bitmaps takes before it reads any of them: each shard of a cluster does this.
func BenchmarkBitmapCompile(b *testing.B) {
	s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1})
	var days []*ebbv1.BitmapExpr
	for day := range 30 {
		key := fmt.Sprintf("play/2011-11-%02d", day+1)
		days = append(days, keyExpr(key))
		e := &ebbv1.BitEdit{Key: []byte(key), Op: setOp, Ids: proto.AppendBitIDs(nil, []uint64{uint64(day), 1 << 16, 2 << 16})}
		s.Apply(s.Applied()+1, encodeEntry(b, beginning, []*ebbv1.Command{edits(e)}), nil)
	}
	or := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: days}}}
	q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: or, Select: &ebbv1.BitmapQuestion_Count{Count: true}}}}}
	b.ReportAllocs()
	for range b.N {
		if s.CostsMore(q, 50_000) || s.Ask(q, beginning).GetAnswer().GetBitmap().GetCount() != 32 {
			b.Fatal("another count")
		}
	}
}

// A table of 30 days of 8 million ids: of those who come for the first time, and of everyone.
func BenchmarkBitmapCohort(b *testing.B) {
	const users = 8 << 20
	for _, density := range []int{2, 20, 200} {
		s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1})
		r := rand.New(rand.NewPCG(1, 1))
		table := &ebbv1.BitmapCohortQuestion{}
		for day := range 30 {
			key := fmt.Sprintf("play/2011-11-%02d", day+1)
			table.Periods = append(table.Periods, &ebbv1.BitmapCohortPeriod{Expr: keyExpr(key)})
			var ids []uint64
			for id := r.Uint64N(uint64(density)); id < users; id += 1 + r.Uint64N(2*uint64(density)-1) {
				ids = append(ids, id)
			}
			for chunk := range slices.Chunk(ids, proto.BitIDsMax) {
				e := &ebbv1.BitEdit{Key: []byte(key), Op: setOp, Ids: proto.AppendBitIDs(nil, chunk)}
				s.Apply(s.Applied()+1, encodeEntry(b, beginning, []*ebbv1.Command{edits(e)}), nil)
			}
		}
		for _, everyone := range []bool{false, true} {
			b.Run(fmt.Sprintf("1-in-%d/everyone=%v", density, everyone), func(b *testing.B) {
				table.Everyone = everyone
				q := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: table}}
				for range b.N {
					if a := s.Ask(&ebbv1.ShardQuestion{Question: q}, beginning); a.GetAnswer().GetCohort() == nil {
						b.Fatal(a)
					}
				}
			})
		}
	}
}
