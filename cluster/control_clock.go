package cluster

import (
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The event clock of a namespace has epochs. One begins when the namespace begins to live by the times of its events,
// and whenever an operator sets the clock. Its number is the version that the namespace has then, so that it is above
// all earlier ones, also of a namespace of the same name that was purged. Shards learn of it as of any other change.

// beganClock gives a definition that is about to be put in its epoch. have is nil of a new namespace.
func (t *Table) beganClock(want, have *ebbv1.Namespace) {
	if t.Version() >= proto.VersionClocks && proto.OnEventTime(want) && !proto.OnEventTime(have) {
		want.ClockSet = &ebbv1.EventClock{Epoch: want.Version}
	}
}

// keepClock fills in what a request cannot change, and drops what nodes of older builds would not keep.
func (t *Table) keepClock(want, have *ebbv1.Namespace) {
	want.ClockSet = have.GetClockSet()
	if t.Version() < proto.VersionClocks {
		want.ClockSet, want.MaxJumpUs = nil, nil
	}
}

// keepRestoredClock is keepClock for a namespace of a backup: its epoch is not below that which it has here.
func (t *Table) keepRestoredClock(want, have *ebbv1.Namespace) {
	if t.Version() < proto.VersionClocks {
		want.ClockSet, want.MaxJumpUs = nil, nil
		return
	}
	if epoch := have.GetClockSet().GetEpoch(); epoch > want.GetClockSet().GetEpoch() {
		want.ClockSet = &ebbv1.EventClock{Epoch: epoch, NowUs: want.GetClockSet().GetNowUs()}
	}
}

// setNamespaceClock returns the namespace as it is after the command.
func (c *Control) setNamespaceClock(req *ebbv1.SetNamespaceClockRequest) (*ebbv1.Namespace, *proto.Error) {
	table := c.Table()
	have := table.Defined(req.GetName())
	switch {
	case table.ClusterID() == "":
		return nil, errStarting()
	case table.Version() < proto.VersionClocks:
		return nil, proto.ErrStarting.Errorf("event clocks are set from storage version %d on, and %d is in force", proto.VersionClocks, table.Version()).
			WithHint("upgrade all nodes, and wait some seconds: ebb status shows the version in force")
	case have == nil:
		return nil, table.NamespaceNotFound(req.GetName())
	case have.GetDeletion() != nil:
		return nil, errStillDeleted(have)
	case !proto.OnEventTime(have):
		return nil, proto.ErrBadNamespace.Errorf("namespace %s lives by the time of day, which cannot be set", have.GetName()).
			WithHint("only namespaces with --clock event have a clock of their own")
	case req.GetNowUs() <= 0 || req.GetNowUs() > proto.ClockMaxUS:
		return nil, proto.ErrBadTime.Errorf("time %d µs: a clock is set to a time after 1970, and before the year 4253", req.GetNowUs())
	}
	want := pb.CloneOf(have)
	want.Version++
	want.ClockSet = &ebbv1.EventClock{Epoch: want.Version, NowUs: req.GetNowUs()}
	wire := edit(table)
	wire.Namespaces = put(wire.Namespaces, want, (*ebbv1.Namespace).GetName)
	c.swap(wire)
	return want, nil
}
