package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Client sends requests to one cluster. It is safe for concurrent use. While idle it runs no goroutine of its own;
// gRPC's connections have theirs. Call Close when it is no longer needed.
type Client struct {
	cfg     config
	routing routingTable
	pauses  *pauseDetector
	seeds   []string // the addresses that Dial was given

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // every goroutine of the client

	mu        sync.Mutex // guards all below
	closing   bool
	closed    bool                      // no goroutine is started any more
	peers     map[string]*peer          // by address
	refresh   *refresh                  // the renewal of the table that is running, if any
	producers map[*producer]func(error) // with the function that gives up its commands
	direct    map[string]*producer      // of Increment, by namespace

	meter        meter
	seen         seenClocks
	writeLimiter *writeLimiter // of direct calls
}

// Dial connects to a cluster. It returns a client as soon as one node of addrs has answered. Otherwise the error lists
// every address and its cause. Dial ends when ctx ends, or after 2 s if ctx has no deadline. An address without a port
// gets port 7070. Without addresses Dial uses 127.0.0.1:7070.
func Dial(ctx context.Context, addrs ...string) (*Client, error) {
	return DialOptions(ctx, addrs)
}

// DialOptions is Dial with options. It also fails if the client's metrics cannot be registered (WithRegisterer).
func DialOptions(ctx context.Context, addrs []string, opts ...Option) (*Client, error) {
	c := newClient(addrs, configOf(opts))
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.dialTimeout)
	defer cancel()
	if err := c.firstTable(ctx); err != nil {
		_ = c.Close() // nothing was begun, so nothing is lost
		return nil, err
	}
	if err := c.meter.register(c.cfg.registerer); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}

func newClient(addrs []string, cfg config) *Client {
	c := &Client{
		cfg: cfg, pauses: newPauseDetector(cfg.now), peers: map[string]*peer{},
		producers: map[*producer]func(error){}, direct: map[string]*producer{},
	}
	c.writeLimiter = newWriteLimiter(cfg.now)
	if len(addrs) == 0 {
		addrs = []string{"127.0.0.1"}
	}
	for _, a := range addrs {
		if a = withPort(a); !slices.Contains(c.seeds, a) {
			c.seeds = append(c.seeds, a)
		}
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

func withPort(addr string) string {
	addr = strings.TrimSpace(addr)
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), PortDefault)
}

func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// firstTable asks all seeds at once; the first answer wins.
func (c *Client) firstTable(ctx context.Context) error {
	start := c.now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	causes := make([]error, len(c.seeds))
	answers := make(chan *ebbv1.Table, len(c.seeds))
	var asking sync.WaitGroup
	for i, addr := range c.seeds {
		asking.Go(func() {
			t, err := c.awaitTable(ctx, c.peerAt(addr))
			if err == nil {
				answers <- t
				cancel()
			}
			causes[i] = err
		})
	}
	asking.Wait()
	select {
	case t := <-answers:
		c.routing.adopt(t, c.now())
		return nil
	default:
	}
	for i, err := range causes {
		if ctx.Err() == nil {
			causes[i] = c.diagnoseEndpoint(ctx, c.seeds[i], err)
		}
	}
	return c.unreachableAll(start, causes)
}

// awaitTable asks a node for its table. It tries again only after an error of the retryClass later: the node is not
// ready yet.
func (c *Client) awaitTable(ctx context.Context, p *peer) (*ebbv1.Table, error) {
	for tries := 0; ; tries++ {
		t, err := c.tableFrom(ctx, p)
		if err == nil || classify(coded(err).Code) != later {
			return t, err
		}
		if c.sleep(ctx, c.backoff(tries, err)) != nil {
			return nil, err
		}
	}
}

func (c *Client) tableFrom(ctx context.Context, p *peer) (*ebbv1.Table, error) {
	var resp *ebbv1.TableResponse
	_, err := c.try(ctx, p, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(conn).Table(ctx, &ebbv1.TableRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	if resp.GetTable().GetShards() == 0 {
		return nil, proto.ErrStarting.Errorf("%s has no placement table yet", p.addr)
	}
	return resp.GetTable(), nil
}

func (c *Client) unreachableAll(start time.Time, causes []error) error {
	e := &Error{Op: "dial", Code: coded(causes[0]).Code, Attempt: 1, Elapsed: c.now().Sub(start)}
	if len(causes) == 1 {
		e.Node, e.Err = c.seeds[0], causes[0]
	} else {
		for i, err := range causes {
			if !strings.Contains(err.Error(), c.seeds[i]) {
				causes[i] = fmt.Errorf("%s: %w", c.seeds[i], err)
			}
		}
		e.Err = fmt.Errorf("none of %d addresses answers:\n%w", len(causes), errors.Join(causes...))
	}
	e.Hint = "is the cluster running? `ebb serve` starts a node, `--addr` says where it is"
	if !slices.ContainsFunc(causes, func(err error) bool { return !misaddressed(err) }) {
		e.Hint = "look at the address: `--addr` takes the host:port of any node's gRPC"
	}
	if fault := new(trust.Fault); errors.As(e.Err, &fault) {
		e.Hint = fault.Hint
	}
	for _, err := range causes {
		if why := coded(err); why.Code == ebbv1.Code_CODE_UNAUTHENTICATED {
			e.Code, e.Hint = why.Code, why.Hint // the cluster is reachable, and its hint names what is missing
		}
	}
	return e
}

// Close waits until all work of the client has ended, then closes its connections. Close Writers and Sources first: the
// increments that they still hold are lost, and counted in their Stats. A second Close returns ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	again := c.closing
	c.closing = true
	direct := slices.Collect(maps.Values(c.direct))
	c.mu.Unlock()
	if again {
		return ErrClosed
	}
	c.closeSessions(direct)
	c.mu.Lock()
	c.closed = true
	abandon := slices.Collect(maps.Values(c.producers))
	c.mu.Unlock()
	c.cancel(ErrClosed)
	for _, f := range abandon {
		f(ErrClosed)
	}
	c.work.Wait()
	c.mu.Lock()
	peers := slices.Collect(maps.Values(c.peers))
	c.mu.Unlock()
	for _, p := range peers {
		p.retire()
	}
	c.meter.unregister(c.cfg.registerer)
	return nil
}

// closeSessions closes the sessions of Increment.
func (c *Client) closeSessions(direct []*producer) {
	ctx, cancel := context.WithTimeout(c.ctx, closeSessionsMax)
	defer cancel()
	for _, p := range direct {
		p.closeSessions(ctx)
	}
}

// spawn runs f in a goroutine that Close waits for. It reports false, and runs
// nothing, if the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.work.Go(f)
	return true
}

func (c *Client) now() time.Time { return c.cfg.now() }

func (c *Client) log() *slog.Logger { return c.cfg.logger }

// peerAt returns the peer of an address.
func (c *Client) peerAt(addr string) *peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[addr]
	if p == nil {
		p = c.newPeer(addr)
		c.peers[addr] = p
	}
	return p
}

// sleep waits for d, or until ctx or the client ends.
func (c *Client) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return ErrClosed
	}
}

// backoff is the wait after try number tries, counted from 0, that failed with err.
func (c *Client) backoff(tries int, err error) time.Duration {
	d := c.cfg.backoff.Min << min(tries, 20)
	if d <= 0 || d > c.cfg.backoff.Max {
		d = c.cfg.backoff.Max
	}
	if err != nil {
		if after := time.Duration(coded(err).RetryAfterUS) * time.Microsecond; after > d {
			d = min(after, 10*time.Second)
		}
	}
	return d/2 + rand.N(d/2+1)
}
