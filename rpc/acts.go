package rpc

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// act is what a line of the audit log says: what was done, and on what.
type act struct {
	what, on string
	at       []int // of a request of several commands those that did it
}

// doing is a request as the audit log looks at it.
type doing struct {
	req   any
	node  bool // another node has passed it on
	nowUS int64
}

// acts are those of a request that a method's rule finds; none if it only asks.
type acts func(doing) []act

// always makes acts of what a request of one kind always is.
func always[Req any](say func(Req) (what, on string)) acts {
	return func(d doing) []act {
		r, _ := d.req.(Req)
		what, on := say(r)
		if what == "" {
			return nil
		}
		return []act{{what: what, on: on}}
	}
}

// outcome is the word for what came of an act.
func (a *act) outcome(resp any, err error) string {
	if err != nil {
		return asError(err).Error()
	}
	switch r := resp.(type) {
	case begun:
		return "begun"
	case interface{ GetRefused() []*ebbv1.Refusal }:
		if n := len(r.GetRefused()); n > 0 {
			return fmt.Sprintf("%d refused", n)
		}
	case *ebbv1.ApplyResponse:
		return a.applied(r.GetResults())
	case *ebbv1.RevokeTokenResponse:
		if r.GetAbsent() {
			return "there is no token of that name"
		}
	}
	return "done"
}

// applied is the outcome of commands: the first refusal, and how many there are if not all were refused.
func (a *act) applied(results []*ebbv1.CommandResult) string {
	var first *ebbv1.Error
	refused := 0
	for _, i := range a.at {
		if i >= len(results) {
			continue
		}
		if e := results[i].GetError(); e != nil {
			if refused++; first == nil {
				first = e
			}
		}
	}
	switch {
	case first == nil:
		return "done"
	case refused == len(a.at):
		return proto.FromWire(first).Error()
	}
	return fmt.Sprintf("%d of %d refused: %v", refused, len(a.at), proto.FromWire(first))
}

func inNamespace(name string) string { return "namespace " + orName(name, proto.DefaultNamespace) }

func keysOf(keys [][]byte, namespace string) string {
	switch n := len(keys); n {
	case 0:
		return ""
	case 1:
		return "key " + strconv.Quote(string(keys[0])) + " of " + inNamespace(namespace)
	default:
		return fmt.Sprintf("%d keys of %s, the first %q", n, inNamespace(namespace), keys[0])
	}
}

func deleteAct(r *ebbv1.DeleteRequest) (what, on string) {
	if len(r.GetKeys()) == 0 {
		return "", ""
	}
	return "delete", keysOf(r.GetKeys(), r.GetNamespace())
}

// soon is how little is left to a key whose expiry is as good as a deletion.
const soon = time.Minute

// endsSoon reports whether a time at which keys are to go, or a time to live, leaves next to nothing of them.
func endsSoon(atUS, ttlUS, nowUS int64) bool {
	return atUS != 0 && atUS < nowUS+soon.Microseconds() || ttlUS != 0 && ttlUS < soon.Microseconds()
}

// expireActs are those that delete.
func expireActs(d doing) []act {
	r, _ := d.req.(*ebbv1.ExpireRequest)
	if len(r.GetKeys()) == 0 || !endsSoon(r.GetAtUs(), r.GetTtlUs(), d.nowUS) {
		return nil
	}
	return []act{{what: "expire", on: keysOf(r.GetKeys(), r.GetNamespace())}}
}

func setNamespaceAct(r *ebbv1.SetNamespaceRequest) (what, on string) {
	what = "set namespace"
	if r.GetCreate() {
		what = "create namespace"
	}
	return what, r.GetNamespace().GetName()
}

func changeClusterAct(r *ebbv1.ChangeClusterRequest) (what, on string) {
	if r.GetChange() == nil || r.GetDryRun() {
		return "", "" // it only asks
	}
	return "change cluster", r.String()
}

func createTokenAct(r *ebbv1.CreateTokenRequest) (what, on string) {
	var roles []string
	for _, g := range r.GetGrants() {
		roles = append(roles, strings.TrimSuffix(proto.RoleName(g.GetRole())+"="+g.GetNamespaces(), "="))
	}
	return "create token", strconv.Quote(r.GetName()) + " with " + strings.Join(roles, ",")
}

func revokeTokenAct(r *ebbv1.RevokeTokenRequest) (what, on string) {
	return "revoke token", strconv.Quote(r.GetName())
}

func snapshotAct(r *ebbv1.SnapshotRequest) (what, on string) {
	return "read snapshot", fmt.Sprintf("shard %d", r.GetShard())
}

func restoreNamespacesAct(r *ebbv1.RestoreNamespacesRequest) (what, on string) {
	var names []string
	for _, ns := range r.GetNamespaces() {
		names = append(names, ns.GetName())
	}
	return "restore namespaces", strings.Join(names, ",")
}

// shardsNamed is how many shards of an act are named.
const shardsNamed = 8

// applyActs are those among commands: deletions, dropped sources and restores, of which the pieces are left out. Commands that do the same in one
// namespace are one act.
func applyActs(d doing) []act {
	r, _ := d.req.(*ebbv1.ApplyRequest)
	if r.GetForwarded() && d.node {
		return nil // it is in the log of the node that forwards it
	}
	var found []act
	var places map[kind]int // made when there is one
	for i, c := range r.GetCommands() {
		one := commandAct(c.GetCommand(), d.nowUS)
		if one.what == "" {
			continue
		}
		place, known := places[one]
		if !known {
			if places == nil {
				places = make(map[kind]int)
			}
			place = len(found)
			places[one] = place
			found = append(found, act{what: one.what})
		}
		found[place].at = append(found[place].at, i)
	}
	for key, place := range places {
		found[place].on = key.on + shardsOf(r.GetCommands(), found[place].at)
	}
	return found
}

// kind is what commands of one act have in common.
type kind struct{ what, on string }

// commandAct is what one command does; nothing if no line is written of it.
func commandAct(raw []byte, nowUS int64) kind {
	namespace, field, body := proto.CommandBody(raw)
	keys := func() string { return "keys of " + inNamespace(string(namespace)) + " in " }
	switch field {
	case proto.FieldCommandRestore:
		if step := proto.RestoreStep(body); step != "" {
			return kind{"restore: " + step, ""}
		}
	case proto.FieldCommandDelete:
		return kind{"delete", keys()}
	case proto.FieldCommandExpire:
		var c ebbv1.ExpireKeys
		if protobuf.Unmarshal(body, &c) == nil && endsSoon(c.GetAtUs(), c.GetTtlUs(), nowUS) {
			return kind{"expire", keys()}
		}
	case proto.FieldCommandDropSource:
		return kind{"drop source", "in "}
	}
	return kind{}
}

// shardsOf names the shards of some commands.
func shardsOf(commands []*ebbv1.ShardCommand, at []int) string {
	var shards []uint32
	seen := make(map[uint32]bool)
	for _, i := range at {
		if number := commands[i].GetShard(); !seen[number] {
			seen[number] = true
			shards = append(shards, number)
		}
	}
	if len(shards) == 1 {
		return fmt.Sprintf("shard %d", shards[0])
	}
	named := make([]string, 0, shardsNamed)
	for _, number := range shards[:min(len(shards), shardsNamed)] {
		named = append(named, strconv.FormatUint(uint64(number), 10))
	}
	text := "shards " + strings.Join(named, ", ")
	if more := len(shards) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d others", more)
	}
	return text
}
