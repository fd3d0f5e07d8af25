package shard

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// Rehash makes the state of shard id, 1 to shards, of a cluster that takes the keys of another cluster with other
// shards. from has all shards of the other cluster; namespaces are its namespaces. Data of keys comes along: counts,
// times to live, ids of strings, generations of bitmaps that are placed by slice. Data of the old shards does not:
// sessions, sources and idempotency keys. Nor do the counts of second half-lives in shards from before BehaviourUnited.
// The state has the latest of the clocks of shards and of namespaces. The first shard has the time when rates of a
// namespace on event time begin.
func Rehash(id ID, shards uint32, mem Memory, from []*State, namespaces []*ebbv1.Namespace) (*State, error) {
	s := New(id, mem)
	for _, old := range from {
		s.now = max(s.now, old.now)
		s.lastSession, s.lastEpoch = max(s.lastSession, old.lastSession), max(s.lastEpoch, old.lastEpoch)
		s.behaviour = max(s.behaviour, old.behaviour)
	}
	for _, ns := range namespaces {
		if ns.MaxJumpUs != nil || ns.GetClockSetting() != nil || proto.ByMurmur3(ns) {
			s.behaviour = max(s.behaviour, BehaviourEventClocks, BehaviourSetHash)
		}
		if ns.GetDeletion() != nil { // some of the old shards may not know it yet
			s.behaviour = max(s.behaviour, BehaviourDeletion)
		}
	}
	h := rehash{State: s, shards: shards, parts: map[movedPart][]movedSlice{}}
	if err := h.define(namespaces); err != nil {
		return nil, err
	}
	for _, old := range from {
		if err := h.take(old); err != nil {
			return nil, err
		}
	}
	if s.behaviour >= BehaviourUnited {
		h.begin(from)
	}
	return s, h.unite()
}

// begin records in the first shard when rates of namespaces on event time begin, by the events of all old shards. In
// each shard it gives both half-lives one clock.
func (h *rehash) begin(from []*State) {
	for _, ns := range slices.Clone(h.namespaces) {
		if ns.isSlow || !ns.onEventTime() || ns.emptied {
			continue
		}
		if slow := h.editSlow(ns); slow != nil {
			slow.eventTime = max(slow.eventTime, ns.eventTime)
		}
		if h.id != 1 {
			continue
		}
		b := &Beginnings{}
		for _, old := range from {
			was := old.find([]byte(ns.definition.GetName()))
			if was == nil || was.emptied || was.seed != ns.seed {
				continue
			}
			b.sides[0] = append(b.sides[0], was.begins())
			if slow := old.slowOf(was); slow != nil {
				b.sides[1] = append(b.sides[1], slow.begins())
			}
		}
		h.editNamespace(ns.space).beginAs(b, 0)
		if slow := h.editSlow(ns); slow != nil {
			slow.beginAs(b, 1)
		}
	}
}

func (ns *namespace) begins() sideBegins {
	w := watched{}
	w.began, w.exposure = ns.watched()
	return sideBegins{
		version: ns.definition.GetVersion(), epoch: ns.clockEpoch(), seed: ns.seed, params: *ns.params(),
		now: ns.eventTime, watched: w, active: ns.active,
	}
}

// beginAs sets the beginning of a namespace to the one that all shards together give.
func (ns *namespace) beginAs(b *Beginnings, side int) {
	w, known := b.of(side, ns.params(), ns.eventTime)
	all, now := b.united(side)
	switch {
	case !known:
	case len(all) > 0 && w.exposure == (sketch.Exposure{From: all.began(now)}):
		first := all[len(all)-1].first
		ns.began, ns.exposure, ns.active = first, sketch.Exposure{From: first}, all
	default:
		ns.began, ns.exposure, ns.active = w.began, w.exposure, nil
	}
}

// rehash is a state in the making.
type rehash struct {
	*State
	shards uint32
	parts  map[movedPart][]movedSlice // of bitmaps that are placed by slice, from several of the old shards
}

// movedPart is a part of a bitmap: its namespace and its name.
type movedPart struct {
	space uint16
	name  string
}

// movedSlice is a slice of a part, and its encoded container.
type movedSlice struct {
	slice uint64
	raw   []byte
}

// define makes the namespaces, as the log would.
func (h *rehash) define(namespaces []*ebbv1.Namespace) error {
	entry := protowire.AppendTag(nil, fieldEntryStamp, protowire.Fixed64Type)
	entry = protowire.AppendFixed64(entry, uint64(h.now))
	for _, ns := range namespaces {
		raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
		if err != nil {
			return err
		}
		entry = protowire.AppendTag(entry, fieldEntryCommands, protowire.BytesType)
		entry = protowire.AppendBytes(entry, raw)
	}
	for _, r := range h.Apply(1, entry, nil) {
		if e := proto.FromWire(r.Error); e != nil {
			return e
		}
	}
	return nil
}

