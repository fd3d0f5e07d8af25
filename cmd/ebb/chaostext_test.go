package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/chaos/swarm"
)

// A soak that is too short to say whether anything grows says so at its end.
func TestUnjudgedGrowth(t *testing.T) {
	of := func(lasted time.Duration, with func(*proc.Report)) *proc.Report {
		r := &proc.Report{Verdict: &swarm.Verdict{Virtual: lasted, Checks: map[string]int{}}, Rate: &proc.Rate{}}
		if with != nil {
			with(r)
		}
		return r
	}
	for name, c := range map[string]struct {
		r    *proc.Report
		want string
	}{
		"short":       {of(3*time.Minute, nil), "growth is not judged: it takes 4m0s of the second half of a run, which was 1m30s here; --for 10m is long enough"},
		"unwatched":   {of(time.Hour, nil), "growth is not judged: no process could be watched through the second half"},
		"judged":      {of(time.Hour, func(r *proc.Report) { r.Trends = []proc.Trend{{Node: "ebb-0"}} }), ""},
		"interrupted": {of(time.Minute, func(r *proc.Report) { r.Interrupted = true }), ""},
		"failed":      {of(time.Minute, func(r *proc.Report) { r.Verdict.Breaches = []swarm.Breach{{Invariant: "rate"}} }), ""},
		"no soak":     {of(time.Minute, func(r *proc.Report) { r.Rate = nil }), ""},
	} {
		var out bytes.Buffer
		if err := printProc(&session{term: terminal{out: &out}}, c.r); err != nil {
			t.Fatal(err)
		}
		said, lead := out.String(), procPage(c.r).Lead
		if c.want == "" {
			if strings.Contains(said+lead, "growth is not") {
				t.Errorf("%s: %s, and on the page %s", name, said, lead)
			}
			continue
		}
		if !strings.HasSuffix(said, "\n"+c.want+"\n") || !strings.HasSuffix(lead, "; "+c.want) {
			t.Errorf("%s: %s, and on the page %s", name, said, lead)
		}
	}
}

// A trial in which something took too long and nothing was lost has a verdict and an exit code of its own.
func TestLateTrials(t *testing.T) {
	for name, c := range map[string]struct {
		broken []string
		late   bool
		word   string
	}{
		"held":             {nil, false, "held"},
		"slow":             {[]string{"rate"}, true, "late"},
		"late in two ways": {[]string{"healed-writes", "restarts"}, true, "late"},
		"lost":             {[]string{"acked-kept"}, false, "failed"},
		"late and lost":    {[]string{"rate", "counted-once"}, false, "failed"},
		"stale":            {[]string{"read-fresh", "rate"}, false, "failed"},
	} {
		r := &proc.Report{Soak: true, Verdict: &swarm.Verdict{Checks: map[string]int{}}}
		for _, i := range c.broken {
			r.Verdict.Breaches = append(r.Verdict.Breaches, swarm.Breach{Invariant: i})
		}
		var page bytes.Buffer
		if err := procPage(r).HTML(&page); err != nil {
			t.Fatal(err)
		}
		if r.Late() != c.late || !strings.Contains(page.String(), "<h1>ebb chaos soak: <span class=") ||
			!strings.Contains(page.String(), ">"+c.word+"</span>") {
			t.Errorf("%s: late %v, page %.300s", name, r.Late(), page.String()[strings.Index(page.String(), "<h1>"):])
		}
	}
	r := &proc.Report{Interrupted: true, Verdict: &swarm.Verdict{Breaches: []swarm.Breach{{Invariant: "rate"}}}}
	if r.Late() {
		t.Error("what was interrupted has not looked whether something was lost")
	}
	if code := codeOf(fmt.Errorf("once: %w; logs", errLate)); code != exitLate {
		t.Errorf("exit code %d, want %d", code, exitLate)
	}
}
