package shard

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A bitmap is edited by commands and asked by expressions; what it should hold is a Go map.

type idSet map[uint64]bool

func (s idSet) sorted() []uint64 { return slices.Sorted(maps.Keys(s)) }

func bitsOf(key string, op ebbv1.BitOp, ids ...uint64) *ebbv1.BitEdit {
	return proto.EditOf(&ebbv1.BitChange{Key: []byte(key), Op: op, Ids: ids})
}

func rangeOf(key string, op ebbv1.BitOp, first, last uint64) *ebbv1.BitEdit {
	return &ebbv1.BitEdit{Key: []byte(key), Op: op, Range: &ebbv1.BitRange{First: first, Last: last}}
}

func edits(list ...*ebbv1.BitEdit) *ebbv1.Command {
	return &ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: list}}}
}

// applyOne applies a command in an entry of its own.
func applyOne(t testing.TB, s *State, c *ebbv1.Command) *ebbv1.CommandResult {
	t.Helper()
	return s.Apply(s.Applied()+1, encodeEntry(t, beginning, []*ebbv1.Command{c}), nil)[0]
}

// edit does to a set what an edit does to a bitmap, and says how many ids it changed.
func (s idSet) edit(op ebbv1.BitOp, ids ...uint64) (changed uint64) {
	for _, id := range ids {
		in := s[id]
		if in == (op == ebbv1.BitOp_BIT_OP_SET) && op != ebbv1.BitOp_BIT_OP_FLIP {
			continue
		}
		changed++
		if in {
			delete(s, id)
		} else {
			s[id] = true
		}
	}
	return changed
}

const (
	setOp   = ebbv1.BitOp_BIT_OP_SET
	clearOp = ebbv1.BitOp_BIT_OP_CLEAR
	flipOp  = ebbv1.BitOp_BIT_OP_FLIP
)

// shapes draw ids that make containers of every form, small bitmaps and directories of several leaves.
var shapes = map[string]func(r *rand.Rand) uint64{
	"few slices":    func(r *rand.Rand) uint64 { return r.Uint64N(3 << 16) },
	"clustered":     func(r *rand.Rand) uint64 { return r.Uint64N(40)<<20 | r.Uint64N(300) },
	"sparse":        func(r *rand.Rand) uint64 { return r.Uint64N(1 << 28) },
	"all over":      func(r *rand.Rand) uint64 { return r.Uint64() },
	"at both ends":  func(r *rand.Rand) uint64 { return r.Uint64N(2000) - 1000 },
	"a single lane": func(r *rand.Rand) uint64 { return r.Uint64N(1 << 12) },
}

// Whatever is set, cleared and flipped, a bitmap holds what a map does, says how many ids each edit changed, and
// survives a snapshot; a view keeps what it saw.
func TestBitmapIsASet(t *testing.T) {
	for name, draw := range shapes {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(len(name))))
			s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
			want := idSet{}
			for round := range 60 {
				op := []ebbv1.BitOp{setOp, setOp, setOp, flipOp, clearOp}[r.IntN(5)]
				if round > 45 {
					op = clearOp
				}
				var res *ebbv1.CommandResult
				var changed uint64
				if r.IntN(4) == 0 {
					first := draw(r)
					last := first + r.Uint64N(5000)
					if last < first {
						continue
					}
					for id := first; ; id++ {
						changed += want.edit(op, id)
						if id == last {
							break
						}
					}
					res = applyOne(t, s, edits(rangeOf("k", op, first, last)))
				} else {
					ids := idSet{}
					for range 1 + r.IntN(1<<r.IntN(13)) {
						ids[draw(r)] = true
					}
					if op == clearOp && round > 45 { // what is there
						have := want.sorted()
						for _, id := range have[:len(have)/2] {
							ids[id] = true
						}
					}
					changed = want.edit(op, ids.sorted()...)
					res = applyOne(t, s, edits(bitsOf("k", op, ids.sorted()...)))
				}
				if res.Error != nil || len(res.Refused) > 0 || res.Applied != 1 || res.Changed != changed {
					t.Fatalf("round %d: %v; %d ids were to be changed", round, res, changed)
				}
				if round%7 == 0 {
					view := s.Freeze()
					defer view.Release()
					kept := maps.Clone(want)
					defer func() { sameIDs(t, &view.frame, kept) }()
				}
				if round%10 == 0 {
					audit(t, s)
					sameIDs(t, &s.frame, want)
					again := reopen(t, s)
					audit(t, again)
					sameIDs(t, &again.frame, want)
					if again.Checksum() != s.Checksum() {
						t.Fatalf("round %d: another checksum after a restart", round)
					}
				}
			}
			applyOne(t, s, edits(bitsOf("k", clearOp, want.sorted()...)))
			audit(t, s)
			if s.Keys() != 0 || s.summaries.bins.used != 0 {
				t.Fatalf("%d keys and %d words are left of an empty bitmap", s.Keys(), s.summaries.bins.used)
			}
		})
	}
}

