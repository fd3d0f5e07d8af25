package sketch

import (
	"encoding/binary"
)

// loss bounds how much a summary with its own half-life may be too low because an earlier summary of the same key died.
// It is the lost of a Distribution (see lost.go), for kinds that remove nothing. It is a count at a time, and decays
// from then on. The zero value means that nothing is lost.
type loss struct {
	n     float64 // the upper half of a double
	since Tick
}

// bornAt is the loss of a summary that begins at a time when an earlier one may have held up to held, see Params.Held.
func bornAt(now, halfLife Tick, held float64) loss {
	if halfLife == 0 {
		return loss{}
	}
	return loss{lostUp(held), max(now, 0)}
}

// at is the count of the loss at a time, rounded up by at most a millionth. It is larger at an earlier time, because a
// clock may be set back.
func (l loss) at(t, halfLife Tick) float64 {
	switch {
	case l.n == 0:
		return 0
	case t < l.since:
		return unfaded(l.n, l.since-t, halfLife)
	}
	k, frac := exponent(t-l.since, 0, halfLife)
	if frac == 0 {
		return float64(l.n * Exp2(-k, 0))
	}
	return float64(l.n * Exp2(-k-1, -frac))
}

// plus is the loss of the merge of two summaries.
func (l loss) plus(o loss, halfLife Tick) loss {
	since := max(l.since, o.since)
	n := lostUp(l.at(since, halfLife) + o.at(since, halfLife))
	if n < lostFaintest {
		return loss{}
	}
	return loss{n, since}
}

// faded is a tick from which on the loss is below a seventh of a threshold: a summary does not die earlier.
func (l loss) faded(halfLife Tick, threshold float64) Tick {
	if l.n == 0 {
		return 0
	}
	return Faded(l.n, l.since, halfLife, float64(max(threshold, faintest)*lostAtDeath))
}

// version is the version of an encoding: first, or first+1 where something is lost.
func (l loss) version(first byte) byte {
	if l.n == 0 {
		return first
	}
	return first + 1
}

// append writes the loss: 4 bytes of its count and the uvarint of its time; nothing where nothing is lost.
func (l loss) append(b []byte) []byte {
	if l.n == 0 {
		return b
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(upperOf(l.n)))
	return binary.AppendUvarint(b, uint64(l.since))
}

// loss reads the loss, if the version says that there is one.
func (r *reader) loss(version, first byte, halfLife Tick) loss {
	if version == first {
		return loss{}
	}
	l := loss{r.lost(), Tick(r.uvarint())}
	r.ok = r.ok && version == first+1 && l.since >= 0 && halfLife > 0
	return l
}

// headerLoss reads the kind and the version of an encoding that may contain a loss.
func (r *reader) headerLoss(kind byte) (version byte) {
	r.ok = r.byte() == kind && r.ok
	version = r.byte()
	r.ok = r.ok && (version == codecVersion || version == codecVersion+1)
	return version
}

// Born is called when the summary begins. An earlier summary of the same key may have held up to held when it died, see
// Params.Held. The summary then counts as too low by held, and dies no earlier than three half-lives later.
func (s *TopK) Born(now Tick, held float64) { s.loss = bornAt(now, s.halfLife, held) }

// Lose adds held to the loss, because another summary of the key may have held that much when it died.
func (s *TopK) Lose(now Tick, held float64) {
	s.loss = s.loss.plus(bornAt(now, s.halfLife, held), s.halfLife)
}

// Lost is by how much any count, and their sum, may be too low at a time, because an earlier summary of the key had
// died.
func (s *TopK) Lost(at Tick) float64 { return s.loss.at(at, s.halfLife) }

// Born is called when the summary begins. An earlier summary of the same key may have held up to held when it died, see
// Params.Held. The summary then counts as too low by held, and dies no earlier than three half-lives later.
func (c *CountMin) Born(now Tick, held float64) { c.loss = bornAt(now, c.halfLife, held) }

// Lose adds held to the loss, because another summary of the key may have held that much when it died.
func (c *CountMin) Lose(now Tick, held float64) {
	c.loss = c.loss.plus(bornAt(now, c.halfLife, held), c.halfLife)
}

// Lost is by how much any count, and their sum, may be too low at a time, because an earlier summary of the key had
// died.
func (c *CountMin) Lost(at Tick) float64 { return c.loss.at(at, c.halfLife) }

// Born is called when the summary begins. An earlier summary of the same key may have held up to held when it died, see
// Params.Held. The summary then counts as too low by held, and dies no earlier than three half-lives later.
func (d *DistinctDecayed) Born(now Tick, held float64) {
	d.loss = bornAt(now, d.halfLife, held)
}

// Lose adds held to the loss, because another summary of the key may have held that much when it died.
func (d *DistinctDecayed) Lose(now Tick, held float64) {
	d.loss = d.loss.plus(bornAt(now, d.halfLife, held), d.halfLife)
}

// Lost is by how much any count, and their sum, may be too low at a time, because an earlier summary of the key had
// died.
func (d *DistinctDecayed) Lost(at Tick) float64 { return d.loss.at(at, d.halfLife) }

// Born is called when the summary begins. An earlier summary of the same key may have held up to held when it died, see
// Params.Held. The summary then counts as too low by held, and dies no earlier than three half-lives later.
func (s *SetDecayed) Born(now Tick, held float64) { s.loss = bornAt(now, s.halfLife, held) }

// Lose adds held to the loss, because another summary of the key may have held that much when it died.
func (s *SetDecayed) Lose(now Tick, held float64) {
	s.loss = s.loss.plus(bornAt(now, s.halfLife, held), s.halfLife)
}

// Lost is by how much any count, and their sum, may be too low at a time, because an earlier summary of the key had
// died.
func (s *SetDecayed) Lost(at Tick) float64 { return s.loss.at(at, s.halfLife) }
