package shard

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// source is an ordered source of rows, such as a file being imported: it records how far it has come, and never
// expires.
//
// Offsets grow, with gaps (rows of other shards), so a row at or below the last one is a repetition. That holds only if
// commands of one epoch arrive in order: a source has one command under way in a shard at a time.
type source struct {
	sourceName        // of an empty name: a free slot
	epoch      uint64 // of its latest opening by another token
	token      uint64 // of the opening that has the present epoch
	last       uint64 // the largest offset that has been decided
	// refused has the latest rows that were refused, oldest first, so that a repetition is refused again. Views share
	// the array: it is appended to and cut at the front, never written over.
	refused []refusedRow
}

// sourceName names a source. The namespace is empty for one from before BehaviourNamespaces.
type sourceName struct{ namespace, name string }

type refusedRow struct {
	offset uint64
	code   ebbv1.Code
}

// INVARIANT source-epoch-grows: each opening by another token gets an epoch above all that the shard has given before,
// to any source. A drop removes a source with its epochs. A writer from before the drop must not have the epoch of a
// writer that opens the name after it.

// openSource gives a source to a new writer. A source from before BehaviourNamespaces has no namespace. It is fenced
// and stays, and each namespace that opens it gets a copy. So rows that it has decided are not counted again, and no
// namespace takes them away from another.
func (s *State) openSource(c *command) *ebbv1.CommandResult {
	var name []byte
	var token uint64
	fields(c.body, func(num protowire.Number, v uint64, b []byte) {
		switch num {
		case fieldOpenSourceName:
			name = b
		case fieldOpenSourceToken:
			token = v
		}
	})
	if len(name) == 0 || len(name) > proto.SourceNameLenMax {
		return failed(proto.ErrBadRequest.Errorf("source name of %d bytes: it has 1 to %d", len(name), proto.SourceNameLenMax))
	}
	slot, ok := s.findSource(c.namespace, name)
	if !ok {
		return s.newSource(s.newName(c, name), token, nil)
	}
	src := s.sources.edit(slot, s.epoch)
	if src.namespace == "" && s.behaviour >= BehaviourNamespaces {
		src.epoch = s.nextEpoch()
		return s.newSource(s.newName(c, name), token, src)
	}
	if src.token != token {
		src.token, src.epoch = token, s.nextEpoch()
	}
	return &ebbv1.CommandResult{Epoch: src.epoch, LastOffset: src.last}
}

func (s *State) newName(c *command, name []byte) sourceName {
	if s.behaviour < BehaviourNamespaces {
		return sourceName{name: string(name)}
	}
	return sourceName{s.namespaceName(c.namespace), string(name)}
}

// findSource returns a source of a namespace or, if there is none, the source of that name without a namespace.
func (s *State) findSource(namespace, name []byte) (slot uint32, ok bool) {
	if len(namespace) == 0 {
		namespace = defaultNamespace
	}
	if slot, ok = s.sourceSlots[sourceName{string(namespace), string(name)}]; !ok {
		slot, ok = s.sourceSlots[sourceName{name: string(name)}]
	}
	return slot, ok
}

var defaultNamespace = []byte(proto.DefaultNamespace)

// newSource makes a source; if from is not nil, it continues where from has come to. There may be as many such copies
// again as sources, so that a shard that is full of sources without a namespace can be imported into.
func (s *State) newSource(name sourceName, token uint64, from *source) *ebbv1.CommandResult {
	most := s.limits.Sources
	made := source{sourceName: name, token: token}
	if from != nil {
		most *= 2
		made.last, made.refused = from.last, slices.Clone(from.refused)
	}
	if int(s.sources.live) >= most {
		return failed(proto.ErrTooManySources.Errorf("source %q is one too many: shard %d remembers at most %d",
			name.name, s.id, s.limits.Sources).
			WithHint("drop sources that are done"))
	}
	made.epoch = s.nextEpoch()
	slot := s.sources.add(s.epoch)
	*s.sources.edit(slot, s.epoch) = made
	s.sourceSlots[name] = slot
	return &ebbv1.CommandResult{Epoch: made.epoch, LastOffset: made.last}
}

