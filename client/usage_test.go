package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

func TestNamespaceUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld(t, 1).connect()
		usage, unreachable, err := c.NamespaceUsage(context.Background(), "clicks")
		if err != nil || len(usage) != 1 || len(unreachable) != 1 || unreachable[0] != "ebb-9" {
			t.Fatalf("%v, %v, %v", usage, unreachable, err)
		}
		want := ebb.NamespaceUsage{Name: "clicks", Keys: 2, Bytes: 300, MaxBytes: 400, Share: 0.25, Node: "ebb-0"}
		if usage[0] != want {
			t.Errorf("%+v, want %+v", usage[0], want)
		}
	})
}

// A grace time of less than a microsecond is one: none means that the keys are lost at once.
func TestShortGraceTimesAreGraceTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld(t, 1).connect()
		for grace, purging := range map[time.Duration]bool{0: true, 1: false, time.Microsecond: false, time.Hour: false} {
			if d, err := c.DeleteNamespace(context.Background(), "clicks", grace); err != nil || d.Purging != purging {
				t.Errorf("with a grace time of %v: %+v, %v", grace, d, err)
			}
		}
		if d, err := c.DeleteNamespace(context.Background(), "clicks", -1); err == nil {
			t.Errorf("with a negative grace time: %+v", d)
		}
	})
}