func askBits(t testing.TB, f *frame, q *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer {
	t.Helper()
	question := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: q}}
	if err := proto.CheckQuestion(question); err != nil {
		t.Fatal(err)
	}
	a := f.Ask(&ebbv1.ShardQuestion{Question: question}, beginning)
	if a.Error != nil {
		t.Fatalf("%v: %v", q, a.Error)
	}
	return a.GetAnswer().GetBitmap()
}

func keyExpr(key string) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
}

// sameIDs compares all that can be asked about key k with a set.
func sameIDs(t testing.TB, f *frame, want idSet) {
	t.Helper()
	sameAnswers(t, f, keyExpr("k"), want)
}

// sameAnswers compares all that can be asked about an expression with the set that it should be.
func sameAnswers(t testing.TB, f *frame, x *ebbv1.BitmapExpr, want idSet) {
	t.Helper()
	sameAnswersOf(t, func(q *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer { return askBits(t, f, q) }, x, want)
}

func sameAnswersOf(t testing.TB, answer func(q *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer, x *ebbv1.BitmapExpr, want idSet) {
	t.Helper()
	r := rand.New(rand.NewPCG(7, uint64(len(want))))
	ids := want.sorted()
	ask := func(q *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer {
		q.Expr = x
		return answer(q)
	}
	count := func(first, last uint64) uint64 {
		from, _ := slices.BinarySearch(ids, first)
		to, found := slices.BinarySearch(ids, last)
		if found {
			to++
		}
		return uint64(to - from)
	}
	if got := ask(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Count{Count: true}}).Count; got != uint64(len(ids)) {
		t.Fatalf("%v counts %d ids of %d", x, got, len(ids))
	}
	var got []uint64
	for from, more := uint64(0), true; more; {
		page := ask(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{From: from, Limit: 777}}})
		got = append(got, page.Ids...)
		from, more = page.Next, page.More
	}
	if !slices.Equal(got, ids) {
		t.Fatalf("%v lists %d ids of %d, or others", x, len(got), len(ids))
	}
	some := func() uint64 {
		id := r.Uint64() >> r.IntN(60)
		if len(ids) > 0 && r.IntN(3) > 0 {
			id = ids[r.IntN(len(ids))] + r.Uint64N(3) - 1
		}
		return id
	}
	var looked []uint64
	for range 20 {
		first, last := some(), some()
		first, last = min(first, last), max(first, last)
		in := &ebbv1.BitRange{First: first, Last: last}
		n := count(first, last)
		if got := ask(&ebbv1.BitmapQuestion{Range: in, Select: &ebbv1.BitmapQuestion_Count{Count: true}}).Count; got != n {
			t.Fatalf("%v has %d ids from %d to %d, and counts %d", x, n, first, last, got)
		}
		rank := uint64(0)
		if first > 0 {
			rank = count(0, first-1)
		}
		if got := ask(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Rank{Rank: first}}).Count; got != rank {
			t.Fatalf("%v: rank %d of %d, not %d", x, got, first, rank)
		}
		ends := ask(&ebbv1.BitmapQuestion{Range: in, Select: &ebbv1.BitmapQuestion_Ends{Ends: true}})
		position := r.Uint64N(n + 1)
		at := ask(&ebbv1.BitmapQuestion{Range: in, Select: &ebbv1.BitmapQuestion_Position{Position: position}})
		var wantEnds, wantAt []uint64
		if n > 0 {
			wantEnds = []uint64{ids[rank], ids[rank+n-1]}
		}
		if position < n {
			wantAt = []uint64{ids[rank+position]}
		}
		if !slices.Equal(ends.Ids, wantEnds) || ends.Count != n || !slices.Equal(at.Ids, wantAt) {
			t.Fatalf("%v from %d to %d: ends %v of %d, not %v of %d; at %d %v, not %v", x, first, last, ends.Ids, ends.Count, wantEnds, n, position, at.Ids, wantAt)
		}
		looked = append(looked, first, last)
	}
	for i, in := range ask(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Contains{Contains: &ebbv1.BitmapIds{Ids: looked}}}).Contains {
		if in != want[looked[i]] {
			t.Fatalf("%v: %d is in: %t", x, looked[i], in)
		}
	}
}

