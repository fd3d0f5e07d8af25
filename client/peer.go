package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

const (
	// downFor is how long the client avoids a peer that failed, if it has a choice.
	downFor = time.Second
	// pingAfter and pingTimeout detect a broken connection. Without pings TCP would report it only after its own
	// timeouts.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// messageBytesMax is the largest message accepted from a node. It is above the nodes' own limit: a write whose
	// answer is too large to receive would have an unknown outcome.
	messageBytesMax = 4 * proto.MessageBytesMax
)

// peer is one address and the connection to it, which is opened when first needed.
type peer struct {
	addr string
	dial func() (*grpc.ClientConn, error)

	dialErr   atomic.Pointer[error] // why the last connection could not be opened
	downUntil atomic.Int64          // Unix nanoseconds; 0: up

	mu      sync.Mutex // guards all below
	conn    *grpc.ClientConn
	retired bool // no node is at this address any more

	queue       sendQueue
	asks        coalescer
	leaderCheck leaderCheck
}

func (c *Client) newPeer(addr string) *peer {
	p := &peer{addr: addr}
	options := c.grpcOptions(p)
	p.dial = func() (*grpc.ClientConn, error) {
		if c.ctx.Err() != nil {
			return nil, ErrClosed // also a peer that is made after Close
		}
		return grpc.NewClient("passthrough:///"+addr, options...)
	}
	p.queue.peer = p
	p.asks = coalescer{life: c.ctx, spawn: c.spawn, most: c.cfg.limits.Questions, send: func(ctx context.Context, t requestOptions, q []*ebbv1.Question) ([]*ebbv1.Answer, error) {
		return c.askRequest(ctx, p, t, q, c.cfg.attemptTimeout)
	}}
	return p
}

func (c *Client) grpcOptions(p *peer) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if c.cfg.tls != nil {
		creds = secured{credentials.NewTLS(c.cfg.tls), p, c.now}
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := c.cfg.dialer(ctx, addr)
			p.dialErr.Store(&err)
			return conn, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: c.cfg.attemptTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithStaticStreamWindowSize(proto.StreamWindow),
		grpc.WithStaticConnWindowSize(proto.ConnWindow),
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithDisableServiceConfig(),
	}
	if c.cfg.token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(c.cfg.token)))
	}
	return append(options, c.cfg.grpc...)
}

func (p *peer) connection() (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		return p.conn, nil
	}
	if p.retired {
		return nil, &unreachable{addr: p.addr, err: errRetired}
	}
	conn, err := p.dial()
	if err != nil {
		return nil, &unreachable{addr: p.addr, err: err}
	}
	p.conn = conn
	return conn, nil
}

// try makes one call to the peer, limited by the attempt timeout, and records whether the peer answered. The error is
// coded. sent is false if the request was certainly not sent.
func (c *Client) try(ctx context.Context, p *peer, call func(context.Context, *grpc.ClientConn) error) (sent bool, err error) {
	return c.tryFor(ctx, c.cfg.attemptTimeout, p, call)
}

// tryFor is try with limit in place of the attempt timeout.
func (c *Client) tryFor(ctx context.Context, limit time.Duration, p *peer, call func(context.Context, *grpc.ClientConn) error) (sent bool, err error) {
	conn, err := p.connection()
	if err != nil {
		return false, err
	}
	tryCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tryCtx, handed := withSent(tryCtx)
	err = call(tryCtx, conn)
	return handed.Load(), c.assess(ctx, tryCtx, limit, p, err)
}

// assess turns the error of a call into a coded error, and records whether the peer answered. tryCtx ends with ctx, or
// after limit.
func (c *Client) assess(ctx, tryCtx context.Context, limit time.Duration, p *peer, err error) error {
	switch {
	case err == nil:
		p.answered()
		return nil
	case ctx.Err() != nil: // the end of the caller's context shows nothing about the peer
		return context.Cause(ctx)
	case tryCtx.Err() != nil:
		p.failed(c.now())
		return proto.ErrUnreachable.Errorf("%s: no answer in %s", p.addr, limit.Round(time.Millisecond))
	case saidByPeer(err):
		p.answered()
		return ebbv1grpc.FromStatus(err)
	}
	p.failed(c.now())
	if status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		return ebbv1grpc.FromStatus(err)
	}
	return &unreachable{addr: p.addr, err: cause(p, err)}
}

// saidByPeer reports whether the node itself sent the error, and not the connection: nodes always attach the coded
// error.
func saidByPeer(err error) bool {
	return len(status.Convert(err).Details()) > 0
}

// cause returns the error of the socket behind a gRPC error, or the message of the gRPC error if there is none.
func cause(p *peer, err error) error {
	if dialErr := p.dialErr.Load(); dialErr != nil && *dialErr != nil {
		return *dialErr
	}
	return errors.New(status.Convert(err).Message())
}

// unreachable is ErrUnreachable together with the error of the socket.
type unreachable struct {
	addr string
	err  error
}

func (u *unreachable) Error() string {
	return fmt.Sprintf("cannot reach %s: %v", u.addr, plainly(u.err))
}

// plainly returns why a socket could not be opened. It leaves out "dial tcp ...: connect", which adds nothing, and the
// resolver that was asked.
func plainly(err error) error {
	var call *os.SyscallError
	var name *net.DNSError
	var addr *net.AddrError
	switch {
	case errors.As(err, &call):
		return call.Err
	case errors.As(err, &name) && name.IsNotFound:
		return fmt.Errorf("no machine has the name %s", name.Name)
	case errors.As(err, &name):
		return fmt.Errorf("the name %s cannot be looked up: %s", name.Name, name.Err)
	case errors.As(err, &addr):
		return fmt.Errorf("%s: %s", addr.Err, addr.Addr)
	}
	return err
}

// misaddressed reports whether the address is wrong: then the call reached no node.
func misaddressed(err error) bool {
	var name *net.DNSError
	var addr *net.AddrError
	return errors.As(err, &name) || errors.As(err, &addr)
}

func (u *unreachable) Unwrap() []error { return []error{u.err, ErrUnreachable} }

// errRetired is the error of a call to an address that the table no longer has.
var errRetired = errors.New("no node of the cluster is there any more")

// retire closes the connection for good.
func (p *peer) retire() {
	p.mu.Lock()
	conn := p.conn
	p.conn, p.retired = nil, true
	p.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // the only error is that it is closed already
	}
}

// answered records that the peer answered, also if the answer was an error.
func (p *peer) answered() {
	p.downUntil.Store(0)
}

// failed notes that the peer could not be reached, or was silent until the
// try timed out.
func (p *peer) failed(now time.Time) { p.downUntil.Store(now.Add(downFor).UnixNano()) }

func (p *peer) up(now time.Time) bool {
	return p.downUntil.Load() <= now.UnixNano()
}

// sentKey carries a *atomic.Bool in a call's context; sentHandler sets it once
// the request has been handed to a connection. A call that failed before that
// has surely not been applied.
type sentKey struct{}

func withSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	return context.WithValue(ctx, sentKey{}, sent), sent
}

type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentHandler) HandleConn(context.Context, stats.ConnStats)                       {}
