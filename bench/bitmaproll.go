package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// rolledDays is how many of the last days are measured. A window ends with each of them.
const rolledDays = 7

// unionBytes bounds the memory of all unions, as in a node by default.
const unionBytes = 512 << 20

// BitmapRolling is the result for a window that moves by a day at a time. It moves for weeks before it is measured.
// Each day it is asked for three times, with other data in the CPU caches. First finds the unions of earlier windows
// and the new day. Second makes a union that ends with that day. Third finds two unions. Times are medians over the
// last days.
type BitmapRolling struct {
	Days   int           `json:"days"`
	Count  uint64        `json:"count"` // of the last window
	First  time.Duration `json:"first_ns"`
	Second time.Duration `json:"second_ns"`
	Third  time.Duration `json:"third_ns"`
	Unions int           `json:"unions"` // kept at the end, in each state
	Bytes  int           `json:"union_bytes"`
	Made   uint64        `json:"unions_made"` // in each state, on all days
}

// roll asks for the windows that end with each day.
func (w *bitmapWorld) roll(ctx context.Context, days int) (r BitmapRolling, err error) {
	r.Days = days
	mems, kept := make([]*mapped.Memory, len(w.states)), make([]*shard.UnionCache, len(w.states))
	for i := range w.states {
		mems[i] = mapped.New()
		kept[i] = shard.NewUnionCache(mems[i], unionBytes/len(w.states))
	}
	var took [3][]time.Duration
	for last := range w.days {
		q := bitmapAsk(&ebbv1.BitmapQuestion{Expr: anyDay(last-days+1, days), Select: &ebbv1.BitmapQuestion_Count{Count: true}})
		measured := last >= w.days-rolledDays
		for round := range took {
			if measured {
				w.fillCaches()
			}
			start := time.Now()
			n, err := w.total(func(i int) *ebbv1.ShardAnswer { return askUnion(w.states[i], kept[i], mems[i], q) })
			if took := &took[round]; measured {
				*took = append(*took, time.Since(start))
			}
			if err != nil || ctx.Err() != nil {
				return r, cmp.Or(err, ctx.Err())
			}
			if round > 0 && n != r.Count {
				return r, fmt.Errorf("%d days, with unions: %d users, without %d", days, n, r.Count)
			}
			if r.Count = n; round == 0 && measured {
				if r.Count, err = w.total(func(i int) *ebbv1.ShardAnswer { return w.states[i].Ask(q, w.states[i].Now()) }); err != nil {
					return r, err
				}
				if r.Count != n {
					return r, fmt.Errorf("%d days, with unions: %d users, without %d", days, n, r.Count)
				}
			}
		}
	}
	for round, of := range []*time.Duration{&r.First, &r.Second, &r.Third} {
		slices.Sort(took[round])
		*of = took[round][rolledDays/2]
	}
	for _, u := range kept {
		r.Bytes += u.Bytes
	}
	r.Unions, r.Made = kept[0].Kept, kept[0].Made
	return r, nil
}

// askUnion asks a state as a node does. Evicted pages are not in use then, because there is only one question at a
// time.
func askUnion(s *shard.State, kept *shard.UnionCache, mem *mapped.Memory, q *ebbv1.ShardQuestion) *ebbv1.ShardAnswer {
	view := s.Freeze()
	defer view.Release()
	defer mem.Hold()()
	for _, w := range view.Windows(q, s.Now()) {
		have, planned := kept.Find(w)
		for _, d := range planned {
			kept.Add(view.BuildUnion(d, s.Now(), mem))
			have = kept.Cover(w)
		}
		view.Use(w, have)
	}
	return view.Ask(q, s.Now())
}
