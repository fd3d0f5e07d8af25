// Package raw is a client of ebb that shares no code with the SDK: it makes plain gRPC calls, and has retries and a
// checker of its own. Histories that the SDK makes show what the cluster and the SDK do together. A fault of the one
// that the other hides, such as an answer that the SDK would have asked for again, shows here.
package raw

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Client writes to keys that no other client writes, and records what they must hold. Only one goroutine may use it.
type Client struct {
	nodes     []grpc.ClientConnInterface
	namespace string // without decay
	prefix    string // of its keys
	rng       *rand.Rand
	sums      map[cell]sum
	writes    int // that were answered
}

// cell is one bin of a key.
type cell struct{ key, bin string }

// sum is what was written to a cell.
type sum struct {
	sure  float64 // acknowledged
	maybe float64 // of unknown outcome: it may still be applied
}

const (
	keys     = 5
	bins     = 3
	tryFor   = time.Second
	pauseMax = 100 * time.Millisecond
)

// New returns a client of nodes that writes to keys with this prefix.
func New(namespace, prefix string, rng *rand.Rand, nodes ...grpc.ClientConnInterface) *Client {
	return &Client{nodes: nodes, namespace: namespace, prefix: prefix, rng: rng, sums: map[cell]sum{}}
}

// Writes is how many writes were answered.
func (c *Client) Writes() int { return c.writes }

// Write writes to one key. It tries random nodes until one answers or ctx ends, and reports whether one did.
func (c *Client) Write(ctx context.Context) bool {
	key := c.key(c.rng.IntN(keys))
	req := &ebbv1.IncrementRequest{
		Namespace:      c.namespace,
		IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: time.Now().UnixMicro(), Hi: c.rng.Uint64(), Lo: c.rng.Uint64()},
	}
	for range 1 + c.rng.IntN(4) {
		req.Increments = append(req.Increments, &ebbv1.Increment{
			Key: []byte(key), Bin: []byte(bin(c.rng.IntN(bins))), Amount: new(float64(1 + c.rng.IntN(9))),
		})
	}
	for {
		resp, err := c.increment(ctx, req)
		if err == nil {
			c.count(req, resp)
			c.writes++
			return true
		}
		if !c.pause(ctx) {
			c.count(req, nil)
			return false
		}
	}
}

func (c *Client) increment(ctx context.Context, req *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	return ebbv1grpc.NewEbbClient(c.any()).Increment(ctx, req)
}

// count records a write. With a response, the increments that it does not refuse are sure. Without one, all of them
// have an unknown outcome.
func (c *Client) count(req *ebbv1.IncrementRequest, resp *ebbv1.IncrementResponse) {
	refused := make(map[uint32]bool)
	for _, r := range resp.GetRefused() {
		refused[r.GetIndex()] = true
	}
	for i, in := range req.GetIncrements() {
		at := cell{string(in.GetKey()), string(in.GetBin())}
		s := c.sums[at]
		switch {
		case resp == nil:
			s.maybe += in.GetAmount()
		case !refused[uint32(i)]:
			s.sure += in.GetAmount()
		}
		c.sums[at] = s
	}
}

// Read asks a random node for all keys, once. It reports whether a key was answered, and returns an error if an answer
// is wrong.
func (c *Client) Read(ctx context.Context) (answered bool, wrong error) {
	req := &ebbv1.AskRequest{}
	for k := range keys {
		req.Questions = append(req.Questions, &ebbv1.Question{
			Namespace: c.namespace,
			Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
				Keys: [][]byte{[]byte(c.key(k))}, Select: &ebbv1.DistributionQuestion_All{All: true},
			}},
		})
	}
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	resp, err := ebbv1grpc.NewEbbClient(c.any()).Ask(ctx, req)
	if err != nil {
		return false, nil // without an answer nothing is wrong
	}
	if len(resp.GetAnswers()) != keys {
		return true, fmt.Errorf("%d answers to %d questions", len(resp.GetAnswers()), keys)
	}
	for k, a := range resp.GetAnswers() {
		if a.GetError() != nil {
			continue
		}
		answered = true
		if err := c.check(c.key(k), a.GetDistribution()); err != nil {
			return true, err
		}
	}
	return answered, nil
}

// check compares what a key holds with what was written.
func (c *Client) check(key string, d *ebbv1.Distribution) error {
	have := make(map[string]float64)
	for _, b := range d.GetBins() {
		have[string(b.GetBin())] = b.GetCount()
	}
	for b := range bins {
		s := c.sums[cell{key, bin(b)}]
		if got := have[bin(b)]; got < s.sure || got > s.sure+s.maybe {
			return fmt.Errorf("bin %s of %s holds %v: %v was acknowledged, and %v more may have come",
				bin(b), key, got, s.sure, s.maybe)
		}
	}
	return nil
}

func (c *Client) key(i int) string { return fmt.Sprintf("%s-%d", c.prefix, i) }

func bin(i int) string { return fmt.Sprintf("bin-%d", i) }

func (c *Client) any() grpc.ClientConnInterface { return c.nodes[c.rng.IntN(len(c.nodes))] }

// pause waits between two attempts, and reports whether there is time for another.
func (c *Client) pause(ctx context.Context) bool {
	t := time.NewTimer(time.Duration(c.rng.Int64N(int64(pauseMax))))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
