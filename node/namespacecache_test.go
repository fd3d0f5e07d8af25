package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// namespaceOracle is a node's table and the control leader's, which may be newer.
type namespaceOracle struct {
	t            *testing.T
	here, leader *ebbv1.Table
	err          error
	asked        int
}

func (o *namespaceOracle) cache() *namespaceCache {
	return newNamespaceCache(func() *cluster.Table {
		table, err := cluster.NewTable(o.here)
		if err != nil {
			o.t.Fatal(err)
		}
		return table
	}, func(context.Context) ([]*ebbv1.Namespace, uint64, error) {
		o.asked++
		return o.leader.GetNamespaces(), o.leader.GetEpoch(), o.err
	}, unknownMax)
}

func tableWith(epoch uint64, list ...*ebbv1.Namespace) *ebbv1.Table {
	return &ebbv1.Table{Epoch: epoch, Namespaces: list}
}

func versionOf(name string, version uint64) *ebbv1.Namespace {
	return &ebbv1.Namespace{Name: name, Version: version, HashSeed: version}
}

// What a node has asked the control leader for counts until its own table is as new: a namespace that the table then
// lacks was purged, and is not taken for one that is there.
func TestFetchedNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &namespaceOracle{t: t, here: tableWith(5), leader: tableWith(7, versionOf("new", 1), versionOf("other", 1))}
		l := o.cache()
		refresh := func() {
			t.Helper()
			if err := l.refresh(t.Context(), []byte("new")); err != nil {
				t.Fatal(err)
			}
		}
		refresh()
		if l.namespace("new").GetVersion() != 1 || o.asked != 1 {
			t.Fatalf("it is %v after %d questions", l.namespace("new"), o.asked)
		}
		o.here = tableWith(6) // older than what was asked for
		if refresh(); l.namespace("new") == nil || l.namespace("other") == nil || o.asked != 1 {
			t.Errorf("behind the leader it is %v after %d questions", l.namespace("new"), o.asked)
		}
		o.here = tableWith(9) // it was purged in between
		if ns := l.namespace("new"); ns != nil {
			t.Errorf("purged it is %v", ns)
		}
		o.leader = tableWith(9)
		if refresh(); l.namespace("new") != nil || o.asked != 2 {
			t.Errorf("purged it is %v after %d questions", l.namespace("new"), o.asked)
		}
		if refresh(); o.asked != 2 {
			t.Errorf("the leader is asked %d times within a second", o.asked)
		}
		time.Sleep(unknownFor + time.Millisecond)
		o.leader = tableWith(10, versionOf("new", 4)) // created anew
		if refresh(); l.namespace("new").GetVersion() != 4 || o.asked != 3 {
			t.Errorf("created anew it is %v after %d questions", l.namespace("new"), o.asked)
		}
		o.here = tableWith(10, versionOf("new", 4))
		if ns := l.namespace("new"); ns.GetVersion() != 4 {
			t.Errorf("in its own table it is %v", ns)
		}
	})
}

// An older answer of a leader that was deposed does not bring a purged namespace back.
func TestOlderAnswersOfLeadersAreNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &namespaceOracle{t: t, here: tableWith(5), leader: tableWith(8, versionOf("kept", 1))}
		l := o.cache()
		if err := l.refresh(t.Context(), []byte("kept")); err != nil {
			t.Fatal(err)
		}
		o.leader = tableWith(7, versionOf("kept", 1), versionOf("gone", 1))
		if err := l.refresh(t.Context(), []byte("gone")); err != nil {
			t.Fatal(err)
		}
		if l.namespace("gone") != nil || l.namespace("kept") == nil {
			t.Errorf("gone is %v, and kept %v", l.namespace("gone"), l.namespace("kept"))
		}
	})
}

// A deleted namespace is known, so that its definition reaches shards, which refuse; that the leader cannot be asked is
// an error that says so.
func TestDeletedNamespacesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := versionOf("gone", 2)
		gone.Deletion = &ebbv1.NamespaceDeletion{Purging: true}
		o := &namespaceOracle{t: t, here: tableWith(5, gone), err: errors.New("no leader")}
		l := o.cache()
		err := l.refresh(t.Context(), []byte("gone"))
		if err != nil || o.asked != 0 || l.namespace("gone").GetDeletion() == nil {
			t.Errorf("%v after %d questions: %v", l.namespace("gone"), o.asked, err)
		}
		if err = l.refresh(t.Context(), []byte("new")); err == nil || err.Code != proto.ErrNoLeader.Code {
			t.Errorf("a leader that cannot be asked: %v", err)
		}
	})
}
