package sketch

import "math"

// scale has the bounds of Add for a write at one time, as values stored relative to one landmark.
type scale struct {
	mark   int64
	known  bool
	weight float64 // of an event at that time
	// faint is the least stored count, faint2 the least stored sum of squares, and most the largest stored count.
	faint, faint2, most float64
	lively              float64    // the summary has faded if it is below
	cut                 [3]float64 // a bin has faded if it is below, by form
}

// scaleOf is the scale of a landmark.
func (n *Now) scaleOf(p *Params, mark int64) *scale {
	if n.scale.mark != mark || !n.scale.known {
		n.scale = n.newScale(p, mark)
	}
	return &n.scale
}

func (n *Now) newScale(p *Params, mark int64) scale {
	w := n.weight(mark)
	s := scale{mark: mark, known: true, weight: w, faint: float64(faintest * max(w, 1)), most: float64(CountMax * w)}
	s.faint2 = float64(s.faint * max(w, 1))
	if p.Decay == HalfLife && !p.OrderFree {
		s.lively = float64(p.threshold() * w)
	}
	for f := range s.cut {
		s.cut[f] = form(f).cut(p, w)
	}
	return s
}

// AddExisting is AddNow for the most common event: at the present time, to a stored bin, of a distribution that has not
// faded. It returns false for any other event, and then nothing has changed: call AddNow. Its result is the same as
// that of AddNow, because the steps that it skips would change nothing.
func (d *Distribution) AddExisting(p *Params, now *Now, bin uint32, n float64) bool {
	f := d.form()
	if f > compact || p.Decay == Linear || p.AllowNegative || !(n > 0 && n <= CountMax) || now.mark-d.mark > RebaseAfter {
		return false
	}
	s := now.scaleOf(p, d.mark)
	inc := float64(n * s.weight)
	if inc < s.faint || !(d.z > 0) || d.z < s.lively {
		return false
	}
	i := d.find(bin)
	if i < 0 {
		return false
	}
	raw := d.raw(i)
	sum, z := 0.0, d.z+inc
	if f == compact {
		sum = expand(uint32(raw))
	} else {
		sum = math.Float64frombits(raw)
	}
	switch {
	case sum < 0:
		return false
	case sum < s.cut[f] && !p.OrderFree:
		sum = 0
	}
	sum += inc
	if z > s.most || sum > s.most {
		return false
	}
	if f == compact {
		c, ok := squeeze(sum, dither(sum, z))
		if unit := float64(min(n, 1) * s.weight); !ok || !p.Compact || !(unit > 0) || sum > float64(compactMax*unit) {
			return false
		}
		raw = uint64(c)
	} else {
		raw = math.Float64bits(sum)
	}
	d.setRaw(i, raw)
	d.raise(i, raw)
	d.z = z
	d.z2 = atLeast(atLeast(d.z2, s.faint2)+float64(n*float64(s.weight*s.weight)), s.faint2)
	d.last = max(d.last, now.at)
	return true
}
