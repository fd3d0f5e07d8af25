package sketch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Limits of a Phrases.
const (
	PhraseLenMax    = 256     // bytes of a phrase
	PhrasesMax      = 1 << 16 // phrases
	PhrasesBytesMax = 2 << 20 // bytes of all phrases
	// PhrasesAlikeMax is the most phrases of the same tokens, such as "New York" and "new york", in a set: each is
	// compared with the others.
	PhrasesAlikeMax = 64
)

// ErrFull refuses a phrase when a Phrases has reached its limit, or its limit of phrases with the same tokens.
var ErrFull = errors.New("too many phrases")

// Phrases is a set of phrases that finds all of its members in a text: token by token (see tokens.go), exactly.
// NewPhrases makes one.
//
// It is a trie over tokens without nodes. A table holds a hash of every prefix of a phrase, its tokens 1 to k. With it,
// the table holds the number of phrases that have this prefix, and the phrases that end there.
//
//	"new york city"   ->   new | new york | new york city
//	"New York"        ->   new | new york
//
//	prefix   | tag: 32 bits of the hash | refs | first phrase that ends here + 1 |
//	phrase   | place and length in the arena | next phrase that ends there + 1 |
//
// A search starts at each token of the text and continues as long as a phrase has this prefix: at most the length of
// the longest phrase, and in an unrelated text one or two steps. Where phrases end, they are compared with the text. So
// a hash collision costs time and causes no error: there are no false positives and no false negatives. (Aho and
// Corasick 1975 avoid a new search from each token by failure links, which a table that changes with every phrase would
// have to update.)
//
// The set holds phrases as they were written: "New York" and "new york" are two phrases, and a text that contains one
// contains both. The state, its encoding and Held do not depend on how phrases are split into tokens. Adding and
// merging commute, associate and are idempotent.
//
// It is a value with one owner: Clone makes an independent copy.
type Phrases struct {
	seed    Hash
	phrases []phrase // in no order
	slots   []prefix // probed linearly; a power of two, at most 3/4 used
	used    int
	arena   []byte // phrases
	waste   int    // bytes of the arena that nothing refers to
}

// phrase is a member.
type phrase struct {
	at     uint32 // in the arena
	length uint16
	next   uint32 // the next phrase of the same tokens, + 1
}

// prefix is a prefix of phrases; refs is 0 if no phrase has it.
type prefix struct {
	tag   uint32
	refs  uint32
	first uint32 // phrase that ends here, + 1; 0: none
}

// NewPhrases makes an empty set, or returns ErrParams for a hash that is unknown.
func NewPhrases(h Hash) (Phrases, error) {
	h = h.orDefault()
	if !h.known() {
		return Phrases{}, fmt.Errorf("%w: phrases: hash id %d is unknown", ErrParams, h.ID)
	}
	return Phrases{seed: h}, nil
}

// Hash is the hash of NewPhrases: it seeds the table.
func (p *Phrases) Hash() Hash { return p.seed }

// Len is the number of phrases.
func (p *Phrases) Len() int { return len(p.phrases) }

// Bytes is the total length of all phrases, in bytes.
func (p *Phrases) Bytes() int { return len(p.arena) - p.waste }

func (p *Phrases) bytesOf(i uint32) []byte {
	ph := &p.phrases[i]
	return p.arena[ph.at:][:ph.length:ph.length]
}

// Add adds a phrase of 1 to PhraseLenMax bytes, and reports whether it is new. It returns ErrName or ErrFull, and then
// nothing has changed. A phrase without a token is kept, and never found.
func (p *Phrases) Add(text []byte) (added bool, err error) {
	if len(text) == 0 || len(text) > PhraseLenMax {
		return false, fmt.Errorf("%w: phrase of %d bytes: it has 1 to %d", ErrName, len(text), PhraseLenMax)
	}
	_, alike, found := p.member(text)
	switch {
	case found:
		return false, nil
	case p.Len() == PhrasesMax || p.Bytes()+len(text) > PhrasesBytesMax:
		return false, fmt.Errorf("%w: %d of %d bytes together: there are at most %d of %d bytes", ErrFull, p.Len(), p.Bytes(), PhrasesMax, PhrasesBytesMax)
	case alike == PhrasesAlikeMax:
		return false, fmt.Errorf("%w: %d of the same tokens: there are no more", ErrFull, alike)
	}
	if 2*p.waste > len(p.arena) {
		p.pack()
	}
	p.phrases = append(p.phrases, phrase{at: uint32(len(p.arena)), length: uint16(len(text))})
	p.arena = append(p.arena, text...)
	p.link(uint32(len(p.phrases) - 1))
	return true, nil
}

