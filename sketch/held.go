package sketch

// Held is about how many bytes of memory a summary's state takes. Unlike Size it is a function of the state alone: equal
// states hold the same, however they came about. So it may decide what replicas do.

// Held is what it takes with its cells, which the first write allocates.
func (c *CountMin) Held() int { return 112 + 8*c.width*c.depth }

// Held counts tokens or registers.
func (d *Distinct) Held() int {
	if d.dense {
		return 48 + 4<<d.p
	}
	return 48 + 4*int(d.tokens)
}

// Held is that of all unions.
func (w *DistinctWindow) Held() int {
	n := 80
	for i := range w.unions {
		n += 8 + w.unions[i].of.Held()
	}
	return n
}

// Held counts things or registers. Whenever something is added, what has faded has been forgotten.
func (d *DistinctDecayed) Held() int {
	if !d.Exact() {
		return 160 + d.p.Registers
	}
	return 160 + 16*len(d.times)
}

// Held counts members with their names, or the bitmap.
func (l *LinearCounter) Held() int {
	if !l.Exact() {
		return 160 + l.m/8
	}
	return 160 + 12*len(l.hashes) + l.named
}

// HeldMost is what it takes once it has a bitmap, like Held.
func (l *LinearCounter) HeldMost() int { return 160 + l.m/8 }

// Held is what it takes with its bits, which the first key allocates.
func (f *Bloom) Held() int { return 88 + blockBits/8*f.blocks }

// Held is that of all generations.
func (s *BloomScalable) Held() int {
	n := 56
	for i := range s.generations {
		n += s.generations[i].Held()
	}
	return n
}

// Held is what it takes with its slices, which the first key allocates.
func (f *BloomExpiring) Held() int { return 136 + f.slices()*(f.m/8+4) }

// Held is what every counter takes.
func (m *Morris) Held() int { return m.Size() }

// Held counts buckets that have something.
func (q *Quantile) Held() int { return 128 + 12*q.d.Len() }

// Held counts entries with their names.
func (s *TopK) Held() int { return 272 + 25*s.Len() + len(s.arena) - s.waste }

// Held counts hashes with their members, and the signature.
func (s *Set) Held() int {
	return 128 + 8*len(s.hashes) + 16*len(s.members) + s.named + len(s.signature)
}

// Held counts things with their members. Whenever something is added, what has faded has been forgotten.
func (s *SetDecayed) Held() int { return 200 + 24*len(s.hashes) + 16*len(s.members) + s.named }
