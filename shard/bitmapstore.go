package shard

import (
	"math"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

const (
	// storeCostMax is how many words a command that stores an expression may read: 512 MiB. Other commands wait for it.
	storeCostMax = 1 << 26
	// storedMax is the largest number of ids that the result of a command can have.
	storedMax = math.MaxUint32
)

// storeBitmap gives a key the ids of an expression over keys of this shard. They replace the bitmap that the key held;
// the key's time to live is dropped too. The expression is evaluated after all earlier commands and before any later
// one, so that every replica stores the same.
func (s *State) storeBitmap(c *command) *ebbv1.CommandResult {
	ns := s.lookup(c.namespace)
	if ns == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	ns = s.editNamespace(ns.space)
	var store ebbv1.StoreBitmap
	if pb.Unmarshal(c.body, &store) != nil {
		return failed(errMalformedCommand())
	}
	n, err := s.store(ns, &store)
	if err != nil {
		return failed(err.WithShard(uint32(s.id)))
	}
	return &ebbv1.CommandResult{Applied: 1, Changed: n}
}

func (s *State) store(ns *namespace, c *ebbv1.StoreBitmap) (n uint64, refused *proto.Error) {
	if err := proto.CheckStored(c.GetKey(), c.GetExpr()); err != nil {
		if err.Message == proto.ErrTooManyTerms().Message { // results are remembered, so their text does not change
			err = proto.ErrBadCount.Errorf("the expression has more than %d terms", proto.BitTermsMax)
		}
		return 0, err
	}
	if ns.params().Decay == sketch.Linear {
		return 0, proto.ErrWrongKind.Errorf("key %s: a namespace under linear decay holds distributions only", quote(c.GetKey()))
	}
	if proto.BySlice(ns.definition) {
		switch {
		case !proto.IsPartName(c.GetKey()):
			return 0, proto.ErrWrongShard.Errorf("key %s: the namespace places bitmaps by slice, and this shard has part of them only", quote(c.GetKey()))
		case sketch.Tick(c.GetUntilUs()) < s.now:
			return 0, proto.ErrBadTime.Errorf("what was to be stored came too late for shard %d", s.id).WithHint("store it again; if that is of no use, look at the clocks of the nodes")
		}
	}
	clock := ns.clock(s.now)
	key, there := s.findKey(ns, c.GetKey())
	if there && s.alive(ns, key, clock) && s.kind(key) != ebbv1.Kind_KIND_BITMAP {
		return 0, otherKind(c.GetKey(), s.kind(key), ebbv1.Kind_KIND_BITMAP)
	}
	v, err := s.evaluated(ns, c.GetExpr(), clock)
	if err != nil {
		return 0, err
	}
	if there {
		s.forget(ns, key)
	}
	s.forgetSlow(ns, c.GetKey())
	if v.head.ids > 0 {
		s.adopt(ns, c.GetKey(), &image{body: v}, clock)
	}
	return v.head.ids, nil
}

// Storable refuses a command that stores a bitmap which takes too long to evaluate. A leader calls it before it appends
// the command to its log. It does not refuse a repetition of a command that was applied.
func (s *State) Storable(raw []byte) *proto.Error {
	c, ok := parseCommand(raw)
	if !ok || c.kind != proto.FieldCommandStore || s.remembers(&c) {
		return nil
	}
	var store ebbv1.StoreBitmap
	if pb.Unmarshal(c.body, &store) != nil {
		return errMalformedCommand()
	}
	w := &bitmapWork{last: sliceMax}
	cost := costing{f: &s.frame, ns: s.lookup(c.namespace), work: w, slices: sliceMax + 1, enough: storeCostMax}
	cost.expr(store.GetExpr())
	if err := w.check(storeCostMax, "storing this"); err != nil {
		return err.WithShard(uint32(s.id)).WithHint("store parts of it first, and then what is made of them; or name fewer keys and ranges")
	}
	return nil
}

// remembers says whether a command was applied and its result is still kept.
func (s *State) remembers(c *command) (known bool) {
	switch c.identity {
	case byKey:
		_, known = s.keySlots[c.key]
	case bySession:
		if slot, open := s.sessionSlots[c.session]; open {
			_, known = s.sessions.at(slot).recall(c.sequence, s.limits.SessionWindow)
		}
	}
	return known
}

// evaluated computes an expression as a bitmap outside the pages. The bitmaps of its keys are still read from pages.
func (s *State) evaluated(ns *namespace, x *ebbv1.BitmapExpr, at sketch.Tick) (*bitmapValue, *proto.Error) {
	// Storable has refused what takes long. All builds must apply the same limit here. The first build counted only one
	// term, and no ids that are the shard's own.
	w := &bitmapWork{last: sliceMax}
	c := costing{f: &s.frame, ns: ns, work: w, slices: sliceMax + 1, enough: 0, ownFree: true}
	c.expr(x)
	if err := w.check(storeCostMax, "storing this"); err != nil {
		return nil, err
	}
	b, err := compileBitmap(x, s.bitmapsOf(ns.definition.GetName(), ns, at))
	if err != nil {
		return nil, proto.AsError(err)
	}
	v := &bitmapValue{}
	b.eachSlice(idSpan{0, 1<<64 - 1}, func(slice uint64, _, _ uint16) bool {
		if c := b.container(); c.Count > 0 {
			v.head.ids += uint64(c.Count)
			c.Words = slices.Clone(c.Words)
			v.loose = append(v.loose, looseSlice{slice, c})
		}
		return v.head.ids <= storedMax
	})
	if v.head.ids > storedMax {
		return nil, proto.ErrQueryTooCostly.Errorf("the expression has more than %d ids, which is the limit of what is stored", uint64(storedMax))
	}
	return v, nil
}

// recallStored makes the result again for a repetition of the command.
func (f *frame) recallStored(m dedupResult) *ebbv1.CommandResult {
	r := &ebbv1.CommandResult{Applied: 1, Changed: uint64(m.applied)}
	if m.more != "" {
		if f.recallHead(m, r); r.Error != nil {
			r.Applied, r.Changed = 0, 0
		} else {
			r.Changed, r.LastOffset = r.LastOffset, 0
		}
	}
	return r
}
