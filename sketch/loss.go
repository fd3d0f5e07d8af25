package sketch

import (
	"encoding/binary"
)

// loss is what a summary that carries its own half-life is short of, because an earlier one of the same key had died:
// it is the lost of a Distribution (see lost.go), for kinds that remove nothing. It is a number of counts at a time,
// and decays from there. The zero value has lost nothing.
type loss struct {
	n     float64 // the upper half of a double
	since Tick
}

// bornAt is the loss of a summary that begins at a time, when an earlier one may have held so much, see Params.Held.
func bornAt(now, halfLife Tick, held float64) loss {
	if halfLife == 0 {
		return loss{}
	}
	return loss{lostUp(held), max(now, 0)}
}

// at is what it counts at a time, rounded up by at most a millionth. It is more at an earlier time, to which a
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

// plus is the loss of two summaries that merge.
func (l loss) plus(o loss, halfLife Tick) loss {
	since := max(l.since, o.since)
	n := lostUp(l.at(since, halfLife) + o.at(since, halfLife))
	if n < lostFaintest {
		return loss{}
	}
	return loss{n, since}
}

// faded is a tick from which on it is below a seventh of a threshold, which a summary that dies waits for.
func (l loss) faded(halfLife Tick, threshold float64) Tick {
	if l.n == 0 {
		return 0
	}
	return Faded(l.n, l.since, halfLife, float64(max(threshold, faintest)*lostAtDeath))
}

// version is that of an encoding: the first, or the next where something is lost.
func (l loss) version(first byte) byte {
	if l.n == 0 {
		return first
	}
	return first + 1
}

// append writes 4 bytes of what is lost and the time since when, as a uvarint; nothing where nothing is lost.
func (l loss) append(b []byte) []byte {
	if l.n == 0 {
		return b
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(upperOf(l.n)))
	return binary.AppendUvarint(b, uint64(l.since))
}

// loss takes what is lost, if the encoding says that something is.
func (r *reader) loss(version, first byte, halfLife Tick) loss {
	if version == first {
		return loss{}
	}
	l := loss{r.lost(), Tick(r.uvarint())}
	r.ok = r.ok && version == first+1 && l.since >= 0 && halfLife > 0
	return l
}

// headerLoss takes the kind and the version of an encoding that may say what is lost.
func (r *reader) headerLoss(kind byte) (version byte) {
	r.ok = r.byte() == kind && r.ok
	version = r.byte()
	r.ok = r.ok && (version == codecVersion || version == codecVersion+1)
	return version
}

// Born says that the summary begins at a time, after one of the same key that may have held so much when it died, see
// Params.Held. It is short of that, and dies no earlier than three half-lives from then.
func (s *TopK) Born(now Tick, held float64) { s.loss = bornAt(now, s.halfLife, held) }

// Lose adds to what the summary is short of, because another one of its key may have held so much when it died.
func (s *TopK) Lose(now Tick, held float64) {
	s.loss = s.loss.plus(bornAt(now, s.halfLife, held), s.halfLife)
}

// Lost is how much may be missing at a time from any count and from their sum, because an earlier summary of the key
// had died.
func (s *TopK) Lost(at Tick) float64 { return s.loss.at(at, s.halfLife) }

// Born says that the summary begins at a time, after one of the same key that may have held so much when it died, see
// Params.Held. It is short of that, and dies no earlier than three half-lives from then.
func (c *CountMin) Born(now Tick, held float64) { c.loss = bornAt(now, c.halfLife, held) }

// Lose adds to what the summary is short of, because another one of its key may have held so much when it died.
func (c *CountMin) Lose(now Tick, held float64) {
	c.loss = c.loss.plus(bornAt(now, c.halfLife, held), c.halfLife)
}

// Lost is how much may be missing at a time from any count and from their sum, because an earlier summary of the key
// had died.
func (c *CountMin) Lost(at Tick) float64 { return c.loss.at(at, c.halfLife) }

// Born says that the summary begins at a time, after one of the same key that may have held so much when it died, see
// Params.Held. It is short of that, and dies no earlier than three half-lives from then.
func (d *DistinctDecayed) Born(now Tick, held float64) {
	d.loss = bornAt(now, d.halfLife, held)
}

// Lose adds to what the summary is short of, because another one of its key may have held so much when it died.
func (d *DistinctDecayed) Lose(now Tick, held float64) {
	d.loss = d.loss.plus(bornAt(now, d.halfLife, held), d.halfLife)
}

// Lost is how much may be missing at a time from any count and from their sum, because an earlier summary of the key
// had died.
func (d *DistinctDecayed) Lost(at Tick) float64 { return d.loss.at(at, d.halfLife) }

// Born says that the summary begins at a time, after one of the same key that may have held so much when it died, see
// Params.Held. It is short of that, and dies no earlier than three half-lives from then.
func (s *SetDecayed) Born(now Tick, held float64) { s.loss = bornAt(now, s.halfLife, held) }

// Lose adds to what the summary is short of, because another one of its key may have held so much when it died.
func (s *SetDecayed) Lose(now Tick, held float64) {
	s.loss = s.loss.plus(bornAt(now, s.halfLife, held), s.halfLife)
}

// Lost is how much may be missing at a time from any count and from their sum, because an earlier summary of the key
// had died.
func (s *SetDecayed) Lost(at Tick) float64 { return s.loss.at(at, s.halfLife) }
