package proc

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

const (
	// readEvery is how often a key is read in each manner, and at each node.
	readEvery = 100 * time.Millisecond
	// readMax is how long a read may wait. A node that was stopped answers the reads of that time when it resumes. The
	// later a read was asked, the more its answer must have. So a read that hangs must not keep others from being
	// asked.
	readMax = 6 * time.Second
	// staleMax is how many wrong answers collectReads reports at a time.
	staleMax = 20
)

// Manner is how a linearizable read is sent.
type Manner string

// The manners.
const (
	BySDK    Manner = "by the SDK"                   // which looks for the leader
	AnyNode  Manner = "at each node"                 // which passes it on to the leader
	AtLeader Manner = "where a node leads"           // which confirms that it does
	Follow   Manner = "of a replica, wherever it is" // which asks its leader how far it must be
)

// manners are all manners, each with the words for it in the report of a wrong answer.
var manners = []struct {
	Manner
	words string
}{
	{BySDK, "asked by the SDK"}, {AnyNode, "asked at %s"}, {AtLeader, "asked at %s, which says that it leads"}, {Follow, "asked of the replica at %s"},
}

// Reads are the totals of the reads in one manner.
type Reads struct {
	Manner   Manner        `json:"manner"`
	Answered int           `json:"answered"`
	Refused  int           `json:"refused"`    // or not answered in time
	Longest  time.Duration `json:"longest_ns"` // of those answered
	Why      string        `json:"why"`        // the error of the last refusal
}

// wrong is an answer that contradicts what is known.
type wrong struct {
	invariant string
	at        time.Duration
	what      string
}

// readers read keys of a ledger all the time, at every node, also during faults. They compare every answer with what
// was acknowledged, and what other reads had returned, before the read was sent.
type readers struct {
	ledger *Ledger
	keys   [][]string // by shard
	client *client.Client
	doors  *doors
	now    func() time.Duration
	amid   func() string // says what happened last

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	reads   map[Manner]*Reads
	checked int
	wrong   []wrong
}

// start begins to read, until close.
func (r *readers) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.reads = make(map[Manner]*Reads)
	for _, m := range manners {
		r.reads[m.Manner] = &Reads{Manner: m.Manner}
	}
	r.wg.Go(func() {
		tick := time.NewTicker(readEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.round(ctx)
			}
		}
	})
}

func (r *readers) close() {
	if r.stop != nil {
		r.stop()
		r.wg.Wait()
	}
}

// round starts reads of random keys: one by the SDK, and one at every node in each other manner.
func (r *readers) round(ctx context.Context) {
	r.wg.Go(func() {
		r.read(ctx, BySDK, "", func(ctx context.Context, key string) (float64, error) {
			got, err := r.client.Count(ctx, LedgerNamespace, key)
			return got.Value, err
		})
	})
	for _, d := range r.doors.list() {
		r.wg.Go(func() { r.read(ctx, AnyNode, d.node, d.count) })
		for m, follow := range map[Manner]bool{AtLeader: false, Follow: true} {
			r.wg.Go(func() {
				r.read(ctx, m, d.node, func(ctx context.Context, key string) (float64, error) {
					return d.countThere(ctx, key, uint32(len(r.keys)), follow)
				})
			})
		}
	}
}

// read asks for one key and judges what is answered.
func (r *readers) read(ctx context.Context, m Manner, node string, ask func(ctx context.Context, key string) (float64, error)) {
	of := r.keys[rand.IntN(len(r.keys))]
	key := of[rand.IntN(len(of))]
	ctx, cancel := context.WithTimeout(ctx, readMax)
	defer cancel()
	amid, began := r.amid(), r.now()
	known := r.ledger.Known(key) // before it is asked
	got, err := ask(ctx, key)
	took := r.now() - began
	if err != nil {
		if took < readMax && ctx.Err() != nil {
			return // the read was cancelled: no result
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reads[m].Refused++
		r.reads[m].Why = err.Error()
		return
	}
	faults := r.ledger.Judge(key, known, got)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked++
	r.reads[m].Answered++
	r.reads[m].Longest = max(r.reads[m].Longest, took)
	for _, invariant := range slices.Sorted(maps.Keys(faults)) {
		r.wrong = append(r.wrong, wrong{invariant, began + took, fmt.Sprintf("%s, %s: asked at %.3fs, when %s, and answered %v later", faults[invariant], m.at(node), began.Seconds(), amid, took.Round(time.Millisecond))})
	}
}

// at says where a read was asked.
func (m Manner) at(node string) string {
	for _, o := range manners {
		if o.Manner == m && node != "" {
			return fmt.Sprintf(o.words, node)
		}
	}
	return manners[0].words
}

// take returns how many answers were judged since it was called last, and which were wrong.
func (r *readers) take() (checked int, all []wrong) {
	r.mu.Lock()
	defer r.mu.Unlock()
	checked, all = r.checked, r.wrong
	r.checked, r.wrong = 0, nil
	return checked, all
}

// sums returns what was read so far, in the order of the manners.
func (r *readers) sums() (all []Reads) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range manners {
		all = append(all, *r.reads[m.Manner])
	}
	return all
}

// count asks a node for a key's total. Any node may hold the key.
func (d door) count(ctx context.Context, key string) (float64, error) {
	resp, err := d.ebb().Ask(ctx, &ebbv1.AskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, Questions: []*ebbv1.Question{totalOf(key)}})
	if err != nil {
		return 0, ebbv1grpc.FromStatus(err)
	}
	return total(resp.GetAnswers()[0])
}

// countThere asks the node's own replica of a key's shard. The replica must lead, unless follow is set.
func (d door) countThere(ctx context.Context, key string, shards uint32, follow bool) (float64, error) {
	if d.inner != d.conn { // with the certificate of a node, which asks on its own behalf
		ctx = metadata.AppendToOutgoingContext(ctx, "ebb-peer", "reader", "ebb-origin", proto.NameNode)
	}
	resp, err := d.shards().Ask(ctx, &ebbv1.ShardAskRequest{
		Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, Follow: follow,
		Questions: []*ebbv1.ShardQuestion{{Shard: proto.ShardOf(LedgerNamespace, []byte(key), shards), Question: totalOf(key)}},
	})
	if err != nil {
		return 0, ebbv1grpc.FromStatus(err)
	}
	a := resp.GetAnswers()[0]
	if e := proto.FromWire(a.GetError()); e != nil {
		return 0, e
	}
	return total(a.GetAnswer())
}

func totalOf(key string) *ebbv1.Question {
	return &ebbv1.Question{Namespace: LedgerNamespace, Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: 1},
	}}}
}

func total(a *ebbv1.Answer) (float64, error) {
	if e := proto.FromWire(a.GetError()); e != nil {
		return 0, e
	}
	return a.GetDistribution().GetZ(), nil
}
