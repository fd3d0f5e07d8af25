package shard

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
)

// entry is one parsed entry of the log.
type entry struct {
	stamp    int64
	commands []byte // the entry again; commands are read with next
}

// parseEntry reads the frame of a committed entry. The frame was written by
// the leader, so one that does not parse is corruption: it panics, for no
// replica may go on past an entry that it cannot read.
func parseEntry(index uint64, raw []byte) entry {
	e := entry{commands: raw}
	for rest := raw; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			panicCorrupt(index, "tag", n)
		}
		rest = rest[n:]
		n = protowire.ConsumeFieldValue(num, typ, rest)
		if n < 0 {
			panicCorrupt(index, fmt.Sprintf("field %d", num), n)
		}
		if num == fieldEntryStamp && typ == protowire.Fixed64Type {
			e.stamp = int64(binary.LittleEndian.Uint64(rest))
		}
		rest = rest[n:]
	}
	return e
}

func panicCorrupt(index uint64, what string, code int) {
	panic(fmt.Sprintf("shard: committed entry %d is corrupt: %s: %v", index, what, protowire.ParseError(code)))
}

// next returns the next command of an entry that parseEntry has read.
func (e *entry) next() (command []byte, ok bool) {
	for len(e.commands) > 0 {
		num, typ, n := protowire.ConsumeTag(e.commands)
		value := e.commands[n:]
		m := protowire.ConsumeFieldValue(num, typ, value)
		e.commands = value[m:]
		if num == fieldEntryCommands && typ == protowire.BytesType {
			command, _ = protowire.ConsumeBytes(value)
			return command, true
		}
	}
	return nil, false
}

// Field numbers of messages that the apply path reads by hand, in addition to those in proto. A test holds them to the
// descriptors.
const (
	fieldEntryStamp    = 1
	fieldEntryCommands = 2

	fieldCommandOpenSession  = 7
	fieldCommandCloseSession = 8
	fieldCommandOpenSource   = 9
	fieldCommandDropSource   = 10
	fieldCommandBehaviour    = 11
	fieldCommandTick         = 12
	fieldCommandAudit        = 41
	fieldCommandPurge        = 48

	fieldSessionSession  = 1
	fieldSessionSequence = 2
	fieldSessionSecret   = 3

	fieldSourceName  = 1
	fieldSourceEpoch = 2

	fieldKeyIssuedAt = 1
	fieldKeyHi       = 2
	fieldKeyLo       = 3

	fieldOpenSessionSecret = 1

	fieldCloseSessionSession = 1
	fieldCloseSessionSecret  = 2

	fieldOpenSourceName  = 1
	fieldOpenSourceToken = 2

	fieldDropSourceName = 1

	fieldBehaviourVersion = 1

	fieldEventClockEpoch = 1
	fieldEventClockNow   = 2

	fieldAuditPart = 1
	fieldAuditOf   = 2
)

// identity says how a shard recognises a repetition of a command.
type identity uint8

const (
	anonymous identity = iota
	bySession
	bySource
	byKey
)

// command is one parsed Command. Its slices point into the entry.
type command struct {
	namespace []byte
	identity  identity
	session   uint64
	sequence  uint64
	secret    uint64 // of the session
	source    []byte
	epoch     uint64
	key       idempotencyKey
	kind      protowire.Number // field number of the body
	body      []byte
}

// parseCommand reads a Command and checks the framing of all fields in it, so that a malformed one changes nothing. A
// field that this version does not know makes it malformed: a behaviour version switches on a new kind of command
// first.
func parseCommand(raw []byte) (c command, ok bool) {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 || typ != protowire.BytesType {
			return c, false
		}
		value, m := protowire.ConsumeBytes(raw[n:])
		if m < 0 {
			return c, false
		}
		raw = raw[n+m:]
		if !c.field(num, value) {
			return c, false
		}
	}
	return c, c.kind != 0
}

func (c *command) field(num protowire.Number, value []byte) bool {
	switch num {
	case proto.FieldCommandNamespace:
		c.namespace = value
		return true
	case proto.FieldCommandSession:
		return c.identify(bySession) && c.parseSession(value)
	case proto.FieldCommandSource:
		return c.identify(bySource) && c.parseSource(value)
	case proto.FieldCommandIdempotencyKey:
		return c.identify(byKey) && c.parseKey(value)
	}
	if c.kind != 0 {
		return false
	}
	c.kind, c.body = num, value
	switch num {
	case proto.FieldCommandIncrements:
		return wellFormedIncrements(value)
	case proto.FieldCommandBits:
		return proto.BitEdits(value, func(*proto.BitEditWire) bool { return true })
	case proto.FieldCommandStore, proto.FieldCommandNames, proto.FieldCommandHome, proto.FieldCommandRestore,
		fieldCommandAudit, fieldCommandPurge, proto.FieldCommandPutPiece,
		proto.FieldCommandEventClock:
		return wellFormed(value)
	}
	return num <= proto.FieldCommandExpire && wellFormed(value)
}

func (c *command) identify(id identity) bool {
	if c.identity != anonymous {
		return false
	}
	c.identity = id
	return true
}

func (c *command) parseSession(raw []byte) bool {
	return fields(raw, func(num protowire.Number, v uint64, _ []byte) {
		switch num {
		case fieldSessionSession:
			c.session = v
		case fieldSessionSequence:
			c.sequence = v
		case fieldSessionSecret:
			c.secret = v
		}
	})
}

func (c *command) parseSource(raw []byte) bool {
	return fields(raw, func(num protowire.Number, v uint64, b []byte) {
		switch num {
		case fieldSourceName:
			c.source = b
		case fieldSourceEpoch:
			c.epoch = v
		}
	})
}

func (c *command) parseKey(raw []byte) bool {
	return fields(raw, func(num protowire.Number, v uint64, _ []byte) {
		switch num {
		case fieldKeyIssuedAt:
			c.key.issuedAt = int64(v)
		case fieldKeyHi:
			c.key.hi = v
		case fieldKeyLo:
			c.key.lo = v
		}
	})
}

// fields calls visit for each field of a flat message: numbers as v, bytes as
// b. It reports whether the message is well formed.
func fields(raw []byte, visit func(num protowire.Number, v uint64, b []byte)) bool {
	return proto.WalkFields(raw, func(num protowire.Number, v uint64, b []byte) bool {
		visit(num, v, b)
		return true
	})
}

func wellFormed(raw []byte) bool {
	return fields(raw, func(protowire.Number, uint64, []byte) {})
}

// wellFormedIncrements checks the framing of a batch, so that nextIncrement
// needs no checks.
func wellFormedIncrements(raw []byte) bool {
	for len(raw) > 0 {
		one, rest, ok := proto.NextIncrement(raw)
		if !ok || !proto.WellFormedIncrement(one) {
			return false
		}
		raw = rest
	}
	return true
}

// nextIncrement takes one increment off a well-formed batch.
func nextIncrement(raw []byte, in *proto.IncrementWire) (rest []byte) {
	one, rest, _ := proto.NextIncrement(raw)
	in.Parse(one)
	return rest
}
