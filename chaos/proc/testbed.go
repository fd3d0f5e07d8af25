package proc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
)

// Testbed is where the nodes of a fleet run: machines with a network between them that can be cut, or with disks that
// lose what was not synced, or both. A nil Testbed is this machine: all nodes listen on loopback, and share its disk.
type Testbed struct {
	Net   *Network // nil: loopback
	disks bool
	dir   string

	machines []*Machine
	clients  *Machine   // where the clients run; nil: in the network of this process
	free     []*Machine // machines without a node
}

// TestbedOptions says what a testbed has.
type TestbedOptions struct {
	Dir      string // for images of disks
	Machines int
	Network  bool
	Disks    bool
}

// NewTestbed makes the machines. It returns nil if o wants neither a network nor disks.
func NewTestbed(o TestbedOptions) (*Testbed, error) {
	if !o.Network && !o.Disks {
		return nil, nil //nolint:nilnil // a nil Testbed is this machine
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	g := &Testbed{disks: o.Disks, dir: o.Dir}
	for range o.Machines {
		m, err := newMachine(o.Network, o.Disks)
		if err != nil {
			g.Close()
			return nil, err
		}
		m.number = len(g.machines)
		g.machines = append(g.machines, m)
	}
	g.free = slices.Clone(g.machines)
	if !o.Network {
		return g, nil
	}
	var err error
	if g.clients, err = newMachine(true, false); err == nil {
		g.Net, err = newNetwork(append(g.machines[:len(g.machines):len(g.machines)], g.clients))
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// Clients is the number of the machine from which clients dial, in the network.
func (g *Testbed) Clients() int { return len(g.machines) }

// Dial opens a TCP connection from the machine of the clients.
func (g *Testbed) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if g == nil || g.clients == nil {
		return dialHere(ctx, addr)
	}
	return g.clients.dial(ctx, addr)
}

// place gives a node its machine and addresses for gRPC, HTTP, gossip and admin.
func (g *Testbed) place(p *process, dir string) ([]string, error) {
	if g == nil {
		return FreeAddresses(4)
	}
	if len(g.free) == 0 {
		return nil, fmt.Errorf("no machine is left for %s: there are %d", p.name, len(g.machines))
	}
	p.machine, g.free = g.free[0], g.free[1:]
	if g.disks {
		if err := p.machine.giveDisk(filepath.Join(g.dir, p.name+".img"), dir); err != nil {
			return nil, fmt.Errorf("a disk for %s: %w", p.name, err)
		}
	}
	if g.Net == nil {
		return FreeAddresses(4)
	}
	var addrs []string
	for port := 7070; port < 7074; port++ {
		addrs = append(addrs, fmt.Sprintf("%s:%d", p.machine.host, port))
	}
	return addrs, nil
}

// leave frees the machine of a node that has ended and does not come back.
func (g *Testbed) leave(p *process, dir string) error {
	if g == nil {
		return os.RemoveAll(dir)
	}
	m := p.machine
	if g.disks {
		if err := m.takeDisk(); err != nil {
			return err
		}
	}
	g.free = append(g.free, m)
	return os.RemoveAll(dir)
}

// Close ends all machines, and what runs on them.
func (g *Testbed) Close() {
	if g == nil {
		return
	}
	if g.Net != nil {
		g.Net.Close()
	}
	for _, m := range g.machines {
		m.Close()
	}
	if g.clients != nil {
		g.clients.Close()
	}
}

// CanCut returns why this machine cannot have networks that can be cut; nil if it can.
func CanCut() error {
	g, err := NewTestbed(TestbedOptions{Dir: os.TempDir(), Machines: 1, Network: true})
	if err != nil {
		return fmt.Errorf("a network namespace with a TUN device needs Linux, root and /dev/net/tun: %w", err)
	}
	g.Close()
	return nil
}

// CanLose returns why this machine cannot have disks that lose what was not synced; nil if it can.
func CanLose() error {
	const needs = "an ext4 file system on a loop device needs Linux, root, mkfs.ext4 and /dev/loop-control"
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%s: %w", needs, errElsewhere)
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		return fmt.Errorf("%s: %w", needs, err)
	}
	dir, err := os.MkdirTemp("", "ebb-disk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it lies in the system's directory for such
	g, err := NewTestbed(TestbedOptions{Dir: dir, Machines: 1, Disks: true})
	if err != nil {
		return fmt.Errorf("%s: %w", needs, err)
	}
	defer g.Close()
	m := g.machines[0]
	if err := m.giveDisk(filepath.Join(dir, "image"), filepath.Join(dir, "disk")); err != nil {
		return fmt.Errorf("%s: %w", needs, err)
	}
	if err := errors.Join(m.cutPower(), m.remount()); err != nil {
		return fmt.Errorf("%s, whose power can be cut: %w", needs, err)
	}
	return nil
}
