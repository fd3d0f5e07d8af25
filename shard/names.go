package shard

import (
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// names gives ids to strings that have none, and returns the ids of all. If a string belongs to another shard, the
// whole command is refused. A string for which there is no room is refused alone.
func (s *State) names(c *command) *ebbv1.CommandResult {
	ns := s.lookup(c.namespace)
	if ns == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	if !proto.HasDictionary(ns.definition) {
		return failed(proto.ErrNoDictionary(ns.definition.GetName()).WithShard(uint32(s.id)))
	}
	if err := s.checkNames(ns, c.body); err != nil {
		return failed(err.WithShard(uint32(s.id)))
	}
	ns = s.editNamespace(ns.space)
	r := &ebbv1.CommandResult{}
	var room nameBuffer
	proto.Names(c.body, func(name []byte) bool {
		part, tag, name := ns.partitionOf(name), tagOf(name, ns.seed), encodeName(&room, name)
		l := s.dictPartitionOf(ns, part)
		if l == nil {
			l = s.addDictPartition(ns, part)
		}
		number, known := l.find(tag, name)
		switch {
		case known:
			r.Duplicates++
		case l.full(name, s.limits.PartNames):
			s.refuseName(ns, r, part)
			return true
		default:
			number = s.addName(l, tag, name)
			r.Applied++
		}
		r.Ids = append(r.Ids, ns.idOf(part, number))
		return true
	})
	return r
}

// recallNames makes the result of a repetition: ids do not change.
func (f *frame) recallNames(c *command) *ebbv1.CommandResult {
	r := &ebbv1.CommandResult{}
	ns := f.lookup(c.namespace)
	if ns == nil || !proto.HasDictionary(ns.definition) {
		return failed(namespaceNotFound(c.namespace))
	}
	proto.Names(c.body, func(name []byte) bool {
		part := ns.partitionOf(name)
		if id, ok := f.idOf(ns, name); ok {
			r.Ids = append(r.Ids, id)
			r.Duplicates++
		} else {
			f.refuseName(ns, r, part)
		}
		return true
	})
	return r
}

func (f *frame) refuseName(ns *namespace, r *ebbv1.CommandResult, part uint32) {
	err := proto.ErrResourceExhausted.Errorf("part %d of the dictionary of namespace %s is full: strings that it does not have get no ids", part, ns.definition.GetName()).
		WithHint("a namespace has as many parts as there were shards when it was created")
	r.Refused = append(r.Refused, &ebbv1.Refusal{Index: uint32(len(r.Ids)), Error: err.WithShard(uint32(f.id)).Wire()})
	r.Ids = append(r.Ids, 0)
}

func (s *State) checkNames(ns *namespace, body []byte) (err *proto.Error) {
	shards, _ := proto.Names(body, func([]byte) bool { return true })
	if shards == 0 || shards > proto.ShardsMax {
		return proto.ErrBadRequest.Errorf("strings for one of %d shards: there are 1 to %d", shards, proto.ShardsMax)
	}
	proto.Names(body, func(name []byte) bool {
		err = proto.CheckName(name)
		if err == nil && proto.NamePartShard(ns.partitionOf(name), shards) != uint32(s.id) {
			err = proto.ErrWrongShard.Errorf("string %s is of shard %d", quote(name), proto.NamePartShard(ns.partitionOf(name), shards))
		}
		return err == nil
	})
	return err
}

// partitionOf returns the partition of the dictionary that has a string.
func (ns *namespace) partitionOf(name []byte) uint32 {
	return proto.NamePart(ns.definition.GetName(), name, ns.definition.GetDictionary().GetParts())
}

// idOf returns the id of the string of this number in a partition.
func (ns *namespace) idOf(part, number uint32) uint64 {
	return uint64(part) + uint64(number)*uint64(ns.definition.GetDictionary().GetParts())
}

// dictPartitionOf returns a partition of the dictionary of a namespace, nil if nothing is in it here.
func (f *frame) dictPartitionOf(ns *namespace, part uint32) *dictPartition {
	for _, i := range ns.dictPartitions {
		if f.dictPartitions[i].part == part {
			return &f.dictPartitions[i]
		}
	}
	return nil
}

// addDictPartition begins a partition of the dictionary of a namespace that may be written to.
func (s *State) addDictPartition(ns *namespace, part uint32) *dictPartition {
	ns.dictPartitions = append(slices.Clip(ns.dictPartitions), len(s.dictPartitions))
	s.dictPartitions = append(s.dictPartitions, newDictPartition(s.mem, ns.space, part))
	return &s.dictPartitions[len(s.dictPartitions)-1]
}

// idOf looks up a string.
func (f *frame) idOf(ns *namespace, name []byte) (id uint64, ok bool) {
	part := ns.partitionOf(name)
	l := f.dictPartitionOf(ns, part)
	if l == nil {
		return 0, false
	}
	var room nameBuffer
	number, ok := l.find(tagOf(name, ns.seed), encodeName(&room, name))
	return ns.idOf(part, number), ok
}

// nameOf returns the string of an id, nil if there is none here.
func (f *frame) nameOf(ns *namespace, id uint64) []byte {
	parts := uint64(ns.definition.GetDictionary().GetParts())
	l := f.dictPartitionOf(ns, uint32(id%parts))
	if l == nil || id/parts >= uint64(l.count) {
		return nil
	}
	return l.append(nil, uint32(id/parts))
}

// nameCost is the cost to look a string up, in bins read.
const nameCost = 16

// askNames looks strings and ids up, as far as this shard has them.
func (f *frame) askNames(q *ebbv1.ShardQuestion, ask *ebbv1.NamesQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, 0, at)
	a := &ebbv1.NamesAnswer{AsOfUs: int64(at)}
	if len(ask.Names) > 0 {
		a.Ids, a.Found = make([]uint64, len(ask.Names)), make([]bool, len(ask.Names))
	}
	if len(ask.Ids) > 0 {
		a.Names = make([][]byte, len(ask.Ids))
	}
	if ns != nil && proto.HasDictionary(ns.definition) && (ask.HashSeed == 0 || ask.HashSeed == ns.seed) {
		for i, name := range ask.Names {
			if id, ok := f.idOf(ns, name); ok {
				a.Ids[i], a.Found[i] = id, true
			}
		}
		size := 0
		for i, id := range ask.Ids {
			a.Names[i] = f.nameOf(ns, id)
			if size += len(a.Names[i]) + 4; size > answerBytesMax {
				return f.unanswered(proto.ErrResponseTooLarge.Errorf("the strings of %d ids take more than %d bytes: that is the limit of an answer", len(ask.Ids), answerBytesMax).
					WithHint("ask for fewer ids at once"))
			}
		}
	}
	return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Names{Names: a}}}, AsOfUs: int64(at)}
}

