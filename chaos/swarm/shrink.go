package swarm

// Shrink drops acts from a plan that fails for as long as it still fails, and returns the smallest that it has found, with its verdict. fails runs a
// plan, more than once where goroutines may interleave in another way each time, and returns a verdict that failed, or nil.
func Shrink(v *Verdict, fails func(Plan) *Verdict) *Verdict {
	best := v
	for size := len(best.Plan.Acts); size > 0; size /= 2 {
		for from := 0; from < len(best.Plan.Acts); {
			p := best.Plan
			p.Acts = append(append([]Act(nil), p.Acts[:from]...), p.Acts[min(from+size, len(p.Acts)):]...)
			if smaller := fails(p); smaller != nil {
				best = smaller
				continue // the acts behind have moved up
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
