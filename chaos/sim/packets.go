package sim

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

type packet struct {
	from net.Addr
	data []byte
}

// packetConn is a datagram socket; packets beyond its queue are lost.
type packetConn struct {
	net  *Net
	addr string
	in   chan packet
	down chan struct{}
	once sync.Once
	rd   deadline
}

// ListenPacket opens a datagram socket on "ip:port"; port 0 chooses a free port.
func (h *Host) ListenPacket(_ context.Context, addr string) (net.PacketConn, error) {
	addr, err := h.complete(addr)
	if err != nil {
		return nil, err
	}
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.packets[addr] != nil {
		return nil, fmt.Errorf("listen %s: address already in use", addr)
	}
	p := &packetConn{net: n, addr: addr, in: make(chan packet, 256), down: make(chan struct{})}
	n.packets[addr] = p
	return p, nil
}

func (p *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		at, moved := p.rd.get()
		var timer <-chan time.Time
		if !at.IsZero() {
			t := time.NewTimer(time.Until(at))
			defer t.Stop()
			timer = t.C
		}
		select {
		case k := <-p.in:
			return copy(b, k.data), k.from, nil
		case <-p.down:
			return 0, nil, net.ErrClosed
		case <-timer:
			return 0, nil, context.DeadlineExceeded
		case <-moved:
		}
	}
}

func (p *packetConn) WriteTo(b []byte, to net.Addr) (int, error) {
	select {
	case <-p.down:
		return 0, net.ErrClosed
	default:
	}
	n := p.net
	n.trace(p.addr, to.String(), b)
	l := n.link(hostOf(p.addr), hostOf(to.String()))
	if l.Cut || n.chance(l.Loss) {
		return len(b), nil
	}
	copies := 1
	if n.chance(l.Dup) {
		copies = 2
	}
	k := packet{from: p.LocalAddr(), data: append([]byte(nil), b...)}
	if n.chance(l.Flip) {
		n.flip(k.data)
	}
	for range copies {
		time.AfterFunc(n.latency(l), func() { n.deliver(to.String(), k) })
	}
	return len(b), nil
}

func (n *Net) deliver(to string, k packet) {
	n.mu.Lock()
	p := n.packets[to]
	n.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case p.in <- k:
	default:
	}
}

func (p *packetConn) Close() error {
	p.once.Do(func() {
		p.net.mu.Lock()
		delete(p.net.packets, p.addr)
		p.net.mu.Unlock()
		close(p.down)
	})
	return nil
}

func (p *packetConn) LocalAddr() net.Addr {
	host, port, _ := net.SplitHostPort(p.addr)
	number, _ := strconv.Atoi(port)
	return &net.UDPAddr{IP: net.ParseIP(host), Port: number}
}
func (p *packetConn) SetDeadline(t time.Time) error      { p.rd.set(t); return nil }
func (p *packetConn) SetReadDeadline(t time.Time) error  { p.rd.set(t); return nil }
func (p *packetConn) SetWriteDeadline(_ time.Time) error { return nil }
