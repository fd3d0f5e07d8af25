package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Defaults of the options.
const (
	// DialTimeoutDefault bounds Dial when its context has no deadline.
	DialTimeoutDefault = 2 * time.Second
	// TimeoutDefault bounds every other call whose context has no deadline. It
	// is long enough to sit out a change of leader.
	TimeoutDefault = 10 * time.Second
	// AttemptTimeoutDefault bounds one try at one node.
	AttemptTimeoutDefault = 3 * time.Second
	// PortDefault completes addresses that name no port.
	PortDefault = "7070"
)

// Option changes how a Client behaves.
type Option func(*config)

type config struct {
	logger         *slog.Logger
	dialer         func(ctx context.Context, addr string) (net.Conn, error)
	registerer     prometheus.Registerer
	backoff        Backoff
	now            func() time.Time
	tls            *tls.Config
	dialTimeout    time.Duration
	timeout        time.Duration
	attemptTimeout time.Duration
	token          string
	window         int
	grpc           []grpc.DialOption
}

func configOf(opts []Option) config {
	cfg := config{
		logger:         slog.New(slog.DiscardHandler),
		dialer:         dialTCP,
		backoff:        Backoff{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond},
		now:            time.Now,
		dialTimeout:    DialTimeoutDefault,
		timeout:        TimeoutDefault,
		attemptTimeout: AttemptTimeoutDefault,
		window:         WindowDefault,
	}
	for _, o := range opts {
		o(&cfg)
	}
	return cfg
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// WithLogger sends the client's log there; without it nothing is logged.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithDialer opens connections with dial instead of TCP. It must honour ctx.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(c *config) { c.dialer = dial }
}

// WithRegisterer registers the client's metrics until Close.
func WithRegisterer(r prometheus.Registerer) Option { return func(c *config) { c.registerer = r } }

// Backoff is the wait between two tries: from Min, doubling, up to Max, each
// with a jitter of a half.
type Backoff struct{ Min, Max time.Duration }

// WithBackoff sets the wait between two tries (10 ms to 500 ms).
func WithBackoff(b Backoff) Option { return func(c *config) { c.backoff = b } }

// WithClock measures elapsed time and ages with now instead of time.Now.
func WithClock(now func() time.Time) Option { return func(c *config) { c.now = now } }

// WithTLS encrypts connections; without it they are plain.
func WithTLS(cfg *tls.Config) Option { return func(c *config) { c.tls = cfg } }

// WithToken shows a token to the nodes, which say what its holder may do. Without TLS whoever hears the network hears the token.
func WithToken(text string) Option { return func(c *config) { c.token = text } }

// WithDialTimeout bounds Dial when its context has no deadline (2 s).
func WithDialTimeout(d time.Duration) Option { return func(c *config) { c.dialTimeout = d } }

// WithTimeout bounds calls whose context has no deadline (10 s).
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithAttemptTimeout bounds one try at one node (3 s), after which another is tried.
func WithAttemptTimeout(d time.Duration) Option { return func(c *config) { c.attemptTimeout = d } }

// WithWindow sets how far the commands of Increment in one shard may be ahead of the oldest that is not acknowledged:
// 1 to 1,000 (128). A Writer has a window of its own.
func WithWindow(n int) Option { return func(c *config) { c.window = max(1, min(n, windowMax)) } }

// WithGRPC adds dial options of gRPC, for example a tracer's stats handler. They
// may look at the context of a call, so with any of them questions of several
// callers share no request (see Alone).
func WithGRPC(opts ...grpc.DialOption) Option {
	return func(c *config) { c.grpc = append(c.grpc, opts...) }
}
