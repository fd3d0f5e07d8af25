package wal

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
)

// apply updates the index from a durable batch whose records begin at offset base of the segment. l.index is held.
func (l *Log) apply(s *segment, base int64, h batchHeader, body []byte) error {
	return h.each(body, func(offset, size int, r *record) error {
		return l.applyRecord(s, place{
			segment: s.number, offset: uint32(base + int64(offset)), size: uint32(size), term: r.term,
		}, r)
	})
}

func (l *Log) applyRecord(s *segment, at place, r *record) error {
	g := l.group(r.group)
	switch r.kind {
	case kindEntry:
		old, replaced := g.entries.put(r.index, at)
		if replaced {
			l.unplace(old)
		}
		s.live++
		s.liveBytes += int64(at.size)
	case kindDelete:
		g.entries.cut(r.index, r.term, l.unplace)
	case kindTerm:
		g.term = r.index
	case kindVote:
		g.vote = &vote{term: r.index, candidate: bytes.Clone(r.body)}
	case kindValue:
		return g.setValue(r)
	case kindBoundary:
		g.setBoundary(r.index, r.term)
	case kindForget:
		g.forget()
	default:
		return fmt.Errorf("a record of kind %d has no place here", r.kind)
	}
	return nil
}

// unplace subtracts an entry from its segment's counts. l.index is held.
func (l *Log) unplace(p place) {
	if p.segment == 0 {
		return
	}
	s := l.segments[p.segment-l.segments[0].number]
	s.live--
	s.liveBytes -= int64(p.size)
}

func (g *Group) setValue(r *record) error {
	if r.index > uint64(len(r.body)) {
		return fmt.Errorf("a value's key of %d bytes is cut off after %d", r.index, len(r.body))
	}
	if g.values == nil {
		g.values = make(map[string][]byte)
	}
	g.values[string(r.body[:r.index])] = bytes.Clone(r.body[r.index:])
	return nil
}

// setBoundary records the end of a snapshot. If our entry at that index is another one, the entries before it may
// differ too, so they are dropped. The entries after it stay, because raft compares them one by one.
func (g *Group) setBoundary(index, term uint64) {
	if index < g.boundary.index {
		return
	}
	g.boundary = boundary{index, term}
	if p := g.entries.find(index); p == nil || p.term != term {
		g.entries.cut(0, index, g.log.unplace)
	}
}

func (g *Group) forget() {
	g.entries.cut(0, math.MaxUint64, g.log.unplace)
	g.term, g.vote, g.values, g.boundary = 0, nil, nil, boundary{}
}

// state appends the records that a segment needs to describe the group by itself.
func (g *Group) state(to []record) []record {
	if g.term != 0 {
		to = append(to, record{kind: kindTerm, group: g.id, index: g.term})
	}
	if g.vote != nil {
		to = append(to, record{kind: kindVote, group: g.id, index: g.vote.term, body: g.vote.candidate})
	}
	for _, key := range slices.Sorted(maps.Keys(g.values)) {
		to = append(to, valueRecord(g.id, key, g.values[key]))
	}
	if g.boundary.index != 0 {
		to = append(to, record{kind: kindBoundary, group: g.id, index: g.boundary.index, term: g.boundary.term})
	}
	if len(g.entries.runs) != 0 {
		to = append(to, record{kind: kindHolds, group: g.id, body: g.entries.appendHolds(nil)})
	}
	return to
}

func valueRecord(group uint32, key string, value []byte) record {
	return record{
		kind: kindValue, group: group, index: uint64(len(key)),
		body: append([]byte(key), value...),
	}
}

const holdLen = 24 // first index, count, term

// appendHolds encodes which entries there are, as ranges of one term.
func (e *entries) appendHolds(b []byte) []byte {
	for _, r := range e.runs {
		for from := 0; from < len(r.places); {
			to := from + 1
			for to < len(r.places) && r.places[to].term == r.places[from].term {
				to++
			}
			b = le.AppendUint64(b, r.first+uint64(from))
			b = le.AppendUint64(b, uint64(to-from))
			b = le.AppendUint64(b, r.places[from].term)
			from = to
		}
	}
	return b
}

// adopt takes over the state of all groups at the start of the oldest segment.
func (l *Log) adopt(h batchHeader, body []byte) error {
	return h.each(body, func(_, _ int, r *record) error {
		if r.kind == kindBegin {
			return nil
		}
		g := l.group(r.group)
		switch r.kind {
		case kindTerm:
			g.term = r.index
		case kindVote:
			g.vote = &vote{term: r.index, candidate: bytes.Clone(r.body)}
		case kindValue:
			return g.setValue(r)
		case kindBoundary:
			g.boundary = boundary{r.index, r.term}
		case kindHolds:
			return g.entries.owe(r.body)
		default:
			return fmt.Errorf("a record of kind %d is no state", r.kind)
		}
		return nil
	})
}

// heldMax bounds how many entries a group's state may claim, so that a damaged state cannot use all memory. It is a
// variable for the fuzz test.
var heldMax uint64 = 1 << 24

// owe records entries that the group holds but whose places are unknown. They are in segments already removed, so later
// records must delete them.
func (e *entries) owe(b []byte) error {
	if len(b)%holdLen != 0 {
		return fmt.Errorf("a state of %d bytes", len(b))
	}
	for total := uint64(0); len(b) > 0; b = b[holdLen:] {
		first, count, term := le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])
		if count == 0 || count > heldMax-total || first <= e.last() || first+count < first {
			return fmt.Errorf("a state that claims %d entries from %d on", count, first)
		}
		total += count
		places := slices.Repeat([]place{{term: term}}, int(count))
		if n := len(e.runs); n > 0 && e.runs[n-1].last()+1 == first {
			e.runs[n-1].places = append(e.runs[n-1].places, places...)
		} else {
			e.runs = append(e.runs, run{first, places})
		}
	}
	return nil
}
