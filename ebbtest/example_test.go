package ebbtest_test

import (
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/ebbtest"
)

// A test of what a program does when its trends fade and a node dies.
func ExampleNew() {
	_ = func(t *testing.T) {
		c := ebbtest.New(t, ebbtest.Nodes(3))
		client := c.Client()
		if err := client.Increment(t.Context(), "default", ebb.One("link", "de")); err != nil {
			t.Fatal(err)
		}
		c.Advance(time.Hour) // the half-life of namespace default
		c.Kill(0)
		top, err := client.Top(t.Context(), "default", "link", 10)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(top.Z) // 0.5
	}
}
