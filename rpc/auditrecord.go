package rpc

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// auditRecord is the content of a line of the audit log: an action, and what it was done on.
type auditRecord struct {
	action string
	on     string // of an administrative action
	// data is set where a request changed keys, sources or parts of bitmaps. Above recordLinesMax a second such records
	// are merged.
	data      bool
	namespace string
	keys      keyList
	shards    string // in which shards, of commands
	at        []int  // for a request of several commands: which of them did it
}

// auditRequest is a request in the form that audit rules read.
type auditRequest struct {
	req  any
	node bool // another node has forwarded it
}

// auditRule finds the records of a request; none if it only asks.
type auditRule func(auditRequest) []auditRecord

// always makes the record of a request that is always an administrative action.
func always[Req any](say func(Req) (what, on string)) auditRule {
	return func(d auditRequest) []auditRecord {
		r, _ := d.req.(Req)
		what, on := say(r)
		if what == "" {
			return nil
		}
		return []auditRecord{{action: what, on: on}}
	}
}

// onKeys makes the records of a request that changes keys of one namespace.
func onKeys[Req interface{ GetNamespace() string }](find func(Req) []auditRecord) auditRule {
	return func(d auditRequest) []auditRecord {
		r, _ := d.req.(Req)
		records := find(r)
		for i := range records {
			records[i].data, records[i].namespace = true, inNamespace(r.GetNamespace())
		}
		return records
	}
}

