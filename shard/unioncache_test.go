package shard

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Questions about windows of periods are answered with unions that were made for earlier ones, and say what a map says.

// lent asks a view as a node does.
func lent(t testing.TB, u *UnionCache, mem Memory, s *State, ask *ebbv1.BitmapQuestion, at sketch.Tick) (a *ebbv1.BitmapAnswer, bitmaps int) {
	t.Helper()
	question := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: ask}}
	if err := proto.CheckQuestion(question); err != nil {
		t.Fatal(err)
	}
	q := &ebbv1.ShardQuestion{Question: question}
	view := s.Freeze()
	defer view.Release()
	defer mem.Hold()()
	for _, w := range view.Windows(q, at) {
		have, planned := u.Find(w)
		for _, d := range planned {
			u.Add(view.BuildUnion(d, at, mem))
			have = u.Cover(w)
		}
		covered := map[int64]bool{}
		for _, union := range have {
			for p := union.First; p < union.end(); p++ {
				covered[p] = true
			}
		}
		bitmaps += len(have) + w.Len - len(covered)
		view.Use(w, have)
	}
	answer := view.Ask(q, at)
	if answer.Error != nil {
		t.Fatalf("%v: %v", ask, answer.Error)
	}
	return answer.GetAnswer().GetBitmap(), bitmaps
}

func dayKey(day int) string {
	return "play/" + time.Date(2011, 11, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, day).Format("2006-01-02")
}

// days is who was there on any day from first to last.
func days(first, last int) *ebbv1.BitmapExpr {
	or := &ebbv1.BitmapExprs{}
	for day := first; day <= last; day++ {
		or.Of = append(or.Of, keyExpr(dayKey(day)))
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: or}}
}

func counted(x *ebbv1.BitmapExpr) *ebbv1.BitmapQuestion {
	return &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Count{Count: true}}
}

// Whatever happens to bitmaps between questions, and however much room there is, windows are what a map says. What made
// way for others is wiped.
func TestWindowsAreWhatAMapSays(t *testing.T) {
	const family = 16
	for name, room := range map[string]int{"no room": 0, "room for few": 8 * 8 * unionPages * PageWords, "room for all": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 7))
			s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
			mem := &wiping{}
			u := NewUnionCache(mem, room)
			want := map[string]idSet{"premium": {}}
			change := func() {
				key := dayKey(r.IntN(family))
				if want[key] == nil {
					want[key] = idSet{}
				}
				var ids []uint64
				for range 1 + r.IntN(1500) {
					ids = append(ids, r.Uint64N(4<<16))
				}
				slices.Sort(ids)
				ids = slices.Compact(ids)
				switch r.IntN(12) {
				case 0:
					applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte(key)}}}})
					delete(want, key)
				case 1:
					stored := dayKey(r.IntN(family))
					applyOne(t, s, stored2(key, stored, "premium"))
					union := maps.Clone(want["premium"])
					maps.Copy(union, want[stored])
					want[key] = union
				case 2:
					var err error
					if s, err = Restore(1, &wiping{}, bytes.NewReader(snapshot(t, s))); err != nil {
						t.Fatal(err)
					}
				case 3:
					applyOne(t, s, edits(bitsOf("premium", flipOp, ids...)))
					want["premium"].edit(flipOp, ids...)
				default:
					op := []ebbv1.BitOp{setOp, setOp, clearOp, flipOp}[r.IntN(4)]
					applyOne(t, s, edits(bitsOf(key, op, ids...)))
					want[key].edit(op, ids...)
				}
			}
			for range 3 * family {
				change()
			}
			for range 60 {
				first := r.IntN(family - 6)
				last := first + 3 + r.IntN(family-first-3)
				in := idSet{}
				for day := first; day <= last; day++ {
					maps.Copy(in, want[dayKey(day)])
				}
				for range r.IntN(4) {
					x, expected := days(first, last), in
					if r.IntN(2) == 0 {
						x = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyExpr("premium"), x}}}}
						expected = maps.Clone(in)
						maps.DeleteFunc(expected, func(id uint64, _ bool) bool { return !want["premium"][id] })
					}
					if got, _ := lent(t, u, mem, s, counted(x), beginning); got.Count != uint64(len(expected)) {
						t.Fatalf("days %d to %d: %d ids, want %d", first, last, got.Count, len(expected))
					}
					page := &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{From: 70_000, Limit: 50}}}
					ids := expected.sorted()
					at, _ := slices.BinarySearch(ids, 70_000)
					ids = ids[at:min(at+50, len(ids))]
					if got, _ := lent(t, u, mem, s, page, beginning); !slices.Equal(got.Ids, ids) {
						t.Fatalf("days %d to %d: %v", first, last, cmp.Diff(ids, got.Ids))
					}
				}
				if r.IntN(2) == 0 {
					change()
				}
			}
			switch {
			case room == 0 && u.Made > 0,
				room > 0 && (u.Made == 0 || u.Answered == 0 || u.Outdated == 0),
				name == "room for few" && u.Evicted == 0,
				u.Bytes > room:
				t.Errorf("unions: %+v", u.UnionCacheStats)
			}
			for u.recent.Len() > 0 {
				u.drop(u.recent.Back())
			}
			if mem.out != 0 || u.Bytes != 0 || u.Kept != 0 || len(u.all) != 0 {
				t.Errorf("%d pages and %d bytes are not given back", mem.out, u.Bytes)
			}
		})
	}
}