// algebra draws expressions over keys and ranges, with the set that each should be.
type algebra struct {
	r    *rand.Rand
	sets map[string]idSet
	all  []uint64 // ids that are in any
}

func (a *algebra) draw(depth int) (*ebbv1.BitmapExpr, idSet) {
	if depth == 0 || a.r.IntN(4) == 0 {
		if a.r.IntN(6) == 0 {
			first := a.all[a.r.IntN(len(a.all))] &^ 0xff
			last := first + min(a.r.Uint64N(1<<a.r.IntN(20)), math.MaxUint64-first)
			out := idSet{}
			for id := first; ; id++ {
				out[id] = true
				if id == last {
					break
				}
			}
			return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: first, Last: last}}}, out
		}
		key := slices.Sorted(maps.Keys(a.sets))[a.r.IntN(len(a.sets))]
		return keyExpr(key), a.sets[key]
	}
	var of []*ebbv1.BitmapExpr
	times := map[uint64]int{}
	var first, second idSet
	n := 1 + a.r.IntN(4)
	op := a.r.IntN(6)
	if op == 5 {
		n = 2
	}
	for i := range n {
		x, set := a.draw(depth - 1)
		of = append(of, x)
		for id := range set {
			times[id]++
		}
		if i == 0 {
			first = set
		}
		second = set
	}
	list := &ebbv1.BitmapExprs{Of: of}
	least := 1 + a.r.IntN(n)
	in := func(id uint64, t int) bool { return t > 0 }
	x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: list}}
	switch op {
	case 1:
		x.Expr, in = &ebbv1.BitmapExpr_And{And: list}, func(_ uint64, t int) bool { return t == n }
	case 2:
		x.Expr, in = &ebbv1.BitmapExpr_AndNot{AndNot: list}, func(id uint64, t int) bool { return first[id] && t == 1 }
	case 3:
		x.Expr, in = &ebbv1.BitmapExpr_Xor{Xor: list}, func(_ uint64, t int) bool { return t%2 == 1 }
	case 4:
		x.Expr, in = &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: uint32(least), Of: of}}, func(_ uint64, t int) bool { return t >= least }
	case 5:
		x.Expr, in = &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: of[0], Universe: of[1]}}, func(id uint64, _ int) bool { return second[id] && !first[id] }
	}
	out := idSet{}
	for id, t := range times {
		if in(id, t) {
			out[id] = true
		}
	}
	return x, out
}

// drawAlgebra fills bitmaps of every shape.
func drawAlgebra(t testing.TB, seed uint64, home func(key string) *State) *algebra {
	t.Helper()
	a := &algebra{r: rand.New(rand.NewPCG(seed, 2)), sets: map[string]idSet{"absent": {}}}
	i := 0
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		for range 2 {
			i++
			key, set := fmt.Sprintf("k%d", i), idSet{}
			s := home(key)
			for range 1 << a.r.IntN(14) {
				set[shapes[name](a.r)] = true
			}
			applyOne(t, s, edits(bitsOf(key, setOp, set.sorted()...)))
			if a.r.IntN(2) == 0 {
				first := uint64(a.r.IntN(1 << 18))
				applyOne(t, s, edits(rangeOf(key, flipOp, first, first+9999)))
				for id := first; id < first+10000; id++ {
					set.edit(flipOp, id)
				}
			}
			a.sets[key] = set
			a.all = append(a.all, set.sorted()...)
		}
	}
	return a
}

