package sketch

import "encoding/binary"

// HashID names a hash function of 64 bits. It is part of every encoding: its values never change their meaning.
type HashID uint8

// The hash functions of callers. The zero value means HashXXH3.
const (
	HashXXH3 HashID = 1 // xxh3-64 with a seed
	HashSip  HashID = 2 // SipHash-2-4 with a key; Seed identifies the key

	HashMurmur3 HashID = 3 // murmur3 x64 128 with a seed, its first 8 bytes in little endian
)

// Hash says how the caller computes the hashes that it passes to a sketch. It is part of the encoding of each sketch.
// Sketches with different Hash values do not merge, because their bits are not comparable.
type Hash struct {
	ID   HashID
	Seed uint64
}

// orDefault is the hash with its zero value resolved.
func (h Hash) orDefault() Hash {
	if h.ID == 0 {
		h.ID = HashXXH3
	}
	return h
}

// append writes 9 bytes: the id, and the seed in little endian.
func (h Hash) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(append(b, byte(h.ID)), h.Seed)
}

// hash reads what Hash.append wrote.
func (r *reader) hash() Hash {
	h := Hash{ID: HashID(r.byte())}
	h.Seed = binary.LittleEndian.Uint64(r.take(8))
	r.ok = r.ok && h.known()
	return h
}

func (h Hash) known() bool { return h.ID >= HashXXH3 && h.ID <= HashMurmur3 }

// remix derives the i-th hash of a family from one hash: the finaliser of splitmix64 (Steele, Lea, Flood 2014) over a
// step of the golden ratio.
func remix(hash uint64, i int) uint64 {
	z := hash + uint64(i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
