package proc

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a DNS server over UDP for a few names. Like the DNS of a cluster it caches answers, so a name may have
// an outdated address for a while.
type nameServer struct {
	conn   net.PacketConn
	lookup func(name string) (addrs []netip.Addr, cached bool)
	keep   time.Duration
	wg     sync.WaitGroup
	said   map[string]saying // only the goroutine run uses it
}

type saying struct {
	addrs []netip.Addr
	until time.Time
}

// serveNames starts a server at a free address on loopback. lookup gets a name without the last dot, and returns its
// addresses; none if the name is unknown. It also returns whether the answer may be cached, which the server does for
// keep.
func serveNames(keep time.Duration, lookup func(name string) ([]netip.Addr, bool)) (*nameServer, error) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &nameServer{conn: conn, lookup: lookup, keep: keep, said: make(map[string]saying)}
	s.wg.Go(s.run)
	return s, nil
}

func (s *nameServer) addr() string { return s.conn.LocalAddr().String() }

func (s *nameServer) close() {
	s.conn.Close()
	s.wg.Wait()
}

func (s *nameServer) run() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return // closed
		}
		if reply := s.answer(buf[:n]); reply != nil {
			_, _ = s.conn.WriteTo(reply, from) // if it fails, the client asks again
		}
	}
}

// answer returns the reply to a packet; nil if the packet is no question.
func (s *nameServer) answer(packet []byte) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(packet)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	addrs := s.resolve(strings.ToLower(strings.TrimSuffix(q.Name.String(), ".")))
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	if len(addrs) == 0 {
		reply.RCode = dnsmessage.RCodeNameError
	}
	if q.Type == dnsmessage.TypeA {
		for _, a := range addrs {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.AResource{A: a.As4()},
			})
		}
	}
	packed, err := reply.Pack()
	if err != nil {
		return nil
	}
	return packed
}

func (s *nameServer) resolve(name string) []netip.Addr {
	now := time.Now()
	if old, ok := s.said[name]; ok && now.Before(old.until) {
		return old.addrs
	}
	addrs, cached := s.lookup(name)
	if cached {
		s.said[name] = saying{addrs, now.Add(s.keep)}
	}
	return addrs
}
