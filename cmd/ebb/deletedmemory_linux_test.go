package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
)

const (
	deletedBatch = 1_000
	deletedSpan  = 60 * time.Second // in which the memory is given back
	deletedPart  = 0.15             // of it that may stay: the tables of keys keep their slots for the next keys
	// deletedWarm may stay on each node: of the pages that are given back each of its shards keeps 128 for the next
	// keys.
	deletedWarm = deletedShards * 128 * 4096
	// deletedHeap may stay on Go's heap of each node: what a node lets grow between two collections when it idles.
	deletedHeap = heapHeadroom
	// deletedShards is few, so that little stays warm.
	deletedShards = 8
	// deletedTells is how many times as much as may stay keys have to take, so that the test would see them stay.
	deletedTells = 2
)

// TestMemoryOfADeletedNamespaceIsGivenBack writes as many keys as EBB_DELETED_KEYS says, 300,000 at least, to three
// processes, deletes their namespace, and measures how long the nodes take to give the memory of the keys back to the
// system: the pages of their shards, and what the keys and their purge have left on Go's heap.
func TestMemoryOfADeletedNamespaceIsGivenBack(t *testing.T) {
	text := os.Getenv("EBB_DELETED_KEYS")
	if text == "" {
		t.Skip("takes a minute and a half of three processes: make acceptance")
	}
	keys, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f := startFleet(t, "--shards", strconv.Itoa(deletedShards))
	c := dialFleet(ctx, t, f)
	if _, err := c.CreateNamespace(ctx, client.Namespace{Name: "gone", HalfLife: time.Hour}); err != nil {
		t.Fatal(err)
	}
	writeKeys(ctx, t, c, 1_000) // the nodes have what they need to serve
	pauseOr(ctx, t, 5*time.Second)
	before := residentsOf(ctx, t, f)
	writeKeys(ctx, t, c, keys)
	pauseOr(ctx, t, 5*time.Second)
	full := residentsOf(ctx, t, f)
	for i := range full {
		grown := full[i].pages - before[i].pages
		if may := mayStay(grown); grown < deletedTells*may {
			t.Fatalf("%d keys take %d MiB on %s, of which %d may stay: write more of them", keys, grown>>20, f.Name(i), may>>20)
		}
	}
	began := time.Now()
	if _, err := ebb(ctx, t, f, "namespace", "delete", "gone", "--now", "--yes"); err != nil {
		t.Fatal(err)
	}
	for {
		pauseOr(ctx, t, time.Second)
		now, took, stays := residentsOf(ctx, t, f), time.Since(began), ""
		for i := range now {
			grown, left := full[i].pages-before[i].pages, now[i].pages-before[i].pages
			if left > mayStay(grown) {
				stays = fmt.Sprintf("%d of %d MiB of pages are not back on %s", left>>20, grown>>20, f.Name(i))
			}
			grown, left = full[i].all-before[i].all, now[i].all-before[i].all
			if left > mayStay(grown)+deletedHeap {
				stays = fmt.Sprintf("%d of %d MiB are not back on %s", left>>20, grown>>20, f.Name(i))
			}
		}
		t.Logf("%3.0f s: %v; before %v, with %d keys %v", took.Seconds(), now, before, keys, full)
		switch {
		case stays == "":
			return
		case took > deletedSpan:
			t.Fatalf("after %v %s", deletedSpan, stays)
		}
	}
}

// mayStay is how much may stay of what keys have taken on a node, in bytes.
func mayStay(grown int64) int64 { return int64(deletedPart*float64(grown)) + deletedWarm }

func writeKeys(ctx context.Context, t *testing.T, c *client.Client, keys int) {
	t.Helper()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for from := worker * deletedBatch; from < keys; from += 8 * deletedBatch {
				var batch []client.Increment
				for k := from; k < min(keys, from+deletedBatch); k++ {
					key := fmt.Sprintf("key-%08d", k)
					batch = append(batch, client.One(key, "bin"), client.One(key, "other"))
				}
				if err := c.Increment(ctx, "gone", batch...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// residentMemory is the resident memory of a process, in bytes: all of it, and what is anonymous and not of Go's
// runtime, which in a node is the pages of its shards.
type residentMemory struct{ all, pages int64 }

func (r residentMemory) String() string {
	return fmt.Sprintf("%d MiB (%.1f of pages)", r.all>>20, float64(r.pages)/(1<<20))
}

// residentsOf is the resident memory of each node.
func residentsOf(ctx context.Context, t *testing.T, f *proc.Fleet) (out []residentMemory) {
	t.Helper()
	for i := range f.Nodes() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.PID(i)))
		if err != nil {
			t.Fatal(err)
		}
		r := residentMemory{kibibytes(t, status, "VmRSS:"), kibibytes(t, status, "RssAnon:")}
		for name, sign := range map[string]int64{"go_memstats_sys_bytes": -1, "go_memstats_heap_released_bytes": 1} {
			bytes, err := f.Metric(ctx, i, name)
			if err != nil {
				t.Fatal(err)
			}
			r.pages += sign * int64(bytes)
		}
		out = append(out, r)
	}
	return out
}

// kibibytes returns a figure of /proc/PID/status in bytes.
func kibibytes(t *testing.T, status []byte, name string) int64 {
	t.Helper()
	for line := range bytes.Lines(status) {
		if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == name {
			n, err := strconv.ParseInt(string(fields[1]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("no %s in /proc", name)
	return 0
}
