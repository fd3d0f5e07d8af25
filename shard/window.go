package shard

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// Family is the bitmaps of periods of one length in a shard: play/2011-11-01, play/2011-11-02 and so on.
type Family struct {
	Shard     ID
	Namespace string
	Name      string // "play"
	Unit      ebbv1.PlanUnit
}

// Span is consecutive periods of a family, starting with the period of number First (see query.Period).
type Span struct {
	First int64
	Len   int
}

func (s Span) end() int64 { return s.First + int64(s.Len) }

// windowID identifies a window of a question.
type windowID struct {
	Family
	Span
}

// BitmapVersion identifies a state of a bitmap in one shard: each change of the bitmap changes it. It is zero for a
// bitmap that does not exist.
type BitmapVersion struct {
	Generation uint64 // under which the bitmap was made, if its namespace places bitmaps by slice
	Edited     uint64 // the index of the entry that changed it last
}

// Window is consecutive periods of a family whose union a question needs.
type Window struct {
	windowID
	Versions []BitmapVersion // of each period
	Bytes    int             // that their union takes at most, about
	// Whole says that the question is about all ids. For a question about some ids, making a union would cost more than
	// the question.
	Whole bool

	keys [][]byte
}

// windowLeast is the smallest number of periods of a window.
const windowLeast = 4

// Windows returns the windows of a question about bitmaps, as they are when it is answered at a time, so that a caller
// can look for unions.
func (f *frame) Windows(q *ebbv1.ShardQuestion, at sketch.Tick) (list []*Window) {
	ns := f.lookup([]byte(q.GetQuestion().GetNamespace()))
	if ns == nil {
		return nil
	}
	r := &periods{f: f, ns: ns, at: f.evaluation(ns, 0, at)}
	whole := proto.BitmapRange(q.Question) == nil
	switch q.Question.GetBitmap().GetSelect().(type) {
	case *ebbv1.BitmapQuestion_Part, *ebbv1.BitmapQuestion_Contains:
		whole = false
	}
	known := map[windowID]bool{}
	var look func(x *ebbv1.BitmapExpr)
	look = func(x *ebbv1.BitmapExpr) {
		for _, n := range r.stretches(x.GetOr().GetOf()) {
			if w := r.window(n); w != nil && !known[w.windowID] {
				w.Whole, known[w.windowID] = whole, true
				list = append(list, w)
			}
		}
		for _, sub := range proto.ExprTerms(x) {
			look(sub)
		}
	}
	for _, x := range proto.BitmapExprs(q.Question) {
		if x != nil {
			look(x)
		}
	}
	return list
}

// periods finds the periods that expressions unite, in a namespace as of a time.
type periods struct {
	f      *frame
	ns     *namespace
	at     sketch.Tick
	unions map[windowID][]*CachedUnion // used in place of their bitmaps

	last struct { // the last format seen: most keys of an expression have the same
		of   query.KeyFormat
		stem string
	}
}

// stretch is consecutive periods among the arguments of a union.
type stretch struct {
	windowID
	args []int // their positions among the arguments
	keys [][]byte
}

// stretches returns the stretches of the arguments of a union.
func (r *periods) stretches(of []*ebbv1.BitmapExpr) (list []stretch) {
	if len(of) < windowLeast {
		return nil
	}
	type period struct {
		Family
		number int64
		arg    int
	}
	periods := make([]period, 0, len(of))
	for i, x := range of {
		name, p, ok := r.periodOf(x.GetKey())
		if ok {
			f := Family{r.f.id, r.ns.definition.GetName(), name, p.Unit}
			periods = append(periods, period{f, p.Number, i})
		}
	}
	slices.SortStableFunc(periods, func(a, b period) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.number, b.number))
	})
	for _, p := range periods {
		n := len(list)
		switch {
		case n > 0 && list[n-1].Family == p.Family && list[n-1].end() == p.number:
			list[n-1].Len++
		case n > 0 && list[n-1].Family == p.Family && list[n-1].end() == p.number+1: // named twice
			if last := &list[n-1]; bytes.Equal(last.keys[last.Len-1], of[p.arg].GetKey()) {
				last.args = append(last.args, p.arg)
			}
			continue
		default:
			list = append(list, stretch{windowID: windowID{p.Family, Span{p.number, 1}}})
		}
		last := &list[len(list)-1]
		last.args, last.keys = append(last.args, p.arg), append(last.keys, of[p.arg].GetKey())
	}
	return slices.DeleteFunc(list, func(s stretch) bool { return s.Len < windowLeast })
}

// periodOf parses the key of a period, or the name of a part of it: see proto.PartName.
func (r *periods) periodOf(key []byte) (family string, p query.Period, ok bool) {
	if proto.BySlice(r.ns.definition) {
		_, key = proto.PartOf(key)
	}
	s, p, ok := query.ParseKey(string(key))
	if !ok {
		return "", p, false
	}
	if r.last.stem == "" || r.last.of != s {
		r.last.of, r.last.stem = s, s.Stem()
	}
	return r.last.stem, p, true
}

// window returns the window of a stretch; nil if a key of it holds another kind than a bitmap.
func (r *periods) window(n stretch) *Window {
	w := &Window{windowID: n.windowID, keys: n.keys, Versions: make([]BitmapVersion, n.Len)}
	c := costing{f: r.f, ns: r.ns, work: &bitmapWork{last: sliceMax}}
	for i, name := range n.keys {
		key, ok := r.f.findKey(r.ns, name)
		if !ok || !r.f.alive(r.ns, key, r.at) {
			continue
		}
		rec := r.f.summaries.record(key)
		if rec.form() != recordBitmap {
			return nil
		}
		generation, _ := proto.PartOf(name)
		w.Versions[i] = BitmapVersion{generation, rec.edited()}
		c.work.add(c.read(name, sliceMax))
	}
	slices := min(c.work.slices, int64(c.work.to-c.work.from)+1)
	w.Bytes = 8 * min(c.work.words, int(min(slices, 1<<40))*bitmap.DenseWords)
	return w
}

// versionsOf returns the versions of some periods of the window.
func (w *Window) versionsOf(s Span) []BitmapVersion { return w.Versions[s.First-w.First:][:s.Len] }

// Use makes the view answer with unions in place of the bitmaps of a window. The unions must be of the same versions.
func (v *View) Use(w *Window, unions []*CachedUnion) {
	if len(unions) == 0 {
		return
	}
	if v.unions == nil {
		v.unions = map[windowID][]*CachedUnion{}
	}
	v.unions[w.windowID] = unions
}

// united returns unions that replace some of the arguments of a union, and the other arguments.
func (r *periods) united(of []*ebbv1.BitmapExpr) (unions []bitmap.Cursor, rest []*ebbv1.BitmapExpr) {
	in := make([]bool, len(of))
	for _, n := range r.stretches(of) {
		for _, u := range r.unions[n.windowID] {
			unions = append(unions, bitmap.NewDirectoryCursor(u.containers))
			for _, arg := range n.args {
				if _, p, _ := r.periodOf(of[arg].GetKey()); p.Number >= u.First && p.Number < u.end() {
					in[arg] = true
				}
			}
		}
	}
	for i, x := range of {
		if !in[i] {
			rest = append(rest, x)
		}
	}
	return unions, rest
}
