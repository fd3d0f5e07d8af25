package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/RoaringBitmap/roaring/v2"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// Bitmaps measures Spool's question in one process, on states of shards without log and network. The question is how
// many different users there were within 1, 7 and 30 days, with one bitmap of users for each day. The slices of the
// bitmaps are spread over as many states as there are cores, and all states are asked at once. Nothing is cached
// between questions, and other data fills the CPU caches before each. Then windows that roll are measured, with unions
// of periods kept as a node keeps them: see BitmapRolling.
type Bitmaps struct {
	IDs     uint64 // number of users; 128,000,000 if 0
	Shape   BitmapShape
	Rounds  int  // of each question; 9 if 0
	Still   bool // do not measure windows that roll
	Roaring bool
	Redis   string // a directory for redis-server; Redis is not measured if empty
	// Say, if not nil, is called with a description of each step.
	Say func(what string)
}

// BitmapShape says which users are in the bitmaps.
type BitmapShape string

// The shapes. In the clustered shape about 2,000 consecutive users are in, and then about 18,000 are out.
const (
	BitmapHalf      BitmapShape = "50%"
	BitmapTwentieth BitmapShape = "5%"
	BitmapClustered BitmapShape = "clustered"
)

// BitmapShapes are all the shapes.
var BitmapShapes = []BitmapShape{BitmapHalf, BitmapTwentieth, BitmapClustered}

// bitmapDays are the lengths in days of the windows.
var bitmapDays = []int{1, 7, 30}

// BitmapsResult is the result of a run. Times are medians of the rounds.
type BitmapsResult struct {
	Shape         BitmapShape    `json:"shape"`
	IDs           int64          `json:"ids"` // in all bitmaps
	LoadPerSecond float64        `json:"load_ids_per_second"`
	LoadCores     int            `json:"load_cores"`
	Mapped        int64          `json:"mapped_bytes"`
	Bandwidth     float64        `json:"memory_bytes_per_second"` // how fast all cores read memory in sequence
	Windows       []BitmapWindow `json:"windows"`

	Rolling []BitmapRolling `json:"rolling"`
}

// BitmapWindow is the result of one question.
type BitmapWindow struct {
	Days    int           `json:"days"`
	Count   uint64        `json:"count"`
	Took    time.Duration `json:"took_ns"`
	Least   time.Duration `json:"least_ns"`
	Roaring time.Duration `json:"roaring_ns"` // of roaring/v2; 0 if it was not measured
	Redis   time.Duration `json:"redis_ns"`   // of BITOP OR and BITCOUNT; 0 if it was not measured
}

// bitmapWorld holds the bitmaps of a run.
type bitmapWorld struct {
	Bitmaps
	days   int
	states []*shard.State
	mems   []*mapped.Memory
	other  []uint64 // other data, to fill the CPU caches
}

// Run loads the bitmaps, and asks.
func (b Bitmaps) Run(ctx context.Context) (r BitmapsResult, err error) {
	or(&b.IDs, 128_000_000)
	or(&b.Rounds, 9)
	if b.Say == nil {
		b.Say = func(string) {}
	}
	w := &bitmapWorld{Bitmaps: b, days: bitmapDays[len(bitmapDays)-1] + rolledDays, other: make([]uint64, 64<<20/8)}
	if b.Still {
		w.days -= rolledDays
	}
	for i := range runtime.GOMAXPROCS(0) {
		mem := mapped.New()
		w.mems = append(w.mems, mem)
		w.states = append(w.states, shard.New(shard.ID(i+1), mem))
	}
	r.Shape, r.LoadCores = b.Shape, len(w.states)
	b.Say(fmt.Sprintf("%d days of %d users, %s", w.days, b.IDs, b.Shape))
	if r.IDs, r.LoadPerSecond, err = w.load(ctx); err != nil {
		return r, err
	}
	for _, m := range w.mems {
		r.Mapped += m.Mapped()
	}
	b.Say("asking")
	for _, days := range bitmapDays {
		window := BitmapWindow{Days: days}
		window.Took, window.Least, err = w.timed(ctx, func(context.Context) (err error) {
			window.Count, err = w.count(days)
			return err
		})
		if err != nil {
			return r, err
		}
		r.Windows = append(r.Windows, window)
	}
	r.Bandwidth = w.bandwidth()
	for _, days := range bitmapDays[1:] {
		if b.Still {
			break
		}
		b.Say(fmt.Sprintf("windows of %d days that roll", days))
		rolling, err := w.roll(ctx, days)
		if err != nil {
			return r, err
		}
		r.Rolling = append(r.Rolling, rolling)
	}
	if b.Roaring {
		b.Say("the same with roaring/v2")
		if err := w.roaring(ctx, &r); err != nil {
			return r, err
		}
	}
	if b.Redis != "" {
		b.Say("the same in redis-server")
		err = w.redis(ctx, &r)
	}
	return r, err
}

