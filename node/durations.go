package node

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// durationSteps is the number of buckets for each power of two: the bound of a bucket is within 1/8 of what is in it.
const durationSteps = 8

// durations counts how long something took, in buckets. The zero value is ready.
type durations struct {
	buckets [64 * durationSteps]atomic.Uint64
	nanos   atomic.Uint64
}

func (d *durations) note(took time.Duration) {
	n := uint64(max(took, 1))
	d.buckets[durationBucket(n)].Add(1)
	d.nanos.Add(n)
}

// durationBucket returns the bucket of n nanoseconds; n is at least 1.
func durationBucket(n uint64) int {
	power := bits.Len64(n) - 1
	return power*durationSteps + int((n<<(63-power)>>(63-3))&(durationSteps-1))
}

// durationBound returns the least number of nanoseconds that lies above a bucket.
func durationBound(bucket int) float64 {
	return math.Ldexp(1+float64(bucket%durationSteps+1)/durationSteps, bucket/durationSteps)
}

// counted is a copy of the counts at one moment.
type counted [64 * durationSteps]uint64

func (d *durations) counted() (c counted) {
	for i := range d.buckets {
		c[i] = d.buckets[i].Load()
	}
	return c
}

// since returns the counts that were added after an earlier moment.
func (c counted) since(before counted) counted {
	for i := range c {
		c[i] -= before[i]
	}
	return c
}

// quantile returns a duration that the given share of all durations does not exceed; it may be up to 1/8 too long. It
// returns 0 if there are no durations.
func (c counted) quantile(share float64) time.Duration {
	all := uint64(0)
	for _, n := range c {
		all += n
	}
	left := uint64(math.Ceil(share * float64(all)))
	for i, n := range c {
		if n >= left && left > 0 {
			return time.Duration(durationBound(i))
		}
		left -= n
	}
	return 0
}

// histogram returns how many durations were at most so many seconds, by powers of two from 16 us to a minute. It also
// returns the number and the sum of all durations.
func (d *durations) histogram() (atMost map[float64]uint64, n uint64, seconds float64) {
	const least, most = 14, 36
	atMost = make(map[float64]uint64)
	for i := range d.buckets {
		if power := i / durationSteps; i%durationSteps == 0 && power >= least && power <= most {
			atMost[math.Ldexp(1e-9, power)] = n
		}
		n += d.buckets[i].Load()
	}
	return atMost, n, float64(d.nanos.Load()) / 1e9
}
