package swarm

// Shrink drops faults from a plan that fails for as long as it still fails, and returns the smallest that it has found,
// with its verdict. fails runs a plan, more than once where goroutines may interleave in another way each time, and
// returns a verdict that failed, or nil.
func Shrink(v *Verdict, fails func(Plan) *Verdict) *Verdict {
	best := v
	for size := len(best.Plan.Faults); size > 0; size /= 2 {
		for from := 0; from < len(best.Plan.Faults); {
			p := best.Plan
			p.Faults = append(append([]Fault(nil), p.Faults[:from]...), p.Faults[min(from+size, len(p.Faults)):]...)
			if smaller := fails(p); smaller != nil {
				best = smaller
				continue // the faults behind have moved up
			}
			from += size
		}
	}
	for _, without := range []func(p *Plan) bool{
		func(p *Plan) bool { had := p.Outage; p.Outage = false; return had },
		func(p *Plan) bool { had := p.Home; p.Home = false; return had },
	} {
		p := best.Plan
		if without(&p) {
			if smaller := fails(p); smaller != nil {
				best = smaller
			}
		}
	}
	return best
}
