package cluster

import (
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Version returns the storage version in force, see proto.StorageVersion.
func (t *Table) Version() uint32 { return max(t.wire.GetVersion(), 1) }

// WithVersion returns a table in which at least this storage version is in force.
func (t *Table) WithVersion(version uint32) *Table {
	if version <= t.Version() {
		return t
	}
	wire := edit(t)
	wire.Version = version
	other := *t
	other.wire = wire
	return &other
}

// raiseVersion puts a newer storage version in force.
func (c *Control) raiseVersion(cmd *ebbv1.RaiseVersion) *proto.Error {
	table := c.Table()
	if table.ClusterID() == "" {
		return errStarting()
	}
	if cmd.GetTo() <= table.Version() {
		return nil // proposed twice
	}
	if cmd.GetEpoch() != table.Epoch() {
		return proto.ErrTooStale.Errorf("the table has changed since its members were asked for the versions that they know: its epoch is %d, and was %d", table.Epoch(), cmd.GetEpoch())
	}
	wire := edit(table)
	wire.Version = cmd.GetTo()
	c.swap(wire)
	return nil
}

// NextVersion returns the newest storage version that all members know, by the versions that they reported. It returns
// the version in force if there is no newer one, if a member has not reported, or if a member cannot run with the new
// one. held are the members that know no version newer than the one in force.
func NextVersion(t *Table, reported map[string]proto.Versions) (next uint32, held []string) {
	next = math.MaxUint32
	for _, node := range t.Nodes() {
		knows := reported[node.GetName()] // zero if it did not answer
		if knows.Newest <= t.Version() {
			held = append(held, node.GetName())
		}
		next = min(next, knows.Newest)
	}
	for _, node := range t.Nodes() {
		if !reported[node.GetName()].Know(next) {
			return t.Version(), held
		}
	}
	return max(next, t.Version()), held
}