// link enters the prefixes of a phrase.
func (p *Phrases) link(i uint32) {
	end := p.walk(p.bytesOf(i), func(tag uint32) {
		if 4*(p.used+1) > 3*len(p.slots) {
			p.resize(max(8, 2*len(p.slots)))
		}
		at, found := p.find(tag)
		if !found {
			p.slots[at] = prefix{tag: tag}
			p.used++
		}
		p.slots[at].refs++
	})
	at, _ := p.find(end)
	p.phrases[i].next, p.slots[at].first = p.slots[at].first, i+1
}

// walk visits the prefixes of a text, the empty one included, and returns the last one: the whole text.
func (p *Phrases) walk(text []byte, visit func(tag uint32)) (end uint32) {
	h := p.begin()
	visit(tagOf(h))
	for rest := (tokens{text: text}); ; {
		t, ok := rest.next(p.seed.Seed)
		if !ok {
			return tagOf(h)
		}
		h = extend(h, t.hash)
		visit(tagOf(h))
	}
}

// begin is the hash of no tokens, and extend the hash with one more token.
func (p *Phrases) begin() uint64 { return remix(p.seed.Seed, 1) }

func extend(h, token uint64) uint64 { return remix(h^token, 2) }

func tagOf(h uint64) uint32 { return uint32(h >> 32) }

// find is the slot of a prefix, or the slot where it belongs. There must be a free slot.
func (p *Phrases) find(tag uint32) (at int, found bool) {
	mask := len(p.slots) - 1
	for at = int(tag) & mask; p.slots[at].refs > 0; at = (at + 1) & mask {
		if p.slots[at].tag == tag {
			return at, true
		}
	}
	return at, false
}

func (p *Phrases) resize(n int) {
	old := p.slots
	p.slots = make([]prefix, n)
	for _, s := range old {
		if s.refs > 0 {
			at, _ := p.find(s.tag)
			p.slots[at] = s
		}
	}
}

// Has says whether a phrase is in the set, as it is written.
func (p *Phrases) Has(text []byte) bool {
	_, _, found := p.member(text)
	return found
}

// member finds a phrase, or counts the phrases that end at its prefix.
func (p *Phrases) member(text []byte) (i uint32, alike int, found bool) {
	if p.Len() == 0 {
		return 0, 0, false
	}
	at, ok := p.find(p.walk(text, func(uint32) {}))
	if !ok {
		return 0, 0, false
	}
	for next := p.slots[at].first; next != 0; next = p.phrases[next-1].next {
		if bytes.Equal(p.bytesOf(next-1), text) {
			return next - 1, 0, true
		}
		alike++
	}
	return 0, alike, false
}

// Remove removes a phrase as it was written, and reports whether it was there.
func (p *Phrases) Remove(text []byte) (removed bool) {
	i, _, found := p.member(text)
	if !found {
		return false
	}
	p.unlink(i)
	p.waste += int(p.phrases[i].length)
	if last := uint32(len(p.phrases) - 1); i != last {
		*p.linkTo(last) = i + 1
		p.phrases[i] = p.phrases[last]
	}
	p.phrases = p.phrases[:len(p.phrases)-1]
	if 8*p.used < len(p.slots) && len(p.slots) > 8 {
		p.resize(len(p.slots) / 2)
	}
	return true
}

// linkTo is the link to a phrase: in the slot of its prefix, or in the phrase before it with the same tokens.
func (p *Phrases) linkTo(i uint32) *uint32 {
	at, _ := p.find(p.walk(p.bytesOf(i), func(uint32) {}))
	link := &p.slots[at].first
	for *link != i+1 {
		link = &p.phrases[*link-1].next
	}
	return link
}

// unlink removes the prefixes of a phrase.
func (p *Phrases) unlink(i uint32) {
	*p.linkTo(i) = p.phrases[i].next
	p.walk(p.bytesOf(i), func(tag uint32) {
		at, _ := p.find(tag)
		if p.slots[at].refs--; p.slots[at].refs == 0 {
			p.free(at)
		}
	})
}

// free empties a slot, and moves the slots that it had displaced back.
func (p *Phrases) free(hole int) {
	mask := len(p.slots) - 1
	p.used--
	p.slots[hole] = prefix{}
	for at := (hole + 1) & mask; p.slots[at].refs > 0; at = (at + 1) & mask {
		home := int(p.slots[at].tag) & mask
		if (at-home)&mask >= (at-hole)&mask {
			p.slots[hole], p.slots[at] = p.slots[at], prefix{}
			hole = at
		}
	}
}

