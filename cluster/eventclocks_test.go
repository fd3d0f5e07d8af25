package cluster

import (
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A setting of an event clock gets an epoch, the version that the namespace then has; so does a clock that becomes an
// event clock. Other changes leave it, and before storage version 11 there is none, which is how older builds decide.
func TestControlSetsEventClocks(t *testing.T) {
	s := bornCluster(t)
	set := func(us int64) *ebbv1.ClockSetting { return &ebbv1.ClockSetting{TimeUs: us} }
	event, day := ebbv1.Clock_CLOCK_EVENT, int64(24*3600*1_000_000)
	change := func(create bool, ns *ebbv1.Namespace) *ebbv1.Namespace {
		t.Helper()
		r := s.apply(setCommand(create, ns))
		if r.GetError() != nil {
			t.Fatal(r.GetError())
		}
		return r.GetNamespace()
	}
	refused := func(what string, ns *ebbv1.Namespace) {
		t.Helper()
		if e := s.apply(setCommand(false, ns)).GetError(); e == nil {
			t.Errorf("%s: taken", what)
		}
	}
	old := change(true, &ebbv1.Namespace{Name: "old", Clock: event, MaxJumpUs: new(day), ClockSetting: set(5)})
	if old.MaxJumpUs != nil || old.ClockSetting != nil {
		t.Errorf("before they are known: %v", old)
	}
	if e := s.apply(raiseCommand(proto.VersionEventClocks, s.c.Table().Epoch())).GetError(); e != nil {
		t.Fatal(e)
	}
	ns := change(true, &ebbv1.Namespace{Name: "n", Clock: event, ClockSetting: &ebbv1.ClockSetting{Epoch: 70, TimeUs: 5}})
	if c := ns.GetClockSetting(); c.GetEpoch() != ns.GetVersion() || c.GetTimeUs() != 0 {
		t.Errorf("a namespace with the setting of another one begins with %v", c)
	}
	begun := ns.GetClockSetting().GetEpoch()
	ns = change(false, &ebbv1.Namespace{Name: "n", MaxJumpUs: new(day)})
	if ns.GetMaxJumpUs() != day || ns.GetClockSetting().GetEpoch() != begun {
		t.Errorf("another change: %v", ns)
	}
	ns = change(false, &ebbv1.Namespace{Name: "n", ClockSetting: set(day)})
	if c := ns.GetClockSetting(); c.GetEpoch() != ns.GetVersion() || c.GetTimeUs() != day || ns.GetMaxJumpUs() != day {
		t.Errorf("set: %v", ns)
	}
	version := ns.GetVersion()
	if ns = change(false, ns); ns.GetVersion() != version {
		t.Errorf("the same again is version %d", ns.GetVersion())
	}
	if ns = change(false, &ebbv1.Namespace{Name: "n", ClockSetting: set(day)}); ns.GetClockSetting().GetEpoch() <= version {
		t.Errorf("the same time again begins no epoch: %v", ns)
	}
	refused("an epoch", &ebbv1.Namespace{Name: "n", ClockSetting: &ebbv1.ClockSetting{Epoch: 3, TimeUs: day}})
	refused("a time before 1970", &ebbv1.Namespace{Name: "n", ClockSetting: set(-1)})
	refused("no time", &ebbv1.Namespace{Name: "n", ClockSetting: set(0)})
	refused("a jump of 1 us", &ebbv1.Namespace{Name: "n", MaxJumpUs: new(int64(1))})

	change(true, &ebbv1.Namespace{Name: "wall"})
	refused("no event clock", &ebbv1.Namespace{Name: "wall", ClockSetting: set(day)})
	refused("one that becomes one", &ebbv1.Namespace{Name: "wall", Clock: event, ClockSetting: set(day)})
	if ns = change(false, &ebbv1.Namespace{Name: "wall", Clock: event}); ns.GetClockSetting().GetEpoch() != ns.GetVersion() {
		t.Errorf("it becomes an event clock: %v", ns)
	}
	change(true, &ebbv1.Namespace{Name: "leaky", Clock: event, Decay: ebbv1.Decay_DECAY_LINEAR})
	refused("linear decay", &ebbv1.Namespace{Name: "leaky", ClockSetting: set(day)})
	reborn(t, s.c)
}

// One asks, the others use what is known. What is known goes forward only, but for a new epoch.
func TestWhatIsKnownOfEventClocks(t *testing.T) {
	var e eventClocks
	clock := func(epoch uint64, us int64) *ebbv1.EventClock { return &ebbv1.EventClock{Epoch: epoch, NowUs: us} }
	now := time.Unix(1000, 0)
	known, ask, wait := e.find("n", now)
	if known != nil || !ask || wait != nil {
		t.Fatal("the first does not ask")
	}
	if _, ask, wait = e.find("n", now); ask || wait == nil {
		t.Fatal("the second does not wait for the first")
	}
	if got := e.record("n", clock(2, 50), true, now); got.GetNowUs() != 50 {
		t.Fatal(got)
	}
	<-wait
	for _, c := range []struct {
		later time.Duration
		ask   bool
	}{{0, false}, {clockRenew - 1, false}, {clockRenew, true}, {clockRenew, false}, {time.Hour, false}} {
		known, ask, wait := e.find("n", now.Add(c.later))
		if known.GetNowUs() != 50 || ask != c.ask || wait != nil {
			t.Fatalf("after %v: %v, ask %v", c.later, known, ask)
		}
	}
	for _, c := range []struct{ answered, want *ebbv1.EventClock }{
		{clock(2, 40), clock(2, 50)},
		{nil, clock(2, 50)},
		{clock(2, 60), clock(2, 60)},
		{clock(3, 5), clock(3, 5)},
		{clock(2, 90), clock(3, 5)},
	} {
		if got := e.record("n", c.answered, true, now.Add(time.Hour)); got.GetEpoch() != c.want.GetEpoch() || got.GetNowUs() != c.want.GetNowUs() {
			t.Errorf("answered %v: %v, not %v", c.answered, got, c.want)
		}
	}
	e.note("n", clock(3, 7))
	e.note("n", clock(3, 6))
	if e.known("n").GetNowUs() != 7 || e.known("other") != nil {
		t.Error("notes")
	}
	if known, ask, _ := e.find("n", now.Add(time.Hour)); ask || known.GetNowUs() != 7 {
		t.Error("it was recorded just now, and is asked for again")
	}
}

// Until all shards have answered once, all wait for the next try; no longer than clockFirst.
func TestSilentShardsAreWaitedFor(t *testing.T) {
	var e eventClocks
	clock := &ebbv1.EventClock{Epoch: 2, NowUs: 50}
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		at         time.Duration
		ask        bool
		incomplete bool
	}{
		{at: 0, ask: true, incomplete: true},
		{at: time.Millisecond, ask: true, incomplete: true},
		{at: clockFirst - 1, ask: true, incomplete: true},
		{at: clockFirst},                       // what is known is young
		{at: clockFirst + clockAge, ask: true}, // and now old
	} {
		_, ask, wait := e.find("n", now.Add(c.at))
		if ask != c.ask || wait != nil {
			t.Errorf("after %v: ask %v, wait %v", c.at, ask, wait != nil)
		}
		if ask {
			if _, again, wait := e.find("n", now.Add(c.at)); again || (wait != nil) != c.incomplete {
				t.Errorf("after %v another one: ask %v, wait %v", c.at, again, wait != nil)
			}
			e.record("n", clock, false, now.Add(c.at))
		}
		if got := e.incomplete("n", now.Add(c.at)); got != c.incomplete {
			t.Errorf("after %v: incomplete is %v", c.at, got)
		}
	}
	e.find("m", now)
	e.record("m", clock, true, now)
	if _, ask, wait := e.find("m", now.Add(time.Millisecond)); ask || wait != nil {
		t.Error("all have answered, and it asks")
	}
}
