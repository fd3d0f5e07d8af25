package shard

import (
	"bytes"
	"encoding/binary"
)

// ledger is a part of the dictionary of a namespace: strings, in the order in which they came. The place of a string in that order says its id. What is in it stays,
// so it has no holes.
//
//	places  | 4 bytes a string |         in pages of 1,024
//	text    | length, string | length, string | never used |   in pages; a string lies in one page
//	index   the hash of a string -> its number
//
// Only the strings and their order are replicated.
type ledger struct {
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
	// ledgerPagesMax is how many pages of text a place tells apart: 4 GiB.
	ledgerPagesMax = 1 << 32 / PageBytes
)

func newLedger(mem Memory, space uint16, part uint32) ledger {
	return ledger{space: space, part: part, text: pages{mem: mem}, places: pages{mem: mem}, index: index{slots: pages{mem: mem}}}
}

// at returns a string where it lies: whoever keeps it copies it.
func (l *ledger) at(number uint32) []byte {
	place := binary.LittleEndian.Uint32(l.places.at(number / placesPerPage)[number%placesPerPage*4:])
	b := l.text.at(place / PageBytes)[place%PageBytes:]
	n, head := binary.Uvarint(b)
	return b[head:][:n:n]
}

func (l *ledger) find(tag uint32, name []byte) (number uint32, ok bool) {
	return l.index.find(tag, func(number uint32) bool { return bytes.Equal(l.at(number), name) })
}

// full says whether there is no room for one string more.
func (l *ledger) full(name []byte, limit int) bool {
	return int(l.count) >= limit || l.text.len() == ledgerPagesMax && !l.fits(name)
}

// fits says whether a string has room in the last page.
func (l *ledger) fits(name []byte) bool {
	return l.text.len() > 0 && int(l.used)+lengthBytes(len(name))+len(name) <= PageBytes
}

// add takes down a string that is not there, where there is room.
func (l *ledger) add(tag uint32, name []byte, epoch uint32) (number uint32) {
	if !l.fits(name) {
		l.text.add(epoch)
		l.used = 0
	}
	if l.count%placesPerPage == 0 {
		l.places.add(epoch)
	}
	number = l.count
	page := l.text.len() - 1
	b := l.text.edit(page, epoch)[l.used:]
	binary.LittleEndian.PutUint32(l.places.edit(number/placesPerPage, epoch)[number%placesPerPage*4:], page*PageBytes+l.used)
	head := binary.PutUvarint(b, uint64(len(name)))
	copy(b[head:], name)
	l.used += uint32(head + len(name))
	l.count++
	l.index.insert(tag, number, epoch)
	return number
}

func (l *ledger) frozen() ledger {
	return ledger{space: l.space, part: l.part, count: l.count, text: l.text.frozen(), places: l.places.frozen(), index: l.index.frozen()}
}