// stored2 gives a key what two others have together.
func stored2(key, a, b string) *ebbv1.Command {
	return storing(key, &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyExpr(a), keyExpr(b)}}}})
}

// A window that rolls is at most three bitmaps a day on, with its last day still open; two when it is asked again after
// that is closed. Each day takes one union more.
func TestWindowsThatRoll(t *testing.T) {
	for _, width := range []int{7, 30} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
			mem := &wiping{}
			u := NewUnionCache(mem, 1<<30)
			there := map[int]idSet{}
			play := func(day int, ids ...uint64) {
				applyOne(t, s, edits(bitsOf(dayKey(day), setOp, ids...)))
				if there[day] == nil {
					there[day] = idSet{}
				}
				there[day].edit(setOp, ids...)
			}
			for day := range 80 {
				play(day, uint64(day))
				if day < width-1 {
					continue
				}
				window := counted(days(day-width+1, day))
				made := u.Made
				for hour := range 4 { // while the day is written to
					play(day, 1000+uint64(hour), uint64(day)<<20+uint64(hour))
					in := idSet{}
					for d := day - width + 1; d <= day; d++ {
						maps.Copy(in, there[d])
					}
					got, bitmaps := lent(t, u, mem, s, window, beginning)
					if got.Count != uint64(len(in)) {
						t.Errorf("day %d, hour %d: %d ids, want %d", day, hour, got.Count, len(in))
					}
					if day > 2*width && bitmaps > 4 || day > 2*width && hour > 1 && bitmaps > 3 {
						t.Errorf("day %d, hour %d: %d bitmaps", day, hour, bitmaps)
					}
				}
				for again := range 3 { // when it is closed
					if _, bitmaps := lent(t, u, mem, s, window, beginning); again > 0 && bitmaps > 2 {
						t.Errorf("day %d, question %d after it: %d bitmaps", day, again, bitmaps)
					}
				}
				if day > 2*width && u.Made-made > 1 {
					t.Errorf("day %d: %d unions were made", day, u.Made-made)
				}
			}
		})
	}
}

