package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/internal/caller"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/rpc"
)

// drainMax is how long requests in flight may take to end when a node closes.
const drainMax = 2 * time.Second

// Limits of one HTTP request: how long its headers, all of it, and its answer may take, whatever the handler does.
// Handlers have shorter limits of their own.
const (
	httpHeaderMax = 10 * time.Second
	httpReadMax   = 20 * time.Second
	httpWriteMax  = 40 * time.Second
	httpIdleMax   = 2 * time.Minute

	httpHeaderBytes = 64 << 10
)

// listeners are the listeners of a node; nil where it does not listen.
type listeners struct {
	grpc, http, admin net.Listener
}

// listen opens all listeners or none. ofNode reports whether a host is a node's.
func listen(ctx context.Context, c *Config, ofNode func(host string) bool) (_ *listeners, err error) {
	l := new(listeners)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.grpc, err = listenOn(ctx, c.Network, "gRPC", "--grpc", c.GRPC, ofNode); err != nil {
		return nil, err
	}
	if l.http, err = listenOn(ctx, c.Network, "HTTP", "--http", c.HTTP, ofNode); err != nil {
		return nil, err
	}
	if l.admin, err = listenOn(ctx, c.Network, "admin", "--admin", c.Admin, ofNode); err != nil {
		return nil, err
	}
	return l, nil
}

func listenOn(ctx context.Context, network Network, what, flag, address string, ofNode func(string) bool) (net.Listener, error) {
	if address == Off {
		return nil, nil
	}
	l, err := network.Listen(ctx, address)
	if err == nil {
		return limit(l, ofNode), nil
	}
	e := proto.ErrBadRequest.Errorf("listen for %s on %s: %v", what, address, err)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, e.WithHint("another process has this port: stop it, or choose another with " + flag)
	}
	return nil, e.WithHint("choose an address of this machine with " + flag)
}

// hosts returns the host names that a listener accepts over HTTP; nil if it accepts all. Listeners on loopback always
// have a list: otherwise a web page whose own name resolves to loopback could reach them.
func (c *Config) hosts(l net.Listener) *rpc.Hosts {
	at, err := netip.ParseAddrPort(addressOf(l))
	host := at.Addr().Unmap()
	loopback := err == nil && host.IsLoopback()
	if !loopback && len(c.HTTPHosts) == 0 {
		return nil
	}
	names := slices.Clone(c.HTTPHosts)
	if loopback {
		names = append(names, host.String())
	}
	if c.AdvertiseHTTP != "" {
		names = append(names, c.AdvertiseHTTP)
	}
	return rpc.NewHosts(names...)
}

func (l *listeners) close() {
	for _, one := range []net.Listener{l.grpc, l.http, l.admin} {
		if one != nil {
			_ = one.Close() // nothing was accepted
		}
	}
}

// addressOf returns the address of a listener; "" for none.
func addressOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// servers serve the listeners.
type servers struct {
	grpc  *grpc.Server
	http  *http.Server // nil when off
	admin *http.Server // nil when off
	wg    sync.WaitGroup
}

// httpServer makes a server with the limits of one request.
func httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: httpHeaderMax, ReadTimeout: httpReadMax, WriteTimeout: httpWriteMax, IdleTimeout: httpIdleMax,
		MaxHeaderBytes: httpHeaderBytes,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return caller.With(ctx, c.RemoteAddr().String())
		},
	}
}

// serve starts the servers. A server with a TLS configuration uses TLS.
func serve(l *listeners, g *grpc.Server, public, admin *http.Server) *servers {
	s := &servers{grpc: g}
	s.wg.Go(func() { _ = g.Serve(l.grpc) }) // ends with Stop
	s.http = s.serveHTTP(l.http, public)
	s.admin = s.serveHTTP(l.admin, admin)
	return s
}

func (s *servers) serveHTTP(l net.Listener, srv *http.Server) *http.Server {
	if l == nil {
		return nil
	}
	s.wg.Go(func() { // ends with Shutdown or Close
		if srv.TLSConfig != nil {
			_ = srv.ServeTLS(l, "", "")
			return
		}
		_ = srv.Serve(l)
	})
	return srv
}

// drain stops accepting connections and lets requests in flight end.
func (s *servers) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), drainMax)
	defer cancel()
	shutdown(ctx, s.http)
	shutdown(ctx, s.admin)
	over := time.AfterFunc(drainMax, s.grpc.Stop)
	s.grpc.GracefulStop()
	over.Stop()
	s.wg.Wait()
}

// kill cuts all connections.
func (s *servers) kill() {
	for _, h := range []*http.Server{s.http, s.admin} {
		if h != nil {
			_ = h.Close() // as a crash would
		}
	}
	s.grpc.Stop()
	s.wg.Wait()
}