// outcome is the text for the result of an action.
func (a *auditRecord) outcome(resp any, err error) string {
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
func (a *auditRecord) applied(results []*ebbv1.CommandResult) string {
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

// subject is the text for what the action was done on.
func (a *auditRecord) subject() string {
	if a.on != "" || !a.data {
		return a.on
	}
	place := ""
	if a.namespace != "" {
		place = " of " + a.namespace
	}
	if a.shards != "" {
		place += " in " + a.shards
	}
	return a.keys.text(place)
}

func inNamespace(name string) string { return "namespace " + orName(name, proto.DefaultNamespace) }

const (
	// keysNamed is how many keys a line names, and keyShownMax how many bytes it has of each.
	keysNamed   = 8
	keyShownMax = 200
)

// keyList is the keys of an action: the first few, and how many there are. It points into the request.
type keyList struct {
	noun  string // "key" when empty
	first [][]byte
	count int
}

func (k *keyList) add(key []byte) {
	if k.count++; len(k.first) < keysNamed {
		k.first = append(k.first, key)
	}
}

func (k *keyList) join(other keyList) {
	k.first = append(k.first, other.first[:min(len(other.first), keysNamed-len(k.first))]...)
	k.count += other.count
}

// text names the keys, with the place where they are.
func (k *keyList) text(place string) string {
	noun := orName(k.noun, "key")
	named := make([]string, len(k.first))
	for i, key := range k.first {
		named[i] = strconv.Quote(clipTo(string(key), keyShownMax))
	}
	switch {
	case len(named) == 0:
		return strings.TrimPrefix(place, " ")
	case k.count == 1:
		return noun + " " + named[0] + place
	}
	text := fmt.Sprintf("%d %ss%s: %s", k.count, noun, place, strings.Join(named, ", "))
	if more := k.count - len(named); more > 0 {
		text += fmt.Sprintf(" and %d others", more)
	}
	return text
}

func keysOf(keys ...[]byte) (list keyList) {
	for _, key := range keys {
		list.add(key)
	}
	return list
}

// Names of actions on keys.
const (
	actionDelete   = "delete"
	actionExpire   = "expire"
	actionRename   = "rename"
	actionPut      = "put key"
	actionText     = "set string"
	actionSubtract = "subtract"
	actionPhrases  = "remove phrases"
	actionClear    = "clear bits"
	actionFlip     = "flip bits"
	actionStore    = "store bitmap"
	actionSweep    = "sweep bitmap"
	actionDrop     = "drop source"
	actionAdvance  = "advance event clock"
)

func auditDelete(r *ebbv1.DeleteRequest) []auditRecord { return recordOf(actionDelete, r.GetKeys()) }

// auditExpire records requests that set an expiry. One that removes an expiry destroys nothing.
func auditExpire(r *ebbv1.ExpireRequest) []auditRecord {
	if r.GetAtUs() == 0 && r.GetTtlUs() == 0 {
		return nil
	}
	return recordOf(actionExpire, r.GetKeys())
}

func recordOf(what string, keys [][]byte) []auditRecord {
	if len(keys) == 0 {
		return nil
	}
	return []auditRecord{{action: what, keys: keysOf(keys...)}}
}

// auditRename records every rename: the old name is gone, and with overwrite what the new one held.
func auditRename(r *ebbv1.RenameRequest) []auditRecord {
	what := actionRename
	if r.GetOverwrite() {
		what += " over"
	}
	return []auditRecord{{action: what, keys: keysOf(r.GetKey(), r.GetTo())}}
}

func auditStore(r *ebbv1.StoreBitmapRequest) []auditRecord {
	return []auditRecord{{action: actionStore, keys: keysOf(r.GetKey())}}
}

// auditQuery records a query that writes: one that stores a bitmap.
func auditQuery(d auditRequest) []auditRecord {
	r, _ := d.req.(*ebbv1.QueryRequest)
	if r.GetExplain() || r.GetPlan().GetStore() == nil && !strings.Contains(r.GetText(), "store") {
		return nil // without a second parse
	}
	plan, err := cluster.Understood(r)
	to := plan.GetStore().GetTo()
	if err != nil || to == nil {
		return nil
	}
	return []auditRecord{{
		action: actionStore, data: true, keys: keysOf(to.GetKey()),
		namespace: inNamespace(orName(to.GetNamespace(), plan.GetNamespace())),
	}}
}

// destroyedBits is the action of each operation on bits; "" if it destroys nothing. A test compares it with the enum.
var destroyedBits = map[ebbv1.BitOp]string{
	ebbv1.BitOp_BIT_OP_UNSPECIFIED: "", // refused
	ebbv1.BitOp_BIT_OP_SET:         "",
	ebbv1.BitOp_BIT_OP_CLEAR:       actionClear,
	ebbv1.BitOp_BIT_OP_FLIP:        actionFlip,
}

func auditBits(r *ebbv1.BitsRequest) []auditRecord {
	var found foundRecords
	for _, c := range r.GetChanges() {
		found.add(destroyedBits[c.GetOp()], c.GetKey())
	}
	return found
}

func auditIncrement(r *ebbv1.IncrementRequest) []auditRecord {
	var found foundRecords
	for _, in := range r.GetIncrements() {
		if in.Text == nil && (in.Amount == nil || *in.Amount >= 0) {
			continue
		}
		found.add(incrementAction(in.Text != nil, in.GetKind()), in.GetKey())
	}
	return found
}

// incrementAction is the action of an increment that has text or a negative amount.
func incrementAction(text bool, kind ebbv1.Kind) string {
	switch {
	case text:
		return actionText
	case kind == ebbv1.Kind_KIND_PHRASES:
		return actionPhrases
	}
	return actionSubtract
}

// foundRecords are the records of one request, one for each kind of action.
type foundRecords []auditRecord

// add notes an action on a key, or nothing if the action has no name.
func (f *foundRecords) add(what string, key []byte) {
	if what == "" {
		return
	}
	for i := range *f {
		if (*f)[i].action == what {
			(*f)[i].keys.add(key)
			return
		}
	}
	*f = append(*f, auditRecord{action: what, keys: keysOf(key)})
}

func setNamespaceAction(r *ebbv1.SetNamespaceRequest) (what, on string) {
	what = "set namespace"
	if r.GetCreate() {
		what = "create namespace"
	}
	return what, strings.TrimSuffix(r.GetNamespace().GetName()+": "+settingsText(r.GetNamespace()), ": ")
}

func deleteNamespaceAction(r *ebbv1.DeleteNamespaceRequest) (what, on string) {
	grace := proto.GraceDefaultUS
	if r.GraceUs != nil {
		grace = r.GetGraceUs()
	}
	return "delete namespace", clipTo(r.GetName(), proto.NamespaceLenMax) + ": grace " + (time.Duration(grace) * time.Microsecond).String()
}

func undeleteNamespaceAction(r *ebbv1.UndeleteNamespaceRequest) (what, on string) {
	return "undelete namespace", clipTo(r.GetName(), proto.NamespaceLenMax)
}

// settingsText names the settings that a request gives, in the order of their fields.
func settingsText(ns *ebbv1.Namespace) string {
	m := ns.ProtoReflect()
	var given []string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Name() == "name" || f.Name() == "version" || !m.Has(f) {
			continue
		}
		given = append(given, string(f.Name())+"="+clipTo(valueText(f, m.Get(f)), keyShownMax))
	}
	return strings.Join(given, ", ")
}

func valueText(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.EnumKind:
		if value := f.Enum().Values().ByNumber(v.Enum()); value != nil {
			return string(value.Name())
		}
	case protoreflect.MessageKind:
		return strings.ReplaceAll(fmt.Sprintf("{%v}", v.Message().Interface()), "  ", " ") // the package varies its spaces
	case protoreflect.BytesKind:
		return strconv.Quote(string(v.Bytes()))
	}
	return v.String()
}