// What changes a bitmap changes its version, also when the change leaves it as large as it was, and nothing else does.
func TestEditions(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	for day := range 4 {
		applyOne(t, s, edits(bitsOf(dayKey(day), setOp, 1, 2, 3)))
	}
	q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: counted(days(0, 3))}}}
	versions := func(at sketch.Tick) []BitmapVersion { return s.Windows(q, at)[0].Versions }
	first := []byte(dayKey(0))
	for _, c := range []struct {
		name    string
		do      *ebbv1.Command
		changes bool
	}{
		{"set again", edits(bitsOf(dayKey(0), setOp, 1, 2)), false},
		{"another key", edits(bitsOf("other", setOp, 1)), false},
		{"set", edits(bitsOf(dayKey(0), setOp, 4)), true},
		{"clear", edits(bitsOf(dayKey(0), clearOp, 4)), true},
		{"store", storing(dayKey(0), keyExpr(dayKey(1))), true},
		{"rename over", &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: first, Overwrite: true, What: &ebbv1.PutKey_From{From: []byte(dayKey(1))}}}}, true},
		{"delete", &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{first}}}}, true},
		{"set when it was gone", edits(bitsOf(dayKey(0), setOp, 1, 2, 3)), true},
	} {
		before := versions(beginning)
		if r := applyOne(t, s, c.do); r.Error != nil {
			t.Fatalf("%s: %v", c.name, r.Error)
		}
		if changed := !slices.Equal(before, versions(beginning)); changed != c.changes {
			t.Errorf("%s: before %v, now %v", c.name, before, versions(beginning))
		}
	}
	before := versions(beginning)
	expire := &ebbv1.ExpireKeys{Keys: [][]byte{first}, Until: &ebbv1.ExpireKeys_AtUs{AtUs: beginning + 60*second}}
	applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: expire}})
	if now, later := versions(beginning), versions(beginning+61*second); !slices.Equal(before, now) || later[0] != (BitmapVersion{}) {
		t.Errorf("a key that expires: %v before, %v now, %v later", before, now, later)
	}
	back, err := Restore(1, Heap{}, bytes.NewReader(snapshot(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	if e := back.Windows(q, beginning)[0].Versions[2]; e.Edited != s.Applied() {
		t.Errorf("of a state restored at %d: edited at %d", s.Applied(), e.Edited)
	}
}

// What a union remembers of its bitmaps counts as its memory: of empty ones it is all there is. What is remembered of a
// span that was asked for once does not grow with it.
func TestUnionsOfNothing(t *testing.T) {
	const periods = 4096
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	mem := &wiping{}
	u := NewUnionCache(mem, 1<<20)
	for range 2 {
		if got, _ := lent(t, u, mem, s, counted(days(0, periods-1)), beginning); got.Count != 0 {
			t.Error(got)
		}
	}
	if least := periods * int(unsafe.Sizeof(BitmapVersion{})); u.Kept != 1 || u.Bytes < least {
		t.Errorf("%d unions of %d bytes, want 1 of %d at least", u.Kept, u.Bytes, least)
	}
	w := &Window{windowID: windowID{Span: Span{1 << 20, periods}}, Versions: make([]BitmapVersion, periods), keys: make([][]byte, periods), Whole: true}
	if n := testing.AllocsPerRun(10, func() { u.remember(w.windowID, w.Versions) }); n > 0 {
		t.Errorf("remember takes %v allocations", n)
	}
}

// Where bitmaps are placed by slice their parts are periods like others. One that was made again under another number
// is another.
func TestWindowsOfParts(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE})
	mem := &wiping{}
	u := NewUnionCache(mem, 1<<30)
	number := func(day int) uint64 { return 1000 + uint64(day) }
	part := func(day int) string { return string(proto.PartName(number(day), []byte(dayKey(day)))) }
	set := func(list ...*ebbv1.BitEdit) {
		c := edits(list...)
		c.GetBits().UntilUs = 1 << 60
		if r := applyOne(t, s, c); r.Error != nil || len(r.Refused) > 0 {
			t.Fatal(r)
		}
	}
	for day := range 8 {
		set(bitsOf(part(day), setOp, uint64(day), 1<<20))
	}
	again := string(proto.PartName(7, []byte(dayKey(3))))
	set(bitsOf(part(3), setOp, 77), bitsOf(again, setOp, 8, 9, 10)) // by one entry
	for _, c := range []struct {
		day3    string
		want    uint64
		bitmaps []int
	}{
		{part(3), 10, []int{8, 1, 1}}, // 0 to 7, 77 and 2^20
		{again, 11, []int{8, 1, 1}},   // 0 to 10 without 3, and 2^20
		{part(3), 10, []int{8, 1}},
	} {
		or := &ebbv1.BitmapExprs{}
		for day := range 8 {
			key := part(day)
			if day == 3 {
				key = c.day3
			}
			or.Of = append(or.Of, keyExpr(key))
		}
		for question, bitmaps := range c.bitmaps {
			got, n := lent(t, u, mem, s, counted(&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: or}}), beginning)
			if got.Count != c.want || n != bitmaps {
				t.Errorf("question %d: %d ids of %d bitmaps, want %d of %d", question, got.Count, n, c.want, bitmaps)
			}
		}
	}
}
