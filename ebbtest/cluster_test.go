package ebbtest_test

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/ebbtest"
)

func TestMain(m *testing.M) {
	// memberlist's probes outlive it by some seconds
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

func increment(t *testing.T, c *ebb.Client, ns, key, bin string) {
	t.Helper()
	if err := c.Increment(t.Context(), ns, ebb.One(key, bin)); err != nil {
		t.Fatal(err)
	}
}

func wantZ(t *testing.T, c *ebb.Client, ns, key string, want float64) {
	t.Helper()
	d, err := c.Distribution(t.Context(), ns, key)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(d.Z-want) > want/100 {
		t.Errorf("z of %s is %v, want %v", key, d.Z, want)
	}
}

// A half-life passes in a moment, in a test like any other.
func TestHalfLifePasses(t *testing.T) {
	c := ebbtest.New(t)
	client := c.Client()
	for range 8 {
		increment(t, client, "default", "link", "de")
	}
	wantZ(t, client, "default", "link", 8)
	c.Advance(time.Hour)
	wantZ(t, client, "default", "link", 4)
	increment(t, client, "default", "link", "de")
	wantZ(t, client, "default", "link", 5)
	c.Advance(2 * time.Hour)
	wantZ(t, client, "default", "link", 1.25)
}

// In a bubble, a node is killed, another is cut off for a minute, and nothing
// is lost or counted twice.
func TestFaultsInABubble(t *testing.T) {
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		c := ebbtest.New(t, ebbtest.Nodes(3), ebbtest.Shards(6))
		client := c.Client()
		if _, err := client.CreateNamespace(t.Context(), ebb.Namespace{Name: "counts", Decay: ebb.DecayNone}); err != nil {
			t.Fatal(err)
		}
		increment(t, client, "counts", "link", "de")
		leader := c.Leader("counts", "link")
		c.Kill(leader)
		increment(t, client, "counts", "link", "de")
		c.Restart(leader)

		leader = c.Leader("counts", "link")
		c.Partition([]int{leader})
		increment(t, client, "counts", "link", "de")
		time.Sleep(time.Minute)
		increment(t, client, "counts", "link", "de")
		c.Heal()
		wantZ(t, client, "counts", "link", 4)

		for i := range 3 {
			c.PowerLoss(i)
		}
		c.Restart()
		wantZ(t, client, "counts", "link", 4)
	})
	t.Logf("took %v", time.Since(began).Round(time.Millisecond))
}

// Without a majority a write is not acknowledged.
func TestMinorityRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ebbtest.New(t)
		client := c.Client(ebb.WithTimeout(5 * time.Second))
		c.Partition([]int{0}, []int{1}, []int{2})
		time.Sleep(3 * time.Second)
		err := client.Increment(t.Context(), "default", ebb.One("link", "de"))
		if err == nil {
			t.Fatal("acknowledged without a majority")
		}
		var e *ebb.Error
		if !errors.As(err, &e) {
			t.Errorf("%v is not an *ebb.Error", err)
		}
	})
}
