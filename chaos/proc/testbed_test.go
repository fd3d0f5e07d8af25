package proc

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// newTestbed makes machines, where that can be done.
func newTestbed(t *testing.T, o TestbedOptions, able func() error) *Testbed {
	t.Helper()
	if err := able(); err != nil {
		t.Skip(err)
	}
	o.Dir = t.TempDir()
	g, err := NewTestbed(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// A disk whose power is cut has what was synced, and not what was only written.
func TestDiskLosesWhatWasNotSynced(t *testing.T) {
	g := newTestbed(t, TestbedOptions{Machines: 1, Disks: true}, canLose)
	m, dir := g.machines[0], filepath.Join(t.TempDir(), "disk")
	if err := m.giveDisk(filepath.Join(g.dir, "image"), dir); err != nil {
		t.Fatal(err)
	}
	write := func(name string, sync bool) {
		t.Helper()
		err := m.do(func() error {
			f, err := os.Create(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := f.WriteString(name); err != nil {
				return err
			}
			if sync {
				return f.Sync()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		var text []byte
		if err := m.do(func() (err error) { text, err = os.ReadFile(filepath.Join(dir, name)); return err }); err != nil {
			return err.Error()
		}
		return string(text)
	}
	write("kept", true)
	write("lost", false)
	if err := m.cutPower(); err != nil {
		t.Fatal(err)
	}
	if err := m.do(func() error { return os.WriteFile(filepath.Join(dir, "late"), nil, 0o600) }); err == nil {
		t.Error("a disk without power was written to")
	}
	if err := m.remount(); err != nil {
		t.Fatal(err)
	}
	if got := read("kept"); got != "kept" {
		t.Errorf("what was synced: %q", got)
	}
	if got := read("lost"); got == "lost" {
		t.Error("what was not synced is there")
	}
	if err := m.fill(); err != nil {
		t.Fatal(err)
	}
	if err := m.do(func() error { return os.WriteFile(filepath.Join(dir, "more"), make([]byte, 1<<20), 0o600) }); err == nil {
		t.Error("a full disk took more")
	}
	if err := m.empty(); err != nil {
		t.Fatal(err)
	}
	write("again", true)
	if _, err := os.Stat(filepath.Join(dir, "kept")); err == nil {
		t.Error("the disk is seen outside its machine")
	}
}

// echo answers at a machine's address with what it receives.
func echo(t *testing.T, m *Machine) {
	t.Helper()
	var l net.Listener
	if err := m.do(func() (err error) { l, err = net.Listen("tcp", m.host+":7070"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// roundTrip sends something through a connection, and reports whether it comes back in time.
func roundTrip(c net.Conn, limit time.Duration) bool {
	_ = c.SetDeadline(time.Now().Add(limit))
	if _, err := c.Write([]byte("hello")); err != nil {
		return false
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err == nil
}

// What is said between machines that are cut off from each other does not arrive, in the direction that is cut; what is
// said to others does; and what was said arrives after all when they are not cut any more.
func TestNetworkCuts(t *testing.T) {
	g := newTestbed(t, TestbedOptions{Machines: 3, Network: true}, canCut)
	echo(t, g.machines[0])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var conns []net.Conn
	for _, m := range []*Machine{g.machines[1], g.machines[2], g.clients} {
		c, err := m.dial(ctx, g.machines[0].host+":7070")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if !roundTrip(c, 30*time.Second) {
			t.Fatal("no answer without a cut")
		}
		conns = append(conns, c)
	}
	for name, set := range map[string]func(){
		"both ways": func() { g.Net.Isolate(1, []int{0}) },
		"there":     func() { g.Net.Set(1, 0, Weather{Cut: true}) },
		"back":      func() { g.Net.Set(0, 1, Weather{Cut: true}) },
		"lossy":     func() { g.Net.Set(0, 1, Weather{Loss: 1}) },
	} {
		set()
		if roundTrip(conns[0], 300*time.Millisecond) {
			t.Errorf("%s: an answer through a cut", name)
		}
		if !roundTrip(conns[1], 30*time.Second) || !roundTrip(conns[2], 30*time.Second) {
			t.Errorf("%s: no answer where nothing is cut", name)
		}
		g.Net.Heal()
		_ = conns[0].SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.ReadFull(conns[0], make([]byte, 5)); err != nil {
			t.Errorf("%s: what was said does not arrive when all is mended: %v", name, err)
		}
	}
	const late = 80 * time.Millisecond
	g.Net.Set(1, 0, Weather{Delay: late})
	began := time.Now()
	if !roundTrip(conns[0], 30*time.Second) || time.Since(began) < late {
		t.Errorf("an answer after %v, with a delay of %v", time.Since(began), late)
	}
}
