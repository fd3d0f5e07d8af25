package sketch

import "math"

// Header is a distribution without its bins. With Header, Place and Load, callers with many distributions can store the
// bins in their own memory.
type Header struct {
	Z, Z2 float64
	Last  Tick
	Mark  int64
	// Lost is by how much any bin may be too low, as stored: the upper half of a double that is not negative, so that
	// the lower 32 bits are 0.
	Lost float64
	// Micro is set under Linear decay: then Mark is a level, and Z and Z2 are 0.
	Micro, Compact bool
	Bins           int
}

// Header fills in h with the distribution's header. (A struct of so many fields is slow to return.)
func (d *Distribution) Header(h *Header) {
	f := d.form()
	h.Z, h.Z2, h.Last, h.Mark, h.Lost = d.z, d.z2, d.last, d.mark, d.lost
	h.Micro, h.Compact, h.Bins = f == micro, f == compact, d.Len()
}

// Sums are the fields of the header that AddExisting changes.
func (d *Distribution) Sums() (z, z2 float64, last Tick) { return d.z, d.z2, d.last }

// Words is the memory of the bins, nil without bins. The distribution owns it until the next Load or Place; a write may
// replace it by a larger one.
func (d *Distribution) Words() []uint64 { return d.words }

// Load fills an empty distribution from a header whose bins are in words, as Place wrote them.
func (d *Distribution) Load(h *Header, words []uint64) {
	d.z, d.z2, d.last, d.mark, d.lost = h.Z, h.Z2, h.Last, h.Mark, h.Lost
	f := h.form()
	d.setShape(h.Bins, f)
	if h.Bins > 0 {
		d.words, d.room = words, uint32(roomIn(f, len(words)))
	}
}

// WordsFor is how many words DecodeBins needs for a number of bins, which must be at least that of the header.
func (h *Header) WordsFor(bins int) int { return wordsFor(h.form(), bins) }

func (h *Header) form() form {
	switch {
	case h.Micro:
		return micro
	case h.Compact:
		return compact
	}
	return wide
}

// WordsFor is how many words Place needs for a number of bins, which must be at least that of the distribution.
func (d *Distribution) WordsFor(bins int) int { return wordsFor(d.form(), bins) }

// Place moves the bins into words. len(words) must be at least WordsFor(d.Len()); the old contents are ignored.
func (d *Distribution) Place(words []uint64) {
	if d.Len() == 0 {
		d.words, d.room = nil, 0
		return
	}
	old := *d
	d.words, d.room = words, uint32(roomIn(d.form(), len(words)))
	copy(d.words, old.words[:idWords(old.Len())])
	copy(d.words[idWords(int(d.room)):], old.values())
	d.reindex()
}

// roomIn is how many bins fit into so many words.
func roomIn(f form, words int) int {
	few := words * 2 / 3
	if f == compact {
		few = words &^ 1
	}
	if few <= scanMax {
		return few
	}
	// With slots a bin takes 1.5 or 1 words and 5/16, or 5/8 where there are many, and with maxima 1/64. Begin a little
	// below that.
	room, large, many := words*16/29, words*64/117, words*64/137
	if f == compact {
		room, large, many = words*16/21, words*64/85, words*64/105
	}
	room = max(scanMax, room-4)
	if room > maximaMin {
		room = max(maximaMin, large-5)
	}
	if room > math.MaxUint16-8 {
		room = max(math.MaxUint16-8, many-5)
	}
	for wordsFor(f, room+1) <= words {
		room++
	}
	return room
}
