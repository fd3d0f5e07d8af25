package shard

import (
	"bytes"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// keysCommand applies a command about keys of any kind.
func (s *State) keysCommand(c *command) *ebbv1.CommandResult {
	ns := s.lookup(c.namespace)
	if ns == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	ns = s.editNamespace(ns.space)
	clock, r := ns.clock(s.now), &ebbv1.CommandResult{}
	var err *proto.Error
	switch c.kind {
	case proto.FieldCommandDelete:
		r.Applied, err = s.deleteKeys(ns, c.body)
	case proto.FieldCommandExpire:
		r.Applied, err = s.expireKeys(ns, c.body)
	default:
		if proto.BySlice(ns.definition) {
			err = fixedNames(ns)
			break
		}
		r.Applied, err = s.putKey(ns, c.body)
	}
	if err != nil {
		return failed(err.WithShard(uint32(s.id)))
	}
	s.cleanUpBy(ns, clock, int(r.Applied))
	return r
}

func errMalformedCommand() *proto.Error {
	return proto.ErrBadRequest.Errorf("malformed command: not a command that this version knows")
}

// deleteKeys lets keys expire at once. Cleanups, which the entry pays for, free what the keys hold. So no command takes
// long, however much it deletes.
func (s *State) deleteKeys(ns *namespace, body []byte) (deleted uint64, err *proto.Error) {
	var c ebbv1.DeleteKeys
	if pb.Unmarshal(body, &c) != nil || c.Checksum != nil && len(c.Keys) != 1 {
		return 0, errMalformedCommand()
	}
	if sketch.Tick(c.AfterUs) > s.now {
		return 0, proto.ErrBadTime.Errorf("keys are not to be deleted before %s, which the clock of shard %d has not reached", clockText(sketch.Tick(c.AfterUs)), s.id)
	}
	clock := ns.clock(s.now)
	for _, name := range c.Keys {
		key, alive := s.there(ns, name, clock)
		if c.Checksum != nil {
			if !alive {
				continue
			}
			if same, err := s.compare(ns, key, *c.Checksum, s.checksum); err != nil || !same {
				return deleted, err // it is the only key
			}
		}
		s.expireSlow(ns, name, clock, clock) // the slow key may outlive the key
		switch {
		case !alive:
			continue
		case clock == 0:
			s.forget(s.spaceOf(key), key) // the event clock has no time yet, so the key cannot expire
		default:
			s.expireAt(s.spaceOf(key), key, clock, clock)
		}
		deleted++
	}
	return deleted, nil
}

// expireKeys sets the time at which keys leave at the latest.
func (s *State) expireKeys(ns *namespace, body []byte) (changed uint64, err *proto.Error) {
	var c ebbv1.ExpireKeys
	if pb.Unmarshal(body, &c) != nil || c.GetTtlUs() < 0 || c.GetTtlUs() > proto.TTLMaxUS || c.GetAtUs() < 0 {
		return 0, errMalformedCommand()
	}
	clock := ns.clock(s.now)
	at := sketch.Tick(0)
	switch until := c.Until.(type) {
	case *ebbv1.ExpireKeys_AtUs:
		at = max(sketch.Tick(until.AtUs), 1)
	case *ebbv1.ExpireKeys_TtlUs:
		at = max(clock+sketch.Tick(until.TtlUs), 1)
	}
	for _, name := range c.Keys {
		if _, ok := s.there(ns, name, clock); !ok {
			continue
		}
		if key, ok := s.hold(ns, clock, name); ok {
			s.expireAt(ns, key, at, clock)
		}
		s.expireSlow(ns, name, at, clock)
		changed++
	}
	return changed, nil
}

// hold returns a key that is alive, converted to the present settings.
func (s *State) hold(ns *namespace, clock sketch.Tick, name []byte) (key uint32, ok bool) {
	key, ok = s.findKey(ns, name)
	if !ok || !s.alive(ns, key, clock) {
		return 0, false
	}
	sum := s.loadForWrite(key)
	if !s.convert(ns, key, &sum) {
		s.dropKey(ns, key, &sum)
		return 0, false
	}
	s.put(key, &sum)
	return key, true
}

// spaceOf is the namespace, or the slow namespace, that a key lies in.
func (s *State) spaceOf(key uint32) *namespace { return s.editNamespace(s.keys.space(key)) }

// forget drops a key and what it holds.
func (s *State) forget(ns *namespace, key uint32) {
	sum := s.loadForWrite(key)
	s.dropKey(ns, key, &sum)
}

// putKey gives a key what another key held: within a shard the slot of that key, with all that belongs to it, otherwise
// an image. It returns how many keys it changed: a key that holds the same already is left alone.
func (s *State) putKey(ns *namespace, body []byte) (applied uint64, err *proto.Error) {
	if s.behaviour < BehaviourSketches {
		body = proto.WithoutNewPuts(body) // replicas of older builds see no more
	}
	var c ebbv1.PutKey
	if pb.Unmarshal(body, &c) != nil || c.What == nil {
		return 0, errMalformedCommand()
	}
	if err := proto.CheckKey(c.Key); err != nil {
		return 0, err
	}
	if from, moves := c.What.(*ebbv1.PutKey_From); moves {
		return 1, s.moveKey(ns, from.From, &c)
	}
	return s.putImage(ns, &c)
}

func (s *State) moveKey(ns *namespace, from []byte, c *ebbv1.PutKey) *proto.Error {
	clock := ns.clock(s.now)
	key, ok := s.there(ns, from, clock)
	if !ok {
		return errKeyNotFound(from)
	}
	if bytes.Equal(from, c.Key) {
		return nil
	}
	if old, there := s.there(ns, c.Key, clock); there {
		if err := s.mayReplace(ns, old, c); err != nil {
			return err
		}
	}
	if old, there := s.findKey(ns, c.Key); there {
		s.forget(ns, old)
	}
	slow := s.isSlow(ns, key)
	s.moveSlow(ns, from, c.Key)
	if slow {
		return nil
	}
	s.keys.rename(key, tagOf(from, ns.seed), tagOf(c.Key, ns.seed), c.Key, s.epoch)
	return nil
}

// mayReplace refuses a put that must not replace a key that exists.
func (s *State) mayReplace(ns *namespace, key uint32, c *ebbv1.PutKey) *proto.Error {
	if c.Overwrite {
		return nil
	}
	if c.Replace != nil {
		if same, err := s.compare(ns, key, *c.Replace, s.checksum); err != nil || same {
			return err
		}
	}
	return errKeyExists(c.Key)
}

func (s *State) putImage(ns *namespace, c *ebbv1.PutKey) (applied uint64, err *proto.Error) {
	newest := byte(imageVersion)
	if s.behaviour >= BehaviourDeletion {
		newest = imageBothVersion
	}
	c.Merge = c.Merge && s.behaviour >= BehaviourSketches // earlier behaviour versions do not have it
	raw := c.GetImage()
	if kmv, given := c.What.(*ebbv1.PutKey_Kmv); given {
		if raw, err = s.imageOfKMV(ns, c, kmv.Kmv); err != nil {
			return 0, err
		}
	}
	if id := c.GetUpload(); id != 0 {
		if raw, err = s.uploaded([]byte(ns.definition.GetName()), id); err != nil {
			return 0, err
		}
		if err = s.affordUpload(len(raw)); err != nil {
			return 0, err
		}
		defer func() {
			s.compared += len(raw)
			if err == nil || s.behaviour >= BehaviourAdds && settled(err) {
				s.uploads = s.uploads.without(s.uploads.find([]byte(ns.definition.GetName()), id))
			}
		}()
		if s.behaviour >= BehaviourAdds && isKMV(raw) {
			if raw, err = s.imageOfKMV(ns, c, raw); err != nil {
				return 0, err
			}
		}
	}
	img, ok := decodeImage(raw, newest, ns.room)
	ok = ok && (s.behaviour >= BehaviourSetHash || !img.byMurmur3()) // earlier versions do not decode that
	ok = ok && (s.behaviour >= BehaviourAdds || !ofMergedBloom(img.body))
	if !ok {
		return 0, proto.ErrBadRequest.Errorf("the image for key %s does not decode, or takes more memory than a key of namespace %s may", quote(c.Key), quote([]byte(ns.definition.GetName()))).
			WithHint("a key that was made when the sizes of its namespace were larger moves only within its shard, as long as it is nearly empty")
	}
	if img.body != nil && img.body.form().since() > s.behaviour {
		return 0, proto.ErrBadRequest.Errorf("the image for key %s is of a form that came with storage version %d, "+
			"which is not in force yet", quote(c.Key), proto.VersionWindows).
			WithHint("upgrade all nodes of this cluster, then try again")
	}
	return s.takeImage(ns, c, img)
}

// takeImage stores or merges an image as the content of a key.
func (s *State) takeImage(ns *namespace, c *ebbv1.PutKey, img *image) (applied uint64, err *proto.Error) {
	if img.at > s.now {
		return 0, proto.ErrBadTime.Errorf("the image for key %s is of %s, which the clock of shard %d has not reached", quote(c.Key), clockText(img.at), s.id).
			WithHint("try again in a moment")
	}
	if s.jumps(ns, img.at) { // of another cluster or namespace, it may be of any time
		return 0, refusedJump(ns, int64(img.at))
	}
	clock := ns.clock(s.now)
	if ns.onEventTime() {
		clock = max(clock, img.at)
	}
	byClock := s.behaviour >= BehaviourImages
	if err := img.convert(ns, clock, byClock); err != nil {
		return 0, err
	}
	over, adds := img.over(ns.params(), clock), c.Merge && s.behaviour >= BehaviourAdds
	if adds {
		over = img.spent(ns.params(), clock)
	}
	if over && (s.slowKeys(ns) == nil || img.other == nil) {
		return 0, errNothingLeft(c.Key)
	}
	if slow := s.slowOf(ns); img.other != nil && slow != nil {
		if err := img.other.counts.convert(slow, clock, byClock); err != nil {
			return 0, err
		}
		if over && !s.slowOnly(ns, img, clock) {
			return 0, errNothingLeft(c.Key)
		}
	}
	if held, ok := s.there(ns, c.Key, clock); ok {
		if c.Merge {
			err = s.mergeHeld(ns, held, img, clock)
		} else if same, failed := s.compare(ns, held, img.checksum, s.wholeChecksum); failed != nil || same {
			return 0, failed
		} else {
			err = s.mayReplace(ns, held, c)
		}
		if err != nil {
			return 0, err
		}
	}
	if adds {
		s.addGone(ns, c.Key, img, clock)
		if !img.slow && img.over(ns.params(), clock) && !s.slowOnly(ns, img, clock) {
			return 0, errNothingLeft(c.Key)
		}
	}
	if img.body != nil && s.roomFor(img.body, !img.kept) != 0 {
		return 0, refusal(ns, &proto.IncrementWire{Key: c.Key}, ebbv1.Code_CODE_RESOURCE_EXHAUSTED)
	}
	if key, there := s.findKey(ns, c.Key); there {
		s.forget(ns, key)
	}
	if ns.onEventTime() {
		ns.eventTime = clock // as if the events of the image had happened here
		if slow := s.editSlow(ns); slow != nil {
			slow.eventTime = clock
		}
	}
	s.mayLack(ns, img, clock)
	ns.signed = ns.signed || img.signed // its namespace once allowed negative amounts, maybe unknown to this shard
	s.forgetSlow(ns, c.Key)
	s.adopt(ns, c.Key, img, clock)
	return 1, nil
}

// slowOnly turns an image with nothing left under the first half-life into the image of a slow key, if it can. It says
// whether the image is one.
func (s *State) slowOnly(ns *namespace, img *image, clock sketch.Tick) bool {
	slow := s.slowOf(ns)
	return slow != nil && img.other != nil && img.slowly(slow.params(), clock)
}

// adopt creates a key from an image.
func (s *State) adopt(ns *namespace, name []byte, img *image, clock sketch.Tick) {
	if img.slow {
		s.adoptOther(ns, name, img, clock)
		return
	}
	key := s.createKey(ns, tagOf(name, ns.seed), name)
	sum := s.loadForWrite(key)
	if sum.body = img.body; img.body != nil {
		s.holdBody(ns.space, s.held(img.body))
		if v := sum.bitmap(); v != nil {
			v.edited = 0 // it is new to this key
		}
	} else {
		s.addCounts(ns, &sum, img)
	}
	s.put(key, &sum)
	if img.other != nil {
		s.adoptOther(ns, name, img, clock)
	} else {
		s.adoptSlow(ns, name, key, img.expiry, clock)
	}
	s.expireAt(ns, key, img.expiry, clock)
}

// addCounts adds the counts of an image to a summary. From BehaviourImages on, its bins get their ids in the order of
// their names: replicas may differ in the order in which a merged image stores them.
func (s *State) addCounts(ns *namespace, sum *summary, img *image) {
	id := func(i uint32) uint32 { return s.internBin(img.names[i]) }
	if s.behaviour >= BehaviourImages {
		ids := make([]uint32, len(img.names))
		for _, i := range sortedBins(&img.dist) {
			ids[i] = id(i)
		}
		id = func(i uint32) uint32 { return ids[i] }
	}
	sum.dist.Merge(ns.params(), &img.dist, id)
	sum.raisePruneAt()
}

// internBin returns the id of a bin, and adds a reference to it.
func (s *State) internBin(name []byte) uint32 {
	tag := tagOf(name, 0)
	bin, known := s.bins.find(tag, name)
	if !known {
		bin = s.bins.add(tag, name, s.epoch)
	}
	s.bins.retain(bin, s.epoch)
	return bin
}

func errKeyNotFound(key []byte) *proto.Error {
	return proto.ErrKeyNotFound.Errorf("there is no key %s, or all of it has faded", quote(key))
}

func errNothingLeft(key []byte) *proto.Error {
	return proto.ErrKeyNotFound.Errorf("nothing is left of what key %s should hold", quote(key))
}

func errKeyExists(key []byte) *proto.Error {
	return proto.ErrKeyExists.Errorf("key %s is there already", quote(key)).WithHint("overwrite it (--overwrite, or overwrite in a request), or delete it first")
}