// Any expression over any bitmaps is what set algebra says, whatever is asked of it.
func TestBitmapAlgebra(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	a := drawAlgebra(t, 3, func(string) *State { return s })
	audit(t, s)
	for range rounds {
		x, want := a.draw(3)
		if len(proto.ExprKeys(x)) == 0 { // made of ranges only, which is refused
			x = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{x, keyExpr("absent")}}}}
		}
		sameAnswers(t, &s.frame, x, want)
	}
}

// The same expressions over bitmaps that are spread over four shards have the same answers, however little fits into a
// part.
func TestBitmapGather(t *testing.T) {
	rounds := 80
	if testing.Short() {
		rounds = 20
	}
	var states []*State
	for range 4 {
		states = append(states, definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning))
	}
	home := func(key []byte) uint32 { return proto.ShardOf("default", key, 4) }
	a := drawAlgebra(t, 5, func(key string) *State { return states[home([]byte(key))-1] })
	for round := range rounds {
		x, want := a.draw(3)
		if len(proto.ExprKeys(x)) == 0 {
			continue
		}
		sameAnswersOf(t, func(q *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer {
			g, refused := SpreadBitmaps(&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: q}}, home)
			if refused != nil {
				t.Fatal(refused)
			}
			got, err := g.Answer(func(list []BitmapFetch) (answers []*ebbv1.ShardAnswer, err error) {
				for _, f := range list {
					if round%2 == 0 {
						f.Question.GetPart().Bytes = 2000
					}
					question := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: f.Question}}
					if err := proto.CheckQuestion(question); err != nil {
						return nil, err
					}
					answer := states[f.Shard-1].Ask(&ebbv1.ShardQuestion{Shard: f.Shard, Question: question, Partial: true}, beginning)
					if answer.Error != nil {
						return nil, proto.FromWire(answer.Error)
					}
					answers = append(answers, answer)
				}
				return answers, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetBitmap()
		}, x, want)
	}
}

// What is evaluated after a fetch has failed is no answer, also where later ones succeed.
func TestFailedFetchIsNoAnswer(t *testing.T) {
	states := map[uint32]*State{}
	home := func(key []byte) uint32 { return uint32(key[0]-'a') + 1 }
	for key, ids := range map[string][2]uint64{"a": {0, 59}, "b": {50, 89}, "c": {0, 29}} {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
		applyOne(t, s, edits(rangeOf(key, setOp, ids[0], ids[1])))
		states[home([]byte(key))] = s
	}
	key := func(name string) *ebbv1.BitmapExpr {
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(name)}}
	}
	or := func(a, b *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{a, b}}}}
	}
	both := []*ebbv1.BitmapExpr{or(key("a"), key("b")), or(key("c"), key("b"))}
	q := &ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr:   &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: both}}},
		Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}}}
	failed := errors.New("a shard is away")
	for fails := 1; ; fails++ {
		g, refused := SpreadBitmaps(q, home)
		if refused != nil {
			t.Fatal(refused)
		}
		calls := 0
		got, err := g.Answer(func(list []BitmapFetch) (answers []*ebbv1.ShardAnswer, err error) {
			if calls++; calls == fails {
				return nil, failed
			}
			for _, f := range list {
				question := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: f.Question}}
				answers = append(answers, states[f.Shard].Ask(
					&ebbv1.ShardQuestion{Shard: f.Shard, Question: question, Partial: true}, beginning))
			}
			return answers, nil
		})
		if calls < fails {
			if err != nil || got.GetBitmap().GetCount() != 70 {
				t.Errorf("without a failure: %v, %v", got, err)
			}
			return
		}
		if !errors.Is(err, failed) {
			t.Errorf("fetch %d fails, and the answer is %v, %v", fails, got, err)
		}
	}
}