func bitmapKey(day int) []byte {
	return time.Date(2011, 11, 1+day, 0, 0, 0, 0, time.UTC).AppendFormat([]byte("play/"), time.DateOnly)
}

// eachSlice calls f with the ids of a day in each slice part, part+parts, ..., unless there are none.
func (w *bitmapWorld) eachSlice(day, part, parts int, f func(ids []uint64) error) error {
	ids := make([]uint64, 0, 1<<proto.BitSliceBits)
	for slice := uint64(part); slice<<proto.BitSliceBits < w.IDs; slice += uint64(parts) {
		first := slice << proto.BitSliceBits
		ids = w.Shape.appendIDs(ids[:0], rand.New(rand.NewPCG(uint64(day), slice)), first, min(w.IDs-first, 1<<proto.BitSliceBits))
		if len(ids) == 0 {
			continue
		}
		if err := f(ids); err != nil {
			return err
		}
	}
	return nil
}

// appendIDs draws ids from the n consecutive ids that begin with first, and appends them.
func (s BitmapShape) appendIDs(ids []uint64, rng *rand.Rand, first, n uint64) []uint64 {
	switch s {
	case BitmapHalf:
		for at := uint64(0); at < n; at += 64 {
			for word := rng.Uint64(); word != 0; word &= word - 1 {
				if id := at + uint64(bits.TrailingZeros64(word)); id < n {
					ids = append(ids, first+id)
				}
			}
		}
	case BitmapTwentieth:
		for at := rng.Uint64N(39); at < n; at += 1 + rng.Uint64N(39) {
			ids = append(ids, first+at)
		}
	case BitmapClustered:
		for at := rng.Uint64N(36_000); at < n; at += 1 + rng.Uint64N(36_000) {
			for end := min(at+rng.Uint64N(4_000), n); at < end; at++ {
				ids = append(ids, first+at)
			}
		}
	}
	return ids
}

// load applies the ids of all days to the states, in parallel, with a command for each slice. The rate counts only the
// time of applying: ids are drawn and encoded before.
func (w *bitmapWorld) load(ctx context.Context) (ids int64, perSecond float64, err error) {
	type outcome struct {
		ids  int64
		busy time.Duration
		err  error
	}
	done := make(chan outcome, len(w.states))
	for part, state := range w.states {
		go func() {
			var o outcome
			l := bitmapLoader{state: state, stamp: memoryStart}
			o.err = l.define()
			for day := 0; day < w.days && o.err == nil; day++ {
				key := bitmapKey(day)
				o.err = w.eachSlice(day, part, len(w.states), func(some []uint64) error {
					o.ids += int64(len(some))
					busy, err := l.set(key, some)
					o.busy += busy
					return cmp.Or(err, ctx.Err())
				})
			}
			done <- o
		}()
	}
	for range w.states {
		o := <-done
		ids += o.ids
		perSecond += float64(o.ids) / o.busy.Seconds()
		err = cmp.Or(err, o.err)
	}
	return ids, perSecond, err
}

// bitmapLoader applies log entries to a state.
type bitmapLoader struct {
	state   *shard.State
	stamp   int64
	entry   []byte
	results []*ebbv1.CommandResult
}

func (l *bitmapLoader) define() error {
	raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: proto.DefaultNamespace, Version: 1}}})
	if err != nil {
		return err
	}
	return l.apply(raw)
}

// set sets ids of one slice in a bitmap, and returns how long that took.
func (l *bitmapLoader) set(key []byte, ids []uint64) (time.Duration, error) {
	raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{
		{Key: key, Op: ebbv1.BitOp_BIT_OP_SET, Ids: proto.AppendBitIDs(nil, ids)},
	}}}})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	err = l.apply(raw)
	return time.Since(start), err
}

func (l *bitmapLoader) apply(command []byte) error {
	l.stamp += 100
	e := protowire.AppendTag(l.entry[:0], fieldEntryStamp, protowire.Fixed64Type)
	e = protowire.AppendFixed64(e, uint64(l.stamp))
	e = protowire.AppendTag(e, fieldEntryCommands, protowire.BytesType)
	l.entry = protowire.AppendBytes(e, command)
	l.results = l.state.Apply(l.state.Applied()+1, l.entry, l.results[:0])
	if r := l.results[0]; r.Error != nil || len(r.Refused) > 0 {
		return fmt.Errorf("applying %d bytes: %v", len(command), r)
	}
	return nil
}

