package sketch

// Held is about how many bytes of memory a summary's state takes. Unlike Size it is a function of the state alone:
// equal states have the same Held, whatever their history. So the decisions of replicas may depend on it.
//
// Reserved is the Held of older behaviour versions, before sketches grew with their contents. For some kinds it is the
// size when full.

// Held counts the nonzero cells, or all cells of a dense sketch.
func (c *CountMin) Held() int {
	if c.cells != nil {
		return countMinOwn + 8*len(c.cells)
	}
	return countMinOwn + c.few.size()
}

// Reserved is the size with all cells.
func (c *CountMin) Reserved() int { return 112 + 8*c.width*c.depth }

// Held counts tokens, whose words are used to 55% to 75%, or registers.
func (d *Distinct) Held() int {
	if d.dense {
		return 48 + 4<<d.p
	}
	return 48 + 6*int(d.tokens)
}

// Held is the sum over all unions.
func (w *DistinctWindow) Held() int {
	n := 80
	for i := range w.unions {
		n += 8 + w.unions[i].of.Held()
	}
	return n
}

// Held counts things or registers. Each addition first removes what has faded.
func (d *DistinctDecayed) Held() int {
	if !d.Exact() {
		return 160 + d.p.Registers
	}
	return 160 + 16*len(d.times)
}

// Held counts members with their names, or the bitmap.
func (l *LinearCounter) Held() int {
	if !l.Exact() {
		return linearOwn + l.bits.held()
	}
	return linearOwn + 8*len(l.hashes) + 4*len(l.places) + l.named
}

// Reserved counts members with their names, or all bits of the bitmap.
func (l *LinearCounter) Reserved() int {
	if !l.Exact() {
		return l.ReservedMost()
	}
	return 160 + 12*len(l.hashes) + l.named
}

// ReservedMost is Reserved after the change to the bitmap.
func (l *LinearCounter) ReservedMost() int { return 160 + l.m/8 }

// Held counts the blocks with a bit, or all blocks of a dense filter.
func (f *Bloom) Held() int { return bloomOwn + f.bits.held() }

// Reserved is the size with all bits.
func (f *Bloom) Reserved() int { return 88 + blockBits/8*f.blocks }

// Held is the sum over all generations.
func (s *BloomScalable) Held() int {
	n := 56
	for i := range s.generations {
		n += s.generations[i].Held()
	}
	for i := range s.sides {
		n += s.sides[i].Held()
	}
	return n
}

// Reserved is the sum over all generations.
func (s *BloomScalable) Reserved() int {
	n := 56
	for i := range s.generations {
		n += s.generations[i].Reserved()
	}
	for i := range s.sides {
		n += s.sides[i].Reserved()
	}
	return n
}

// Held counts the words with a bit, or all words of a dense filter.
func (f *BloomExpiring) Held() int { return bloomExpiringOwn + 4*len(f.ones) + f.bits.held() }

// Reserved is the size with all slices.
func (f *BloomExpiring) Reserved() int { return 136 + f.slices()*(f.m/8+4) }

// Held is the same for every counter.
func (m *Morris) Held() int { return m.Size() }

// Held counts the stored buckets.
func (q *Quantile) Held() int { return 128 + 12*q.d.Len() }

// Held counts entries with their names.
func (s *TopK) Held() int { return 272 + 25*s.Len() + len(s.arena) - s.waste }

// listed is the size of hashes and members, without the members' names.
func (s *Set) listed() int {
	if s.p.Members {
		return 24 * s.Len()
	}
	return 8 * s.Len()
}

// Held counts hashes with their members, and the signature.
func (s *Set) Held() int {
	return 128 + s.listed() + s.named + len(s.signature)
}

// Held counts things with their members. Each addition first removes what has faded.
func (s *SetDecayed) Held() int { return 200 + 24*len(s.hashes) + 16*len(s.members) + s.named }

// Reserved is the older Held.
func (d *Distinct) Reserved() int {
	if d.dense {
		return 48 + 4<<d.p
	}
	return 48 + 4*int(d.tokens)
}

// Reserved is the older Held.
func (w *DistinctWindow) Reserved() int {
	n := 80
	for i := range w.unions {
		n += 8 + w.unions[i].of.Reserved()
	}
	return n
}

// Reserved is the older Held.
func (d *DistinctDecayed) Reserved() int {
	if !d.Exact() {
		return 160 + d.p.Registers
	}
	return 160 + 16*len(d.times)
}

// Reserved is the older Held.
func (m *Morris) Reserved() int {
	return m.Size()
}

// Reserved is the older Held.
func (q *Quantile) Reserved() int {
	return 128 + 12*q.d.Len()
}

// Reserved is the older Held.
func (s *TopK) Reserved() int {
	return 272 + 25*s.Len() + len(s.arena) - s.waste
}

// Reserved is the older Held.
func (s *Set) Reserved() int {
	return 128 + s.listed() + s.named + len(s.signature)
}

// Reserved is the older Held.
func (s *SetDecayed) Reserved() int {
	return 200 + 24*len(s.hashes) + 16*len(s.members) + s.named
}

// Reserved is the older Held.
func (p *Phrases) Reserved() int {
	return 104 + 48*p.Len() + 2*p.Bytes()
}
