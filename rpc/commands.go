package rpc

import (
	"github.com/ebbdb/ebb/proto"
)

// commandAudience is the callers that may send a command of service Shards.
type commandAudience int

const (
	ofNobody     commandAudience = iota // commands without a rule
	ofWriter                            // writers of the namespace that the command names
	ofOperator                          // operators
	ofLeaderOnly                        // a shard's leader, which writes it into its log by itself
)

// commandRule decides who may send a command, and what the audit log records of it.
type commandRule struct {
	who commandAudience
	// audit finds the records of the body of a command; nil if it destroys nothing.
	audit func(body []byte) []auditRecord
	// keyed is set where the records are about keys or sources of the namespace that the command names.
	keyed bool
	// auditExempt is why a command destroys nothing. A rule has either this or audit.
	auditExempt string
}

// commandRules has a rule for every body of a command, by its field in ebbv1.Command. A test compares it with the
// descriptor.
var commandRules = map[int]commandRule{
	proto.FieldCommandIncrements:   {who: ofWriter, audit: auditIncrements, keyed: true},
	proto.FieldCommandDelete:       {who: ofWriter, audit: auditDeleteKeys, keyed: true},
	proto.FieldCommandPut:          {who: ofWriter, audit: auditPutKey, keyed: true},
	proto.FieldCommandEventClock:   {who: ofWriter, audit: auditEventClock, keyed: true},
	proto.FieldCommandPutPiece:     {who: ofWriter, auditExempt: "adds bytes that a put takes, which is audited"},
	proto.FieldCommandExpire:       {who: ofWriter, audit: auditExpireKeys, keyed: true},
	proto.FieldCommandBits:         {who: ofWriter, audit: auditBitEdits, keyed: true},
	proto.FieldCommandStore:        {who: ofWriter, audit: auditStoreBitmap, keyed: true},
	proto.FieldCommandHome:         {who: ofWriter, audit: auditHome, keyed: true},
	proto.FieldCommandRestore:      {who: ofOperator, audit: auditRestore},
	proto.FieldCommandDropSource:   {who: ofWriter, audit: auditDropSource, keyed: true},
	proto.FieldCommandNames:        {who: ofWriter, auditExempt: "gives ids to strings that have none, and takes none back"},
	proto.FieldCommandOpenSource:   {who: ofWriter, auditExempt: "fences who had the source before; its rows and its offset stay"},
	proto.FieldCommandOpenSession:  {who: ofWriter, auditExempt: "adds a session"},
	proto.FieldCommandCloseSession: {who: ofWriter, auditExempt: "ends a session, which holds no data; every client does at its end"},

	proto.FieldCommandDefineNamespace: {who: ofLeaderOnly, auditExempt: "CheckCommand refuses it of clients; SetNamespace is audited"},
	proto.FieldCommandBehaviour:       {who: ofLeaderOnly, auditExempt: "CheckCommand refuses it of clients"},
	proto.FieldCommandTick:            {who: ofLeaderOnly, auditExempt: "CheckCommand refuses it of clients"},
	proto.FieldCommandPurge:           {who: ofLeaderOnly, auditExempt: "CheckCommand refuses it of clients; DeleteNamespace is audited"},
	proto.FieldCommandAudit:           {who: ofLeaderOnly, auditExempt: "CheckCommand refuses it of clients; it computes a checksum"},
}

// mayApply checks one command of service Shards. The keys, sessions, sources and idempotency keys that a command names
// are of its namespace, the default one if empty. The content of a backup may be of any namespace.
func (c *caller) mayApply(command []byte) error {
	namespace, field, _ := proto.CommandBody(command)
	switch commandRules[field].who {
	case ofOperator:
		return c.needs(operator, "")
	case ofWriter:
	default: // proto.CheckCommand has refused it
		return proto.ErrPermissionDenied.Errorf("command field %d is not for clients", field)
	}
	if c.token.May(writer, string(namespace)) {
		return nil // without a copy of the name
	}
	return c.needs(writer, string(namespace))
}
