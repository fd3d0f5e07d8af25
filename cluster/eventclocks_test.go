package cluster

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func eventSpace(name string) *ebbv1.Namespace {
	return &ebbv1.Namespace{Name: name, Clock: ebbv1.Clock_CLOCK_EVENT}
}

func setClockCommand(name string, now int64) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetNamespaceClock{
		SetNamespaceClock: &ebbv1.SetNamespaceClockRequest{Name: name, NowUs: now},
	}}
}

// An epoch begins with a namespace, when it begins to live by the times of its events, and when its clock is set; each is
// above all earlier ones, also of a namespace of that name which was purged.
func TestControlSetsClocks(t *testing.T) {
	s := bornCluster(t)
	s.apply(raiseCommand(proto.VersionDeletion, s.c.Table().Epoch()))
	early := eventSpace("early")
	early.MaxJumpUs = new(int64(5))
	if ns := s.apply(setCommand(true, early)).GetNamespace(); ns.GetClockSet() != nil || ns.MaxJumpUs != nil {
		t.Errorf("before version %d: %v", proto.VersionClocks, ns)
	}
	if e := s.apply(setClockCommand("early", 7)).GetError(); e.GetCode() != ebbv1.Code_CODE_STARTING {
		t.Errorf("before version %d a clock is set: %v", proto.VersionClocks, e)
	}
	s.apply(raiseCommand(proto.VersionClocks, s.c.Table().Epoch()))
	epoch := func(ns *ebbv1.Namespace, epoch uint64, now int64) {
		t.Helper()
		if c := ns.GetClockSet(); c.GetEpoch() != epoch || c.GetNowUs() != now || ns.GetVersion() < epoch {
			t.Errorf("%v, not epoch %d at %d", ns, epoch, now)
		}
	}
	epoch(s.apply(setClockCommand("early", 7)).GetNamespace(), 2, 7)
	epoch(s.apply(setCommand(false, &ebbv1.Namespace{Name: "early", HalfLifeUs: 5e9})).GetNamespace(), 2, 7)
	epoch(s.apply(setCommand(false, &ebbv1.Namespace{Name: "early", ClockSet: &ebbv1.EventClock{Epoch: 99}})).GetNamespace(), 2, 7)
	epoch(s.apply(setCommand(true, eventSpace("a"))).GetNamespace(), 1, 0)
	epoch(s.apply(setClockCommand("a", 9)).GetNamespace(), 2, 9)
	epoch(s.apply(setClockCommand("a", 3)).GetNamespace(), 3, 3)
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "wall"}))
	epoch(s.apply(setCommand(false, eventSpace("wall"))).GetNamespace(), 2, 0)
	for name, c := range map[string]struct {
		command *ebbv1.ControlCommand
		want    ebbv1.Code
	}{
		"none":               {setClockCommand("nowhere", 7), ebbv1.Code_CODE_NAMESPACE_NOT_FOUND},
		"of the time of day": {setClockCommand("default", 7), ebbv1.Code_CODE_BAD_NAMESPACE},
		"to nothing":         {setClockCommand("a", 0), ebbv1.Code_CODE_BAD_TIME},
		"too late":           {setClockCommand("a", proto.ClockMaxUS+1), ebbv1.Code_CODE_BAD_TIME},
	} {
		if got := s.apply(c.command).GetError().GetCode(); got != c.want {
			t.Errorf("a clock %s: %v, not %v", name, got, c.want)
		}
	}
	s.apply(deleteCommand("a", 100, 50))
	if e := s.apply(setClockCommand("a", 7)).GetError(); e == nil {
		t.Error("the clock of a deleted namespace is set")
	}
	s.apply(purgeCommand("a", s.c.Table().Defined("a").GetVersion()))
	version := s.c.Table().Defined("a").GetVersion()
	for shard := uint32(1); shard <= s.c.Table().Shards(); shard++ {
		s.apply(purgedCommand(shard, "a", version))
	}
	if ns := s.apply(setCommand(true, eventSpace("a"))).GetNamespace(); ns.GetClockSet().GetEpoch() <= version {
		t.Errorf("born again: %v", ns)
	}
}

