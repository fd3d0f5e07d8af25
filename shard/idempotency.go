package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// idempotencyKey names one command of a caller without a session. The namespace is empty for a key from before
// BehaviourNamespaces.
type idempotencyKey struct {
	namespace string
	issuedAt  int64
	hi, lo    uint64
}

// answered is the result of a command with an idempotency key, remembered
// until the key is so old that it is refused anyway.
type answered struct {
	key    idempotencyKey
	result dedupResult
}

// onceByKey applies a command unless it has been applied before.
//
//	  forgotten and refused         remembered               refused
//	-------------------------|--------------------------|------------------> issued at
//	                    now - window                now + future
func (s *State) onceByKey(c *command) *ebbv1.CommandResult {
	if err := s.checkIssue(sketch.Tick(c.key.issuedAt)); err != nil {
		return failed(err)
	}
	slot, ok := s.keySlots[c.key] // a key without a namespace, from before BehaviourNamespaces
	if s.behaviour >= BehaviourNamespaces && !ok {
		c.key.namespace = s.namespaceName(c.namespace)
		slot, ok = s.keySlots[c.key]
	}
	if ok {
		return s.recall(s.answered.at(slot).result, c)
	}
	if err := s.roomForKey(); err != nil {
		return failed(err)
	}
	r := s.body(c)
	slot = s.answered.add(s.epoch)
	a := s.answered.edit(slot, s.epoch)
	*a = answered{key: c.key, result: dedupResultOf(c, r)}
	s.answeredBytes += len(a.result.more)
	s.keySlots[c.key] = slot
	s.answerExpiries.set(slot, sketch.Tick(c.key.issuedAt))
	return r
}

func (s *State) checkIssue(issuedAt sketch.Tick) *proto.Error {
	switch {
	case issuedAt <= 0:
		return proto.ErrBadRequest.Errorf("idempotency key without the time of its issue")
	case issuedAt < s.now-s.limits.IdempotencyWindow:
		return proto.ErrIdempotencyKeyTooOld.Errorf("idempotency key was issued over %s ago: whether its command was applied is forgotten", text(s.limits.IdempotencyWindow)).
			WithHint(proto.HintWithinWindow)
	case issuedAt > s.now+s.limits.Future:
		return proto.ErrBadTime.Errorf("idempotency key claims to be issued more than %s ahead of the shard's clock", text(s.limits.Future)).
			WithHint("set the caller's clock")
	}
	return nil
}

func (s *State) roomForKey() *proto.Error {
	if int(s.answered.live) >= s.limits.IdempotencyKeys || s.answeredBytes >= s.limits.IdempotencyResultBytes {
		s.forgetKeys(cleanupsMin)
	}
	switch {
	case int(s.answered.live) >= s.limits.IdempotencyKeys:
		return proto.ErrTooManyIdempotencyKey.Errorf("shard %d remembers %d idempotency keys: the limit is %d within %s", s.id, s.answered.live, s.limits.IdempotencyKeys, text(s.limits.IdempotencyWindow)).
			WithHint(proto.HintSession)
	case s.answeredBytes >= s.limits.IdempotencyResultBytes:
		return proto.ErrTooManyIdempotencyKey.Errorf("shard %d remembers %d bytes of results under idempotency keys: the limit is %d within %s", s.id, s.answeredBytes, s.limits.IdempotencyResultBytes, text(s.limits.IdempotencyWindow)).
			WithHint(proto.HintSession)
	}
	return nil
}

// forgetKeys drops up to budget keys that are past the window.
func (s *State) forgetKeys(budget int) {
	for ; budget > 0; budget-- {
		next, ok := s.answerExpiries.top()
		if !ok || next.at >= s.now-s.limits.IdempotencyWindow {
			return
		}
		s.forgetAnswered(next.slot)
	}
}
