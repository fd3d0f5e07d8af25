package node

import (
	"slices"
	"time"
)

const (
	// paceEvery is how long each span is. The slowest sync of a span counts.
	paceEvery = time.Second
	// slowSync is what a sync takes on a slow disk: ten to a hundred times what a disk in order does, also a volume in
	// a cloud, and a fifth of the half second after which a client asks who else leads. Below fineSync, half of it, the
	// disk is in order again.
	slowSync = 100 * time.Millisecond
	fineSync = slowSync / 2
	// A disk is slow when slowSpans of the last slowOf spans with a sync had a slow one: no single sync makes it so,
	// however long, nor two with those that waited behind them, and a disk that halts now and then does, which most
	// syncs of a busy log do not notice.
	slowSpans, slowOf = 5, 6
	// paceSpans are how many spans are remembered. A slow disk is in order again when so many have gone by since, and
	// three of four of those that had a sync were fine: one that lies idle is tried again, and one that recovers and
	// falls back moves leaders twice in half a minute at most.
	paceSpans = 20
	// handOverSpans is how many spans a disk is slow before its node hands anything over. Disks of one machine or one
	// storage become slow together: their nodes have reported it by then.
	handOverSpans = 2
)

// diskPace is how fast this node's disk is, and whether it is too slow to lead. It is a value: after makes the next
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

// slowest is the slowest sync of so many of the last slowOf spans that had one, at least; 0 if fewer had.
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

// usual is what a node tells others: half of the spans had such a sync, so that they hear of a disk that is becoming
// slow before it is.
func (p diskPace) usual() time.Duration { return p.slowest(slowOf / 2) }

// handsOver reports whether this node hands over the groups that it leads.
func (p diskPace) handsOver() bool { return p.slow && p.since >= handOverSpans }

// fine reports whether three of four of the spans with a sync had none that took long.
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

// lighter reports whether leaders are better off with a disk that has such syncs than with this one, which is slow:
// they take half of what they take here at most. Nodes that share a disk, or whose disks all became slow together,
// differ by less, and keep what they lead.
func (p diskPace) lighter(usual time.Duration) bool {
	return 2*usual <= max(p.slowest(slowSpans), slowSync)
}
