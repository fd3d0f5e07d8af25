package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// burstNamespace has no decay, so that each lost increment shows.
const burstNamespace = "bench-burst"

// Burst measures bursts of increments, one a second, to more distributions than fit in a cache, with single questions
// at the same time. Then it checks all counts. Forget Table's figure is a million distributions and 3,000 increments a
// second.
type Burst struct {
	Duration      time.Duration // how long bursts are sent
	Distributions int           // 1,100,000 if 0
	Bins          int           // number of different bins; 10 if 0
	Size          int           // increments in a burst; 3,000 if 0
	Reads         int           // questions a second; 1,000 if 0
	// Say, if not nil, is called with a description of each step.
	Say func(what string)
}

// BurstResult is what a run of Burst measured.
type BurstResult struct {
	Distributions int       `json:"distributions"`
	Sent          int64     `json:"sent"`      // while filling, and in bursts
	Counted       int64     `json:"counted"`   // sum of all counts in the cluster
	Different     int       `json:"different"` // distributions whose count differs from what was sent
	Bursts        Quantiles `json:"bursts"`    // from the first increment to the last acknowledgement
	Reads         Quantiles `json:"reads"`
}

func (b Burst) withDefaults() Burst {
	or(&b.Duration, 10*time.Second)
	or(&b.Distributions, 1_100_000)
	or(&b.Bins, 10)
	or(&b.Size, 3_000)
	or(&b.Reads, 1_000)
	if b.Say == nil {
		b.Say = func(string) {}
	}
	return b
}

// burstRun is the state of one run of Burst.
type burstRun struct {
	Burst
	c    *client.Client
	w    *client.Writer
	mu   sync.Mutex // guards what follows
	errs []error
	rng  *rand.Rand
	sent []uint32 // increments sent, by distribution
}

// Run creates a namespace of its own, fills it, sends the bursts, and checks the counts.
func (b Burst) Run(ctx context.Context, t Target) (BurstResult, error) {
	b = b.withDefaults()
	c, err := t.dial(ctx)
	if err != nil {
		return BurstResult{}, err
	}
	defer c.Close()
	if _, err := c.CreateNamespace(ctx, client.Namespace{Name: burstNamespace, Decay: client.DecayNone}); err != nil {
		return BurstResult{}, err
	}
	run := &burstRun{Burst: b, c: c, rng: rand.New(rand.NewPCG(1, 0x6275727374)), sent: make([]uint32, b.Distributions)}
	run.w = c.Writer(client.WriterOptions{Namespace: burstNamespace, NoAggregate: true, OnError: run.failed})
	r := BurstResult{Distributions: b.Distributions}
	b.Say(fmt.Sprintf("filling %d distributions", b.Distributions))
	for i := range run.sent {
		run.add(ctx, i)
	}
	if err := errors.Join(run.w.Flush(ctx), run.err()); err != nil {
		return r, err
	}
	b.Say(fmt.Sprintf("bursts of %d, %d questions/s", b.Size, b.Reads))
	var bursts, reads Latencies
	var wg sync.WaitGroup
	wg.Go(func() { pace(b.Reads, b.Duration, ctx.Done(), func(sent time.Time) { run.read(ctx, sent, &reads) }) })
	pace(1, b.Duration, ctx.Done(), func(sent time.Time) { run.burst(ctx, sent, &bursts) })
	wg.Wait()
	if err := errors.Join(run.w.Close(ctx), run.err()); err != nil {
		return r, err
	}
	r.Bursts, r.Reads = bursts.Quantiles(), reads.Quantiles()
	b.Say("counting everything again")
	err = run.count(ctx, &r)
	return r, err
}

func (r *burstRun) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) < 4 {
		r.errs = append(r.errs, err)
	}
}

func (r *burstRun) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

func (r *burstRun) draw() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(r.Distributions)
}

func burstKey(i int) string { return "clicks/link/" + strconv.Itoa(i) }

// add adds one event to a distribution.
func (r *burstRun) add(ctx context.Context, i int) {
	r.mu.Lock()
	n := r.sent[i]
	r.sent[i]++
	r.mu.Unlock()
	if err := r.w.Add(ctx, burstKey(i), "bin-"+strconv.Itoa(int(n)%r.Bins), 1); err != nil {
		r.failed(err)
	}
}

func (r *burstRun) burst(ctx context.Context, sent time.Time, all *Latencies) {
	for range r.Size {
		r.add(ctx, r.draw())
	}
	if err := r.w.Flush(ctx); err != nil {
		r.failed(err)
	}
	all.Add(time.Since(sent))
}

func (r *burstRun) read(ctx context.Context, sent time.Time, all *Latencies) {
	answers, err := r.c.Ask(ctx, []*ebbv1.Question{burstQuestion(r.draw())})
	all.Add(time.Since(sent))
	if err == nil {
		err = checkAnswers(answers)
	}
	if err != nil {
		r.failed(err)
	}
}

func burstQuestion(i int) *ebbv1.Question {
	return &ebbv1.Question{Namespace: burstNamespace, Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(burstKey(i))}, Select: &ebbv1.DistributionQuestion_Top{Top: 10},
	}}}
}

func checkAnswers(answers []*ebbv1.Answer) error {
	for _, a := range answers {
		if e := proto.FromWire(a.GetError()); e != nil {
			return e
		}
	}
	return nil
}

// count reads the counts of all distributions.
func (r *burstRun) count(ctx context.Context, out *BurstResult) error {
	const batch = 500
	for from := 0; from < r.Distributions; from += batch {
		questions := make([]*ebbv1.Question, min(batch, r.Distributions-from))
		for i := range questions {
			questions[i] = burstQuestion(from + i)
		}
		answers, err := r.c.Ask(ctx, questions)
		if err == nil {
			err = checkAnswers(answers)
		}
		if err != nil {
			return err
		}
		for i, a := range answers {
			counted, sent := int64(a.GetDistribution().GetZ()), int64(r.sent[from+i])
			out.Sent, out.Counted = out.Sent+sent, out.Counted+counted
			if counted != sent {
				out.Different++
			}
		}
	}
	return nil
}
