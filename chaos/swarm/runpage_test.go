package swarm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The page of a run of an hour with many faults has a lane for each family, and shows which nodes led. Its bars stand
// for several seconds and are as high as their mean.
func TestRunPage(t *testing.T) {
	v := &Verdict{Plan: Plan{Nodes: 3, Shards: 2}, Virtual: time.Hour, Faults: map[string]int{"kill": 60}, Checks: map[string]int{"acked-kept": 60}}
	for second := range 3600 {
		v.Seconds = append(v.Seconds, Second{Acked: second, Reads: 3})
	}
	for minute := range 60 {
		at := time.Duration(minute) * time.Minute
		v.Spans = append(v.Spans, Span{Fault: "kill", From: at, To: at + 10*time.Second})
		v.Reigns = append(v.Reigns, Reign{Shard: 2, Node: fmt.Sprintf("ebb-%d", minute%3), Term: uint64(minute), From: at, To: at + time.Minute})
	}
	var b bytes.Buffer
	if err := (&RunPage{Title: "a soak", Lead: "60 faults", Command: "ebb chaos soak", Verdict: v}).HTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"a soak: <span class=\"good\">held", "kill, 59m0s to 59m10s", "ebb-2 leads shard 2 in term 59", "seconds 3588 to 3599: 3593 commands acknowledged a second, 3 reads answered"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(page, `width="-`) {
		t.Error("something on the page has a negative width")
	}
	if n := strings.Count(page, `class="acked"`); n != 300 {
		t.Errorf("%d bars, want 300", n)
	}
	if n := strings.Count(page, "<rect class=\"fault\""); n != 60 {
		t.Errorf("%d faults are drawn, want 60", n)
	}
}
