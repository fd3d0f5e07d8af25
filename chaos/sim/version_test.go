package sim

import (
	"errors"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
)

// Three nodes are upgraded one after the other. The newer storage version is
// in force once all know it, and no sooner; until then each can go back, and
// from then on none can. Events count throughout.
func TestStorageVersionRisesWithTheLastNode(t *testing.T) {
	older, newer := proto.Versions{Oldest: 1, Newest: 7}, proto.Versions{Oldest: 6, Newest: 8}
	builds := []proto.Versions{older, older, older}
	inBubble(t, Options{Configure: func(i int, cfg *node.Config) { cfg.Storage = builds[i] }}, func(t *testing.T, c *Cluster) {
		client := dial(t, c)
		defer client.Close()
		counted := 0
		count := func() {
			t.Helper()
			if err := client.Increment(t.Context(), "", ebb.One("k", "b")); err != nil {
				t.Fatal(err)
			}
			counted++
		}
		version := func(i int) uint32 { return c.Node(i).Table().Version() }
		restart := func(i int, build proto.Versions) {
			t.Helper()
			c.Kill(i)
			builds[i] = build
			if err := c.Restart(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			if err := c.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			count()
		}
		// stays fails if another version is in force within ten seconds, long enough to raise it.
		stays := func(want uint32, when string) {
			t.Helper()
			for range 10 {
				time.Sleep(time.Second)
				for i := range c.Nodes() {
					if c.Node(i) != nil && version(i) != want {
						t.Fatalf("%s: version %d is in force at %s, want %d", when, version(i), c.Name(i), want)
					}
				}
			}
		}
		rises := func(want uint32, when string) {
			t.Helper()
			for range 10 {
				time.Sleep(time.Second)
				if version(0) == want && version(1) == want && version(2) == want {
					return
				}
			}
			t.Fatalf("%s: versions %d, %d and %d are in force, want %d", when, version(0), version(1), version(2), want)
		}
		refused := func(i int, build proto.Versions, says ...string) {
			t.Helper()
			c.Kill(i)
			back := builds[i]
			builds[i] = build
			err := c.Restart(t.Context(), i)
			if !errors.Is(err, proto.ErrNewerVersion) {
				t.Fatalf("a build that knows %v: %v, want NEWER_VERSION", build, err)
			}
			for _, what := range says {
				if !strings.Contains(err.Error(), what) {
					t.Errorf("%q does not say %q", err, what)
				}
			}
			builds[i] = back
		}

		count()
		rises(7, "a new cluster")
		restart(0, newer)
		stays(7, "one of three upgraded")
		restart(1, newer)
		restart(0, older)
		restart(0, newer)
		stays(7, "two upgraded, one of them twice")
		c.Kill(2)
		stays(7, "two upgraded, and the third is away")
		restart(2, newer)
		rises(8, "all upgraded")
		refused(0, older, "storage version 8", "knows 1 to 7")
		refused(0, proto.Versions{Oldest: 9, Newest: 9}, "storage version 8", "knows 9 to 9")
		restart(0, newer)
		stays(8, "all is well")
		if d, err := client.Distribution(t.Context(), "", "k"); err != nil || d.Z < float64(counted)-1 || d.Z > float64(counted) {
			t.Errorf("z = %v, %v, want %d less a little", d.Z, err, counted)
		}
	})
}
