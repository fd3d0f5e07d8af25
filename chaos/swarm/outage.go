package swarm

import (
	"fmt"
	"slices"
	"time"
)

const (
	// outageP99Max is the limit for 99 of 100 cases: 3 election timeouts.
	outageP99Max = 3 * time.Second
	// outageCases is how many cases a 99th percentile needs.
	outageCases = 100
)

// Outage summarizes how long majorities took to acknowledge again after their leader was cut off.
type Outage struct {
	Cases int           `json:"cases"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`

	all []time.Duration // sorted
}

func (o *Outage) add(took ...time.Duration) {
	for _, t := range took {
		at, _ := slices.BinarySearch(o.all, t)
		o.all = slices.Insert(o.all, at, t)
	}
	o.Cases = len(o.all)
	if o.Cases > 0 {
		o.P50, o.P99, o.Max = o.at(50), o.at(99), o.all[o.Cases-1]
	}
}

// at returns a percentile: the smallest time that this many of a hundred do not exceed.
func (o *Outage) at(percent int) time.Duration { return o.all[(len(o.all)*percent+99)/100-1] }

// Late describes that majorities took too long in too many cases; empty if not, or if there are too few cases.
func (o *Outage) Late() string {
	if o.Cases < outageCases || o.P99 <= outageP99Max {
		return ""
	}
	return fmt.Sprintf("majority-serves: after %v one majority of %d in a hundred had not acknowledged again, and %v is the limit", o.P99.Round(time.Millisecond), o.Cases, outageP99Max)
}

func (o *Outage) String() string {
	switch o.Cases {
	case 0:
		return "no leader cut off"
	case 1:
		return fmt.Sprintf("1 leader cut off, a majority acknowledged again within %v", o.Max.Round(10*time.Millisecond))
	}
	return fmt.Sprintf("%d leaders cut off, a majority acknowledged again within %v at the median, %v at p99, %v at most",
		o.Cases, o.P50.Round(10*time.Millisecond), o.P99.Round(10*time.Millisecond), o.Max.Round(10*time.Millisecond))
}