func changeClusterAction(r *ebbv1.ChangeClusterRequest) (what, on string) {
	if r.GetChange() == nil || r.GetDryRun() {
		return "", "" // it only asks
	}
	return "change cluster", r.String()
}

func createTokenAction(r *ebbv1.CreateTokenRequest) (what, on string) {
	var roles []string
	for _, g := range r.GetGrants() {
		roles = append(roles, strings.TrimSuffix(proto.RoleName(g.GetRole())+"="+g.GetNamespaces(), "="))
	}
	return "create token", strconv.Quote(r.GetName()) + " with " + strings.Join(roles, ",")
}

func revokeTokenAction(r *ebbv1.RevokeTokenRequest) (what, on string) {
	return "revoke token", strconv.Quote(r.GetName())
}

func snapshotAction(r *ebbv1.SnapshotRequest) (what, on string) {
	return "read snapshot", fmt.Sprintf("shard %d", r.GetShard())
}

func restoreNamespacesAction(r *ebbv1.RestoreNamespacesRequest) (what, on string) {
	var names []string
	all := r.GetNamespaces()
	for _, ns := range all[:min(len(all), namespacesNamed)] {
		names = append(names, clipTo(ns.GetName(), proto.NamespaceLenMax))
	}
	on = strings.Join(names, ",")
	if more := len(all) - len(names); more > 0 {
		on += fmt.Sprintf(" and %d more", more)
	}
	return "restore namespaces", on
}

// namespacesNamed is how many namespaces of an action are named.
const namespacesNamed = 100

// shardsNamed is how many shards of an action are named.
const shardsNamed = 8

// auditApply records commands by commandRules. Commands that do the same in one namespace are one action.
func auditApply(d auditRequest) []auditRecord {
	r, _ := d.req.(*ebbv1.ApplyRequest)
	if r.GetForwarded() && d.node {
		return nil // it is in the log of the node that forwards it
	}
	var found []auditRecord
	var places map[[2]string]int // by action and namespace; made when there is one
	for i, c := range r.GetCommands() {
		namespace, records := auditCommand(c.GetCommand())
		for _, one := range records {
			id := [2]string{one.action, namespace}
			place, known := places[id]
			if !known {
				if places == nil {
					places = make(map[[2]string]int)
				}
				place = len(found)
				places[id] = place
				one.data = !strings.HasPrefix(one.action, actRestore)
				if namespace != "" {
					one.namespace = inNamespace(namespace)
				}
				found = append(found, auditRecord{
					action: one.action, data: one.data, namespace: one.namespace, keys: keyList{noun: one.keys.noun},
				})
			}
			found[place].keys.join(one.keys)
			found[place].at = append(found[place].at, i)
		}
	}
	for i := range found {
		found[i].shards = shardsOf(r.GetCommands(), found[i].at)
		if !found[i].data {
			found[i].on = found[i].shards
		}
	}
	return found
}

// auditCommand returns the records of one command, and its namespace; nothing if the log has no line for it.
func auditCommand(raw []byte) (namespace string, records []auditRecord) {
	name, field, body := proto.CommandBody(raw)
	rule := commandRules[field]
	if rule.audit == nil {
		return "", nil
	}
	if records = rule.audit(body); len(records) == 0 {
		return "", nil
	}
	if rule.keyed {
		return orName(string(name), proto.DefaultNamespace), records
	}
	return "", records
}

// auditIncrements reads increments in wire format. It skips those that can destroy nothing, which are nearly all.
func auditIncrements(body []byte) []auditRecord {
	var found foundRecords
	for len(body) > 0 {
		one, rest, ok := proto.NextIncrement(body)
		if !ok {
			return found // the command will be refused
		}
		body = rest
		if onlyAdds(one) {
			continue
		}
		var in proto.IncrementWire
		if in.Parse(one) && (in.HasText || in.Amount < 0) {
			found.add(incrementAction(in.HasText, in.Kind), in.Key)
		}
	}
	return found
}

