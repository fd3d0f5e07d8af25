package backup

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/sim"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	shards  = 5
	waitMax = 2 * time.Minute // of virtual time
)

// newCluster starts whole nodes on a simulated network, in the bubble's time.
func newCluster(t *testing.T, nodes int, p uint32) (*sim.Cluster, *client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitMax)
	defer cancel()
	c, err := sim.Start(ctx, sim.Options{Nodes: nodes, Shards: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop()
		time.Sleep(sim.Linger)
		for _, err := range c.Collapses() {
			t.Error(err)
		}
	})
	cl, err := client.DialOptions(ctx, c.Addrs(), client.WithDialer(c.Dialer("10.0.1.1")), client.WithTimeout(waitMax))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() }) // before the nodes
	// snapshots are compared byte for byte, so that all clusters have one storage version
	for table := (*ebbv1.Table)(nil); table.GetVersion() < proto.StorageVersion; time.Sleep(100 * time.Millisecond) {
		if table, err = cl.Table(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return c, cl
}

// fillCluster writes keys of every kind. It leaves writers open, which hold their sessions.
func fillCluster(t *testing.T, c *client.Client) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range []client.Namespace{
		{Name: "plain", Decay: client.DecayNone},
		{Name: "clicks", HalfLife: 24 * time.Hour, SlowHalfLife: new(240 * time.Hour)},
		{Name: "users", Dictionary: true},
		{Name: "people", BitmapPlacement: client.PlaceBySlice},
	} {
		_, err := c.CreateNamespace(ctx, ns)
		must(err)
	}
	for _, ns := range []string{"plain", "clicks"} {
		w := c.Writer(client.WriterOptions{Namespace: ns})
		t.Cleanup(func() { _ = w.Close(context.Background()) }) // nothing is lost: it was flushed
		for i := range 300 {
			must(w.Add(ctx, fmt.Sprint("link/", i%40), fmt.Sprint("country ", i%17), float64(i)))
			must(w.Write(ctx, client.Seen(fmt.Sprint("visitors/", i%5), fmt.Sprint("person ", i))))
			must(w.Write(ctx, client.Measured(fmt.Sprint("latency/", i%5), float64(i)+0.5)))
			must(w.Write(ctx, client.Increment{Key: fmt.Sprint("top/", i%5), Bin: fmt.Sprint(i), Amount: 1, Kind: client.KindTopK}))
		}
		must(w.Write(ctx, client.Increment{Key: "motto", Kind: client.KindString, Text: "all things pass"}))
		must(w.Flush(ctx))
	}
	for i := range 20 {
		_, err := c.SetBits(ctx, "plain", fmt.Sprint("bits/", i), uint64(i), uint64(i)*70_000, 1<<33)
		must(err)
		_, err = c.SetNames(ctx, "users", fmt.Sprint("seen/", i%3), fmt.Sprint("user ", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
		must(err)
		_, err = c.SetBits(ctx, "people", fmt.Sprint("cohort/", i%3), uint64(i), uint64(i)<<16, uint64(i)<<20)
		must(err)
	}
	src, err := c.Source(ctx, "file/0", client.SourceOptions{Namespace: "plain"})
	must(err)
	for i := range 50 {
		must(src.Add(ctx, uint64(i+1), client.One(fmt.Sprint("imported/", i), "row")))
	}
	must(src.Close(ctx))
}

// take backs up, and returns the manifest.
func take(t *testing.T, c Source, store Store) (*Manifest, Progress) {
	t.Helper()
	m, p, err := Take(t.Context(), c, store, Options{Version: "test", Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return m, p
}

// contents are the chunks of all shards but those of their headers, which say what moment they are of.
func contents(m *Manifest) [][]Chunk {
	var out [][]Chunk
	for i := range m.Shards {
		out = append(out, m.Shards[i].Chunks[1:])
	}
	return out
}

// checkReplicas waits until all replicas of all shards have the same checksum.
func checkReplicas(t *testing.T, c *sim.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitMax)
	defer cancel()
	if err := c.Agree(ctx); err != nil {
		t.Fatal(err)
	}
}

var errTest = errors.New("as the test wants it")
