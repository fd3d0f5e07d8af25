package sim

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// inBubble runs a scenario against a cluster in virtual time.
func inBubble(t *testing.T, opts Options, f func(t *testing.T, c *Cluster)) {
	t.Helper()
	began := time.Now()
	var virtual time.Duration
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if opts.Logger == nil {
			opts.Logger = testLogger()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := Start(ctx, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { // also of a scenario that fails: else what is left of it hides why
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			virtual = time.Since(start)
			time.Sleep(Linger)
		}()
		f(t, c)
	})
	t.Logf("%v of virtual time in %v", virtual.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// testLogger logs what EBB_TEST_LOG asks for (info, debug); nothing without it.
func testLogger() *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("EBB_TEST_LOG"))) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func dial(t *testing.T, c *Cluster, opts ...ebb.Option) *ebb.Client {
	t.Helper()
	client, err := ebb.DialOptions(t.Context(), c.Addrs(), append([]ebb.Option{ebb.WithDialer(c.Dialer("10.0.1.1"))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Three nodes serve; each may be killed and come back, and after a power cut of
// all of them everything acknowledged is there.
func TestClusterLives(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cluster) {
		client := dial(t, c)
		defer client.Close()
		if _, err := client.SetNamespace(t.Context(), ebb.Namespace{Name: "n", Decay: ebb.DecayNone}); err != nil {
			t.Fatal(err)
		}
		ask := func() float64 {
			t.Helper()
			d, err := client.Distribution(t.Context(), "n", "k")
			if err != nil {
				t.Fatal(err)
			}
			return d.Z
		}
		if err := client.Increment(t.Context(), "n", ebb.One("k", "b")); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			c.Kill(i)
			if err := client.Increment(t.Context(), "n", ebb.One("k", "b")); err != nil {
				t.Fatal(err)
			}
			if err := c.Restart(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			if err := c.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3 {
			c.PowerLoss(i)
		}
		for i := range 3 {
			if err := c.Restart(t.Context(), i); err != nil {
				t.Fatal(err)
			}
		}
		if got := ask(); got != 4 {
			t.Errorf("z = %v, want 4", got)
		}
	})
}