// onlyAdds reports whether an increment has a short key, a short bin, and at most an amount above 0. Nearly all
// increments have this form.
func onlyAdds(raw []byte) bool {
	for _, tag := range [2]byte{proto.FieldIncrementKey, proto.FieldIncrementBin} {
		if len(raw) < 2 || raw[0] != tag<<3|byte(protowire.BytesType) || raw[1] >= 0x80 || len(raw) < 2+int(raw[1]) {
			return false
		}
		raw = raw[2+int(raw[1]):]
	}
	if len(raw) == 9 && raw[0] == proto.FieldIncrementAmount<<3|byte(protowire.Fixed64Type) {
		return math.Float64frombits(binary.LittleEndian.Uint64(raw[1:])) >= 0
	}
	return len(raw) == 0
}

func auditBitEdits(body []byte) []auditRecord {
	var found foundRecords
	proto.BitEdits(body, func(e *proto.BitEditWire) bool {
		found.add(destroyedBits[e.Op], e.Key)
		return true
	})
	return found
}

// keysIn returns the keys of a body that has them in the repeated field 1.
func keysIn(body []byte) (list keyList) {
	proto.WalkFields(body, func(num protowire.Number, _ uint64, b []byte) bool {
		if num == 1 {
			list.add(b)
		}
		return true
	})
	return list
}

func auditDeleteKeys(body []byte) []auditRecord {
	return []auditRecord{{action: actionDelete, keys: keysIn(body)}}
}

func auditExpireKeys(body []byte) []auditRecord {
	var c ebbv1.ExpireKeys
	if proto.Decode(body, &c) == nil && c.GetUntil() == nil {
		return nil // it removes an expiry
	}
	return []auditRecord{{action: actionExpire, keys: keysIn(body)}}
}

// Fields of ebbv1.PutKey, whose image may be large. A test compares them with the descriptor.
const (
	fieldPutKey       = 1
	fieldPutFrom      = 3
	fieldPutOverwrite = 4
	fieldPutReplace   = 5
	fieldPutMerge     = 7
	fieldPutKMV       = 8
)

// auditPutKey records every put: from another key, which is removed, or over an existing key. It does not record hashes
// that are added to a set: they remove nothing.
func auditPutKey(body []byte) []auditRecord {
	what, keys := actionPut, keyList{}
	merges, adds, more := false, false, false
	proto.WalkFields(body, func(num protowire.Number, v uint64, b []byte) bool {
		switch num {
		case fieldPutMerge:
			merges = v != 0
		case fieldPutKMV:
			adds = true
		default:
			more = more || num != fieldPutKey
		}
		switch num {
		case fieldPutKey, fieldPutFrom:
			keys.add(b)
		case fieldPutOverwrite, fieldPutReplace:
			if v != 0 || num == fieldPutReplace {
				what = actionPut + " over"
			}
		}
		return true
	})
	if adds && merges && !more {
		return nil
	}
	return []auditRecord{{action: what, keys: keys}}
}

func auditStoreBitmap(body []byte) []auditRecord {
	return []auditRecord{{action: actionStore, keys: keysIn(body)}}
}

// auditHome records what happens to the generation of a bitmap that is placed by slice. To reserve a generation changes
// no bitmap.
func auditHome(body []byte) []auditRecord {
	var c ebbv1.HomeCommand
	_ = proto.Decode(body, &c) // what is malformed has no step, and is refused
	switch what := c.GetWhat().(type) {
	case *ebbv1.HomeCommand_Put:
		return []auditRecord{{action: actionStore, keys: keysOf(what.Put.GetNumber().GetKey())}}
	case *ebbv1.HomeCommand_Swept:
		return []auditRecord{{action: actionSweep}}
	}
	return nil
}

// actRestore begins the name of each step of a restore.
const actRestore = "restore: "

// auditRestore records the steps of a restore, but for the pieces between the first and the last.
func auditRestore(body []byte) []auditRecord {
	step := proto.RestoreStep(body)
	if step == "" {
		return nil
	}
	return []auditRecord{{action: actRestore + step}}
}

func auditDropSource(body []byte) []auditRecord {
	keys := keysIn(body)
	keys.noun = "source"
	return []auditRecord{{action: actionDrop, keys: keys}}
}

// auditEventClock records to which time a clock advances: all data of the namespace ages by it.
func auditEventClock(body []byte) []auditRecord {
	var clock ebbv1.EventClock
	if proto.Decode(body, &clock) != nil {
		return nil
	}
	keys := keysOf([]byte(time.UnixMicro(clock.GetNowUs()).UTC().Format(time.RFC3339)))
	keys.noun = "time"
	return []auditRecord{{action: actionAdvance, keys: keys}}
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
