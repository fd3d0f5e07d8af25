package client_test

import (
	"context"
	"testing"
	"testing/synctest"
)

func TestNamespaceUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld(t, 1).connect()
		usage, unreachable, err := c.NamespaceUsage(context.Background(), "clicks")
		if err != nil || len(usage) != 1 || len(unreachable) != 1 || unreachable[0] != "ebb-9" {
			t.Fatalf("%v, %v, %v", usage, unreachable, err)
		}
		if u := usage[0]; u.Name != "clicks" || u.Keys != 2 || u.Bytes != 300 || u.MaxBytes != 400 || u.MaxKeys != 0 || u.Share != 0.25 || u.Node != "ebb-0" {
			t.Errorf("%+v", u)
		}
	})
}
