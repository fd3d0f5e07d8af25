package swarm

// Shrink drops faults from a failing plan as long as the plan still fails. It returns the verdict of the smallest
// failing plan that it finds. fails runs a plan, several times if goroutines may interleave differently each time. It
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