func (p *Phrases) pack() {
	packed := make([]byte, 0, 2*p.Bytes())
	for i := range p.phrases {
		at := uint32(len(packed))
		packed = append(packed, p.bytesOf(uint32(i))...)
		p.phrases[i].at = at
	}
	p.arena, p.waste = packed, 0
}

// PhraseMatch is an occurrence of a phrase in a text.
type PhraseMatch struct {
	Phrase     []byte // as it was added; memory of the set: copy it to keep it
	Begin, End int    // bytes of the text, from the first byte of the first token to the end of the last token
}

// Find visits all occurrences of phrases in a text, overlapping and nested ones too. The order is by beginning, then
// shorter ones first, then, for phrases of the same tokens, by their bytes. Find ends when visit returns false. Bytes
// of the text that are not UTF-8 belong to no token, and separate tokens.
func (p *Phrases) Find(text []byte, visit func(PhraseMatch) bool) {
	if p.Len() == 0 {
		return
	}
	all := tokensOf(text, p.seed.Seed)
	var alike [][]byte
	for i := range all {
		h := p.begin()
		for j := i; j < len(all); j++ {
			h = extend(h, all[j].hash)
			at, found := p.find(tagOf(h))
			if !found {
				break
			}
			alike = p.ending(alike[:0], p.slots[at].first, text, all[i:j+1])
			for _, phrase := range alike {
				if !visit(PhraseMatch{Phrase: phrase, Begin: all[i].begin, End: all[j].end}) {
					return
				}
			}
		}
	}
}

// ending appends the phrases of a chain that have exactly these tokens, ordered by their bytes.
func (p *Phrases) ending(dst [][]byte, first uint32, text []byte, run []token) [][]byte {
	for next := first; next != 0; next = p.phrases[next-1].next {
		if candidate := p.bytesOf(next - 1); readsAs(candidate, text, run) {
			dst = append(dst, candidate)
		}
	}
	if len(dst) > 1 {
		slices.SortFunc(dst, bytes.Compare)
	}
	return dst
}

// Sorted is all phrases, ordered by their bytes. They are valid until the next write.
func (p *Phrases) Sorted() [][]byte {
	all := make([][]byte, p.Len())
	for i := range all {
		all[i] = p.bytesOf(uint32(i))
	}
	slices.SortFunc(all, bytes.Compare)
	return all
}

// Merge makes the receiver the union with o; o does not change. It returns ErrIncompatible or ErrFull, and then nothing
// has changed.
func (p *Phrases) Merge(o *Phrases) error {
	if p.seed != o.seed {
		return fmt.Errorf("%w: phrases of hash %+v and of %+v", ErrIncompatible, p.seed, o.seed)
	}
	union := p.Clone()
	for i := range o.phrases {
		if _, err := union.Add(o.bytesOf(uint32(i))); err != nil {
			return err
		}
	}
	*p = union
	return nil
}

// Clone is a copy that shares no memory with the original.
func (p *Phrases) Clone() Phrases {
	c := *p
	c.phrases, c.slots, c.arena = slices.Clone(p.phrases), slices.Clone(p.slots), slices.Clone(p.arena)
	return c
}

// Size is the memory in bytes, the struct itself included.
func (p *Phrases) Size() int { return 104 + 12*(cap(p.phrases)+cap(p.slots)) + cap(p.arena) }

// Held is the memory that limits count, in bytes: 2 for each byte of a phrase, and 48 a phrase for its entry and its
// prefixes. It is an allowance, because the state alone does not determine the number of prefixes.
func (p *Phrases) Held() int { return 104 + 48*p.Len() + 2*p.Bytes() }

// A Phrases in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'p', 1
//	hash             9 bytes, see Hash
//	phrases          uvarint of how many; each a uvarint of its length and its bytes, ascending

const phrasesKind = 'p'

// AppendBinary appends the encoding to b.
func (p *Phrases) AppendBinary(b []byte) []byte {
	b = p.seed.append(append(b, phrasesKind, codecVersion))
	b = binary.AppendUvarint(b, uint64(p.Len()))
	for _, text := range p.Sorted() {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return b
}

// Decode replaces the set by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change.
func (p *Phrases) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	r.header(phrasesKind)
	h := r.hash()
	count := r.int(PhrasesMax)
	n, err := NewPhrases(h)
	if err != nil || !r.ok || 2*count > len(r.b) {
		return nil, ErrCorrupt
	}
	var last []byte
	for range count {
		text := r.take(r.int(PhraseLenMax))
		if !r.ok || bytes.Compare(text, last) <= 0 {
			return nil, ErrCorrupt
		}
		if _, err := n.Add(text); err != nil {
			return nil, ErrCorrupt
		}
		last = text
	}
	*p = n
	return r.b, nil
}
