package cluster

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// withKey is a command with an idempotency key.
func withKey(cmd *ebbv1.ControlCommand, n uint64) *ebbv1.ControlCommand {
	cmd.IdempotencyKey = &ebbv1.IdempotencyKey{IssuedAtUs: 1, Hi: n, Lo: ^n}
	return cmd
}

// keyedCluster is a cluster with namespaces a and b that keeps keys of changes.
func keyedCluster(t *testing.T) testControl {
	s := bornCluster(t)
	for _, cmd := range []*ebbv1.ControlCommand{
		tokenCommand("ops", 1, role(ebbv1.Role_ROLE_OPERATOR, "")),
		setCommand(true, &ebbv1.Namespace{Name: "a"}),
		setCommand(true, &ebbv1.Namespace{Name: "b"}),
	} {
		if e := s.apply(cmd).GetError(); e != nil {
			t.Fatal(e)
		}
	}
	s.apply(raiseCommand(proto.VersionClientChanges, s.c.Table().Epoch()))
	return s
}

// A try of a change that comes after later changes, and after a restart, does not undo them.
func TestLateTries(t *testing.T) {
	halfLife := func(us int64) *ebbv1.ControlCommand {
		return setCommand(false, &ebbv1.Namespace{Name: "a", HalfLifeUs: us})
	}
	token := func() *ebbv1.ControlCommand { return tokenCommand("dash", 2, role(ebbv1.Role_ROLE_READER, "*")) }
	state := func(s ebbv1.NodeState) *ebbv1.ControlCommand {
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetNodeState{
			SetNodeState: &ebbv1.SetNodeState{Node: "ebb-0", State: s},
		}}
	}
	nodeState := func(c *Control) ebbv1.NodeState {
		for _, n := range c.Table().Wire().GetNodes() {
			if n.GetName() == "ebb-0" {
				return n.GetState()
			}
		}
		return -1
	}
	for _, c := range []struct {
		name          string
		change, later *ebbv1.ControlCommand
		holds         func(*Control) bool // what the later change says
	}{
		{
			"delete and undelete", deleteCommand("a", 100, 50), undeleteCommand("a"),
			func(c *Control) bool { return c.Table().Defined("a").GetDeletion() == nil },
		},
		{
			"half-life", halfLife(5e9), halfLife(7e9),
			func(c *Control) bool { return c.Table().Defined("a").GetHalfLifeUs() == 7e9 },
		},
		{
			"make a token and revoke it", token(), dropCommand("dash"),
			func(c *Control) bool { return c.Table().Tokens().Named("dash") == nil },
		},
		{
			"drain and activate", state(ebbv1.NodeState_NODE_STATE_DRAINING),
			state(ebbv1.NodeState_NODE_STATE_UNSPECIFIED),
			func(c *Control) bool { return nodeState(c) == ebbv1.NodeState_NODE_STATE_UNSPECIFIED },
		},
		{
			"refused, and then possible", deleteCommand("c", 100, 50), setCommand(true, &ebbv1.Namespace{Name: "c"}),
			func(c *Control) bool { return c.Table().Defined("c").GetDeletion() == nil },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := keyedCluster(t)
			first := s.apply(withKey(c.change, 7))
			if e := s.apply(withKey(c.later, 8)).GetError(); e != nil {
				t.Fatal(e)
			}
			s.c = reborn(t, s.c)
			before := s.c.Table().Epoch()
			late := s.apply(withKey(c.change, 7))
			if !c.holds(s.c) || s.c.Table().Epoch() != before {
				t.Error("a late try undid the later change")
			}
			if got, want := late.GetError().GetMessage(), first.GetError().GetMessage(); got != want {
				t.Errorf("a late try is refused with %q, and the first one was with %q", got, want)
			}
			if late.GetNamespace().GetName() != first.GetNamespace().GetName() {
				t.Errorf("a late try answers %v, and the first one %v", late.GetNamespace(), first.GetNamespace())
			}
			c.change.IdempotencyKey = nil
			s.apply(c.change)
			if first.GetError() == nil && c.holds(s.c) {
				t.Error("the same change without a key does nothing: this test shows nothing")
			}
		})
	}
}

// A refusal that says to try again is not the last word.
func TestRefusedForNow(t *testing.T) {
	s := keyedCluster(t)
	put := tokenCommand("first", 3, role(ebbv1.Role_ROLE_OPERATOR, ""))
	clients := clientChanges(nil).with(withKey(put, 1).GetIdempotencyKey(), proto.ErrTooStale.Errorf("a member came"), clientChangesMax)
	if _, known := clients.find(put.GetIdempotencyKey()); known {
		t.Error("a refusal for now is kept")
	}
	if e := s.apply(put).GetError(); e != nil {
		t.Error(e)
	}
}

// Below the storage version that keeps keys they mean nothing: all members do the same.
func TestKeysOfEarlierVersions(t *testing.T) {
	s := deletable(t)
	for range 2 {
		s.apply(withKey(deleteCommand("a", 100, 50), 7))
		s.apply(undeleteCommand("a"))
	}
	if len(s.c.clients) > 0 {
		t.Errorf("%d keys are kept", len(s.c.clients))
	}
}

// The last 4,096 changes are kept, in the snapshot too.
func TestClientChangesMax(t *testing.T) {
	s := keyedCluster(t)
	for i := range uint64(clientChangesMax + 3) {
		s.apply(withKey(setCommand(false, &ebbv1.Namespace{Name: "a", HalfLifeUs: int64(1e6 + i)}), i))
		if i == 1000 {
			s.c = reborn(t, s.c)
		}
	}
	if n := len(s.c.clients); n != clientChangesMax {
		t.Errorf("%d are kept, want %d", n, clientChangesMax)
	}
	for _, c := range []struct {
		key  uint64
		kept bool
	}{{0, false}, {2, false}, {3, true}, {clientChangesMax + 2, true}} {
		_, kept := s.c.clients.find(withKey(undeleteCommand("a"), c.key).GetIdempotencyKey())
		if kept != c.kept {
			t.Errorf("change %d is kept: %v, want %v", c.key, kept, c.kept)
		}
	}
	over := s.c.Freeze()
	over.clients = append(over.clients, clientChange{})
	if _, err := parseClientChanges(over.clients.wire()); err == nil {
		t.Error("a snapshot with too many is read")
	}
}