func (s *State) nextEpoch() uint64 {
	s.lastEpoch++
	return s.lastEpoch
}

// dropSource drops a source, and the source of that name without a namespace. Dropping it again changes nothing.
func (s *State) dropSource(c *command) *ebbv1.CommandResult {
	var name []byte
	fields(c.body, func(num protowire.Number, _ uint64, b []byte) {
		if num == fieldDropSourceName {
			name = b
		}
	})
	for slot, ok := s.findSource(c.namespace, name); ok; slot, ok = s.findSource(c.namespace, name) {
		s.forgetSource(slot)
	}
	return &ebbv1.CommandResult{}
}

// dropHeld drops a source for its holder, whose epoch is the current one. The holder knows what was decided in that
// epoch. A source that another writer has opened since then has another epoch, and stays.
func (s *State) dropHeld(slot uint32, c *command) *ebbv1.CommandResult {
	same := false
	fields(c.body, func(num protowire.Number, _ uint64, b []byte) {
		if num == fieldDropSourceName {
			same = string(b) == string(c.source)
		}
	})
	if !same {
		return failed(proto.ErrBadRequest.Errorf("a drop with the identity of source %q names another source", c.source))
	}
	s.forgetSource(slot)
	return &ebbv1.CommandResult{}
}

// fromSource applies the rows of a batch that are new, or drops the source for its holder.
func (s *State) fromSource(c *command) *ebbv1.CommandResult {
	drops := c.kind == fieldCommandDropSource && s.behaviour >= BehaviourHolderDrops
	if c.kind != proto.FieldCommandIncrements && c.kind != proto.FieldCommandBits && !drops {
		return failed(proto.ErrBadRequest.Errorf("a source identity goes with increments and edits of bitmaps only"))
	}
	slot, ok := s.findSource(c.namespace, c.source)
	if !ok {
		return failed(proto.ErrSourceFenced.Errorf("source %q is not open in shard %d", c.source, s.id).
			WithHint("open the source again"))
	}
	if epoch := s.sources.at(slot).epoch; c.epoch != epoch {
		return failed(proto.ErrSourceFenced.Errorf("source %q was taken over: this writer has epoch %d, the source %d", c.source, c.epoch, epoch).
			WithHint("one writer at a time: stop this one, or open the source again"))
	}
	if drops {
		return s.dropHeld(slot, c)
	}
	src := s.sources.edit(slot, s.epoch)
	if c.kind == proto.FieldCommandBits {
		return s.bits(c, src)
	}
	return s.increments(c, src)
}

// admit decides what to do with a row: apply it (ok), or report it as refused (code) or as a repetition (neither).
// before is the offset of the previous row in the same command.
func (src *source) admit(offset, before uint64) (code ebbv1.Code, ok bool) {
	if offset == 0 || offset <= before {
		return ebbv1.Code_CODE_BAD_REQUEST, false
	}
	if offset > src.last {
		return 0, true
	}
	i, found := slices.BinarySearchFunc(src.refused, offset, func(r refusedRow, offset uint64) int {
		return cmp.Compare(r.offset, offset)
	})
	if found {
		return src.refused[i].code, false
	}
	return 0, false
}

// fullOfJumps says whether one more refused row would push out a row that is to be sent again.
func (src *source) fullOfJumps(limit int) bool {
	return len(src.refused) >= limit && src.refused[0].code == ebbv1.Code_CODE_TIME_JUMP
}

// redecided records the new outcome of a row that had been refused, and was sent again.
func (src *source) redecided(offset uint64, code ebbv1.Code) {
	i := slices.IndexFunc(src.refused, func(r refusedRow) bool { return r.offset == offset })
	src.refused = slices.Clone(src.refused)
	if code == 0 {
		src.refused = slices.Delete(src.refused, i, i+1)
		return
	}
	src.refused[i].code = code
}

// decided advances past a row, and records the row if it was refused.
func (src *source) decided(offset uint64, code ebbv1.Code, limit int) {
	src.last = offset
	if code == 0 {
		return
	}
	src.refused = append(src.refused, refusedRow{offset, code})
	if len(src.refused) > limit {
		src.refused = src.refused[1:]
	}
}
