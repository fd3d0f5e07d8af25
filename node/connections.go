package node

import (
	"net"
	"sync"
)

// connectionsMax is how many connections a listener has open at a time, half of them from one address: one host that opens all
// that it can does not keep the others away.
const connectionsMax = 10_000

// limited is a listener that closes what is above its limits as soon as it is accepted.
type limited struct {
	net.Listener

	mu     sync.Mutex // guards what follows
	open   int
	byHost map[string]int
}

func limit(l net.Listener) net.Listener {
	return &limited{Listener: l, byHost: make(map[string]int)}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := hostOf(conn.RemoteAddr())
		if l.enter(host) {
			return &admitted{Conn: conn, leave: func() { l.leave(host) }}, nil
		}
		_ = conn.Close() // nothing was said
	}
}

func hostOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

func (l *limited) enter(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= connectionsMax || l.byHost[host] >= connectionsMax/2 {
		return false
	}
	l.open++
	l.byHost[host]++
	return true
}

func (l *limited) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.byHost[host]--; l.byHost[host] == 0 {
		delete(l.byHost, host)
	}
}

// admitted tells its listener when it is closed.
type admitted struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements net.Conn.
func (c *admitted) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}