// take takes from an old shard what belongs to this one.
func (h *rehash) take(old *State) error {
	spaces := make([]*namespace, len(old.namespaces))
	for i, ns := range old.namespaces {
		if ns.isSlow {
			continue
		}
		if spaces[i] = h.find([]byte(ns.definition.GetName())); spaces[i] == nil {
			if ns.emptied {
				continue // the control group has dropped it as well
			}
			return namespaceNotFound([]byte(ns.definition.GetName()))
		}
		spaces[i] = h.editNamespace(spaces[i].space)
		if def := spaces[i].definition; old.setsClock(ns, def) { // the old shard did not know that yet
			ns = old.editNamespace(ns.space)
			ns.setClock(old.settingOf(def), old.behaviour)
			if slow := old.editSlow(ns); slow != nil {
				slow.setClock(old.settingOf(def), old.behaviour)
			}
		}
		spaces[i].eventTime = max(spaces[i].eventTime, ns.eventTime)
		spaces[i].signed = spaces[i].signed || ns.signed
		h.takeGone(old, ns, spaces[i])
	}
	for key := range old.summaries.keys.all {
		ns := old.namespaces[old.keys.space(key)]
		if ns.isSlow {
			ns = old.namespaces[old.owner(ns)]
		}
		if to := spaces[ns.space]; to != nil && old.lists(ns, old.slowKeys(ns), key, ns.clock(old.now)) {
			if err := h.takeKey(old, ns, to, key); err != nil {
				return err
			}
		}
	}
	for i := range old.dictPartitions {
		l := &old.dictPartitions[i]
		if proto.NamePartShard(l.part, h.shards) == uint32(h.id) {
			h.takeDictPartition(l, spaces[l.space])
		}
	}
	for _, r := range old.orphans.all {
		if ns := spaces[r.space]; proto.ShardOf(ns.definition.GetName(), []byte(r.key), h.shards) == uint32(h.id) {
			moved := *r
			moved.space = ns.space
			h.addOrphan(moved)
		}
	}
	return nil
}

func (h *rehash) takeKey(old *State, ns, to *namespace, key uint32) error {
	name := old.keys.bytesOf(key)
	sum := old.summary(key)
	if v := sum.bitmap(); v != nil && proto.BySlice(ns.definition) && proto.IsPartName(name) {
		at := movedPart{to.space, string(name)}
		v.each(func(slice uint64, c bitmap.Container) bool {
			if proto.SliceShardOf(ns.definition.GetName(), slice, h.shards) == uint32(h.id) {
				h.parts[at] = append(h.parts[at], movedSlice{slice, appendContainer(nil, 0, c)[1:]})
			}
			return true
		})
		return nil
	}
	if proto.ShardOf(ns.definition.GetName(), name, h.shards) != uint32(h.id) {
		return nil
	}
	image, _, content := old.exportContent(ns, key)
	if h.behaviour >= BehaviourUnited && sum.body == nil {
		if both := old.exportBoth(ns, name, content, math.MaxInt, !ns.onEventTime()); both != nil {
			image = both
		}
	}
	return h.adoptImage(to, name, image)
}

// adoptImage makes a key from an image, unless nothing is left of it by the latest clock. The key existed before, so it
// may be larger than a key that is made now.
func (h *rehash) adoptImage(ns *namespace, name, image []byte) error {
	img, ok := decodeImage(image, imageBothVersion, func(form, int) int { return bodyBytesOver(h.limits.BodyBytes) })
	if !ok {
		return proto.ErrInternal.Errorf("key %s does not come through its image", quote(name))
	}
	img.kept = true
	if img.other != nil {
		img.other.counts.kept = true
	}
	_, err := h.takeImage(ns, &ebbv1.PutKey{Key: name}, img)
	if err != nil && err.Code != proto.ErrKeyNotFound.Code {
		return err
	}
	return nil
}

// takeDictPartition takes a partition of a dictionary, in its order.
func (h *rehash) takeDictPartition(old *dictPartition, ns *namespace) {
	h.addDictPartition(ns, old.part)
	l := &h.dictPartitions[len(h.dictPartitions)-1]
	var name []byte
	var room nameBuffer
	for number := range old.count {
		name = old.append(name[:0], number)
		h.addName(l, tagOf(name, ns.seed), encodeName(&room, name))
	}
}

// unite makes the parts of bitmaps from their slices.
func (h *rehash) unite() error {
	names := slices.SortedFunc(maps.Keys(h.parts), func(a, b movedPart) int {
		if a.space != b.space {
			return int(a.space) - int(b.space)
		}
		return strings.Compare(a.name, b.name)
	})
	for _, p := range names {
		all := h.parts[p]
		slices.SortFunc(all, func(a, b movedSlice) int { return cmp.Compare(a.slice, b.slice) })
		ns := h.editNamespace(p.space)
		image := binary.AppendUvarint([]byte{imageMagic, imageVersion}, uint64(ns.clock(h.now)))
		image = append(binary.AppendUvarint(image, 0), byte(formBitmap))
		next := uint64(0)
		for _, m := range all {
			image = append(binary.AppendUvarint(image, 1+m.slice-next), m.raw...)
			next = m.slice + 1
		}
		image = append(image, 0)
		if err := h.adoptImage(ns, []byte(p.name), image); err != nil {
			return err
		}
	}
	return nil
}

// Sources is how many ordered sources the shard remembers.
func (f *frame) Sources() int { return int(f.sources.live) }
