package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const commitsFile = "../../../shared/data/git-activity/commits.tsv.gz"

// The users who starred a project, or committed in a month, are bitmaps. 10,000 random questions about them are
// answered as Go maps answer them. Half of the questions come after the node that leads most shards was killed.
func TestBitmapsOfRealStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real processes")
	}
	sets := map[string]map[uint64]bool{}
	add := func(key, id string) {
		n, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if sets[key] == nil {
			sets[key] = map[uint64]bool{}
		}
		sets[key][n] = true
	}
	for _, row := range readStars(t, "stargazer.csv.gz", true) {
		add("stars/"+row[1], row[0])
	}
	realRows(t, commitsFile, func(at int64, col []string) { add("authors/"+time.Unix(at, 0).UTC().Format("2006-01"), col[2]) })

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f := startFleet(t)
	c := dialFleet(ctx, t, f)
	for key, set := range sets {
		if n, err := c.SetBits(ctx, "", key, slices.Collect(maps.Keys(set))...); err != nil || n != len(set) {
			t.Fatalf("%s: %d of %d ids: %v", key, n, len(set), err)
		}
	}
	q := bitmapQuiz{sets: sets, keys: slices.Sorted(maps.Keys(sets)), r: rand.New(rand.NewPCG(10, 4))}
	const questions = 10_000
	begin := time.Now()
	for n := 0; n < questions; n += 50 {
		if n == questions/2 {
			victim, led := busiest(ctx, t, f, c)
			f.Kill(victim)
			t.Logf("killed %s, which led %d shards", f.Name(victim), len(led))
		}
		q.ask(ctx, t, c, 50)
	}
	t.Logf("%d questions about %d bitmaps, of which %d over several shards, in %v", questions, len(sets), q.spread, time.Since(begin).Round(time.Millisecond))
	compareCohort(ctx, t, f, sets)
}

// bitmapQuiz draws questions, and knows their answers.
type bitmapQuiz struct {
	sets   map[string]map[uint64]bool
	keys   []string
	r      *rand.Rand
	spread int
}

// draw is an expression over up to five bitmaps, and what it is.
func (q *bitmapQuiz) draw() (*ebbv1.BitmapExpr, map[uint64]bool) {
	n := 1 + q.r.IntN(5)
	of, counted := make([]*ebbv1.BitmapExpr, n), map[uint64]int{}
	var first map[uint64]bool
	from := q.r.IntN(len(q.keys))
	for i := range of {
		key := q.keys[q.r.IntN(len(q.keys))]
		if q.r.IntN(2) == 0 { // neighbours: months of one family
			key = q.keys[(from+i)%len(q.keys)]
		}
		if of[i] = (&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}); i == 0 {
			first = q.sets[key]
		}
		for id := range q.sets[key] {
			counted[id]++
		}
	}
	times := 1 + q.r.IntN(n)
	list, x := &ebbv1.BitmapExprs{Of: of}, &ebbv1.BitmapExpr{}
	var in func(id uint64, c int) bool
	switch q.r.IntN(5) {
	case 0:
		x.Expr, in = &ebbv1.BitmapExpr_Or{Or: list}, func(uint64, int) bool { return true }
	case 1:
		x.Expr, in = &ebbv1.BitmapExpr_And{And: list}, func(_ uint64, c int) bool { return c == n }
	case 2:
		x.Expr, in = &ebbv1.BitmapExpr_Xor{Xor: list}, func(_ uint64, c int) bool { return c%2 == 1 }
	case 3:
		x.Expr, in = &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: uint32(times), Of: of}}, func(_ uint64, c int) bool { return c >= times }
	default:
		x.Expr, in = &ebbv1.BitmapExpr_AndNot{AndNot: list}, func(id uint64, c int) bool { return c == 1 && first[id] }
	}
	out := map[uint64]bool{}
	for id, c := range counted {
		if in(id, c) {
			out[id] = true
		}
	}
	return x, out
}

