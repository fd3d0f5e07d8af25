package sketch

import "math"

// scale is what a write at one time needs to know of a landmark: the bounds of Add as they are stored there.
type scale struct {
	mark   int64
	known  bool
	weight float64 // of an event of that time
	// faint is the least that is stored of counts, faint2 that of their squares, and most the most of either.
	faint, faint2, most float64
	lively              float64    // below it the summary has faded
	cut                 [3]float64 // below it a bin has, by form
}

// scaleOf is that of a landmark.
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

// AddExisting is AddNow of the most common event: of the present, to a bin that is there, of a distribution that lives.
// It says whether it was one; if not, nothing has changed, and AddNow has more to look at. It is not another
// arithmetic: what it leaves out would have changed nothing.
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
