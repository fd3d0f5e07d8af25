package shard

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// ranged compiles the part of an expression in a range of ids; all of it if the range is nil.
func ranged(x *ebbv1.BitmapExpr, in *ebbv1.BitRange, named bitmapNames) (*bitmapExpr, error) {
	if in != nil {
		span := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: in}}
		if x != nil {
			span = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{x, span}}}}
		}
		x = span
	}
	if x == nil {
		return nil, nil
	}
	return compileBitmap(x, named)
}

// countGroups evaluates a set once, slice by slice, and counts what it has in common with each bitmap.
func countGroups(q *ebbv1.BitmapGroupsQuestion, named bitmapNames) (*ebbv1.BitmapGroups, error) {
	base, err := ranged(q.GetExpr(), q.GetRange(), named)
	if err != nil {
		return nil, err
	}
	members, at := make([]bitmap.Cursor, len(q.GetKeys())), make([]uint64, len(q.GetKeys()))
	for i, key := range q.GetKeys() {
		if members[i], err = named.of(key); err != nil {
			return nil, err
		}
	}
	out := &ebbv1.BitmapGroups{}
	counts := make([]uint64, len(members))
	var here multiCount
	base.eachSlice(idSpan{0, 1<<64 - 1}, func(slice uint64, _, _ uint16) bool {
		here.begin()
		for i, m := range members {
			if at[i] <= slice {
				var ok bool
				if at[i], ok = m.Seek(slice); !ok {
					at[i] = noSlice
				}
			}
			if at[i] == slice {
				here.add(i, m.Container())
			}
		}
		whole := base.container()
		out.Count += uint64(whole.Count)
		here.count(whole, counts)
		return true
	})
	if q.GetPlain() {
		out.Counts = counts
		return out, nil
	}
	for i, key := range q.GetKeys() {
		out.Groups = append(out.Groups, &ebbv1.BitmapGroup{Key: bytes.Clone(key), Count: counts[i]})
	}
	TopGroups(out, q.GetTop())
	return out, nil
}

// TopGroups sorts groups into the order of an answer, and keeps the first top of them; all if top is 0.
func TopGroups(g *ebbv1.BitmapGroups, top uint32) {
	slices.SortFunc(g.Groups, func(a, b *ebbv1.BitmapGroup) int {
		return cmp.Or(cmp.Compare(b.GetCount(), a.GetCount()), bytes.Compare(a.GetKey(), b.GetKey()))
	})
	if top > 0 {
		g.Groups = g.Groups[:min(int(top), len(g.Groups))]
	}
}

// multiCount counts one container with each of some others.
type multiCount struct {
	which   []int
	by      []bitmap.Container
	counts  []uint64
	scratch bitmap.Scratch
}

// itself is a program that evaluates to its one bitmap.
var itself = bitmap.MustCompile(bitmap.Expr{Op: bitmap.Leaf}, 1)

func (m *multiCount) begin() { m.which, m.by = m.which[:0], m.by[:0] }

func (m *multiCount) add(which int, c bitmap.Container) {
	m.which, m.by = append(m.which, which), append(m.by, c)
}

// count adds to counts, for each container that was added, how many ids it has in common with c.
func (m *multiCount) count(c bitmap.Container, counts []uint64) {
	if c.Count == 0 || len(m.by) == 0 {
		return
	}
	m.counts = append(m.counts[:0], make([]uint64, len(m.by))...)
	itself.CountEach(&m.scratch, bitmap.Inputs{Leaves: []bitmap.Container{c}}, m.by, m.counts)
	for i, which := range m.which {
		counts[which] += m.counts[i]
	}
}

// cohortTable is evaluated slice by slice: see bitmap.Cohorts. It keeps only a container of each period and the counts.
type cohortTable struct {
	periods []*bitmapExpr
	within  *bitmapExpr // nil: everything
	at      []uint64    // the slice at which each period is, or noSlice
	here    []bitmap.Container
	counter bitmap.Cohorts
}

func countCohort(q *ebbv1.BitmapCohortQuestion, named bitmapNames) (*ebbv1.BitmapCohort, error) {
	t := cohortTable{here: make([]bitmap.Container, len(q.GetPeriods()))}
	var err error
	if t.within, err = ranged(q.GetWithin(), q.GetRange(), named); err != nil {
		return nil, err
	}
	out := &ebbv1.BitmapCohort{}
	counts, again := make([]uint64, len(q.GetPeriods())), make([][]uint64, len(q.GetPeriods()))
	for i, p := range q.GetPeriods() {
		x, err := compileBitmap(p.GetExpr(), named)
		if err != nil {
			return nil, err
		}
		t.periods = append(t.periods, x)
		again[i] = make([]uint64, len(q.GetPeriods())-1-i)
		out.Rows = append(out.Rows, &ebbv1.BitmapCohortRow{Period: p.GetPeriod(), Again: again[i]})
	}
	t.at = make([]uint64, len(t.periods))
	for slice, ok := t.next(0); ok; slice, ok = t.next(slice + 1) {
		t.counter.Count(t.containers(slice), t.withinHere(), q.GetEveryone(), counts, again)
	}
	for i, n := range counts {
		out.Rows[i].Count = n
	}
	return out, nil
}

// noSlice is above all slices.
const noSlice = sliceMax + 1

// next moves to the first slice, from this one on, in which there may be a row.
func (t *cohortTable) next(slice uint64) (at uint64, ok bool) {
	for slice <= sliceMax {
		at = noSlice
		for i, p := range t.periods {
			if t.at[i] <= slice {
				if t.at[i], ok = p.seek(slice); !ok {
					t.at[i] = noSlice
				}
			}
			at = min(at, t.at[i])
		}
		if at == noSlice || t.within == nil {
			return at, at != noSlice
		}
		if slice, ok = t.within.seek(at); !ok || slice == at {
			return at, ok
		}
	}
	return 0, false
}

// containers are the containers of the periods in the slice to which next has moved.
func (t *cohortTable) containers(slice uint64) []bitmap.Container {
	for i, p := range t.periods {
		t.here[i] = bitmap.Container{}
		if t.at[i] == slice {
			t.here[i] = p.container()
		}
	}
	return t.here
}

// withinHere is the container that rows are limited to, in the slice to which next has moved.
func (t *cohortTable) withinHere() bitmap.Container {
	if t.within == nil {
		return bitmap.Full()
	}
	return t.within.container()
}

// containers are ids that came with the question, as a bitmap.Directory.
type containers []looseSlice

func (c containers) Len() int                         { return len(c) }
func (c containers) Slice(i int) uint64               { return c[i].slice }
func (c containers) Lows(i int) int                   { return int(c[i].Count) }
func (c containers) Container(i int) bitmap.Container { return c[i].Container }

func decodeContainers(m *ebbv1.BitmapContainers) (c containers, err error) {
	d, rest := bitmapDecoder{slice: m.GetFrom()}, m.GetContainers()
	for {
		l, more, err := d.next(rest)
		if err != nil {
			return nil, proto.ErrBadRequest.Errorf("containers of an expression: %v", err)
		}
		if rest = more; l.Count == 0 {
			break
		}
		c = append(c, l)
	}
	if len(rest) > 0 {
		return nil, proto.ErrBadRequest.Errorf("containers of an expression: %d bytes behind their end", len(rest))
	}
	return c, nil
}
