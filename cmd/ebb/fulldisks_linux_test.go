package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
)

const (
	// diskOfTest is how large the disk of each node is.
	diskOfTest = 110 << 20
	// fullFor is how long no write has to be taken until the disks are full for good: the log was cut as far as it can
	// be.
	fullFor = 10 * time.Second
	// fillBins are in a key, of fillBytes each.
	fillBins, fillBytes = 500, 200
)

// Three nodes have equally full disks, which ebb has filled and then another process to the last byte. None of them
// ends: reads and deletes go on, each starts again, and writes go on by themselves when what filled the disks is
// deleted.
func TestDisksThatFillTogether(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	for i := range 3 {
		tmpfs(t, filepath.Join(dir, fmt.Sprintf("ebb-%d", i)))
	}
	f, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: dir, Args: []string{"--shards", "8"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := range f.Nodes() {
			if t.Failed() {
				free, _ := exec.Command("du", "-ab", f.DataDir(i)).CombinedOutput()
				t.Logf("%s holds\n%s\nand its log ends with\n%s", f.Name(i), free, f.LogTail(i))
			}
		}
		f.Close()
	})
	c := dialFleet(ctx, t, f)
	for _, name := range []string{"fill", "kept"} {
		if _, err := c.CreateNamespace(ctx, client.Namespace{Name: name, Decay: client.DecayNone}); err != nil {
			t.Fatal(err)
		}
	}
	disks := &filledDisks{t: t, f: f, c: c}
	if err := c.Increment(ctx, "kept", client.One("k", "b"), client.One("gone", "b")); err != nil {
		t.Fatal(err)
	}
	disks.fill(ctx)
	disks.serve(ctx, "full by ebb")

	for i := range 3 {
		filler := filepath.Join(f.DataDir(i), "filler")
		if err := fillUp(filler); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(filler)
	}
	disks.serve(ctx, "full to the last byte")
	for i := range 3 {
		f.Kill(i)
		if err := f.Launch(i); err != nil {
			t.Fatal(err)
		}
		if err := f.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	disks.serve(ctx, "after restarts")

	for i := range 3 {
		if err := os.Remove(filepath.Join(f.DataDir(i), "filler")); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if _, err := ebb(ctx, t, f, "namespace", "delete", "fill", "--now", "--yes"); err != nil {
		t.Fatal(err)
	}
	for {
		err := disks.write(ctx, "kept")
		if err == nil {
			break
		}
		if !errors.Is(err, client.ErrDiskFull) || time.Since(began) > 5*time.Minute {
			t.Fatalf("%v after the namespace was deleted: %v", time.Since(began), err)
		}
	}
	t.Logf("writes go on %v after the namespace was deleted", time.Since(began).Round(time.Second))
}

// filledDisks is a cluster whose disks are filled.
type filledDisks struct {
	t    *testing.T
	f    *proc.Fleet
	c    *client.Client
	keys int // written
}

// write adds a key with its bins.
func (d *filledDisks) write(ctx context.Context, ns string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	key := fmt.Sprintf("key-%d", d.keys)
	increments := make([]client.Increment, fillBins)
	for i := range increments {
		increments[i] = client.One(key, fmt.Sprintf("%-10s%0*d", key, fillBytes, i))
	}
	err := d.c.Increment(ctx, ns, increments...)
	if err == nil {
		d.keys++
	}
	return err
}

// fill writes until no write is taken any more.
func (d *filledDisks) fill(ctx context.Context) {
	d.t.Helper()
	for last := time.Now(); time.Since(last) < fullFor; {
		err := d.write(ctx, "fill")
		switch {
		case err == nil:
			last = time.Now()
		case !errors.Is(err, client.ErrDiskFull):
			d.t.Fatalf("after %d keys: %v", d.keys, err)
		}
		d.alive("while its disk is filled")
	}
	d.t.Logf("the disks are full with %d keys, %d MiB", d.keys, d.keys*fillBins*fillBytes>>20)
}

func (d *filledDisks) alive(when string) {
	d.t.Helper()
	for i := range d.f.Nodes() {
		if !d.f.Runs(i) {
			d.t.Fatalf("%s has ended %s; the end of its log:\n%s", d.f.Name(i), when, d.f.LogTail(i))
		}
	}
}

// serve asks and deletes, and writes what is refused.
func (d *filledDisks) serve(ctx context.Context, when string) {
	d.t.Helper()
	for range 5 {
		for _, key := range []string{"key-0", fmt.Sprintf("key-%d", d.keys-1)} {
			a, err := d.c.Distribution(ctx, "fill", key)
			if err != nil || a.Z != fillBins {
				d.t.Fatalf("%s: %s counts %v: %v", when, key, a.Z, err)
			}
		}
		if _, err := d.c.Delete(ctx, "kept", "gone"); err != nil {
			d.t.Fatalf("%s: a delete: %v", when, err)
		}
		if err := d.write(ctx, "fill"); !errors.Is(err, client.ErrDiskFull) {
			d.t.Errorf("%s: a write: %v", when, err)
		}
		d.alive(when)
	}
	_, err := ebb(ctx, d.t, d.f, "incr", "k", "b", "-n", "kept", "--timeout", "2s")
	if err == nil || !strings.Contains(err.Error(), "EBB-1015") {
		d.t.Errorf("%s: ebb incr: %v", when, err)
	}
}

// tmpfs mounts a disk of its own for a node.
func tmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskOfTest))
	if errors.Is(err, unix.EPERM) {
		t.Skip("only root mounts a disk")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fillUp writes a file until no byte is left on its disk.
func fillUp(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	for buf := make([]byte, 1<<20); len(buf) > 0; {
		if _, err := f.Write(buf); errors.Is(err, unix.ENOSPC) {
			buf = buf[:len(buf)/2]
		} else if err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}
