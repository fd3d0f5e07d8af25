package client

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// pendingCommand is one command on its way to one shard. It has one owner at a time: the stream while it waits, and a
// sender while it is in flight.
type pendingCommand struct {
	shard   uint32
	stream  *shardStream // nil for those that need no order
	buf     []byte
	start   int              // the command is buf[start:]
	room    int              // the increments, or the edits, are buf[room:]
	body    protowire.Number // which of the two: field number of the body; 0 for increments
	entries int
	merged  int
	last    uint64 // largest offset, of a source

	session, sequence, secret uint64

	ctx            context.Context // of the callers that wait for it
	deadline       time.Time
	excludesPauses bool          // the deadline excludes pauses of the process
	pausedBefore   time.Duration // how long it had been paused when the deadline was set
	made           time.Time

	tries            int
	node             string      // tried last
	err              error       // of the last try
	maybeApplied     bool        // an earlier try may have been applied
	outcomeUnknown   atomic.Bool // maybeApplied, or a try is in flight
	lastTryAmbiguous bool        // the last try may have been applied, or not have arrived
	followedRedirect bool        // the last try followed a redirection at once
	solo             bool        // alone in its request, to find out which of several is refused
	settled          bool        // its handler has been called; guarded by the stream
	handler          resultHandler
}

// resultHandler handles the result of a command, exactly once.
type resultHandler interface {
	// handleResult takes the result, or the error if there is none. After it
	// returns the command's bytes may be reused.
	handleResult(p *pendingCommand, result *ebbv1.CommandResult, err error)
}

func (p *pendingCommand) encoded() []byte { return p.buf[p.start:] }

// allow sets for how long the command may be tried. Pauses of the process do not count.
func (p *pendingCommand) allow(at clockReading, d time.Duration) {
	p.made, p.deadline, p.excludesPauses, p.pausedBefore = at.now, at.now.Add(d), true, at.paused
}

// left is how long the command may still be tried. It must have a deadline.
func (p *pendingCommand) left(at clockReading) time.Duration {
	left := p.deadline.Sub(at.now)
	if p.excludesPauses {
		left += at.paused - p.pausedBefore
	}
	return left
}

// over returns why a command is not tried again; nil if it may be.
func (p *pendingCommand) over(at clockReading) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	if !p.deadline.IsZero() && p.left(at) <= 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// increment returns the i-th increment of the command.
func (p *pendingCommand) increment(i int) (in proto.IncrementWire, ok bool) {
	raw := p.buf[p.room:]
	for ; len(raw) > 0; i-- {
		v, n := protowire.ConsumeBytes(raw[1:])
		if n < 0 {
			return in, false
		}
		if i == 0 {
			return in, in.Parse(v)
		}
		raw = raw[1+n:]
	}
	return in, false
}

// stampSession writes namespace, session, sequence and secret in front of the increments.
func (p *pendingCommand) stampSession(ns string) {
	id := protowire.AppendVarint(append(make([]byte, 0, 32), tagSession), p.session)
	id = protowire.AppendVarint(append(id, tagSequence), p.sequence)
	id = protowire.AppendFixed64(append(id, tagSecret), p.secret)
	p.stamp(ns, tagIdentitySession, id)
}

// stampSource writes namespace, source and epoch in front of the increments.
func (p *pendingCommand) stampSource(ns, name string, epoch uint64) {
	id := protowire.AppendString(append(make([]byte, 0, 24+len(name)), tagSourceName), name)
	id = protowire.AppendVarint(append(id, tagSourceEpoch), epoch)
	p.stamp(ns, tagIdentitySource, id)
}

func (p *pendingCommand) stamp(ns string, tag byte, id []byte) {
	h := make([]byte, 0, p.room)
	if ns != "" {
		h = protowire.AppendString(append(h, tagNamespace), ns)
	}
	h = protowire.AppendBytes(append(h, tag), id)
	h = protowire.AppendTag(h, cmp.Or(p.body, proto.FieldCommandIncrements), protowire.BytesType)
	h = protowire.AppendVarint(h, uint64(len(p.buf)-p.room))
	p.start = p.room - len(h)
	copy(p.buf[p.start:], h)
}

// Room for a header, at most: namespace, identity, and the tag and length of
// the increments.
const (
	roomNamespace = 1 + 2 + proto.NamespaceLenMax
	roomSession   = roomNamespace + 2 + 2*11 + 9 + 2 + 5
	roomSource    = roomNamespace + 3 + 3 + proto.SourceNameLenMax + 11 + 2 + 5
)

const (
	tagNamespace       = proto.FieldCommandNamespace<<3 | byte(protowire.BytesType)
	tagIdentitySession = proto.FieldCommandSession<<3 | byte(protowire.BytesType)
	tagIdentitySource  = proto.FieldCommandSource<<3 | byte(protowire.BytesType)

	tagSession     = 1<<3 | byte(protowire.VarintType)  // SessionIdentity.session
	tagSequence    = 2<<3 | byte(protowire.VarintType)  // SessionIdentity.sequence
	tagSecret      = 3<<3 | byte(protowire.Fixed64Type) // SessionIdentity.secret
	tagSourceName  = 1<<3 | byte(protowire.BytesType)   // SourceIdentity.name
	tagSourceEpoch = 2<<3 | byte(protowire.VarintType)  // SourceIdentity.epoch
)
