package proc

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

const (
	portMin = 10_000
	// ephemeralMin is where outgoing connections begin to take their ports, where
	// the system does not say: Linux's default, the lowest of those in use.
	ephemeralMin = 32_768
	// a process claims this many ports at a time
	blockPorts = 256
)

// FreeAddresses finds n loopback addresses whose ports are not in use right now, for streams or packets. The caller
// passes them to a process that will listen there. FreeAddresses returns no port twice in the life of this process.
// While this process lives, no other process gets one of these ports from FreeAddresses. All ports lie below the range
// from which the kernel serves outgoing connections and listeners at port 0. A port of that range could be taken before
// the process binds it, or between two of its lives. FreeAddresses fails when no port is left.
func FreeAddresses(n int) ([]string, error) { return ofMachine().take(n) }

var ofMachine = sync.OnceValue(func() *ports {
	said, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // Linux's; others have the default
	end := ephemeralStart(string(said))
	return &ports{first: portMin, end: end, start: rand.IntN((end - portMin) / blockPorts)}
})

// ephemeralStart returns the lowest port of the kernel's own range. said gives the range as "low high". Without a
// usable range, or if it leaves no block below it, the result is the default.
func ephemeralStart(said string) int {
	fields := strings.Fields(said)
	if len(fields) != 2 {
		return ephemeralMin
	}
	low, err := strconv.Atoi(fields[0])
	if err != nil || low < portMin+blockPorts {
		return ephemeralMin
	}
	return low
}

// ports hands out the ports of a range, block by block:
//
//	first                                       end
//	| block 0 | block 1 | ... | block start | ... |
//	  ^ a listener at the first port of a block claims the rest of it
//
// Such a claim holds for just the processes that share the ports (the network namespace), whichever user runs them.
// It ends with the process that made it, however that process ends.
type ports struct {
	first, end int // the range, without end
	start      int // the block to begin with, so that processes side by side seldom meet

	mu       sync.Mutex     // guards what follows
	tried    int            // blocks claimed or found claimed
	next     int            // the port to look at next
	blockEnd int            // where the block in use ends
	claims   []net.Listener // kept for the life of the process
}

func (p *ports) take(n int) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for len(out) < n {
		if p.next == p.blockEnd {
			if err := p.claim(); err != nil {
				return nil, err
			}
		}
		if addr := loopback(p.next); unused(addr) {
			out = append(out, addr)
		}
		p.next++
	}
	return out, nil
}

// claim takes the next block that no other process has.
func (p *ports) claim() error {
	blocks := (p.end - p.first) / blockPorts
	var refused error
	for p.tried < blocks {
		block := p.first + (p.start+p.tried)%blocks*blockPorts
		p.tried++
		l, err := net.Listen("tcp", loopback(block))
		if err == nil {
			p.claims = append(p.claims, l)
			p.next, p.blockEnd = block+1, block+blockPorts
			return nil
		}
		refused = err
	}
	if refused != nil {
		return fmt.Errorf("no block of ports is free from %d to %d: %w", p.first, p.end-1, refused)
	}
	return fmt.Errorf("all blocks of ports from %d to %d are used up", p.first, p.end-1)
}

// unused reports whether a process can listen at addr for streams and for packets.
func unused(addr string) bool {
	stream, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer stream.Close()
	packet, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	packet.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
