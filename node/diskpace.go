package node

import (
	"slices"
	"time"
)

const (
	// paceEvery is the length of a span. The slowest sync of a span counts.
	paceEvery = time.Second
	// slowSync is how long a sync takes on a slow disk: ten to a hundred times as long as on a healthy disk, also a
	// cloud volume. It is a fifth of the half second after which a client asks who else leads. With syncs below
	// fineSync, half of it, the disk is fine again.
	slowSync = 100 * time.Millisecond
	fineSync = slowSync / 2
	// A disk is slow when slowSpans of the last slowOf spans with a sync had a slow one. No single sync makes it slow,
	// however long, nor do two with those that waited behind them. A disk that halts now and then does count as slow,
	// although most syncs of a busy log do not notice.
	slowSpans, slowOf = 5, 6
	// paceSpans is how many spans are kept. A slow disk is fine again when that many spans have passed, and three
	// quarters of those with a sync were fine. So an idle disk is tried again. A disk that recovers and becomes slow
	// again moves leaders at most twice in half a minute.
	paceSpans = 20
	// handOverSpans is how many spans a disk is slow before its node hands anything over. Disks of one machine or one
	// storage become slow together: their nodes have reported it by then.
	handOverSpans = 2
)

// diskPace is how fast this node's disk is, and whether it is too slow to lead. It is immutable: after returns the next
// one.
type diskPace struct {
	spans [paceSpans]time.Duration // the slowest sync of each, the last span first; 0: there was none
	since int                      // spans that have gone by since it became slow
	slow  bool
}

// after returns the pace after one more span, with its slowest sync; 0 if there was none.
func (p diskPace) after(slowest time.Duration) diskPace {
	copy(p.spans[1:], p.spans[:paceSpans-1])
	p.spans[0] = slowest
	switch {
	case !p.slow && p.slowest(slowSpans) >= slowSync:
		p.slow, p.since = true, 0
	case p.slow:
		p.since++
		p.slow = p.since < paceSpans || !p.fine()
	}
	return p
}

// slowest returns the longest duration that the slowest syncs of at least `of` spans reach, of the last slowOf spans
// with a sync. It is 0 if fewer spans had a sync.
func (p diskPace) slowest(of int) time.Duration {
	var last []time.Duration
	for _, s := range p.spans {
		if s > 0 && len(last) < slowOf {
			last = append(last, s)
		}
	}
	if len(last) < of {
		return 0
	}
	slices.Sort(last)
	return last[len(last)-of]
}

// usual is the sync time that a node reports to others: the slowest syncs of half of the last spans took at least as
// long. So others learn that a disk is becoming slow before it counts as slow.
func (p diskPace) usual() time.Duration { return p.slowest(slowOf / 2) }

// handsOver reports whether this node hands over the groups that it leads.
func (p diskPace) handsOver() bool { return p.slow && p.since >= handOverSpans }

// fine reports whether at least three quarters of the spans with a sync had no sync of fineSync or longer.
func (p diskPace) fine() bool {
	synced, fine := 0, 0
	for _, s := range p.spans {
		if s > 0 {
			synced++
			if s < fineSync {
				fine++
			}
		}
	}
	return 4*fine >= 3*synced
}

// lighter reports whether leaders are better off on a disk with the given usual sync time than on this one, which is
// slow. Syncs there must take at most half as long as here. Nodes that share a disk, or whose disks became slow
// together, differ by less, and keep what they lead.
func (p diskPace) lighter(usual time.Duration) bool {
	return 2*usual <= max(p.slowest(slowSpans), slowSync)
}