// A count that takes long is the sum of its pieces, however many, also within a range.
func TestBitmapPieces(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	for i, key := range []string{"a", "b"} {
		for slice := range uint64(1500) {
			first := slice<<16 + uint64(i+1)*slice
			applyOne(t, s, edits(rangeOf(key, setOp, first, first+30_000), rangeOf(key, flipOp, first+100, first+20_000)))
		}
		ids := make([]uint64, 0, 1<<16)
		for slice := range uint64(1500) {
			ids = ids[:0]
			for low := uint64(0); low < 1<<16; low += 3 {
				ids = append(ids, slice<<16|low)
			}
			applyOne(t, s, edits(bitsOf(key, flipOp, ids...)))
		}
	}
	x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyExpr("a"), keyExpr("b"), {Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: 1 << 20, Last: 1 << 26}}}}}}}
	for _, in := range []*ebbv1.BitRange{nil, {First: 3 << 20, Last: 70<<20 + 12345}, {First: 1 << 50, Last: 1 << 51}} {
		q := &ebbv1.BitmapQuestion{Expr: x, Range: in, Select: &ebbv1.BitmapQuestion_Count{Count: true}}
		question := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: q}}}
		want := askBits(t, &s.frame, q).Count
		for n := 2; n < 8; n += 5 {
			pieces := s.Pieces(question, n)
			if len(pieces) < 2 || len(pieces) > n {
				if in.GetFirst() == 1<<50 && pieces == nil {
					continue // beyond the last id: nothing to read
				}
				t.Fatalf("%d pieces of %v for %d", len(pieces), in, n)
			}
			var answers []*ebbv1.ShardAnswer
			for _, piece := range pieces {
				answers = append(answers, s.Ask(piece, beginning))
			}
			if got := JoinPieces(answers).GetAnswer().GetBitmap().GetCount(); got != want {
				t.Fatalf("%d pieces of %v count %d, and all of it %d", len(pieces), in, got, want)
			}
		}
	}
	table := &ebbv1.BitmapCohortQuestion{Periods: []*ebbv1.BitmapCohortPeriod{{Expr: keyExpr("a")}, {Expr: keyExpr("b")}, {Expr: x}}}
	for _, in := range []*ebbv1.BitRange{nil, {First: 3 << 20, Last: 70<<20 + 12345}} {
		table.Range = in
		question := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: table}}}
		pieces := s.Pieces(question, 3)
		var answers []*ebbv1.ShardAnswer
		for _, piece := range pieces {
			answers = append(answers, s.Ask(piece, beginning))
		}
		want := s.Ask(question, beginning)
		if got := JoinPieces(answers); len(pieces) != 3 || !pb.Equal(got, want) {
			t.Fatalf("%d pieces of a table in %v: %v, want %v", len(pieces), in, got, want)
		}
	}
	few := &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{}}}
	if pieces := s.Pieces(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: few}}}, 4); pieces != nil {
		t.Fatalf("a page is not cut, but in %d", len(pieces))
	}
}

