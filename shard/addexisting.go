package shard

import "github.com/ebbdb/ebb/sketch"

// addExisting is add for the most common increment: one of the present time, to a bin that exists. It does not load the
// summary from its record and store it again. It returns false, and changes nothing, if the increment is not of this
// sort; then add must be called.
func (s *State) addExisting(ns *namespace, now *sketch.Now, in *incoming) bool {
	if in.found == 0 || in.changes != s.keys.index.changes || in.Kind != 0 || ns.slow != 0 || ns.signed {
		return false
	}
	r := in.record
	if in.moved != s.summaries.bins.moved {
		r = s.summaries.edit(in.found-1, s.epoch)
	}
	if r.form() > recordCompact || r.bins() == 0 || r.due() <= now.At() || r.era() != ns.presentEra()&eraMask {
		return false
	}
	bin, known := s.bins.find(tagOf(in.Bin, 0), in.Bin)
	if !known {
		return false
	}
	var d sketch.Distribution
	var h sketch.Header
	r.header(&h)
	d.Load(&h, r[headWords+nameWords(r.nameLen()):])
	if !d.AddExisting(ns.params(), now, bin, in.Amount) {
		return false
	}
	r.setSums(d.Sums())
	return true
}
