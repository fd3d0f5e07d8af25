package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ebbdb/ebb/proto"
)

const (
	packetLenMax   = 64 << 10
	packetsWaiting = 256
	portTries      = 10
)

// gossipTransport is memberlist's transport over a Network. memberlist's own transports need real sockets, or deadlock
// in virtual time.
type gossipTransport struct {
	network Network
	addr    netip.AddrPort // where others reach it
	sums    bool           // packets carry checksums; encrypted ones need none
	damaged func(from net.Addr)
	keys    func() [][]byte // decrypt messages; none if gossip is not encrypted
	refuse  func(why GossipRefusal, from net.Addr)
	slots   *streamSlots
	stream  net.Listener
	packet  net.PacketConn
	streams chan net.Conn
	packets chan *memberlist.Packet
	ctx     context.Context // ends at Shutdown
	cancel  context.CancelFunc
	loops   sync.WaitGroup
}

// listen opens the sockets of a transport. The fields network, sums, damaged, keys and refuse must be set before.
func (t *gossipTransport) listen(ctx context.Context, listen, advertise string) error {
	stream, packet, err := listenBoth(ctx, t.network, listen)
	if err != nil {
		return fmt.Errorf("listen for gossip at %s: %w", listen, err)
	}
	addr, err := reachable(stream.Addr().String(), advertise)
	if err != nil {
		return errors.Join(err, stream.Close(), packet.Close())
	}
	t.addr, t.stream, t.packet, t.slots = addr, stream, packet, newStreamSlots()
	t.streams, t.packets = make(chan net.Conn), make(chan *memberlist.Packet, packetsWaiting)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.loops.Go(t.accept)
	t.loops.Go(t.receive)
	return nil
}

// listenBoth opens one port for streams and packets. If the port is free to choose, the one chosen for streams may be
// in use for packets; then it tries others.
func listenBoth(ctx context.Context, network Network, listen string) (net.Listener, net.PacketConn, error) {
	for try := 1; ; try++ {
		stream, err := network.Listen(ctx, listen)
		if err != nil {
			return nil, nil, err
		}
		packet, err := network.ListenPacket(ctx, stream.Addr().String())
		if err == nil {
			return stream, packet, nil
		}
		stream.Close()
		if _, port, _ := net.SplitHostPort(listen); port != "0" || try == portTries {
			return nil, nil, err
		}
	}
}

// reachable returns the address to announce: advertise if given, else the listening address. An unspecified IP address
// is replaced by the machine's own.
func reachable(listening, advertise string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(listening)
	if err != nil {
		return addr, proto.ErrBadRequest.Errorf("gossip listens at %q: it must be ip:port", listening)
	}
	if advertise != "" {
		advertised, err := netip.ParseAddrPort(advertise)
		if err != nil || advertised.Addr().IsUnspecified() {
			return addr, proto.ErrBadRequest.Errorf("gossip address %q: it must be ip:port", advertise)
		}
		if advertised.Port() == 0 {
			advertised = netip.AddrPortFrom(advertised.Addr(), addr.Port())
		}
		return advertised, nil
	}
	ip := addr.Addr().Unmap()
	if ip.IsUnspecified() {
		ip = MachineIP()
	}
	return netip.AddrPortFrom(ip, addr.Port()), nil
}

// MachineIP returns the address that this machine announces when it listens on all addresses: a private one if it has
// any, else a public one, else loopback.
func MachineIP() netip.Addr {
	best := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return best
	}
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := prefix.Addr().Unmap()
		switch {
		case ip.IsPrivate() && ip.Is4():
			return ip
		case ip.IsGlobalUnicast() && best.IsLoopback():
			best = ip
		}
	}
	return best
}

func (t *gossipTransport) accept() {
	for {
		conn, err := t.stream.Accept()
		if err != nil {
			if t.ctx.Err() != nil || !t.pause() {
				return
			}
			continue
		}
		leave, ok := t.slots.enter(conn.RemoteAddr())
		if !ok {
			t.refuse(RefusedStreams, conn.RemoteAddr())
			conn.Close()
			continue
		}
		select {
		case t.streams <- t.screened(conn, leave):
		case <-t.ctx.Done():
			conn.Close()
			return
		}
	}
}

func (t *gossipTransport) receive() {
	buf := make([]byte, packetLenMax)
	for {
		n, from, err := t.packet.ReadFrom(buf)
		at := time.Now()
		if err != nil {
			if t.ctx.Err() != nil || !t.pause() {
				return
			}
			continue
		}
		if n == 0 {
			continue
		}
		if t.sums && !sound(buf[:n]) {
			t.damaged(from)
			continue
		}
		if err := screenPacket(buf[:n], t.keys()); err != nil {
			why, _ := refusalOf(err)
			t.refuse(why, from)
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: at}:
		case <-t.ctx.Done():
			return
		}
	}
}

// pause waits a moment so that a failing socket does not cause a busy loop; it returns false on Shutdown.
func (t *gossipTransport) pause() bool {
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// FinalAdvertiseAddr returns the address that this node announces.
func (t *gossipTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

// WriteTo sends a packet.
func (t *gossipTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("gossip to %s: %w", addr, err)
	}
	if t.sums {
		b = withSum(b)
	}
	_, err = t.packet.WriteTo(b, net.UDPAddrFromAddrPort(to))
	return time.Now(), err
}

// WriteToAddress sends a packet; the name is not used.
func (t *gossipTransport) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, addr.Addr)
}

// PacketCh returns the channel of received packets.
func (t *gossipTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// DialTimeout opens a stream.
func (t *gossipTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	conn, err := t.network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return t.screened(conn, func() {}), nil // the answering side is as unknown as a caller
}

// DialAddressTimeout opens a stream; the name is not used.
func (t *gossipTransport) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(addr.Addr, timeout)
}

// StreamCh returns the channel of streams that other nodes open.
func (t *gossipTransport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown closes the sockets and waits until their readers have stopped.
func (t *gossipTransport) Shutdown() error {
	t.cancel()
	err := errors.Join(t.stream.Close(), t.packet.Close())
	t.loops.Wait()
	return err
}
