package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Read measures linearizable answers: the most probable bins of distributions.
type Read struct {
	Duration      time.Duration
	Distributions int // 1,000 if 0
	Bins          int // 260 if 0
	Top           int // 10 if 0
	Batch         int // questions in a request; 1 if 0
	Workers       int // requests in flight; 64 if 0
	// Alone sends each call as a request of its own. Otherwise the client may let single questions share a request, as
	// it does by default.
	Alone bool
}

// ReadResult is what a run of Read measured.
type ReadResult struct {
	Answers         int64         `json:"answers"`
	Calls           int64         `json:"calls"` // calls of the client, which may have shared requests
	PerSecond       float64       `json:"answers_per_second"`
	CallsPerS       float64       `json:"calls_per_second"`
	ServerCPU       time.Duration `json:"server_cpu_ns"`
	PerServerCPUSec float64       `json:"answers_per_server_cpu_second"`
	Latency         Quantiles     `json:"latency"`
}

func (r Read) withDefaults() Read {
	or(&r.Duration, 10*time.Second)
	or(&r.Distributions, 1_000)
	or(&r.Bins, 260)
	or(&r.Top, 10)
	or(&r.Batch, 1)
	or(&r.Workers, 64)
	return r
}

// Prepare writes the distributions about which Run asks.
func (r Read) Prepare(ctx context.Context, t Target) error {
	r = r.withDefaults()
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	w := c.Writer(client.WriterOptions{})
	p := newPairs(1, r.Distributions, r.Bins)
	for _, key := range p.keys {
		// counts that fall with the rank, as in real categories (1/rank), in random order
		for rank, i := range p.rng.Perm(r.Bins) {
			if err := w.Add(ctx, key, p.bins[i], 1_000/float64(1+rank)); err != nil {
				return err
			}
		}
	}
	return w.Close(ctx)
}

// question asks for the most probable bins of the distribution of a key.
func (r Read) question(key string) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: uint32(r.Top)},
	}}}
}

func (r Read) options() []client.AskOption {
	if r.Alone {
		return []client.AskOption{client.Alone()}
	}
	return nil
}

// Run asks from many workers. Each worker asks again as soon as it has its answer.
func (r Read) Run(ctx context.Context, t Target) (ReadResult, error) {
	r = r.withDefaults()
	c, err := t.dial(ctx)
	if err != nil {
		return ReadResult{}, err
	}
	defer c.Close()
	before, err := t.CPU(ctx)
	if err != nil {
		return ReadResult{}, err
	}
	start := time.Now()
	until := start.Add(r.Duration)
	var calls atomic.Int64
	var all Latencies
	errs := make(chan error, r.Workers)
	for worker := range r.Workers {
		p := newPairs(uint64(worker), r.Distributions, 1)
		go func() {
			for {
				sent := time.Now()
				if sent.After(until) {
					errs <- nil
					return
				}
				if err := r.once(ctx, c, p); err != nil {
					errs <- err
					return
				}
				all.Add(time.Since(sent))
				calls.Add(1)
			}
		}()
	}
	for range r.Workers {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		return ReadResult{}, err
	}
	took := time.Since(start)
	after, err := t.CPU(ctx)
	if err != nil {
		return ReadResult{}, err
	}
	n := calls.Load()
	answers := n * int64(r.Batch)
	return ReadResult{
		Answers: answers, Calls: n, PerSecond: float64(answers) / took.Seconds(), CallsPerS: float64(n) / took.Seconds(),
		ServerCPU: after - before, PerServerCPUSec: float64(answers) / (after - before).Seconds(), Latency: all.Quantiles(),
	}, nil
}

// once asks one batch of questions.
func (r Read) once(ctx context.Context, c *client.Client, p *pairs) error {
	questions := make([]*ebbv1.Question, r.Batch)
	for i := range questions {
		key, _ := p.next()
		questions[i] = r.question(key)
	}
	return r.ask(ctx, c, questions)
}

// ask asks, and checks that the answers agree with what Prepare wrote.
func (r Read) ask(ctx context.Context, c *client.Client, questions []*ebbv1.Question) error {
	answers, err := c.Ask(ctx, questions, r.options()...)
	if err == nil {
		err = checkAnswers(answers)
	}
	if err != nil {
		return err
	}
	for _, a := range answers {
		if n := len(a.GetDistribution().GetBins()); n != min(r.Top, r.Bins) {
			return fmt.Errorf("an answer of %d bins, want %d", n, r.Top)
		}
	}
	return nil
}

// Paced measures the latency of single questions, perSecond of them a second.
func (r Read) Paced(ctx context.Context, t Target, perSecond int) (Quantiles, error) {
	r = r.withDefaults()
	r.Batch = 1
	c, err := t.dial(ctx)
	if err != nil {
		return Quantiles{}, err
	}
	defer c.Close()
	var all Latencies
	var mu sync.Mutex // guards first and p
	var first error
	p := newPairs(1, r.Distributions, 1)
	pace(perSecond, r.Duration, ctx.Done(), func(sent time.Time) {
		mu.Lock()
		key, _ := p.next()
		mu.Unlock()
		err := r.ask(ctx, c, []*ebbv1.Question{r.question(key)})
		all.Add(time.Since(sent))
		if err != nil {
			mu.Lock()
			first = err
			mu.Unlock()
		}
	})
	return all.Quantiles(), first
}