// A restore brings the clock of a backup, in an epoch that is not below the one here. Done twice it changes nothing.
func TestRestoredClocks(t *testing.T) {
	for _, c := range []struct{ has, backup, want uint64 }{{0, 0, 0}, {0, 3, 3}, {5, 3, 5}, {2, 3, 3}} {
		s := bornCluster(t)
		s.apply(raiseCommand(proto.VersionClocks, s.c.Table().Epoch()))
		if c.has > 0 {
			s.apply(setCommand(true, eventSpace("a")))
			for s.c.Table().Namespace("a").GetVersion() < c.has {
				s.apply(setClockCommand("a", 77))
			}
		}
		ns := ofBackup("a", 3, 5)
		ns.Clock = ebbv1.Clock_CLOCK_EVENT
		if c.backup > 0 {
			ns.ClockSet = &ebbv1.EventClock{Epoch: c.backup, NowUs: 11}
		}
		if e := s.apply(restoreCommand(ns)).GetError(); e != nil {
			t.Fatal(e)
		}
		got := s.c.Table().Namespace("a").GetClockSet()
		if got.GetEpoch() != c.want || c.backup > 0 && got.GetNowUs() != 11 {
			t.Errorf("epoch %d over %d: %v", c.backup, c.has, got)
		}
		table := s.c.Table()
		if s.apply(restoreCommand(ns)); s.c.Table() != table {
			t.Errorf("epoch %d over %d: the second time changed something", c.backup, c.has)
		}
	}
}

// A node believes the latest clock of the latest epoch, and asks of no clock that a caller says of another one.
func TestEventClocksThatWereHeard(t *testing.T) {
	var clocks EventClocks
	for _, c := range []struct{ epoch, now, wantEpoch, wantNow int64 }{
		{1, 10, 1, 10}, {1, 5, 1, 10}, {1, 12, 1, 12}, {2, 3, 2, 3}, {1, 99, 2, 3}, {2, 0, 2, 3}, {3, proto.ClockMaxUS + 1, 2, 3},
	} {
		clocks.Heard("a", &ebbv1.EventClock{Epoch: uint64(c.epoch), NowUs: c.now})
		clocks.Moved("b", uint64(c.epoch), c.now)
		for _, name := range []string{"a", "b"} {
			if got := clocks.Of(name); got.GetEpoch() != uint64(c.wantEpoch) || got.GetNowUs() != c.wantNow {
				t.Errorf("after %d of epoch %d: %v", c.now, c.epoch, got)
			}
		}
	}
	s := bornCluster(t)
	s.apply(raiseCommand(proto.VersionDeletion, s.c.Table().Epoch()))
	s.apply(setCommand(true, eventSpace("a")))
	if got := clocks.Asked(s.c.Table(), s.c.Table().Namespace("a"), nil); got != nil {
		t.Errorf("before version %d: %v", proto.VersionClocks, got)
	}
	s.apply(raiseCommand(proto.VersionClocks, s.c.Table().Epoch()))
	seen := func(epoch uint64, now int64) []*ebbv1.NamespaceClock {
		return []*ebbv1.NamespaceClock{
			{Namespace: "b", Clock: &ebbv1.EventClock{Epoch: 2, NowUs: 1000}}, {Namespace: "a", Clock: &ebbv1.EventClock{Epoch: epoch, NowUs: now}},
		}
	}
	for _, c := range []struct {
		name string
		seen []*ebbv1.NamespaceClock
		want int64
	}{
		{"nothing", nil, 3}, {"earlier", seen(2, 2), 3}, {"later", seen(2, 8), 8}, {"another epoch", seen(1, 8), 3},
		{"an epoch to come", seen(3, 8), 3}, {"too late", seen(2, proto.ClockMaxUS+1), 3},
	} {
		if got := clocks.Asked(s.c.Table(), s.c.Table().Namespace("a"), c.seen); got.GetEpoch() != 2 || got.GetNowUs() != c.want {
			t.Errorf("seen %s: %v, not %d", c.name, got, c.want)
		}
	}
	if got := clocks.Asked(s.c.Table(), s.c.Table().Namespace("default"), nil); got != nil {
		t.Errorf("of the time of day: %v", got)
	}
	clocks.Keep(s.c.Table())
	if len(clocks.All()) != 1 {
		t.Errorf("kept: %v", clocks.All())
	}
	var none *EventClocks
	none.Heard("a", &ebbv1.EventClock{Epoch: 1, NowUs: 1})
	if none.Of("a") != nil {
		t.Error("nobody has heard something")
	}
}
