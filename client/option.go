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
	// TimeoutDefault bounds every other call whose context has no deadline. It is long enough for a change of leader.
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

// WithLogger makes the client log to l. Without it nothing is logged.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithDialer opens connections with dial instead of TCP. It must honour ctx.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(c *config) { c.dialer = dial }
}

// WithRegisterer registers the client's metrics with r. Close unregisters them.
func WithRegisterer(r prometheus.Registerer) Option { return func(c *config) { c.registerer = r } }

// Backoff is the wait between two tries. It begins at Min and doubles up to Max. Each wait is random, from half of that
// to all of it.
type Backoff struct{ Min, Max time.Duration }

// WithBackoff sets the wait between two tries. The default is 10 ms to 500 ms.
func WithBackoff(b Backoff) Option { return func(c *config) { c.backoff = b } }

// WithClock measures elapsed time and ages with now instead of time.Now.
func WithClock(now func() time.Time) Option { return func(c *config) { c.now = now } }

// WithTLS encrypts connections; without it they are plain.
func WithTLS(cfg *tls.Config) Option { return func(c *config) { c.tls = cfg } }

// WithToken sends a token with each call. The nodes decide by it what the client may do. Without TLS everyone who can
// read the network traffic can read the token.
func WithToken(text string) Option { return func(c *config) { c.token = text } }

// WithDialTimeout bounds Dial when its context has no deadline. The default is 2 s.
func WithDialTimeout(d time.Duration) Option { return func(c *config) { c.dialTimeout = d } }

// WithTimeout bounds calls whose context has no deadline. The default is 10 s.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithAttemptTimeout bounds one try at one node, after which another node is tried. The default is 3 s.
func WithAttemptTimeout(d time.Duration) Option { return func(c *config) { c.attemptTimeout = d } }

// WithWindow sets how far ahead of the oldest unacknowledged command the commands of Increment in one shard may be: 1
// to 1,000, by default 128. A Writer has a window of its own.
func WithWindow(n int) Option { return func(c *config) { c.window = max(1, min(n, windowMax)) } }

// Limits bound what a client sends and asks for at once. A field that is zero means its default.
type Limits struct {
	// KeysPage is how many keys of a list one question asks for; 1,000 by default.
	KeysPage int
	// IDsPage is how many ids one question asks for when all ids of a bitmap are listed; 50,000 by default.
	IDsPage int
	// Requests is how many requests with commands are in flight to one node at a time; 8 by default. Commands that come
	// while that many are in flight share the next requests.
	Requests int
	// RequestOps and RequestBytes are how many increments, and how many bytes, one such request has; 10,000 and 960 KiB
	// by default. A single command may have more.
	RequestOps, RequestBytes int
	// Questions is how many questions of several callers share a request; 256 by default.
	Questions int
	// TableAge is how old the table of shards gets before its next use asks for a newer one; 30 s by default.
	TableAge time.Duration
}

// fill replaces zeros by defaults, and reduces values that are above the limits of nodes to those limits.
func (l *Limits) fill() {
	l.KeysPage = max(1, orDefault(l.KeysPage, keysPerPage))
	l.IDsPage = max(1, min(orDefault(l.IDsPage, bitsPerPage), proto.BitPageMax))
	l.Requests = max(1, orDefault(l.Requests, sendersMax))
	l.RequestOps = min(orDefault(l.RequestOps, requestOpsMax), requestOpsMax)
	l.RequestBytes = min(orDefault(l.RequestBytes, requestBytesMax), requestBytesMax)
	l.Questions = max(1, min(orDefault(l.Questions, coalescedMax), proto.QuestionsMax))
	l.TableAge = orDefault(l.TableAge, tableAgeMax)
}

// WithLimits replaces the default limits. They change how often a client asks, but no results.
func WithLimits(l Limits) Option { return func(c *config) { c.limits = l } }

// WithGRPC adds dial options of gRPC, for example a tracer's stats handler. They may read the context of a call. So
// with any of them, questions of several callers do not share requests (see Alone).
func WithGRPC(opts ...grpc.DialOption) Option {
	return func(c *config) { c.grpc = append(c.grpc, opts...) }
}
