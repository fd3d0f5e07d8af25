package sketch

// Landmark is the time from which stored weights count, in microseconds since 1970; 0 while nothing is stored or
// nothing fades. A summary reads as it should at that time and later: before it, weights may overflow.
func (f *fade) Landmark() Tick { return Tick(f.mark * int64(f.halfLife)) }

// Landmark is fade's, of the distribution of buckets.
func (q *Quantile) Landmark() Tick {
	p := q.under()
	return q.d.Landmark(&p)
}

// Landmark is the time from which stored weights count, in microseconds since 1970; 0 where they do not fade by
// half-lives. p is what the distribution was written under last.
func (d *Distribution) Landmark(p *Params) Tick {
	if p.Decay != HalfLife || d.fresh() {
		return 0
	}
	return Tick(d.mark * int64(p.HalfLife))
}
