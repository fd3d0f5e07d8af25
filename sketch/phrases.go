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
	// PhrasesAlikeMax is how many phrases of the same tokens, such as "New York" and "new york", a set holds: each is
	// compared with the others.
	PhrasesAlikeMax = 64
)

// ErrFull refuses one phrase more than a Phrases holds, or than it holds of the same tokens.
var ErrFull = errors.New("too many phrases")

// Phrases is a set of phrases that finds all of its members in a text: token by token (see tokens.go), exactly. Make
// one with NewPhrases.
//
// It is a trie over tokens without nodes: a table has a hash of every beginning of a phrase, its tokens 1 to k, and
// says how many phrases begin like that and which end there.
//
//	"new york city"   ->   new | new york | new york city
//	"New York"        ->   new | new york
//
//	prefix   | tag: 32 bits of the hash | refs | first phrase that ends here + 1 |
//	phrase   | place and length in the arena | next phrase that ends there + 1 |
//
// A search walks from each token of the text as long as there is a phrase that begins like this: at most as far as the
// longest phrase, and in a text of other things for a step or two. Where phrases end they are compared with the text,
// so that a hash that two have in common costs time and is no error: there are neither false positives nor false
// negatives. (Aho and Corasick 1975 save the walks from each token by links for failure, which a table that changes
// with every phrase would have to mend.)
//
// The set holds phrases as they were written: "New York" and "new  york" are two, and a text that has one has both.
// What its state, its encoding and Held are does not depend on how phrases fall into tokens. Adding and merging
// commute, associate, and repeat without effect.
//
// It is a value with one owner: to keep a copy, Clone it.
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
	next   uint32 // the next that reads alike, + 1
}

// prefix is a beginning of phrases; of no phrase when refs is 0.
type prefix struct {
	tag   uint32
	refs  uint32
	first uint32 // phrase that ends here, + 1; 0: none
}

// NewPhrases makes an empty set, or answers ErrParams for a hash that is unknown.
func NewPhrases(h Hash) (Phrases, error) {
	h = h.orDefault()
	if !h.known() {
		return Phrases{}, fmt.Errorf("%w: phrases: hash id %d is unknown", ErrParams, h.ID)
	}
	return Phrases{seed: h}, nil
}

// Hash is what it was made with: it seeds the table.
func (p *Phrases) Hash() Hash { return p.seed }

// Len is how many phrases there are.
func (p *Phrases) Len() int { return len(p.phrases) }

// Bytes is how long all phrases are together.
func (p *Phrases) Bytes() int { return len(p.arena) - p.waste }

func (p *Phrases) bytesOf(i uint32) []byte {
	ph := &p.phrases[i]
	return p.arena[ph.at:][:ph.length:ph.length]
}

// Add adds a phrase of 1 to PhraseLenMax bytes, and answers whether it was not there. It answers ErrName or ErrFull,
// and then nothing has changed. A phrase without a token is kept, and never found.
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

// link enters the beginnings of a phrase.
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

// walk visits the beginnings of a text, the empty one included, and answers the last: all of it.
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

// begin is the hash of no token, and extend that of one token more.
func (p *Phrases) begin() uint64 { return remix(p.seed.Seed, 1) }

func extend(h, token uint64) uint64 { return remix(h^token, 2) }

func tagOf(h uint64) uint32 { return uint32(h >> 32) }

// find is where a prefix is, or belongs. There must be a free slot.
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

// Has says whether a phrase is there, as it is written.
func (p *Phrases) Has(text []byte) bool {
	_, _, found := p.member(text)
	return found
}

// member finds a phrase, or counts those that end at its prefix.
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

// Remove removes a phrase as it was written, and answers whether it was there.
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

// linkTo is what says where a phrase is: the end of its prefix, or the phrase before it that reads alike.
func (p *Phrases) linkTo(i uint32) *uint32 {
	at, _ := p.find(p.walk(p.bytesOf(i), func(uint32) {}))
	link := &p.slots[at].first
	for *link != i+1 {
		link = &p.phrases[*link-1].next
	}
	return link
}

// unlink takes out the beginnings of a phrase.
func (p *Phrases) unlink(i uint32) {
	*p.linkTo(i) = p.phrases[i].next
	p.walk(p.bytesOf(i), func(tag uint32) {
		at, _ := p.find(tag)
		if p.slots[at].refs--; p.slots[at].refs == 0 {
			p.free(at)
		}
	})
}

// free empties a slot and moves up what was pushed on by it.
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

// PhraseMatch is a phrase that stands in a text.
type PhraseMatch struct {
	Phrase     []byte // as it was added; of the set: copy it to keep it
	Begin, End int    // bytes of the text, from the first byte of its first token to the last of its last
}

// Find visits all phrases that stand in a text: by where they begin, shorter ones first, and those that read alike by
// their bytes; also those that overlap or contain each other. It ends when visit answers false. Bytes of the text that
// are not UTF-8 are no part of a token, and separate.
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

// ending appends the phrases of a chain that are these tokens, by their bytes.
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

// Sorted is all phrases by their bytes. They are good until the next write.
func (p *Phrases) Sorted() [][]byte {
	all := make([][]byte, p.Len())
	for i := range all {
		all[i] = p.bytesOf(uint32(i))
	}
	slices.SortFunc(all, bytes.Compare)
	return all
}

// Merge makes it the union with o, which stays as it is. It answers ErrIncompatible or ErrFull, and then nothing has
// changed.
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

// Clone is a copy that shares nothing.
func (p *Phrases) Clone() Phrases {
	c := *p
	c.phrases, c.slots, c.arena = slices.Clone(p.phrases), slices.Clone(p.slots), slices.Clone(p.arena)
	return c
}

// Size is the memory it takes, in bytes, itself included.
func (p *Phrases) Size() int { return 104 + 12*(cap(p.phrases)+cap(p.slots)) + cap(p.arena) }

// Held allows 2 bytes for each of a phrase and 48 for its place and its prefixes: how many prefixes there are, the
// state alone does not say.
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

// Decode replaces the set by the one at the start of b, and answers what follows it. Bytes that AppendBinary cannot
// have written are refused with ErrCorrupt, and the receiver stays as it was.
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
