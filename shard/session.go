package shard

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// session is a producer's window of remembered results.
//
//	        low, or top - window           top
//	too old ------>|                        |
//	               [ . x x . x x x x . x x x]  . . . new
//	                 |  applied: answer again
//	                 never seen: apply
type session struct {
	id uint64 // 0: a free slot
	// namespace and secret are those of the command that opened it. A session from before BehaviourNamespaces has
	// neither until a command shows a secret; a client from before has no secret.
	namespace string
	secret    uint64

	top uint64 // the largest sequence applied
	low uint64 // sequences up to this one are too old, whatever the window
	// used is the shard time of the last command. due is the time of the next check whether the session has expired.
	used, due sketch.Tick
	// ring holds, at sequence % len, 1 + the result's count for a sequence that has been applied; the high bit is set
	// if extras has more of its result. 0 is for a sequence never seen. It grows up to the window; its length is a
	// power of two.
	ring []uint32
	// extras holds what results have in addition to a count, in the order in which it was stored.
	extras     []extraResult
	extraBytes int

	epoch uint32 // of copy-on-write: ring is private
}

type extraResult struct {
	sequence uint64
	more     string
}

const extraBit = 1 << 31

// INVARIANT session-is-of-its-opener: a command without the namespace and the secret of a session is answered as if
// there were no such session, and does not change the session. Ids are times and can be guessed.

// INVARIANT session-id-grows: a session's id is at least the shard time of its opening and above every earlier id. So
// an id that a client kept from before can never name the session of another client.

// openSession registers a producer.
func (s *State) openSession(c *command) *ebbv1.CommandResult {
	if int(s.sessions.live) >= s.limits.Sessions {
		s.expireSessions(cleanupsMin)
	}
	if int(s.sessions.live) >= s.limits.Sessions {
		return failed(proto.ErrTooManySessions.Errorf("shard %d has %d producer sessions: the limit is %d", s.id, s.sessions.live, s.limits.Sessions).
			WithHint("close sessions that are done, or wait for idle ones to expire"))
	}
	s.lastSession = max(s.lastSession+1, uint64(s.now))
	slot := s.sessions.add(s.epoch)
	w := s.sessions.edit(slot, s.epoch)
	*w = session{id: s.lastSession, used: s.now, due: s.now + s.limits.SessionExpiry, epoch: s.epoch}
	if s.behaviour >= BehaviourNamespaces {
		fields(c.body, func(num protowire.Number, v uint64, _ []byte) {
			if num == fieldOpenSessionSecret {
				w.secret = v
			}
		})
		w.namespace = s.namespaceName(c.namespace)
	}
	s.sessionSlots[s.lastSession] = slot
	s.sessionExpiries.set(slot, s.now+s.limits.SessionExpiry)
	return &ebbv1.CommandResult{Session: s.lastSession}
}

// closeSession drops a session. Closing it again changes nothing, and neither does closing a session of another client:
// the result does not say whether there was one.
func (s *State) closeSession(c *command) *ebbv1.CommandResult {
	id, secret := c.session, c.secret
	fields(c.body, func(num protowire.Number, v uint64, _ []byte) {
		switch {
		case num == fieldCloseSessionSession && v != 0:
			id = v
		case num == fieldCloseSessionSecret && v != 0:
			secret = v
		}
	})
	if slot, ok := s.sessionSlots[id]; ok && s.sessions.at(slot).belongsTo(c.namespace, secret) {
		s.dropSession(slot)
	}
	return &ebbv1.CommandResult{}
}

func (s *State) dropSession(slot uint32) {
	delete(s.sessionSlots, s.sessions.at(slot).id)
	s.sessionExpiries.remove(slot)
	s.sessions.drop(slot, s.epoch)
}

// onceInSession applies a command unless it has been applied before.
func (s *State) onceInSession(c *command) *ebbv1.CommandResult {
	slot, ok := s.sessionSlots[c.session]
	if !ok || s.sessionExpired(slot) || !s.sessions.at(slot).belongsTo(c.namespace, c.secret) {
		return failed(proto.ErrSessionExpired.Errorf("session %d of shard %d is unknown or expired after %s without a command", c.session, s.id, text(s.limits.SessionExpiry)).
			WithHint("open a new session; what became of commands without an answer is unknown"))
	}
	if c.sequence == 0 {
		return failed(proto.ErrBadRequest.Errorf("sequence 0 of session %d: sequences begin at 1", c.session))
	}
	w := s.editSession(slot)
	w.used = s.now
	if w.namespace == "" && c.secret != 0 && s.behaviour >= BehaviourNamespaces {
		w.namespace, w.secret = s.namespaceName(c.namespace), c.secret
	}
	if m, seen := w.recall(c.sequence, s.limits.SessionWindow); seen {
		return s.recall(m, c)
	}
	if c.sequence <= w.floor(s.limits.SessionWindow) {
		return failed(proto.ErrSequenceTooOld.Errorf("sequence %d of session %d is below its window (%d commands, %d bytes of results): whether it was applied is forgotten",
			c.sequence, c.session, s.limits.SessionWindow, s.limits.SessionResultBytes))
	}
	r := s.body(c)
	// The body may have closed this very session.
	if slot, ok := s.sessionSlots[c.session]; ok {
		s.editSession(slot).remember(c.sequence, dedupResultOf(c, r), &s.limits)
	}
	return r
}