func aboutBitmap(q *ebbv1.BitmapQuestion) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: q}}
}

// ask asks n questions at once: counts, pages of ids, and counts by other bitmaps.
func (q *bitmapQuiz) ask(ctx context.Context, t *testing.T, c *client.Client, n int) {
	t.Helper()
	questions, check := make([]*ebbv1.Question, n), make([]func(a *ebbv1.Answer) bool, n)
	for i := range questions {
		x, want := q.draw()
		switch q.r.IntN(4) {
		case 0:
			ids := slices.Sorted(maps.Keys(want))
			ids = ids[:min(len(ids), 100)]
			questions[i] = aboutBitmap(&ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: 100}}})
			check[i] = func(a *ebbv1.Answer) bool {
				return slices.Equal(a.GetBitmap().GetIds(), ids) && a.GetBitmap().GetMore() == (len(want) > 100)
			}
		case 1:
			by := [][]byte{[]byte(q.keys[q.r.IntN(len(q.keys))]), []byte(q.keys[q.r.IntN(len(q.keys))])}
			questions[i] = &ebbv1.Question{Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: &ebbv1.BitmapGroupsQuestion{Expr: x, Keys: by}}}
			check[i] = func(a *ebbv1.Answer) bool {
				for _, g := range a.GetGroups().GetGroups() {
					common := uint64(0)
					for id := range q.sets[string(g.GetKey())] {
						if want[id] {
							common++
						}
					}
					if g.GetCount() != common {
						return false
					}
				}
				return a.GetGroups().GetCount() == uint64(len(want)) && len(a.GetGroups().GetGroups()) > 0
			}
		default:
			questions[i] = aboutBitmap(&ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Count{Count: true}})
			check[i] = func(a *ebbv1.Answer) bool { return a.GetBitmap().GetCount() == uint64(len(want)) }
		}
	}
	for i, a := range untilAnswered(ctx, t, c, questions) {
		if a.GetError() != nil || !check[i](a) {
			t.Fatalf("%v: %v", questions[i], a)
		}
		if a.GetCoverage().GetShardsTotal() > 1 {
			q.spread++
		}
	}
}

// untilAnswered asks again as long as shards are without a leader.
func untilAnswered(ctx context.Context, t *testing.T, c *client.Client, questions []*ebbv1.Question) []*ebbv1.Answer {
	t.Helper()
	for {
		answers, err := c.Ask(ctx, questions)
		if err == nil && !slices.ContainsFunc(answers, func(a *ebbv1.Answer) bool { return a.GetError().GetCode()/1000 == 1 }) {
			return answers
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no answer: %v %v", answers, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// compareCohort compares the table of authors by quarter with a recount.
func compareCohort(ctx context.Context, t *testing.T, f *proc.Fleet, sets map[string]map[uint64]bool) {
	t.Helper()
	var quarters []map[uint64]bool
	for month := range 4 * 12 {
		if month%3 == 0 {
			quarters = append(quarters, map[uint64]bool{})
		}
		maps.Copy(quarters[len(quarters)-1], sets[fmt.Sprintf("authors/%d-%02d", 2010+month/12, 1+month%12)])
	}
	want, seen := "", map[uint64]bool{}
	for i, quarter := range quarters {
		row := maps.Clone(quarter)
		maps.DeleteFunc(row, func(id uint64, _ bool) bool { return seen[id] })
		want += fmt.Sprintf("%d-Q%d\t%d", 2010+i/4, 1+i%4, len(row))
		for _, later := range quarters[i+1:] {
			n := 0
			for id := range row {
				if later[id] {
					n++
				}
			}
			want += fmt.Sprintf("\t%d", n)
		}
		want += "\n"
		maps.Copy(seen, quarter)
	}
	got := string(mustEbb(ctx, t, f, "query", "cohort(authors/2010-01 .. 2013-12 by quarter)", "-o", "tsv"))
	if got != want {
		t.Errorf("the table of authors by quarter is\n%s\nwant\n%s", got, want)
	}
}
