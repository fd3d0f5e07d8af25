package node

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
)

const (
	// stampAheadMax is how far ahead of the median of its voters' clocks a leader may stamp. A stamp ten years ahead
	// would destroy every summary.
	stampAheadMax = 500 * time.Millisecond
	// clockJump is how far our clock may run from the monotonic one between two
	// readings before that counts as a jump.
	clockJump = 100 * time.Millisecond
	// clockSettle is how long after a jump the node waits for new samples of peers' clocks, which are differences to
	// its own.
	clockSettle = 3 * clockSample
	// clockSample is the time between two samples of a peer's clock.
	clockSample = 100 * time.Millisecond
	// clockWait is how long a proposal waits until the clock can be judged.
	clockWait = time.Second
)

// errClockUnknown is returned while too few clocks are known to judge our own.
var errClockUnknown = proto.ErrClockSkew.Errorf("the clocks of a majority of voters are not known yet").
	WithHint("try again")

// timekeeper compares this node's clock with its peers'. Between two samples it
// extrapolates by the monotonic clock, so that a jump of our own clock is seen at
// once and not only when the next sample arrives.
//
//	ahead = (wall - anchor.wall) - (mono - anchor.mono) - median(offsets)
type timekeeper struct {
	clock   Clock
	offsets func(since time.Time) map[string]time.Duration // peers' clocks minus ours, by samples requested since then

	anchor atomic.Pointer[anchor]

	mu     sync.Mutex // guards what follows
	last   anchor     // the newest reading
	jumped time.Time  // monotonic; when our clock last jumped
}

// anchor is one reading of this node's wall clock and monotonic clock, with the peers' offsets that were known then.
type anchor struct {
	wallUS  int64
	mono    time.Time
	offsets map[string]time.Duration
}

func newTimekeeper(clock Clock, offsets func(since time.Time) map[string]time.Duration) *timekeeper {
	k := &timekeeper{clock: clock, offsets: offsets}
	k.sample()
	return k
}

// nowUS reads the clock in microseconds since the Unix epoch.
func (k *timekeeper) nowUS() int64 { return k.clock.Now().UnixMicro() }

// sample takes a new anchor, unless our clock has just jumped: then the samples of peers still relate to the clock
// before the jump. Such samples are not used later either: if the machine stood still, they do not include the time
// that passed. sample is called every clockSample.
func (k *timekeeper) sample() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := anchor{wallUS: k.nowUS(), mono: time.Now()}
	if !k.last.mono.IsZero() && now.drift(&k.last).Abs() > clockJump {
		k.jumped = now.mono
	}
	k.last = now
	if !k.jumped.IsZero() && now.mono.Sub(k.jumped) < clockSettle {
		return
	}
	now.offsets = k.offsets(k.jumped)
	k.anchor.Store(&now)
}

// drift is how far the wall clock ran from the monotonic one since an earlier reading.
func (a *anchor) drift(from *anchor) time.Duration {
	return time.Duration(a.wallUS-from.wallUS)*time.Microsecond - a.mono.Sub(from.mono)
}

// stamp returns the time of day for a log entry, or CLOCK_SKEW: when it is more
// than stampAheadMax ahead of the median of the voters' clocks, or when too few
// of them are known (errClockUnknown). self is among the voters.
func (k *timekeeper) stamp(self string, voters []string) (int64, error) {
	now := anchor{wallUS: k.nowUS(), mono: time.Now()}
	at := k.anchor.Load()
	median, ok := at.median(self, voters)
	if !ok {
		return 0, errClockUnknown
	}
	if ahead := now.drift(at) - median; ahead > stampAheadMax {
		return 0, proto.ErrClockSkew.Errorf("clock of node %s is %v ahead of the median of its shard's voters: the limit is %v", self, ahead.Round(time.Millisecond), stampAheadMax).
			WithHint("set the node's clock right; another node takes over until then")
	}
	return now.wallUS, nil
}

// staleness returns how long ago, at most, a replica had all entries. nowUS is the time by its voters' clocks, and
// stampUS is the stamp of its last entry. It returns false if no correct clock can have given that stamp. Such a stamp
// follows one of clocks that were fast and have been set back since. Until time has caught up, stamps only count up,
// and do not show when they were given.
func staleness(nowUS, stampUS int64) (age time.Duration, ok bool) {
	age = time.Duration(nowUS-stampUS)*time.Microsecond + stampAheadMax
	return age, age >= 0
}

// median returns how far the median voter's clock was ahead of ours. Of an even number it takes the lower middle: that
// refuses too much rather than too little, and a voter whose clock is behind may lead instead. It returns false unless
// the clocks of a majority are known.
func (a *anchor) median(self string, voters []string) (time.Duration, bool) {
	var room [8]time.Duration
	known := room[:0]
	for _, v := range voters {
		if v == self {
			known = append(known, 0)
		} else if d, ok := a.offsets[v]; ok {
			known = append(known, d)
		}
	}
	if 2*len(known) <= len(voters) {
		return 0, false
	}
	slices.Sort(known)
	return known[(len(known)-1)/2], true
}

// usable reports whether a peer's clock would let it lead.
func (k *timekeeper) usable(peer, self string, voters []string) bool {
	at := k.anchor.Load()
	median, ok := at.median(self, voters)
	offset, known := at.offsets[peer]
	return ok && known && offset-median <= stampAheadMax
}

// median returns the time of day by the median voter's clock, and whether enough clocks are known. They are not if our
// clock has jumped since: the machine may have stood still, and the monotonic clock does not show that.
func (k *timekeeper) median(self string, voters []string) (int64, bool) {
	now := anchor{wallUS: k.nowUS(), mono: time.Now()}
	at := k.anchor.Load()
	median, ok := at.median(self, voters)
	return at.wallUS + (now.mono.Sub(at.mono) + median).Microseconds(), ok && now.drift(at).Abs() <= clockJump
}
