package client_test

import (
	"context"
	"testing"
	"testing/synctest"

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
