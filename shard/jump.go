package shard

import (
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// An event far ahead of its namespace's clock would end all that is there, for good. So it is refused with TIME_JUMP,
// unless its sender confirms it: it has seen that later events are of that time too.
//
// INVARIANT jump-consumes-nothing: whatever identity a refused event came under, the same event can be sent again under
// it, and is judged again. A session and an idempotency key remember which rows of a command are decided; an ordered
// source which of its offsets are not, as far as it remembers refusals (Limits.SourceRefusals).

// jumps says whether an event that would move the clock of its namespace is too far ahead of it, or its sender takes it
// for wrong. The first event of all is judged by its sender alone.
func (s *State) jumps(ns *namespace, t sketch.Tick, confirmed uint64) bool {
	if s.behaviour < BehaviourClocks || !ns.onEventTime() || confirmed == 1+ns.clockEpoch() {
		return false
	}
	most := sketch.Tick(proto.MaxJumpUS(ns.definition))
	if confirmed == proto.ClockRefuted {
		return most > 0
	}
	return most > 0 && ns.eventTime > 0 && t-ns.eventTime > most
}

func refusedJump(ns *namespace, us int64) *proto.Error {
	if ns == nil {
		return proto.ErrTimeJump.Errorf("time %s is too far ahead of the namespace's clock", clockText(sketch.Tick(us)))
	}
	return proto.ErrTimeJump.Errorf("time %s is more than %s ahead of namespace %s, which is at %s; nothing was counted, and it can be sent again",
		clockText(sketch.Tick(us)), text(sketch.Tick(proto.MaxJumpUS(ns.definition))), quote([]byte(ns.definition.GetName())), clockText(ns.eventTime)).
		WithHint("if the time is right: ebb incr --confirm-time, confirmed in a request, or ebb namespace set NAME --max-jump; if the clock is wrong: ebb namespace clock NAME --set TIME")
}

// undecided says whether a result leaves nothing to remember: nothing was applied, and a row can be sent again.
func undecided(r *ebbv1.CommandResult) bool {
	return r.Error == nil && r.Applied == 0 && r.Duplicates == 0 && hasJump(r.Refused)
}

func hasJump(refused []*ebbv1.Refusal) bool { return slices.ContainsFunc(refused, isJump) }

func isJump(r *ebbv1.Refusal) bool { return r.GetError().GetCode() == ebbv1.Code_CODE_TIME_JUMP }

// again answers a repetition of a command. Rows of increments that were refused with TIME_JUMP are judged again; then
// there is more to remember.
func (s *State) again(m memo, c *command) (r *ebbv1.CommandResult, now memo) {
	r = s.recall(m, c)
	if c.kind != proto.FieldCommandIncrements || r.Error != nil || !hasJump(r.Refused) {
		return r, m
	}
	var rows []byte
	var at []uint32
	rest := c.body
	for i, index := 0, uint32(0); i < len(r.Refused) && len(rest) > 0; index++ {
		before := rest
		_, rest, _ = proto.NextIncrement(rest)
		if r.Refused[i].Index != index {
			continue
		}
		if isJump(r.Refused[i]) {
			rows = append(rows, before[:len(before)-len(rest)]...)
			at = append(at, index)
		}
		i++
	}
	some := *c
	some.body = rows
	of := s.increments(&some, nil)
	if of.Error != nil {
		return r, m
	}
	kept := slices.DeleteFunc(r.Refused, isJump)
	for _, refused := range of.Refused {
		refused.Index = at[refused.Index]
		kept = append(kept, refused)
	}
	slices.SortFunc(kept, func(a, b *ebbv1.Refusal) int { return int(a.Index) - int(b.Index) })
	r.Refused, r.Applied, r.Clock = kept, r.Applied+of.Applied, of.Clock
	return r, memoOf(c, r)
}

// revise remembers another result of a sequence that has one.
func (w *session) revise(sequence uint64, m memo, limits *Limits) {
	w.odd = slices.DeleteFunc(w.odd, func(o oddity) bool {
		if o.sequence != sequence {
			return false
		}
		w.oddBytes -= len(o.more)
		return true
	})
	w.remember(sequence, m, limits)
}

// open says whether a row of a source is to be judged again.
func (r refusedRow) open() bool { return r.code == ebbv1.Code_CODE_TIME_JUMP }

// reopened takes a row that is decided now out of those that were refused.
func (src *source) reopened(i int, code ebbv1.Code) {
	refused := slices.Clone(src.refused) // views share the array
	if code != 0 {
		refused[i].code = code
		src.refused = refused
		return
	}
	src.refused = slices.Delete(refused, i, i+1)
}

// forgetRefused makes room for another refusal: that of a row which is decided, if there is one.
func (src *source) forgetRefused() {
	i := slices.IndexFunc(src.refused, func(r refusedRow) bool { return !r.open() })
	if i <= 0 {
		src.refused = src.refused[1:]
		return
	}
	src.refused = slices.Delete(slices.Clone(src.refused), i, i+1)
}
