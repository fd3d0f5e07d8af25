package node

import (
	"context"
	"sync/atomic"

	"github.com/ebbdb/ebb/cluster"
)

// tables is the cluster's table as this node knows it.
type tables struct {
	saved   atomic.Pointer[cluster.Table]   // of the last run, or from another node; nil if there is none
	control atomic.Pointer[cluster.Control] // nil until this node has a member of the control group
	changed chan struct{}                   // holds a token when control has a new table
}

func newTables(saved *cluster.Table) *tables {
	t := &tables{changed: make(chan struct{}, 1)}
	t.saved.Store(saved)
	return t
}

var emptyTable = cluster.NewControl().Table()

// now returns the newest table: the control group's, or the saved one while that is newer, or an empty one.
func (t *tables) now() *cluster.Table {
	table := emptyTable
	if c := t.control.Load(); c != nil {
		table = c.Table()
	}
	if saved := t.saved.Load(); saved != nil && saved.Epoch() > table.Epoch() {
		return saved
	}
	return table
}

// note signals that the control group has a new table. It does not wait.
func (t *tables) note() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// run hands every new table to keep, until ctx ends or keep returns an error.
func (t *tables) run(ctx context.Context, keep func(*cluster.Table) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.changed:
		}
		if table := t.control.Load().Table(); table.ClusterID() != "" {
			if err := keep(table); err != nil {
				return err
			}
		}
	}
}
