package sketch

// HashID names a hash function of 64 bits. It is part of every encoding: its values never change their meaning.
type HashID uint8

// The functions that callers hash with. The zero value means HashXXH3.
const (
	HashXXH3 HashID = 1 // xxh3-64 with a seed
	HashSip  HashID = 2 // SipHash-2-4 with a key; Seed tells keys apart
)

// Hash says how the caller makes the hashes that it passes to a sketch. It travels in the header of each, and sketches that
// differ in it refuse to merge: their bits have nothing to do with each other.
type Hash struct {
	ID   HashID
	Seed uint64
}