// belongsTo says whether a session has this namespace and this secret. A session from before BehaviourNamespaces
// belongs to any.
func (w *session) belongsTo(namespace []byte, secret uint64) bool {
	return w.namespace == "" || w.secret == secret && sameNamespace(w.namespace, namespace)
}

func (s *State) sessionExpired(slot uint32) bool {
	return s.now-s.sessions.at(slot).used > s.limits.SessionExpiry
}

// editSession returns a session for writing.
func (s *State) editSession(slot uint32) *session {
	w := s.sessions.edit(slot, s.epoch)
	if w.epoch != s.epoch {
		w.epoch = s.epoch
		w.ring = slices.Clone(w.ring)
		w.extras = slices.Clone(w.extras)
	}
	return w
}

// expireSessions checks up to budget sessions that may have expired.
func (s *State) expireSessions(budget int) {
	for ; budget > 0; budget-- {
		next, ok := s.sessionExpiries.top()
		if !ok || next.at >= s.now {
			return
		}
		if s.sessionExpired(next.slot) {
			s.dropSession(next.slot)
			continue
		}
		w := s.sessions.edit(next.slot, s.epoch)
		w.due = w.used + s.limits.SessionExpiry
		s.sessionExpiries.set(next.slot, w.due)
	}
}

// floor returns the largest sequence that is too old.
func (w *session) floor(window uint64) uint64 {
	if w.top > window {
		return max(w.low, w.top-window)
	}
	return w.low
}

// recall returns the result that is kept for a sequence within the window.
func (w *session) recall(sequence, window uint64) (m dedupResult, seen bool) {
	if sequence > w.top || sequence <= w.floor(window) {
		return dedupResult{}, false
	}
	v := w.ring[sequence&uint64(len(w.ring)-1)]
	if v == 0 {
		return dedupResult{}, false
	}
	m.applied = v&^extraBit - 1
	if v&extraBit != 0 {
		i := slices.IndexFunc(w.extras, func(o extraResult) bool { return o.sequence == sequence })
		m.more = w.extras[i].more
	}
	return m, true
}

// remember keeps the result of a sequence that is above the floor.
func (w *session) remember(sequence uint64, m dedupResult, limits *Limits) {
	if sequence > w.top {
		w.advance(sequence, limits.SessionWindow)
	}
	v := m.applied + 1
	if m.more != "" {
		v |= extraBit
		w.extras = append(w.extras, extraResult{sequence, m.more})
		w.extraBytes += len(m.more)
	}
	w.ring[sequence&uint64(len(w.ring)-1)] = v
	w.forget(sequence, limits)
}

// advance moves the window up to a new top.
func (w *session) advance(top, window uint64) {
	need := min(top, window)
	if uint64(len(w.ring)) < need {
		w.grow(need)
	}
	mask := uint64(len(w.ring) - 1)
	// Counted down to 0, for top may be the last number there is.
	for fresh := min(top-w.top, uint64(len(w.ring))); fresh > 0; fresh-- {
		w.ring[(top-fresh+1)&mask] = 0
	}
	w.top = top
}

func (w *session) grow(need uint64) {
	size := uint64(max(8, len(w.ring)))
	for size < need {
		size *= 2
	}
	ring := make([]uint32, size)
	for i := uint64(0); i < uint64(len(w.ring)) && i < w.top; i++ {
		sequence := w.top - i
		ring[sequence&(size-1)] = w.ring[sequence&uint64(len(w.ring)-1)]
	}
	w.ring = ring
}

// forget drops extras of sequences below the window. When extras take too much, it raises the floor: a command below
// the floor is refused, never applied twice.
func (w *session) forget(latest uint64, limits *Limits) {
	floor := w.floor(limits.SessionWindow)
	w.dropExtras(floor)
	for w.extraBytes > limits.SessionResultBytes && len(w.extras) > 1 {
		oldest := w.top
		for _, o := range w.extras {
			if o.sequence != latest {
				oldest = min(oldest, o.sequence)
			}
		}
		w.low = max(w.low, oldest)
		w.dropExtras(w.low)
	}
}

func (w *session) dropExtras(floor uint64) {
	if !slices.ContainsFunc(w.extras, func(o extraResult) bool { return o.sequence <= floor }) {
		return
	}
	kept := w.extras[:0]
	w.extraBytes = 0
	for _, o := range w.extras {
		if o.sequence > floor {
			kept = append(kept, o)
			w.extraBytes += len(o.more)
		}
	}
	clear(w.extras[len(kept):])
	w.extras = kept
}
