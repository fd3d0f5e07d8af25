package proc

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// networkSite is the ports of a network: a TUN device in each machine's namespace.
//
//	node -- TCP/IP of its namespace -- TUN | this process: fate | TUN -- ... -- node
type networkSite struct {
	ports []*os.File
	wg    sync.WaitGroup
}

const (
	// packetMax is the MTU: the larger, the fewer packets this process has to pass on.
	packetMax = 32_000
	tunName   = "ebb0"
)

// address of the machine of a number, in a network that exists in the namespaces only.
func address(i int) [4]byte { return [4]byte{10, 213, 7, byte(i + 1)} }

// newNetwork connects machines, each with a network namespace of its own. It sets their hosts to their addresses in the
// network.
func newNetwork(machines []*Machine) (*Network, error) {
	n := &Network{rules: make(map[[2]int]Weather), rng: rand.New(rand.NewPCG(1, 0x6e6574)), site: new(networkSite)}
	for i, m := range machines {
		var port *os.File
		err := m.do(func() (err error) {
			port, err = openPort(address(i))
			return err
		})
		if err != nil {
			n.Close()
			return nil, err
		}
		a := address(i)
		m.host = fmt.Sprintf("%d.%d.%d.%d", a[0], a[1], a[2], a[3])
		n.site.ports = append(n.site.ports, port)
	}
	for i := range n.site.ports {
		n.site.wg.Go(func() { n.pump(i) })
	}
	return n, nil
}

// openPort makes the interfaces of the namespace that the calling thread is in.
func openPort(addr [4]byte) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(tunName)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		err = raise(addr)
	}
	if err != nil {
		unix.Close(fd) //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("a TUN device: %w", err)
	}
	return os.NewFile(uintptr(fd), tunName), nil // only now: before, it could not be polled
}

// raise gives the interfaces their addresses.
func raise(addr [4]byte) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s) //nolint:errcheck // nothing was written
	set := func(name string, req uint, fill func(*unix.Ifreq) error) error {
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := fill(ifr); err != nil {
			return err
		}
		return unix.IoctlIfreq(s, req, ifr)
	}
	up := func(ifr *unix.Ifreq) error { ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }
	for _, step := range []struct {
		name string
		req  uint
		fill func(*unix.Ifreq) error
	}{
		{tunName, unix.SIOCSIFADDR, func(ifr *unix.Ifreq) error { return ifr.SetInet4Addr(addr[:]) }},
		{tunName, unix.SIOCSIFNETMASK, func(ifr *unix.Ifreq) error { return ifr.SetInet4Addr([]byte{255, 255, 255, 0}) }},
		{tunName, unix.SIOCSIFMTU, func(ifr *unix.Ifreq) error { ifr.SetUint32(packetMax); return nil }},
		{tunName, unix.SIOCSIFFLAGS, up},
		{"lo", unix.SIOCSIFFLAGS, up},
	} {
		if err := set(step.name, step.req, step.fill); err != nil {
			return err
		}
	}
	return nil
}

// pump forwards the packets that come from a port, until the port is closed.
func (n *Network) pump(from int) {
	buf := make([]byte, packetMax)
	for {
		size, err := n.site.ports[from].Read(buf)
		if err != nil {
			return
		}
		to := destination(buf[:size])
		if to < 0 || to >= len(n.site.ports) {
			continue
		}
		for _, late := range n.fate(from, to) {
			if late == 0 {
				_, _ = n.site.ports[to].Write(buf[:size]) // a full port loses the packet, as a cable would
				continue
			}
			packet := append([]byte(nil), buf[:size]...)
			time.AfterFunc(late, func() { _, _ = n.site.ports[to].Write(packet) })
		}
	}
}

// destination returns the number of the machine that a packet is for; below 0 for none.
func destination(packet []byte) int {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return -1
	}
	a := address(0)
	if packet[16] != a[0] || packet[17] != a[1] || packet[18] != a[2] {
		return -1
	}
	return int(packet[19]) - 1
}

// Close ends the network; the machines stay.
func (n *Network) Close() {
	for _, p := range n.site.ports {
		p.Close()
	}
	n.site.wg.Wait()
}
