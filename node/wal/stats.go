package wal

import (
	"slices"
	"sort"
	"sync/atomic"
	"time"
)

// counters are written by the writer and the keeper.
type counters struct {
	batches, records, bytes atomic.Int64
	syncTime, syncMax       atomic.Int64 // nanoseconds
	syncLately              atomic.Int64 // the longest since the last call of LongestSync, nanoseconds
	rolls, removed          atomic.Int64
}

// synced counts a batch. Only the writer calls it.
func (c *counters) synced(took time.Duration, bytes int) {
	c.batches.Add(1)
	c.bytes.Add(int64(bytes))
	c.syncTime.Add(int64(took))
	c.syncMax.Store(max(c.syncMax.Load(), int64(took)))
	for old := c.syncLately.Load(); int64(took) > old && !c.syncLately.CompareAndSwap(old, int64(took)); old = c.syncLately.Load() {
	}
}

// LongestSync returns the longest time that a batch took to become durable since the last call; 0 if there was no
// batch. It must have only one caller.
func (l *Log) LongestSync() time.Duration { return time.Duration(l.counters.syncLately.Swap(0)) }

// Stats describes a log.
type Stats struct {
	Segments  int
	Bytes     int64 // on disk
	LiveBytes int64 // of entries that groups hold
	TailBytes int64 // of batches in memory
	Groups    int   // that hold anything

	Batches, Records, Written int64 // since the opening; Written in bytes
	SyncTime, SyncMax         time.Duration
	Rolls, Removed            int64 // segments

	// Oldest is the number of the oldest segment. Pins are the groups that hold entries in it, the one with the most
	// bytes first. A snapshot of these groups, and deletion of the entries it covers, frees the segment. Empty with one
	// segment.
	Oldest uint32
	Pins   []Pin
}

// Pin is a group that keeps the oldest segment from being removed.
type Pin struct {
	Group   uint32
	Entries int
	Bytes   int64
	Last    uint64 // the last index in that segment: snapshot and delete up to it
}

// Stats returns the log's state and counters.
func (l *Log) Stats() Stats {
	l.index.RLock()
	defer l.index.RUnlock()
	s := Stats{
		Segments: len(l.segments), TailBytes: l.tail.bytes,
		Batches: l.counters.batches.Load(), Records: l.counters.records.Load(), Written: l.counters.bytes.Load(),
		SyncTime: time.Duration(l.counters.syncTime.Load()), SyncMax: time.Duration(l.counters.syncMax.Load()),
		Rolls: l.counters.rolls.Load(), Removed: l.counters.removed.Load(),
		Oldest: l.segments[0].number,
	}
	for _, seg := range l.segments {
		s.Bytes += seg.size
		s.LiveBytes += seg.liveBytes
	}
	for _, id := range l.groupIDs() {
		if g := l.groups[id]; !g.empty() {
			s.Groups++
		}
	}
	if len(l.segments) > 1 {
		s.Pins = l.pins()
	}
	return s
}

// GroupIDs returns the groups that hold anything, sorted.
func (l *Log) GroupIDs() []uint32 {
	l.index.RLock()
	defer l.index.RUnlock()
	return slices.DeleteFunc(l.groupIDs(), func(id uint32) bool { return l.groups[id].empty() })
}

func (g *Group) empty() bool {
	return len(g.entries.runs) == 0 && g.term == 0 && g.vote == nil && len(g.values) == 0 && g.boundary.index == 0
}

// pins lists the groups that hold entries in the oldest segment. l.index is held.
func (l *Log) pins() []Pin {
	left := l.segments[0].live
	var pins []Pin
	for _, id := range l.groupIDs() {
		if left == 0 {
			break
		}
		if p := l.groups[id].pin(l.segments[0].number); p.Entries > 0 {
			pins = append(pins, p)
			left -= p.Entries
		}
	}
	sort.Slice(pins, func(i, j int) bool { return pins[i].Bytes > pins[j].Bytes })
	return pins
}

func (g *Group) pin(segment uint32) Pin {
	p := Pin{Group: g.id}
	for _, r := range g.entries.runs {
		for i, at := range r.places {
			if at.segment == segment {
				p.Entries++
				p.Bytes += int64(at.size)
				p.Last = r.first + uint64(i)
			}
		}
	}
	return p
}