// FuzzBitmapPart: no part that a peer could send makes a coordinator panic, or answer with ids that are out of order.
func FuzzBitmapPart(f *testing.F) {
	s := definedAt(f, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	applyOne(f, s, edits(bitsOf("k", setOp, 1, 5, 9, 1<<20, 1<<40), rangeOf("k", setOp, 1<<21, 1<<21+70_000)))
	for id := range uint64(3000) {
		applyOne(f, s, edits(bitsOf("k", flipOp, 1<<25+3*id)))
	}
	part := &ebbv1.BitmapQuestion{Expr: keyExpr("k"), Select: &ebbv1.BitmapQuestion_Part{Part: &ebbv1.BitmapPart{To: sliceMax, Bytes: 1 << 20}}}
	question := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: part}}
	f.Add(s.Ask(&ebbv1.ShardQuestion{Question: question, Partial: true}, beginning).GetPart())
	f.Add([]byte{partBitmap, 1, 1, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		both := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyExpr("a"), keyExpr("b")}}}}
		q := &ebbv1.BitmapQuestion{Expr: both, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: 5000}}}
		g, _ := SpreadBitmaps(&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: q}}, func(key []byte) uint32 { return uint32(key[0]) })
		calls := 0
		a, err := g.Answer(func(list []BitmapFetch) ([]*ebbv1.ShardAnswer, error) {
			if calls++; calls > 5 {
				return nil, proto.ErrDeadline
			}
			answers := make([]*ebbv1.ShardAnswer, len(list))
			for i := range answers {
				answers[i] = &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: raw}}
			}
			return answers, nil
		})
		if err == nil && !slices.IsSorted(a.GetBitmap().GetIds()) {
			t.Fatalf("got %v", a.GetBitmap().GetIds())
		}
	})
}

// A batch of edits is applied edit by edit; a repetition under its identity says what the first one said and changes
// nothing.
func TestBitsOnce(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	applyOne(t, s, increments("clicks", "us"))
	session := applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}).Session
	for name, identify := range map[string]func(c *ebbv1.Command){
		"session": func(c *ebbv1.Command) {
			c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: session, Sequence: 1}}
		},
		"idempotency key": func(c *ebbv1.Command) {
			c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: int64(beginning), Hi: 1, Lo: 2}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := edits(bitsOf(name, flipOp, 1, 5, 9), bitsOf("clicks", setOp, 7), rangeOf(name, setOp, 4, 6), bitsOf(name, clearOp, 1000))
			identify(c)
			first := applyOne(t, s, c)
			sum := s.Checksum()
			s.applied-- // which is of the snapshot too
			again := applyOne(t, s, c)
			if !pb.Equal(first, again) || s.Checksum() != sum {
				t.Fatalf("the first time %v, the second %v", first, again)
			}
			if first.Applied != 3 || first.Changed != 5 || len(first.Refused) != 1 || first.Refused[0].Error.Code != ebbv1.Code_CODE_WRONG_KIND {
				t.Fatalf("got %v", first)
			}
			if got := askBits(t, &s.frame, &ebbv1.BitmapQuestion{Expr: keyExpr(name), Select: &ebbv1.BitmapQuestion_Count{Count: true}}).Count; got != 5 {
				t.Fatalf("%d ids: 1, 4, 5, 6 and 9 were to be in", got)
			}
			audit(t, s)
		})
	}
}

// An ordered source edits in the order of its offsets; rows that it has sent before change nothing.
func TestBitsOfASource(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	epoch := applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "file", Token: 5}}}).Epoch
	row := func(offset uint64, ids ...uint64) *ebbv1.BitEdit {
		e := bitsOf("k", flipOp, ids...)
		e.Offset = offset
		return e
	}
	send := func(list ...*ebbv1.BitEdit) *ebbv1.CommandResult {
		c := edits(list...)
		c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "file", Epoch: epoch}}
		return applyOne(t, s, c)
	}
	if r := send(row(1, 1, 2), row(3, 3)); r.Applied != 2 || r.Changed != 3 {
		t.Fatalf("got %v", r)
	}
	if r := send(row(1, 1, 2), row(3, 3), row(4, 1)); r.Applied != 1 || r.Duplicates != 2 || r.Changed != 1 {
		t.Fatalf("got %v", r)
	}
	if r := send(row(0, 9)); len(r.Refused) != 1 || r.Refused[0].Error.Code != ebbv1.Code_CODE_BAD_REQUEST {
		t.Fatalf("got %v", r)
	}
	sameIDs(t, &s.frame, idSet{2: true, 3: true})
}

