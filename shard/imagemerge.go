package shard

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// mergeHeld merges into an image, which is under the settings of a namespace, what a key holds. The key keeps its time
// to live.
func (s *State) mergeHeld(ns *namespace, key uint32, img *image, clock sketch.Tick) *proto.Error {
	name, held := s.keys.bytesOf(key), s.summary(key)
	kind := ebbv1.Kind_KIND_DISTRIBUTION
	if img.body != nil {
		kind = img.body.form().kind()
	}
	if s.kind(key) != kind {
		return proto.ErrWrongKind.Errorf("the image is of a %s, and key %s is a %s",
			proto.KindName(kind), quote(name), proto.KindName(s.kind(key))).
			WithHint("import it under another name, or delete the key first")
	}
	if err := s.affordMerge(key); err != nil {
		return err
	}
	img.expiry = s.expiries.at(key)
	if v := held.bitmap(); v != nil {
		img.body = united(v, img.body.(*bitmapValue))
		return nil
	}
	if img.body != nil {
		own := held.body.clone()
		if err := own.merge(img.body); err != nil {
			return unmergedImage("the image for key "+quote(name), err)
		}
		if img.body = own; s.behaviour < BehaviourAdds && ofMergedBloom(own) {
			return proto.ErrUnmergeable.
				Errorf("the image does not merge with key %s: together they have sizes that no key has", quote(name)).
				WithHint("import it under another name, and ask about both keys")
		}
		return nil
	}
	slow := s.slowOf(ns)
	if slow != nil && img.other == nil {
		return proto.ErrUnmergeable.Errorf("the image for key %s has one half-life, and its namespace has two",
			quote(name)).
			WithHint("export it from a namespace with the same settings")
	}
	if !s.isSlow(ns, key) {
		if err := s.mergeCounts(ns, name, &held, img, clock); err != nil || slow == nil {
			return err
		}
		img.slow = false
	}
	if key, there := s.findKey(slow, name); there && s.alive(slow, key, clock) {
		rates := s.summary(key)
		return s.mergeCounts(slow, name, &rates, &img.other.counts, clock)
	}
	return nil
}

// spentHalfLives is how long an image is still merged after nothing of it counts any more. By then, what is left of it
// is below a billionth of the threshold.
const spentHalfLives = 30

// spent says whether so little is left of an image that it makes no difference to a key that it is merged into.
func (img *image) spent(p *sketch.Params, at sketch.Tick) bool {
	switch {
	case !img.over(p, at):
		return false
	case img.expiry != 0 && img.expiry <= at:
		return true
	case img.body != nil:
		return ended(img.body, p, at-spentHalfLives*halfLifeOf(img.body))
	case p.Decay != sketch.HalfLife, img.dist.Len() == 0 && img.dist.Death(p) == 0:
		return true
	}
	before := at - spentHalfLives*p.HalfLife
	return img.dist.Last() <= before && vanished(p, &img.dist, before)
}

// loses is a body that can record a larger loss.
type loses interface {
	// Lose adds to what the body may be short of, because another body of its key may have held so much when it died.
	Lose(now sketch.Tick, held float64)
}

// addGone adds to an image that is to be merged what its key may have held, if the key is gone.
func (s *State) addGone(ns *namespace, name []byte, img *image, clock sketch.Tick) {
	if l, ok := img.body.(loses); ok && ns.params().OrderFree && !s.holds(ns, name, clock) {
		as := bodyParams(ns.params())
		l.Lose(clock, as.Held(clock))
	}
	if img.body != nil {
		return
	}
	if p := ns.params(); !s.holds(ns, name, clock) {
		img.dist.Lose(p, clock, p.Held(clock))
	}
	if slow := s.slowOf(ns); slow != nil && img.other != nil && !s.holds(slow, name, clock) {
		p := slow.params()
		img.other.counts.dist.Lose(p, clock, p.Held(clock))
	}
}

