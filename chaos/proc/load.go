package proc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// LedgerNamespace is where the load counts, without decay.
const LedgerNamespace = "ledger"

const (
	// keysAShard is how many keys the load has in each shard.
	keysAShard = 32
	// batchesMax bounds how many batches a second the load sends: a higher rate makes larger batches.
	batchesMax = 200
	// loadWorkers is the number of concurrent senders. Half of them use sessions, half use idempotency keys. At
	// batchesMax a sender may take 320 ms for a batch before the load is late.
	loadWorkers = 64
	// latePart limits what the load sends later than planned: at most this part of a second's batches.
	latePart = 20
	// attemptMax is how long one attempt to send a batch under an idempotency key may take.
	attemptMax = 3 * time.Second
)

// Load increments at a rate, and keeps the ledger. Each batch has keys of one shard only, so that it is counted wholly
// or not at all. It is sent under one identity until its outcome is known. Half of the senders use sessions of the SDK.
// The other half use idempotency keys, and send each attempt to another node.
type Load struct {
	Ledger Ledger

	client *client.Client
	doors  *doors
	keys   [][]string // by shard
	batch  int
	pace   *rate.Limiter
	// retryFor is how long the load sends a batch again and again.
	retryFor time.Duration

	acked   atomic.Int64
	life    context.Context // of the sent batches; abandon cancels it
	abandon context.CancelFunc
	cancel  context.CancelFunc // stops new batches
	wg      sync.WaitGroup
}

// LoadOptions says how much is sent where.
type LoadOptions struct {
	Client   *client.Client
	Doors    *doors // of the nodes; they may change during the load
	Shards   uint32
	Rate     int // increments a second
	RetryFor time.Duration
}

// StartLoad starts a load. The namespace LedgerNamespace must exist.
func StartLoad(o LoadOptions) *Load {
	batches := min(batchesMax, max(1, o.Rate/4))
	l := &Load{
		client: o.Client, doors: o.Doors, keys: shardKeys(o.Shards), batch: max(1, o.Rate/batches), retryFor: o.RetryFor,
		pace: rate.NewLimiter(rate.Limit(batches), max(1, batches/latePart)),
	}
	l.life, l.abandon = context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(l.life)
	l.cancel = cancel
	for i := range loadWorkers {
		send := l.inSession
		if i%2 == 0 {
			send = l.underKey
		}
		l.wg.Go(func() { l.work(ctx, i, send) })
	}
	return l
}

// shardKeys finds keys for every shard; the keys of shard s are at index s-1.
func shardKeys(shards uint32) [][]string {
	keys := make([][]string, shards)
	for i, missing := 0, int(shards)*keysAShard; missing > 0; i++ {
		key := "account/" + strconv.Itoa(i)
		if at := &keys[proto.ShardOf(LedgerNamespace, []byte(key), shards)-1]; len(*at) < keysAShard {
			*at = append(*at, key)
			missing--
		}
	}
	return keys
}

func (l *Load) work(ctx context.Context, worker int, send func(context.Context, []client.Increment) Outcome) {
	rng := rand.New(rand.NewPCG(uint64(worker), 0x6c6f6164))
	for l.pace.Wait(ctx) == nil {
		of := l.keys[rng.IntN(len(l.keys))]
		keys, batch := make([]string, l.batch), make([]client.Increment, l.batch)
		for i := range keys {
			keys[i] = of[(worker+i)%len(of)]
			batch[i] = client.One(keys[i], "b")
		}
		l.Ledger.Begin(keys)
		limited, cancel := context.WithTimeout(l.life, l.retryFor)
		outcome := send(limited, batch)
		cancel()
		if outcome == Acknowledged {
			l.acked.Add(int64(len(keys)))
		}
		l.Ledger.End(keys, outcome)
	}
}

func (l *Load) inSession(ctx context.Context, batch []client.Increment) Outcome {
	err := l.client.Increment(ctx, LedgerNamespace, batch...)
	switch {
	case err == nil:
		return Acknowledged
	case errors.Is(err, client.ErrUnknownOutcome):
		return Unknown
	}
	return Refused
}

// underKey sends a batch to one node after the other, until one acknowledges it or ctx ends.
func (l *Load) underKey(ctx context.Context, batch []client.Increment) Outcome {
	req := &ebbv1.IncrementRequest{
		Namespace:      LedgerNamespace,
		IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: time.Now().UnixMicro(), Hi: rand.Uint64(), Lo: rand.Uint64()},
	}
	for _, in := range batch {
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: []byte(in.Key), Bin: []byte(in.Bin), Amount: new(in.Amount)})
	}
	outcome := Refused
	pause := 20 * time.Millisecond
	for at := rand.IntN(1 << 16); ; at++ {
		doors := l.doors.list()
		err := l.attempt(ctx, doors[at%len(doors)].ebb(), req)
		if err == nil {
			return Acknowledged
		}
		if mayHaveCounted(err) {
			outcome = Unknown
		}
		select {
		case <-ctx.Done():
			return outcome
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

func (l *Load) attempt(ctx context.Context, door ebbv1grpc.EbbClient, req *ebbv1.IncrementRequest) error {
	ctx, cancel := context.WithTimeout(ctx, attemptMax)
	defer cancel()
	resp, err := door.Increment(ctx, req)
	if err != nil {
		return ebbv1grpc.FromStatus(err)
	}
	for _, r := range resp.GetRefused() {
		return proto.FromWire(r.GetError())
	}
	return nil
}

// mayHaveCounted reports whether an attempt that failed with err may have been applied.
func mayHaveCounted(err error) bool {
	switch proto.AsError(err).Code {
	case ebbv1.Code_CODE_NOT_LEADER, ebbv1.Code_CODE_NO_LEADER, ebbv1.Code_CODE_OVERLOADED, ebbv1.Code_CODE_CLOCK_SKEW, ebbv1.Code_CODE_STARTING,
		ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS, ebbv1.Code_CODE_OUT_OF_MEMORY, ebbv1.Code_CODE_BUDGET_EXCEEDED, ebbv1.Code_CODE_DISK_FULL:
		return false
	}
	return true
}

// Acked is how many increments were acknowledged so far.
func (l *Load) Acked() int64 { return l.acked.Load() }

// Audit reads all keys and compares them with the ledger. The load may continue during an audit.
func (l *Load) Audit(ctx context.Context) (keys int, lost, twice []string, err error) {
	floors := l.Ledger.Floors()
	counts := make(map[string]float64, len(floors))
	var mu sync.Mutex // guards counts and err
	var wg sync.WaitGroup
	for key := range floors {
		wg.Go(func() {
			got, rerr := l.client.Count(ctx, LedgerNamespace, key)
			mu.Lock()
			defer mu.Unlock()
			if rerr != nil {
				err = fmt.Errorf("count %s: %w", key, rerr)
			}
			counts[key] = got.Value
		})
	}
	wg.Wait()
	if err != nil {
		return 0, nil, nil, err
	}
	lost, twice = l.Ledger.Audit(floors, counts)
	return len(floors), lost, twice, nil
}

// Stop sends nothing new, and returns when everything that was sent has an outcome.
func (l *Load) Stop() {
	l.cancel()
	l.wg.Wait()
}

// Abandon is Stop for a caller that no longer needs the outcomes.
func (l *Load) Abandon() {
	l.abandon()
	l.Stop() // it may have stopped before
}
