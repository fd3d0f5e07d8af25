package shard

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/ebbdb/ebb/proto"
)

// dictPartition is a partition of the dictionary of a namespace: strings, in the order in which they came. The place of
// a string in that order gives its id. Strings are never removed, so it has no holes.
//
//	places  | 4 bytes a string |         in pages of 1,024
//	text    | length, string | length, string | 0, uuid (16) | never used |   in pages; a string lies in one page
//	index   the hash of a string -> its number
//
// Only the strings and their order are replicated.
type dictPartition struct {
	space  uint16 // its namespace
	part   uint32
	count  uint32
	used   uint32 // bytes of the last page of text
	text   pages
	places pages
	index  index
}

const (
	placesPerPage = PageBytes / 4
	// dictPartPagesMax is how many pages of text a place can address: 4 GiB.
	dictPartPagesMax = 1 << 32 / PageBytes
)

func newDictPartition(mem Memory, space uint16, part uint32) dictPartition {
	return dictPartition{space: space, part: part, text: pages{mem: mem}, places: pages{mem: mem}, index: index{slots: pages{mem: mem}}}
}

// encodedName is a string as a dictPartition stores it, after its length. A uuid in its usual form, 36 bytes in lower
// case, is stored as its 16 bytes after a length of 0.
type encodedName []byte

const (
	uuidLen   = 36
	uuidBytes = 16
)

// nameBuffer is the memory that encodeName writes to.
type nameBuffer [binary.MaxVarintLen16 + proto.NameLenMax]byte

func encodeName(room *nameBuffer, name []byte) encodedName {
	b := room[:0]
	if id, ok := parseUUID(name); ok {
		return append(append(b, 0), id[:]...)
	}
	return append(binary.AppendUvarint(b, uint64(len(name))), name...)
}

// parseUUID reads what appendUUID writes, and nothing else.
func parseUUID(name []byte) (id [uuidBytes]byte, ok bool) {
	if len(name) != uuidLen {
		return id, false
	}
	digit := 0
	for i, c := range name {
		switch dash := i == 8 || i == 13 || i == 18 || i == 23; {
		case dash && c == '-':
			continue
		case !dash && c >= '0' && c <= '9':
			c -= '0'
		case !dash && c >= 'a' && c <= 'f':
			c -= 'a' - 10
		default:
			return id, false
		}
		id[digit/2] = id[digit/2]<<4 | c
		digit++
	}
	return id, true
}

func appendUUID(b, id []byte) []byte {
	for i, bytes := range [...]int{4, 2, 2, 2, 6} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, id[:bytes])
		id = id[bytes:]
	}
	return b
}

// stored returns the memory from the place of a string on.
func (l *dictPartition) stored(number uint32) []byte {
	place := binary.LittleEndian.Uint32(l.places.at(number / placesPerPage)[number%placesPerPage*4:])
	return l.text.at(place / PageBytes)[place%PageBytes:]
}

// append appends a string to b.
func (l *dictPartition) append(b []byte, number uint32) []byte {
	stored := l.stored(number)
	n, head := binary.Uvarint(stored)
	if n == 0 {
		return appendUUID(slices.Grow(b, uuidLen), stored[head:][:uuidBytes])
	}
	return append(b, stored[head:][:n]...)
}

func (l *dictPartition) find(tag uint32, name encodedName) (number uint32, ok bool) {
	return l.index.find(tag, func(number uint32) bool { return bytes.HasPrefix(l.stored(number), name) })
}

// full says whether there is no room for one more string.
func (l *dictPartition) full(name encodedName, limit int) bool {
	return int(l.count) >= limit || l.text.len() == dictPartPagesMax && !l.fits(name)
}

// fits says whether a string has room in the last page.
func (l *dictPartition) fits(name encodedName) bool {
	return l.text.len() > 0 && int(l.used)+len(name) <= PageBytes
}

// add stores a new string; the caller has checked that there is room.
func (l *dictPartition) add(tag uint32, name encodedName, epoch uint32) (number uint32) {
	if !l.fits(name) {
		l.text.add(epoch)
		l.used = 0
	}
	if l.count%placesPerPage == 0 {
		l.places.add(epoch)
	}
	number = l.count
	page := l.text.len() - 1
	copy(l.text.edit(page, epoch)[l.used:], name)
	binary.LittleEndian.PutUint32(l.places.edit(number/placesPerPage, epoch)[number%placesPerPage*4:], page*PageBytes+l.used)
	l.used += uint32(len(name))
	l.count++
	l.index.insert(tag, number, epoch)
	return number
}

func (l *dictPartition) frozen() dictPartition {
	return dictPartition{space: l.space, part: l.part, count: l.count, text: l.text.frozen(), places: l.places.frozen(), index: l.index.frozen()}
}
