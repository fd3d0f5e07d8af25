package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
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
	limits         Limits
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
	cfg.limits.fill()
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

// WithToken shows a token to the nodes, which say what its holder may do. Without TLS whoever hears the network hears
// the token.
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

// Limits bound what a client sends and asks for at once. A zero stands for the default.
type Limits struct {
	// KeysPage is how many keys of a list one question asks for; 1,000.
	KeysPage int
	// IDsPage is how many ids of a bitmap one question asks for, where all are listed; 50,000.
	IDsPage int
	// Requests is how many requests with commands travel to one node at a time; 8. What comes while they do shares the
	// next ones.
	Requests int
	// RequestOps and RequestBytes are how many increments, and bytes, one such request has, unless a single command has
	// more; 10,000 and 960 KiB.
	RequestOps, RequestBytes int
	// Questions is how many questions of several callers share a request; 256.
	Questions int
	// TableAge is how old the table of shards gets before its next use asks for a newer one; 30 s.
	TableAge time.Duration
}

// fill puts defaults in the place of zeros, and the defaults that are limits of nodes in the place of what is above
// them.
func (l *Limits) fill() {
	l.KeysPage = max(1, orDefault(l.KeysPage, keysPerPage))
	l.IDsPage = max(1, min(orDefault(l.IDsPage, bitsPerPage), proto.BitPageMax))
	l.Requests = max(1, orDefault(l.Requests, sendersMax))
	l.RequestOps = min(orDefault(l.RequestOps, requestOpsMax), requestOpsMax)
	l.RequestBytes = min(orDefault(l.RequestBytes, requestBytesMax), requestBytesMax)
	l.Questions = max(1, min(orDefault(l.Questions, coalescedMax), proto.QuestionsMax))
	l.TableAge = orDefault(l.TableAge, tableAgeMax)
}

// WithLimits sets other limits than the default ones. They change how often a client asks, and no results.
func WithLimits(l Limits) Option { return func(c *config) { c.limits = l } }

// WithGRPC adds dial options of gRPC, for example a tracer's stats handler. They
// may look at the context of a call, so with any of them questions of several
// callers share no request (see Alone).
func WithGRPC(opts ...grpc.DialOption) Option {
	return func(c *config) { c.grpc = append(c.grpc, opts...) }
}
