package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Mode is how the cluster under attack is set up.
type Mode string

// Modes of clusters.
const (
	Open   Mode = "open"   // out of the box: neither tokens nor TLS
	Tokens Mode = "tokens" // one node, on which the first token was made while it ran
	Sealed Mode = "tls"    // certificates of clients are required, gossip has keys
	Three  Mode = "three"  // three nodes, out of the box
)

// Modes are all modes, in the order in which they are attacked.
var Modes = []Mode{Open, Tokens, Sealed, Three}

// Attempt is one way to do harm.
type Attempt struct {
	Group string // of attempts on the same thing
	Name  string
	Mode  Mode
	// Grows is by how many bytes the resident memory of a node may grow during the attempt.
	Grows int64
	// Within is how long the attempt may take.
	Within time.Duration
	// Answers is how long a probe after the attempt may take.
	Answers time.Duration
	// Fresh restarts the nodes before the attempt, so that they begin with the memory of idle nodes.
	Fresh bool
	// Long leaves the attempt out of a run with --short.
	Long bool
	// Run makes the attempt. It returns nil if the cluster held, a breach if it did not, and any other error if the
	// attempt could not be made.
	Run func(ctx context.Context, a *Arena) error
}

const (
	mib = 1 << 20
	// growsDefault and withinDefault are the bounds of an attempt that names none.
	growsDefault  = 160 * mib
	withinDefault = 20 * time.Second
	// refreshWithin bounds a restart of the nodes.
	refreshWithin = time.Minute
	// probeWithin bounds the answer to a probe after an attempt that names no bound.
	probeWithin = 2 * time.Second
	// floodProbeWithin is the bound for floods of streams: the node first works off what it has read from up to 400
	// connections. On two cores that are otherwise idle, a probe takes 0.4 to 1 s.
	floodProbeWithin = 5 * time.Second
)

// breach is what an attempt has achieved.
type breach struct{ what string }

func (b breach) Error() string { return b.what }

// broke reports what an attempt has achieved.
func broke(format string, args ...any) error { return breach{fmt.Sprintf(format, args...)} }

// Verdict is the result of an attempt.
type Verdict struct {
	Attempt *Attempt
	Held    bool
	Detail  string // why it did not hold; empty otherwise
	Took    time.Duration
	Grew    int64 // bytes, of the node that grew most
}

// Target is the cluster under attack, as judge uses it.
type Target interface {
	// Refresh restarts the nodes.
	Refresh(ctx context.Context) error
	// MarkMemory begins to measure the peak of memory.
	MarkMemory() error
	// Growth returns the largest growth of a node's memory since MarkMemory, in bytes.
	Growth() (bytes int64, err error)
	// Probe asks all listeners for their health.
	Probe(ctx context.Context) error
}

// judge makes an attempt, and returns its verdict.
func judge(ctx context.Context, t Target, a *Attempt, run func(context.Context) error) Verdict {
	v := Verdict{Attempt: a}
	grows, within, answers := a.Grows, a.Within, cmp.Or(a.Answers, probeWithin)
	if grows == 0 {
		grows = growsDefault
	}
	if within == 0 {
		within = withinDefault
	}
	if a.Fresh {
		limited, cancel := context.WithTimeout(ctx, refreshWithin)
		defer cancel()
		if err := t.Refresh(limited); err != nil {
			v.Detail = "cannot restart the nodes: " + err.Error()
			return v
		}
	}
	if err := t.MarkMemory(); err != nil {
		v.Detail = "cannot measure memory: " + err.Error()
		return v
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, within+5*time.Second)
	err := run(limited)
	cancel()
	v.Took = time.Since(began)
	var achieved breach
	switch {
	case errors.As(err, &achieved):
		v.Detail = achieved.what
	case err != nil:
		v.Detail = "cannot be tried: " + err.Error()
	case v.Took > within:
		v.Detail = fmt.Sprintf("took %v of at most %v", v.Took.Round(time.Millisecond), within)
	}
	probing, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	if err := t.Probe(probing); err != nil {
		v.Detail = join(v.Detail, fmt.Sprintf("no answer to probes within %v: %v", answers, err))
	}
	grew, err := t.Growth()
	v.Grew = grew
	switch {
	case err != nil:
		v.Detail = join(v.Detail, "memory cannot be read: "+err.Error())
	case grew > grows:
		v.Detail = join(v.Detail, fmt.Sprintf("memory grew by %d MiB of at most %d", grew/mib, grows/mib))
	}
	v.Held = v.Detail == ""
	return v
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
