package wal

import (
	"slices"
	"sort"
)

// place is the position of an entry.
type place struct {
	segment uint32 // 0: held, but not found yet
	offset  uint32
	size    uint32
	term    uint64
}

// run is a range of entries without gaps: places[i] is the place of entry first+i.
type run struct {
	first  uint64
	places []place
}

func (r *run) last() uint64 { return r.first + uint64(len(r.places)) - 1 }

// entries is a group's index: sorted runs with gaps between them. Usually there is one run; an installed snapshot
// leaves a gap.
type entries struct {
	runs  []run
	bytes int64
}

func (e *entries) first() uint64 {
	if len(e.runs) == 0 {
		return 0
	}
	return e.runs[0].first
}

func (e *entries) last() uint64 {
	if len(e.runs) == 0 {
		return 0
	}
	return e.runs[len(e.runs)-1].last()
}

// after returns the first run that ends at or after index.
func (e *entries) after(index uint64) int {
	return sort.Search(len(e.runs), func(i int) bool { return e.runs[i].last() >= index })
}

func (e *entries) find(index uint64) *place {
	i := e.after(index)
	if i == len(e.runs) || e.runs[i].first > index {
		return nil
	}
	return &e.runs[i].places[index-e.runs[i].first]
}

// put sets an entry's place and returns the former one, if any.
func (e *entries) put(index uint64, p place) (old place, replaced bool) {
	e.bytes += int64(p.size)
	if at := e.find(index); at != nil {
		old, *at = *at, p
		e.bytes -= int64(old.size)
		return old, true
	}
	i := e.after(index)
	if i > 0 && e.runs[i-1].last()+1 == index {
		e.runs[i-1].places = append(e.runs[i-1].places, p)
		e.join(i - 1)
		return place{}, false
	}
	e.runs = slices.Insert(e.runs, i, run{first: index, places: []place{p}})
	e.join(i)
	return place{}, false
}

// join merges a run with the next if there is no gap between them.
func (e *entries) join(i int) {
	if i+1 < len(e.runs) && e.runs[i].last()+1 == e.runs[i+1].first {
		e.runs[i].places = append(e.runs[i].places, e.runs[i+1].places...)
		e.runs = slices.Delete(e.runs, i+1, i+2)
	}
}

// cut removes the entries from first to last, inclusive, and calls gone for each.
func (e *entries) cut(first, last uint64, gone func(place)) {
	kept := make([]run, 0, len(e.runs)+1)
	for _, r := range e.runs {
		if r.last() < first || r.first > last {
			kept = append(kept, r)
			continue
		}
		from := max(first, r.first) - r.first
		to := min(last, r.last()) - r.first + 1
		for _, p := range r.places[from:to] {
			e.bytes -= int64(p.size)
			gone(p)
		}
		if from > 0 {
			kept = append(kept, run{r.first, r.places[:from:from]})
		}
		if to < uint64(len(r.places)) {
			kept = append(kept, run{r.first + to, r.places[to:]})
		}
	}
	e.runs = kept
}

// each calls f for every place, in the order of indexes, until it returns false.
func (e *entries) each(f func(place) bool) {
	for _, r := range e.runs {
		for _, p := range r.places {
			if !f(p) {
				return
			}
		}
	}
}
