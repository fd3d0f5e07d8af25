package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// A watch yields the first answer and then what changes. Its loop ends it, and leaves nothing behind.
func TestWatchYieldsChanges(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	ns := w.plain()
	var seen []float64
	for e, err := range c.WatchTop(ctx, ns, "k", 3, ebb.WatchOptions{Interval: 100 * time.Millisecond}) {
		if err != nil || e.Err() != nil {
			t.Fatal(err, e.Err())
		}
		seen = append(seen, e.Distribution().Z)
		if len(seen) == 3 {
			break
		}
		if err := c.Increment(ctx, ns, ebb.One("k", "a")); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 3 || seen[0] != 0 || seen[1] != 1 || seen[2] != 2 {
		t.Errorf("saw %v", seen)
	}
}

// When its node goes away, a watch continues on another, and an alert that is raised is not raised again.
func TestWatchGoesOnElsewhere(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	ns := w.plain()
	if err := c.Increment(ctx, ns, ebb.Increment{Key: "now", Bin: "a", Amount: 100}, ebb.Increment{Key: "usual", Bin: "a", Amount: 100}); err != nil {
		t.Fatal(err)
	}
	query := ebb.SurpriseQuery{Keys: []string{"now"}, Against: []string{"usual"}}
	steps := 0
	for e, err := range c.WatchSurprise(ctx, ns, query, ebb.WatchOptions{Interval: 100 * time.Millisecond, Alert: &ebb.Alert{PValue: 0.001}}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Err() != nil {
			continue // while there is no leader
		}
		steps++
		switch steps {
		case 1:
			if e.Raised || e.Crossed || !e.Surprise().Found {
				t.Fatalf("at first %+v", e)
			}
			if err := c.Increment(ctx, ns, ebb.Increment{Key: "now", Bin: "b", Amount: 100}); err != nil {
				t.Fatal(err)
			}
		case 2:
			if !e.Raised || !e.Crossed || e.Surprise().PValue > 0.001 {
				t.Fatalf("then %+v", e)
			}
			leader := w.leaderOf(ns, "now")
			w.node(leader).kill()
			w.handOver(leader)
		case 3:
			if !e.Raised || e.Crossed {
				t.Fatalf("elsewhere %+v", e)
			}
			if err := c.Increment(ctx, ns, ebb.Increment{Key: "usual", Bin: "b", Amount: 100}); err != nil {
				t.Fatal(err)
			}
		case 4:
			if e.Raised || !e.Crossed {
				t.Fatalf("at last %+v", e)
			}
			return
		}
	}
}

// A watch that no node answers says so, and continues when one does.
func TestWatchSaysThatItIsBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		if err := c.Increment(t.Context(), ns, ebb.Increment{Key: "now", Bin: "a", Amount: 100}, ebb.Increment{Key: "usual", Bin: "b", Amount: 100}); err != nil {
			t.Fatal(err)
		}
		query := ebb.SurpriseQuery{Keys: []string{"now"}, Against: []string{"usual"}}
		steps := 0
		for e, err := range c.WatchSurprise(t.Context(), ns, query, ebb.WatchOptions{Interval: time.Second, Alert: &ebb.Alert{PValue: 0.001}}) {
			if err != nil {
				t.Fatal(err)
			}
			switch steps++; steps {
			case 1:
				if e.Err() != nil || !e.Raised {
					t.Fatalf("at first %+v", e)
				}
				w.nodes[0].kill()
			case 2:
				if !errors.Is(e.Err(), ebb.ErrUnreachable) || !e.Raised || e.Crossed {
					t.Fatalf("without a node %+v", e)
				}
				w.nodes[0].revive()
			case 3:
				if e.Err() != nil || !e.Raised || e.Crossed {
					t.Fatalf("at last %+v", e)
				}
				return
			}
		}
	})
}

// A loop that is slower than the answers hears the latest, and how many it missed.
func TestSlowLoopsHearTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ctx := t.Context()
		ns := w.plain()
		loops := 0
		for e, err := range c.WatchTop(ctx, ns, "k", 3, ebb.WatchOptions{Interval: time.Second, Every: true}) {
			if err != nil {
				t.Fatal(err)
			}
			loops++
			if loops == 2 {
				if e.Unsent < 55 || e.Unsent > 65 || time.Since(e.Distribution().AsOf) > 2*time.Second {
					t.Errorf("after a minute: %d unsent, as of %v, and it is %v", e.Unsent, e.Distribution().AsOf, time.Now())
				}
				break
			}
			time.Sleep(time.Minute)
		}
	})
}

// What cannot be answered ends a watch at once, and so does its context.
func TestWatchEnds(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	for name, watch := range map[string]func(context.Context) (ebb.Event, error){
		"no namespace": func(ctx context.Context) (ebb.Event, error) {
			return first(c.WatchTop(ctx, "nowhere", "k", 3, ebb.WatchOptions{}))
		},
		"no key": func(ctx context.Context) (ebb.Event, error) {
			return first(c.WatchTop(ctx, "default", "", 3, ebb.WatchOptions{}))
		},
		"no threshold": func(ctx context.Context) (ebb.Event, error) {
			return first(c.WatchSurprise(ctx, "default", ebb.SurpriseQuery{Keys: []string{"k"}, Against: []string{"l"}}, ebb.WatchOptions{Alert: &ebb.Alert{}}))
		},
		"too often": func(ctx context.Context) (ebb.Event, error) {
			return first(c.WatchTop(ctx, "default", "k", 3, ebb.WatchOptions{Interval: time.Millisecond}))
		},
	} {
		_, err := watch(context.Background())
		var e *ebb.Error
		if !errors.As(err, &e) || e.Op != "watch" || proto.AsError(err).Code/1000 != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for e, err := range c.WatchTop(ctx, "default", "k", 3, ebb.WatchOptions{}) {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
			return
		}
		if e.Err() != nil {
			t.Error(e.Err())
		}
		cancel()
	}
	t.Error("it ends without an error")
}

func first(events func(func(ebb.Event, error) bool)) (ebb.Event, error) {
	for e, err := range events {
		return e, err
	}
	return ebb.Event{}, errors.New("nothing came")
}

// leaderOf is the node that leads the shard of a key.
func (w *world) leaderOf(ns, key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shards[proto.ShardOf(ns, []byte(key), testShards)].leader
}
