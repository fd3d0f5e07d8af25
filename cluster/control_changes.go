package cluster

import (
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A client repeats a change if the answer is lost. The network may delay the first try, so that it arrives after the
// second one and after later changes that were acknowledged: then a namespace that was undeleted would be deleted
// again. So the control group keeps the idempotency keys of the last client changes, and their outcomes:
//
//	delete orders, key 7        try 1, late       - - - - - - - - - - - - - - - > has the result of try 2
//	delete orders, key 7        try 2 > deleted
//	undelete orders, key 8                           > undeleted
type clientChanges []clientChange

// clientChange is a change that was applied, or that was refused for good with the given error.
type clientChange struct {
	hi, lo  uint64
	refused *ebbv1.Error
}

// clientChangesMax is how many changes are kept: hundreds of times more than clients make while a message may be late.
const clientChangesMax = 4096

// find returns the earlier change with the same key.
func (s clientChanges) find(key *ebbv1.IdempotencyKey) (clientChange, bool) {
	i := slices.IndexFunc(s, func(c clientChange) bool { return c.hi == key.GetHi() && c.lo == key.GetLo() })
	if i < 0 {
		return clientChange{}, false
	}
	return s[i], true
}

// with appends a change, and drops the oldest if there are more than most. A refusal that asks for a retry is not kept:
// the proposer retries with the same key.
func (s clientChanges) with(key *ebbv1.IdempotencyKey, err *proto.Error, most int) clientChanges {
	if err != nil && (err.Code == ebbv1.Code_CODE_STARTING || err.Code == ebbv1.Code_CODE_TOO_STALE) {
		return s
	}
	if over := len(s) + 1 - most; over > 0 {
		s = s[over:]
	}
	return append(s, clientChange{key.GetHi(), key.GetLo(), err.Wire()})
}

// wire returns the changes as a snapshot stores them.
func (s clientChanges) wire() []*ebbv1.ClientChange {
	out := make([]*ebbv1.ClientChange, len(s))
	for i, c := range s {
		out[i] = &ebbv1.ClientChange{Hi: c.hi, Lo: c.lo, Error: c.refused}
	}
	return out
}

func parseClientChanges(wire []*ebbv1.ClientChange) (clientChanges, error) {
	if len(wire) > clientChangesMax {
		return nil, proto.ErrCorrupt.Errorf("control snapshot: %d changes of clients are more than %d",
			len(wire), clientChangesMax)
	}
	out := make(clientChanges, len(wire))
	for i, c := range wire {
		out[i] = clientChange{c.GetHi(), c.GetLo(), c.GetError()}
	}
	return out, nil
}

// keyOf returns the idempotency key of a command. It returns nil if the command has none, or if the storage version in
// force does not keep keys.
func (c *Control) keyOf(cmd *ebbv1.ControlCommand) *ebbv1.IdempotencyKey {
	if c.Table().Version() < proto.VersionClientChanges {
		return nil
	}
	return cmd.GetIdempotencyKey()
}

// repeated returns the result of a repeated command: the earlier refusal, or the namespace as it is now.
func (c *Control) repeated(cmd *ebbv1.ControlCommand, before clientChange) *ebbv1.ControlResult {
	result := &ebbv1.ControlResult{Error: before.refused}
	var name string
	switch body := cmd.Body.(type) {
	case *ebbv1.ControlCommand_SetNamespace:
		name = body.SetNamespace.GetNamespace().GetName()
	case *ebbv1.ControlCommand_DeleteNamespace:
		name = body.DeleteNamespace.GetName()
	case *ebbv1.ControlCommand_UndeleteNamespace:
		name = body.UndeleteNamespace.GetName()
	}
	if before.refused == nil && name != "" {
		result.Namespace = c.Table().Defined(name)
	}
	return result
}
