package ebbtest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/ebbtest"
)

// A half-life that is changed holds for keys that are not written again, on every shard, within seconds.
func TestHalfLifeHoldsForKeysThatAreNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ebbtest.New(t, ebbtest.Nodes(3), ebbtest.Shards(6))
		client := c.Client()
		define := func(set func() (ebb.Namespace, error)) {
			if _, err := set(); err != nil {
				t.Fatal(err)
			}
		}
		define(func() (ebb.Namespace, error) {
			return client.CreateNamespace(t.Context(), ebb.Namespace{Name: "fades", HalfLife: 10 * time.Minute})
		})
		const keys = 30
		z := func(i int) float64 {
			d, err := client.Distribution(t.Context(), "fades", fmt.Sprint("link/", i))
			if err != nil {
				t.Fatal(err)
			}
			return d.Z
		}
		for i := range keys {
			increment(t, client, "fades", fmt.Sprint("link/", i), "de")
		}
		time.Sleep(10 * time.Second)
		define(func() (ebb.Namespace, error) {
			return client.SetNamespace(t.Context(), ebb.Namespace{Name: "fades", HalfLife: 10 * time.Second})
		})
		time.Sleep(5 * time.Second)
		var before [keys]float64
		for i := range keys {
			if before[i] = z(i); before[i] > 0.95 {
				t.Errorf("5 s after the change link/%d still counts %g", i, before[i])
			}
		}
		time.Sleep(10 * time.Second)
		for i := range keys {
			if part := z(i) / before[i]; part < 0.49 || part > 0.51 {
				t.Errorf("a half-life later link/%d counts %g of what it did", i, part)
			}
		}
	})
}
