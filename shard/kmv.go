package shard

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// imageOfKMV makes an image of the hashes that a put brings (see proto.CheckKMV). A set of k-1 members or fewer keeps
// all hashes. In a full set, the largest hash is the least one that is left out, so that its estimate is the one of
// gocountme, (k-1)/largest. The set is no larger than the namespace makes its sets. The members themselves are not
// known: the name of each is ~ and the hash, which is replaced by a name that sorts before it.
func (s *State) imageOfKMV(ns *namespace, c *ebbv1.PutKey, value []byte) ([]byte, *proto.Error) {
	if s.behaviour < BehaviourSetHash {
		return nil, errMalformedCommand() // as in earlier versions
	}
	if err := checkMurmur3(ns); err != nil {
		return nil, err
	}
	if err := proto.CheckKMV(value); err != nil {
		return nil, err
	}
	k, n := binary.BigEndian.Uint64(value), len(value)/8-1
	clock := min(ns.clock(s.now), s.now)
	hash := func(i int) uint64 { return binary.BigEndian.Uint64(value[8*i:]) }
	var made body
	switch b := newBody(ebbv1.Kind_KIND_SET, ns, s.behaviour).(type) {
	case *set:
		p := b.Params()
		p.K = min(p.K, int(k)-1)
		if held := s.setHeld(ns, c.Key); c.Merge && held != nil && uint64(n) < k {
			p.K = held.Params().K // a small set that is complete must not cut what the key holds to a sample
		}
		plain, err := sketch.NewSet(p)
		if err != nil {
			return nil, proto.ErrInternal.Errorf("key %s: %v", quote(c.Key), err)
		}
		for i := n; i > 0; i-- {
			plain.Add(hash(i), nameOfHash(hash(i)))
		}
		made = &set{plain}
	case *setDecayed:
		if uint64(n) == k {
			return nil, proto.ErrBadNamespace.
				Errorf("the hashes for key %s are a sample of a set, and in namespace %s sets forget: "+
					"a sample does not say when its members were seen", quote(c.Key), quote([]byte(ns.definition.GetName()))).
				WithHint("put it into another one: ebb namespace create NAME --set-hash murmur3 --decay none")
		}
		for i := n; i > 0; i-- {
			b.Add(clock, clock, hash(i), nameOfHash(hash(i)))
		}
		made = b
	default:
		name := quote([]byte(ns.definition.GetName()))
		return nil, proto.ErrBadNamespace.Errorf("namespace %s cannot have sets", name)
	}
	raw := binary.AppendUvarint([]byte{imageMagic, imageVersion}, uint64(clock))
	raw = append(binary.AppendUvarint(raw, 0), byte(made.form()))
	return made.appendBinary(raw), nil
}

// isKMV says whether an upload is a value of hashes, which begins with the upper byte of its k. An image begins with
// its magic.
func isKMV(raw []byte) bool { return len(raw) > 0 && raw[0] == 0 }

// setHeld returns the set that a key holds; nil if it holds none, or one that forgets.
func (s *State) setHeld(ns *namespace, name []byte) *set {
	key, ok := s.findKey(ns, name)
	if !ok {
		return nil
	}
	held, _ := s.summary(key).body.(*set)
	return held
}

// nameOfHash is the name of a member when only its hash is known.
func nameOfHash(h uint64) []byte { return strconv.AppendUint([]byte{'~'}, h, 10) }

// checkMurmur3 refuses to read or write hashes in a namespace that does not hash members by murmur3.
func checkMurmur3(ns *namespace) *proto.Error {
	if proto.ByMurmur3(ns.definition) {
		return nil
	}
	return proto.ErrBadNamespace.
		Errorf("namespace %s hashes the members of sets by a seed of its own: its hashes do not go out, nor others in",
			quote([]byte(ns.definition.GetName()))).
		WithHint("use one with the hash of gocountme: ebb namespace create NAME --set-hash murmur3 --decay none")
}

// byMurmur3 says whether an image is of a set that is hashed by murmur3.
func (img *image) byMurmur3() bool {
	switch b := img.body.(type) {
	case *set:
		return b.Params().Hash.ID == sketch.HashMurmur3
	case *setDecayed:
		return b.Params().Hash.ID == sketch.HashMurmur3
	}
	return false
}

// askKMV answers with the hashes of a set.
func (f *frame) askKMV(ns *namespace, key uint32, out *ebbv1.KeyExport) *ebbv1.ShardAnswer {
	name := f.keys.bytesOf(key)
	sum := f.summary(key)
	if kind := sum.kind(); kind != ebbv1.Kind_KIND_SET {
		return f.unanswered(otherKind(name, kind, ebbv1.Kind_KIND_SET))
	}
	if err := checkMurmur3(ns); err != nil {
		return f.unanswered(err)
	}
	var hashes []uint64
	k, theta := 0, uint64(0)
	switch b := sum.body.(type) {
	case *set:
		hashes, theta = b.Hashes()
		k = b.Params().K
	case *setDecayed:
		all := false
		if hashes, all = b.Hashes(); !all {
			return f.unanswered(proto.ErrBadRequest.
				Errorf("key %s forgets, and keeps a sample of its members: "+
					"the hashes of these alone do not say how many there are", quote(name)).
				WithHint("ask for its cardinality, or keep the set in a namespace without decay"))
		}
		k = b.Params().K
	}
	out.Image = proto.AppendKMV(nil, uint64(k)+1)
	if theta != 0 {
		out.Image = binary.BigEndian.AppendUint64(out.Image, theta)
	}
	for _, h := range slices.Backward(hashes) {
		out.Image = binary.BigEndian.AppendUint64(out.Image, h)
	}
	out.Found = true
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Export{Export: out}}},
		AsOfUs: out.AsOfUs,
	}
}