// holds says whether the namespace itself has a key that is alive.
func (f *frame) holds(ns *namespace, name []byte, clock sketch.Tick) bool {
	key, ok := f.findKey(ns, name)
	return ok && f.alive(ns, key, clock)
}

// united returns a bitmap with the ids of two bitmaps. It lies outside of the pages.
func united(a, b *bitmapValue) *bitmapValue {
	var all []looseSlice
	for _, v := range []*bitmapValue{a, b} {
		v.each(func(slice uint64, c bitmap.Container) bool {
			all = append(all, looseSlice{slice, c})
			return true
		})
	}
	slices.SortStableFunc(all, func(x, y looseSlice) int { return cmp.Compare(x.slice, y.slice) })
	out := &bitmapValue{}
	for len(all) > 0 {
		l, n := all[0], 1
		if len(all) > 1 && all[1].slice == l.slice {
			l.Container, n = bitmap.United(l.Container, all[1].Container), 2
		}
		l.Words = slices.Clone(l.Words)
		out.head.ids += uint64(l.Count)
		out.loose = append(out.loose, l)
		all = all[n:]
	}
	return out
}

// affordMerge refuses a merge in an entry of the log that compares and merges too much already. The cost of a merge
// depends on what the key holds.
func (s *State) affordMerge(key uint32) *proto.Error {
	cost := s.imageLeast(key)
	if b := s.summary(key).body; b != nil {
		cost = s.held(b)
	}
	if s.compared > 0 && s.compared+cost > comparedMax {
		return proto.ErrOverloaded.Errorf("an entry of the log of shard %d merges more than %d bytes", s.id,
			comparedMax).
			WithHint("try again, in a command of its own")
	}
	s.compared += max(cost, 1)
	return nil
}

// affordUpload refuses an image in pieces in an entry of the log that compares and merges too much already. To decode
// the image costs as much as to merge it, though the command has few bytes.
func (s *State) affordUpload(size int) *proto.Error {
	if s.behaviour >= BehaviourAdds && s.compared > 0 && s.compared+size > comparedMax {
		return proto.ErrOverloaded.Errorf("an entry of the log of shard %d merges more than %d bytes", s.id,
			comparedMax).
			WithHint("try again, in a command of its own")
	}
	return nil
}

// settled says whether a put that was refused will not be tried again with the same upload.
func settled(err *proto.Error) bool {
	return err.Code != proto.ErrBadTime.Code && err.Code != proto.ErrOverloaded.Code
}

// mergeCounts adds the counts of a distribution to an image.
func (s *State) mergeCounts(ns *namespace, name []byte, held *summary, img *image, clock sketch.Tick) *proto.Error {
	p, own := ns.params(), s.present(ns, held, clock)
	if own == nil {
		return nil
	}
	ids := sortedBins(own)
	all := slices.Clone(img.names)
	for _, bin := range ids {
		all = append(all, slices.Clone(s.binName(bin))) // copied: the key is dropped before the image becomes one
	}
	slices.SortFunc(all, bytes.Compare)
	all = slices.CompactFunc(all, bytes.Equal)
	if most := max(p.BinsMax, len(ids)); len(all) > most {
		return proto.ErrTooManyBins.
			Errorf("the image and key %s have %d bins together: the limit is %d", quote(name), len(all), most).
			WithHint("raise bins_max of the namespace: ebb namespace set NAME --bins-max")
	}
	rank := func(bin []byte) uint32 {
		at, _ := slices.BinarySearchFunc(all, bin, bytes.Compare)
		return uint32(at)
	}
	var sum sketch.Distribution
	sum.Merge(p, own, func(bin uint32) uint32 { return rank(s.binName(bin)) })
	sum.Merge(p, &img.dist, func(bin uint32) uint32 { return rank(img.names[bin]) })
	if !sum.Suits(p, clock, true) {
		return proto.ErrOverflow.Errorf("the image and key %s together are more than a summary can hold", quote(name))
	}
	img.dist, img.names = sum, all
	return nil
}
