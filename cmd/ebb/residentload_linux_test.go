package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"
)

// residentLoad is the name of the program that sends requests: residentLoad GRPC HTTP SEED KINDS. It sends until its
// input ends, and prints a loadReport.
const residentLoad = "ebb-resident-load"

func init() {
	testCommands[residentLoad] = func() {
		if err := sendLoad(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// loadReport is what was sent, in bytes.
type loadReport struct {
	Sent, Answers int64             // in all, of requests that were admitted
	Most          int64             // of requests at a time
	Counts        map[string][2]int // by kind: requests that were admitted, and that were refused for want of memory
}

func sendLoad(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("%d arguments: GRPC HTTP SEED KINDS are expected", len(args))
	}
	n, leave, err := residentAt(args[0], args[1])
	if err != nil {
		return err
	}
	defer leave()
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	kinds := telling
	if args[3] == "all" {
		kinds = append(append([]residentKind(nil), telling...), questioning...)
	}
	l := &callers{node: n, kinds: kinds, report: loadReport{Counts: make(map[string][2]int)}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	for i := range residentAtOnce {
		running.Go(func() { l.call(ctx, i, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	running.Wait()
	return json.NewEncoder(os.Stdout).Encode(l.report)
}

// callers send requests at the same time.
type callers struct {
	node  *residentNode
	kinds []residentKind

	mu     sync.Mutex // guards what follows
	report loadReport
	now    [residentAtOnce]int64 // bytes of the request of each caller that was admitted last
}

// call is one of the callers. It sends one request after the other until ctx ends.
func (l *callers) call(ctx context.Context, caller int, r *rand.Rand) {
	for ctx.Err() == nil {
		asking, done := context.WithTimeout(context.Background(), 5*time.Second)
		out := l.kinds[r.IntN(len(l.kinds))].ask(asking, l.node, r)
		done()
		l.count(caller, out)
	}
}

func (l *callers) count(caller int, out outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.report.Counts[out.kind]
	defer func() { l.report.Counts[out.kind] = c }()
	if !out.admitted {
		c[1]++
		return
	}
	c[0]++
	l.report.Sent += int64(out.sent)
	l.report.Answers += int64(out.answered)
	l.now[caller] = int64(out.sent)
	atOnce := int64(0)
	for _, n := range l.now {
		atOnce += n
	}
	l.report.Most = max(l.report.Most, atOnce)
}