// writeDictPartitions writes the partitions of dictionaries, in the order in which they began.
func (f *frame) writeDictPartitions(b *blockWriter) {
	b.uvarint(uint64(len(f.dictPartitions)))
	for i := range f.dictPartitions {
		writeDictPartition(b, &f.dictPartitions[i])
	}
}

func writeDictPartition(b *blockWriter, l *dictPartition) {
	b.uvarint(uint64(l.space))
	b.uvarint(uint64(l.part))
	b.uvarint(uint64(l.count))
	for number := range l.count {
		b.scratch = l.append(b.scratch[:0], number)
		b.text(b.scratch)
		b.ended(uint64(l.part)<<32 + uint64(number))
	}
}

func (s *State) readDictPartitions(b *blockReader) {
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		space, part, count := b.uvarint(), b.uint32(), b.uint32()
		if b.err != nil {
			return
		}
		if space >= uint64(len(s.namespaces)) || s.namespaces[space].isSlow || part >= s.namespaces[space].definition.GetDictionary().GetParts() {
			b.corrupt("part %d of the dictionary of namespace %d", part, space)
			return
		}
		ns := s.namespaces[space]
		if s.dictPartitionOf(ns, part) != nil || count == 0 || int(count) > s.limits.PartNames {
			b.corrupt("part %d of the dictionary of namespace %q: twice, or %d strings", part, ns.definition.Name, count)
			return
		}
		s.addDictPartition(ns, part)
		s.readDictPartition(b, ns, &s.dictPartitions[len(s.dictPartitions)-1], count)
	}
}

func (s *State) readDictPartition(b *blockReader, ns *namespace, l *dictPartition, count uint32) {
	var room nameBuffer
	for ; count > 0 && b.err == nil; count-- {
		name := b.text(proto.NameLenMax)
		if b.err != nil {
			return
		}
		tag, encoded := tagOf(name, ns.seed), encodeName(&room, name)
		if _, known := l.find(tag, encoded); known || proto.CheckName(name) != nil || ns.partitionOf(name) != l.part || l.full(encoded, s.limits.PartNames) {
			b.corrupt("part %d of the dictionary of namespace %q: a string that it cannot have", l.part, ns.definition.Name)
			return
		}
		s.addName(l, tag, encoded)
	}
}
