package snap

import (
	"crypto/sha256"
	"encoding/binary"
)

const (
	// hashLen is how many bytes of a SHA-256 identify a chunk: enough even against chunks made to collide.
	hashLen = 20
	// chunkBytesMax is the length of the largest chunk: a longer Write is divided into several.
	chunkBytesMax = 64 << 10
	// fileNumbers is how many file numbers a place can hold.
	fileNumbers = 1 << 16
)

// Hash identifies a chunk by its content.
type Hash [hashLen]byte

// HashOf returns the hash of a chunk.
func HashOf(chunk []byte) Hash {
	sum := sha256.Sum256(chunk)
	return Hash(sum[:hashLen])
}

// place is the position of a chunk: the number of a file (16 bits), and the offset in it.
type place uint64

const offsetBits = 48

func placeAt(file int, offset int64) place { return place(file)<<offsetBits | place(offset) }

func (p place) file() int     { return int(p >> offsetBits) }
func (p place) offset() int64 { return int64(p & (1<<offsetBits - 1)) }

// entry is one chunk in a list.
type entry struct {
	hash   Hash
	length int
	at     place
}

// ends holds, by file number, where the last listed chunk in that file ends.
type ends []int64

// of returns the end in a file, which begins behind the header.
func (e *ends) of(file int) *int64 {
	for len(*e) <= file {
		*e = append(*e, headerLen)
	}
	return &(*e)[file]
}

// appendEntry adds a chunk to a list.
func (e *ends) appendEntry(list []byte, c *entry) []byte {
	end := e.of(c.at.file())
	list = append(list, c.hash[:]...)
	list = binary.AppendUvarint(list, uint64(c.length))
	list = binary.AppendUvarint(list, uint64(c.at.file()))
	list = binary.AppendVarint(list, c.at.offset()-*end)
	*end = c.at.offset() + int64(c.length)
	return list
}

// next decodes the first chunk of a list; files is how many files there are. ok is false for bytes that appendEntry
// does not write.
func (e *ends) next(list []byte, files int) (c entry, rest []byte, ok bool) {
	if len(list) < hashLen {
		return c, nil, false
	}
	c.hash, list = Hash(list), list[hashLen:]
	length, n := binary.Uvarint(list)
	if n <= 0 || length == 0 || length > chunkBytesMax {
		return c, nil, false
	}
	list = list[n:]
	file, n := binary.Uvarint(list)
	if n <= 0 || file >= uint64(files) {
		return c, nil, false
	}
	list = list[n:]
	distance, n := binary.Varint(list)
	if n <= 0 {
		return c, nil, false
	}
	end := e.of(int(file))
	offset := *end + distance
	if offset < headerLen || offset >= 1<<offsetBits-chunkBytesMax {
		return c, nil, false
	}
	c.length, c.at = int(length), placeAt(int(file), offset)
	*end = offset + int64(length)
	return c, list[n:], true
}
