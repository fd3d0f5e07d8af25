package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ebbdb/ebb/chaos/history"
	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// orderMax is the longest time that porcupine may look for an order. It normally needs milliseconds, so other load on
// the machine does not reach this limit: only a history that porcupine cannot decide does.
const orderMax = 3 * time.Minute

// texts is a string that all texters write and read together. Porcupine judges its whole history.
type texts struct {
	w       *world
	shard   uint32
	key     string
	history *history.Texts
	struck  atomic.Int64 // when the last fault came, in ns since the run began
	led     atomic.Int64 // the node that was seen to lead the shard at that time
}

// newTexts chooses a key of the shard that the plan strikes first.
func newTexts(w *world) *texts {
	shard := proto.ShardOf(countsNamespace, []byte(keyName(0)), w.plan.Shards) // the shard of the outage
	if !w.plan.Outage && len(w.plan.Faults) > 0 {
		shard = w.plan.Faults[0].Dose.Shard
	}
	for i := 0; ; i++ {
		key := fmt.Sprintf("text-%d", i)
		if proto.ShardOf(countsNamespace, []byte(key), w.plan.Shards) == shard {
			t := &texts{w: w, shard: shard, key: key, history: history.New(w.now)}
			t.struck.Store(-int64(busyFor))
			return t
		}
	}
}

// strikes records that a fault begins now, and which node leads.
func (t *texts) strikes() {
	t.w.mu.Lock()
	reign := t.w.reigns[t.shard]
	t.w.mu.Unlock()
	for i := range t.w.plan.Nodes {
		if reign != nil && t.w.c.Name(i) == reign.Node {
			t.led.Store(int64(i))
		}
	}
	t.struck.Store(int64(t.w.now()))
}

// struckStill records that the fault has been injected.
func (t *texts) struckStill() { t.struck.Store(int64(t.w.now())) }

// texter writes or reads the string through the SDK, and at nodes that it chooses, leaders or not. It is busy just
// after a fault, when leaders change and answers are late. Otherwise it rests: all texters together must cost little.
type texter struct {
	*texts
	id  int
	rng *rand.Rand
	doors
}

func newTexter(t *texts, id int) *texter {
	return &texter{texts: t, id: id, rng: t.w.rng(6000 + uint64(id)), doors: doors{}}
}

const (
	// viaSDK is the place of an operation through the SDK, which chooses the node.
	viaSDK = "any node"
	// busyFor is how long texters are busy after a fault.
	busyFor = 500 * time.Millisecond
	// watchEvery is how often texters check whether a fault has come.
	watchEvery = 100 * time.Millisecond
)

func (t *texter) work(c *ebb.Client) {
	for rest := millis(t.rng, 1000, 4000); rest > 0 && !t.busy(); rest -= watchEvery {
		time.Sleep(watchEvery)
	}
	for t.do(c); t.busy(); t.do(c) {
		time.Sleep(millis(t.rng, 20, 80))
	}
}

// busy reports whether a fault has just come.
func (t *texter) busy() bool { return t.w.now()-time.Duration(t.struck.Load()) < busyFor }

// do writes or reads once. Texter 0 writes, mostly at a node that did not lead when the last fault came. It waits only
// briefly, so that it soon tries the next node. The others read, mostly at the node that led, and wait longer for late
// answers.
func (t *texter) do(c *ebb.Client) {
	if t.rng.IntN(4) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), millis(t.rng, 500, 3000))
		defer cancel()
		if t.id == 0 {
			t.write(viaSDK, func(value string) error { return c.SetString(ctx, countsNamespace, t.key, value) })
			return
		}
		_ = t.readAny(ctx, c) // refused reads are counted
		return
	}
	i := t.where()
	door, err := t.doors.to(t.w, i)
	if err != nil {
		return
	}
	if t.id == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), millis(t.rng, 50, 300))
		defer cancel()
		t.write(t.w.c.Name(i), func(value string) error {
			if err := door.SetText(ctx, countsNamespace, t.key, value); err != nil {
				return fmt.Errorf("%w: %w", ebb.ErrUnknownOutcome, err)
			}
			return nil
		})
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = t.read(t.w.c.Name(i), func() (string, error) { // refused reads are counted
		return door.Text(ctx, countsNamespace, t.key, &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, Follow: true})
	})
}

// where chooses the node for the next operation.
func (t *texter) where() int {
	n, led := t.w.plan.Nodes, int(t.led.Load())
	switch {
	case t.id == 0:
		return (led + 1 + t.rng.IntN(n-1)) % n
	case t.rng.IntN(3) > 0:
		return led
	}
	return t.rng.IntN(n)
}

// write gives the string a new value. A write that was not applied, according to the SDK, is not in the history: a read
// of its value then has no explanation.
func (t *texter) write(where string, do func(value string) error) {
	op := t.history.Write(t.id, where, t.key)
	o := outcomeOf(do(op.Value()))
	t.w.done(o)
	switch o {
	case acked:
		op.Done("")
	case unknown:
		op.Unknown()
	}
}

func (t *texter) readAny(ctx context.Context, c *ebb.Client) error {
	return t.read(viaSDK, func() (string, error) {
		v, err := c.String(ctx, countsNamespace, t.key)
		return v.Text, err
	})
}

func (t *texter) read(where string, ask func() (string, error)) error {
	op := t.history.Read(t.id, where, t.key)
	got, err := ask()
	t.w.read(err == nil)
	if err == nil {
		op.Done(got)
	}
	return err
}

// settle reads the string once more, so that the history ends with its last value.
func (t *texter) settle(ctx context.Context, c *ebb.Client) {
	t.doors.close()
	if t.id == 0 {
		err := t.readAny(ctx, c)
		t.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", t.key, err)
	}
}

// judge lets porcupine check the history, for at most limit of real time. It must run outside the bubble, where the
// limit would never be reached. A history that porcupine cannot decide fails, because it is not known to hold.
func (t *texts) judge(limit time.Duration) {
	v := t.w.verdict
	verdict, n := t.history.Check(limit)
	switch verdict {
	case porcupine.Unknown:
		t.w.holdAt(v.Virtual, "linearizable", false, "no order of the %d writes and reads of strings was found in %v of real time, nor that there is none", n, limit)
	case porcupine.Ok:
		v.Tally.Ordered += n
		t.w.holdAt(v.Virtual, "linearizable", true, "")
	default:
		for _, e := range t.history.Explain(limit) {
			v.Story = append(v.Story, Line{e.At, LineOperation, e.Text})
		}
		t.w.holdAt(v.Virtual, "linearizable", false, "no order of the %d writes and reads of strings explains every answer", n)
	}
}
