package bench_test

import (
	"testing"
	"time"

	"github.com/ebbdb/ebb/bench"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/ebbtest"
)

// What bursts send is counted to the unit, and read at the same time.
func TestBurstCountsEverything(t *testing.T) {
	c := ebbtest.New(t, ebbtest.Nodes(1), ebbtest.Shards(4))
	r, err := bench.Burst{Duration: 2 * time.Second, Distributions: 700, Size: 300, Reads: 20}.Run(t.Context(), bench.Target{Addrs: c.Addrs(), Options: []client.Option{client.WithDialer(c.Dial)}})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(700 + 2*300); r.Sent != want || r.Counted != want || r.Different != 0 {
		t.Errorf("sent %d, counted %d in all but %d distributions, want %d", r.Sent, r.Counted, r.Different, want)
	}
	if r.Bursts.N != 2 || r.Reads.N != 40 {
		t.Errorf("%d bursts, %d questions", r.Bursts.N, r.Reads.N)
	}
}