// Bitmaps are keys: they keep their kind, expire, are renamed, deleted, described and listed.
func TestBitmapIsAKey(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	many := idSet{}
	for i := range uint64(20_000) {
		many[i*i] = true
	}
	for _, key := range []string{"a", "b", "c"} {
		applyOne(t, s, edits(bitsOf(key, setOp, many.sorted()...)))
	}
	if r := applyOne(t, s, increments("a", "us")); len(r.Refused) != 1 || r.Refused[0].Error.Code != ebbv1.Code_CODE_WRONG_KIND {
		t.Fatalf("an increment of a bitmap: %v", r)
	}
	rename := &ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_From{From: []byte("b")}}
	applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: rename}})
	sameIDs(t, &s.frame, many)
	applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k"), []byte("c")}}}})
	expire := &ebbv1.ExpireKeys{Keys: [][]byte{[]byte("a")}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: 1000}}
	applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: expire}})
	audit(t, s)
	if s.Keys() != 1 {
		t.Fatalf("%d keys: only a was to be left", s.Keys())
	}
	describe := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: []byte("a")}}}
	d := s.Ask(&ebbv1.ShardQuestion{Question: describe}, beginning).GetAnswer().GetDescribe()
	if !d.GetFound() || d.GetKey().GetKind() != ebbv1.Kind_KIND_BITMAP || d.GetKey().GetTotal().GetValue() != 20_000 || d.GetDecay() != ebbv1.Decay_DECAY_NONE || d.GetBytes() == 0 {
		t.Fatalf("described as %v", d)
	}
	s.Apply(s.Applied()+1, encodeEntry(t, int64(beginning)+2000, nil), nil)
	audit(t, s)
	if s.Keys() != 0 || s.summaries.bins.used != 0 {
		t.Fatalf("%d keys and %d words are left", s.Keys(), s.summaries.bins.used)
	}
}

// A small bitmap goes to another shard as an image, and a large one says that it does not.
func TestBitmapImage(t *testing.T) {
	def := &ebbv1.Namespace{Name: "default", Version: 1}
	from, to := definedAt(t, def, beginning), definedAt(t, def, beginning)
	want := idSet{3: true, 1 << 40: true, math.MaxUint64: true}
	for i := range uint64(5000) {
		want[1<<20+i] = true
		want[1<<30+i*i] = true
	}
	applyOne(t, from, edits(bitsOf("k", setOp, want.sorted()...)))
	put := func(key string, image []byte) *ebbv1.CommandResult {
		return applyOne(t, to, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte(key), What: &ebbv1.PutKey_Image{Image: image}}}})
	}
	export := exported(&from.frame, "default", "k")
	if r := put("k", export.Image); r.Error != nil || r.Applied != 1 {
		t.Fatalf("got %v", r)
	}
	sameIDs(t, &to.frame, want)
	audit(t, to)
	if again := exported(&to.frame, "default", "k"); again.Checksum != export.Checksum {
		t.Fatal("the copy has another checksum")
	}
	for i := range uint64(60) {
		ids := make([]uint64, 0, 3000)
		for j := range uint64(3000) {
			ids = append(ids, i<<32+j*j)
		}
		applyOne(t, from, edits(bitsOf("large", setOp, ids...)))
	}
	q := &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: []byte("large")}}}
	if a := from.Ask(&ebbv1.ShardQuestion{Question: q}, beginning); a.GetError().GetCode() != ebbv1.Code_CODE_KEY_TOO_LARGE {
		t.Fatalf("got %v", a)
	}
}

// A bitmap that is named twice is read twice: what an intersection passes over is still there for the union around it.
func TestBitmapNamedTwice(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	applyOne(t, s, edits(bitsOf("b", setOp, 5<<16+7, 10<<16), bitsOf("c", setOp, 9<<16, 10<<16), rangeOf("b", setOp, 20<<16, 20<<16+9000), rangeOf("c", setOp, 30<<16, 30<<16+9000)))
	both := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyExpr("b"), keyExpr("c")}}}}
	either := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{both, keyExpr("b")}}}}
	want := idSet{5<<16 + 7: true, 10 << 16: true} // what b has of slice 5 is not what it has of slice 10
	for id := uint64(20 << 16); id <= 20<<16+9000; id++ {
		want[id] = true
	}
	sameAnswers(t, &s.frame, either, want)
}
