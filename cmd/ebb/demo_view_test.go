package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// TestDemoFitsATerminal: whatever there is to say, a frame fits 80 by 24, its
// height stays, and its first line is whole.
func TestDemoFitsATerminal(t *testing.T) {
	nodes := []nodeFrame{{"ebb-0", "up", 17}, {"ebb-1", "cut off", 0}, {"ebb-2", "dead", 0}}
	frames := map[string]frame{
		"before the first answer": {},
		"no answer":               {problem: "no shard has a leader"},
		"one bin":                 {answer: answerOf(1, 1)},
		"full":                    {answer: answerOf(demoTop, 123_456), rate: 100_000, sent: 12_345_678, acked: 12_345_678},
		"paused":                  {answer: answerOf(demoTop, 123_456), paused: true, sent: 12_345_678, acked: 12_345_678},
		"old answer":              {answer: answerOf(demoTop, 1), age: 1300 * time.Millisecond, problem: "no leader"},
	}
	for name, f := range frames {
		t.Run(name, func(t *testing.T) {
			f.nodes, f.halfLife, f.grpc, f.http = nodes, 30*time.Second, "127.0.0.1:65534", "127.0.0.1:65535"
			f.last = "one node is down already; with another there would be no majority: h heals"
			lines := strings.Split(strings.TrimSuffix(f.render(), "\n"), "\n")
			if len(lines) != 23 {
				t.Errorf("%d lines, not 23:\n%s", len(lines), f.render())
			}
			for _, line := range lines {
				if clipped(line, 80) != line {
					t.Errorf("wider than 80: %q", line)
				}
			}
			if f.paused && !strings.HasSuffix(lines[0], "paused") {
				t.Errorf("not shown as paused: %q", lines[0])
			}
		})
	}
}

// TestDemoLineShowsTheBurst: the country that bursts is in the line, marked, wherever it stands.
func TestDemoLineShowsTheBurst(t *testing.T) {
	for code, want := range map[string]string{
		"AA": "  AA 7.00!  - 7.00  CC 7.00  DD 7.00  EE 7.00  [",
		"GG": "  AA 7.00  - 7.00  CC 7.00  DD 7.00  EE 7.00  GG 7.00!  [",
		"ZZ": "  AA 7.00  - 7.00  CC 7.00  DD 7.00  EE 7.00  ZZ <7.00!  [",
		"":   "  AA 7.00  - 7.00  CC 7.00  DD 7.00  EE 7.00  [",
	} {
		f := frame{answer: answerOf(demoTop, 7), surprise: surprise{code: code}}
		if got := f.line(); !strings.Contains(got, want) {
			t.Errorf("%q bursts: no %q in %q", code, want, got)
		}
		if f.paused = true; strings.Contains(f.line(), "!") {
			t.Errorf("paused: %q", f.line())
		}
	}
	if got := (frame{answer: answerOf(0, 0), surprise: surprise{code: "MY"}}).line(); !strings.Contains(got, "MY!") {
		t.Errorf("no country yet: %q", got)
	}
}

// TestDemoNamesItsDoors: gRPC always, HTTP if it is on.
func TestDemoNamesItsDoors(t *testing.T) {
	f := frame{grpc: "127.0.0.1:1"}
	if got := strings.Join(f.doors(), "|"); got != "try:  ebb --addr 127.0.0.1:1 top country" {
		t.Error(got)
	}
	f.http = "127.0.0.1:2"
	if got := f.doors(); len(got) != 2 || got[1] != "try:  curl 'http://127.0.0.1:2/nmostprobable?distribution=country&N=5'" {
		t.Error(got)
	}
}

// answerOf is a distribution of n equal bins.
func answerOf(n int, count float64) *ebbv1.Answer {
	d := &ebbv1.Distribution{Found: true, Z: count * float64(n)}
	for i := range n {
		bin := fmt.Appendf(nil, "%c%c", 'A'+i, 'A'+i)
		if i == 1 {
			bin = []byte("-")
		}
		d.Bins = append(d.Bins, &ebbv1.Bin{Bin: bin, Count: count, P: 1 / float64(n), PHigh: 1})
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}}
}

// TestDemoKeepsAMajority: no key takes the last node that a majority needs.
func TestDemoKeepsAMajority(t *testing.T) {
	for _, c := range []struct {
		up, nodes int
		want      bool
	}{{3, 3, true}, {2, 3, false}, {1, 3, false}, {5, 5, true}, {4, 5, true}, {3, 5, false}, {4, 4, true}, {3, 4, false}, {1, 1, false}} {
		if got := spare(c.up, c.nodes); got != c.want {
			t.Errorf("spare(%d of %d) = %v", c.up, c.nodes, got)
		}
	}
}
