package proto

import (
	"encoding/binary"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A stored value of gocountme is k and the smallest hashes of the members of a set: at most k hashes, in descending
// order, each 8 bytes in big endian. With k hashes it is full: the set has more members, and the largest hash is the
// bound of its sample. A set of ebb that keeps n hashes is such a value with k = n + 1.
const (
	KMVSizeMin  = 17
	KMVSizeMax  = 65537
	KMVBytesMax = 8 + 8*KMVSizeMax
)

// AppendKMV appends a value with k and hashes, which must descend.
func AppendKMV(b []byte, k uint64, hashes ...uint64) []byte {
	b = binary.BigEndian.AppendUint64(b, k)
	for _, h := range hashes {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	return b
}

// CheckKMV refuses bytes that are not such a value, and values that no set of ebb can be.
func CheckKMV(raw []byte) *Error {
	if len(raw) < 8 || len(raw)%8 != 0 {
		return ErrBadRequest.Errorf("a value of gocountme of %d bytes: it is k and hashes, 8 bytes each", len(raw))
	}
	k, n := binary.BigEndian.Uint64(raw), uint64(len(raw)/8-1)
	switch {
	case k < KMVSizeMin || k > KMVSizeMax:
		return ErrBadRequest.
			Errorf("a value of gocountme with k of %d: it must be from %d to %d", k, KMVSizeMin, KMVSizeMax).
			WithHint("add the members again, to a set of another size: ebb incr KEY MEMBER --kind set")
	case n > k:
		return ErrBadRequest.Errorf("a value of gocountme of %d hashes: its k is %d", n, k)
	}
	for at := 16; at < len(raw); at += 8 {
		if binary.BigEndian.Uint64(raw[at:]) >= binary.BigEndian.Uint64(raw[at-8:]) {
			return ErrBadRequest.Errorf("a value of gocountme whose hash %d is not below the one before it", at/8)
		}
	}
	return nil
}

// ByMurmur3 says whether the members of a namespace's sets are hashed by murmur3.
func ByMurmur3(ns *ebbv1.Namespace) bool { return ns.GetSetHash() == ebbv1.SetHash_SET_HASH_MURMUR3 }