func bitmapAsk(q *ebbv1.BitmapQuestion) *ebbv1.ShardQuestion {
	return &ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: q}}}
}

// anyDay is the union of the bitmaps of days days from first on.
func anyDay(first, days int) *ebbv1.BitmapExpr {
	or := &ebbv1.BitmapExprs{}
	for day := range days {
		or.Of = append(or.Of, &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: bitmapKey(first + day)}})
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: or}}
}

// count asks all states at once how many ids there are in any of the first days.
func (w *bitmapWorld) count(days int) (uint64, error) {
	or := anyDay(0, days)
	// The directories know the count of a single bitmap. So the expression takes out an id that no bitmap has, and the
	// bitmap is counted like the others.
	q := &ebbv1.BitmapQuestion{
		Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{
			or, {Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: w.IDs, Last: w.IDs}}},
		}}}},
		Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}
	if days > 1 {
		q.Expr = or
	}
	return w.total(func(i int) *ebbv1.ShardAnswer { return w.states[i].Ask(bitmapAsk(q), w.states[i].Now()) })
}

// total asks all states at once, and adds up their counts.
func (w *bitmapWorld) total(ask func(state int) *ebbv1.ShardAnswer) (uint64, error) {
	counts, errs := make([]uint64, len(w.states)), make([]error, len(w.states))
	var wg sync.WaitGroup
	for i := range w.states {
		wg.Go(func() {
			a := ask(i)
			counts[i] = a.GetAnswer().GetBitmap().GetCount()
			if e := proto.FromWire(a.GetError()); e != nil {
				errs[i] = e
			}
		})
	}
	wg.Wait()
	total := uint64(0)
	for i := range counts {
		if errs[i] != nil {
			return 0, errs[i]
		}
		total += counts[i]
	}
	return total, nil
}

// fillCaches fills the CPU caches with other data.
func (w *bitmapWorld) fillCaches() { runtime.KeepAlive(sumOf(w.other)) }

func sumOf(words []uint64) (sum uint64) {
	for i := 0; i+8 <= len(words); i += 8 {
		b := (*[8]uint64)(words[i:])
		sum += b[0] + b[1] + b[2] + b[3] + b[4] + b[5] + b[6] + b[7]
	}
	return sum
}

// bandwidth measures how fast all cores together read memory that is in no cache.
func (w *bitmapWorld) bandwidth() float64 {
	words := make([]uint64, 512<<20/8)
	for i := 0; i < len(words); i += 512 {
		words[i] = 1
	}
	best := 0.0
	for range 5 {
		start, parts := time.Now(), runtime.GOMAXPROCS(0)
		sums := make([]uint64, parts)
		var wg sync.WaitGroup
		for p := range parts {
			wg.Go(func() { sums[p] = sumOf(words[len(words)/parts*p : len(words)/parts*(p+1)]) })
		}
		wg.Wait()
		runtime.KeepAlive(sums)
		best = max(best, float64(len(words)*8)/time.Since(start).Seconds())
	}
	return best
}

// roaring asks the same question of roaring bitmaps, split into as many parts.
func (w *bitmapWorld) roaring(ctx context.Context, r *BitmapsResult) error {
	parts := len(w.states)
	all := make([][]*roaring.Bitmap, parts)
	errs := make([]error, parts)
	var wg sync.WaitGroup
	for part := range parts {
		wg.Go(func() {
			for day := range bitmapDays[len(bitmapDays)-1] {
				m := roaring.New()
				var lows []uint32
				errs[part] = cmp.Or(errs[part], w.eachSlice(day, part, parts, func(ids []uint64) error {
					lows = lows[:0]
					for _, id := range ids {
						lows = append(lows, uint32(id))
					}
					m.AddMany(lows)
					return ctx.Err()
				}))
				m.RunOptimize()
				all[part] = append(all[part], m)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	for i := range r.Windows {
		window := &r.Windows[i]
		var took []time.Duration
		for range w.Rounds {
			w.fillCaches()
			start := time.Now()
			counts := make([]uint64, parts)
			for part := range parts {
				wg.Go(func() { counts[part] = roaring.FastOr(all[part][:window.Days]...).GetCardinality() })
			}
			wg.Wait()
			took = append(took, time.Since(start))
			total := uint64(0)
			for _, n := range counts {
				total += n
			}
			if total != window.Count {
				return fmt.Errorf("%d days: roaring counts %d users, ebb %d", window.Days, total, window.Count)
			}
		}
		slices.Sort(took)
		window.Roaring = took[len(took)/2]
	}
	return nil
}
