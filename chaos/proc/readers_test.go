package proc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// What a read may say, at its edges: no less than was acknowledged, or read, before it was asked, and no more than was
// sent.
func TestLedgerJudgesReads(t *testing.T) {
	var l Ledger
	l.Begin([]string{"a", "a", "a", "a", "a"})
	l.End([]string{"a", "a"}, Acknowledged)
	l.End([]string{"a"}, Unknown)
	l.End([]string{"a"}, Refused)
	before := l.Known("a")
	judge := func(known Known, got float64) string {
		var names []string
		for name := range l.Judge("a", known, got) {
			names = append(names, name)
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	for _, c := range []struct {
		read float64
		want string
	}{{1, "read-fresh"}, {2, ""}, {4, ""}, {5, "read-possible"}} { // two acknowledged, one unknown, one under way
		if got := judge(before, c.read); got != c.want {
			t.Errorf("%v is read: %q, want %q", c.read, got, c.want)
		}
	}
	if got := judge(l.Known("a"), 3); got != "read-monotone" {
		t.Errorf("3 is read after 5: %q", got)
	}
	l.End([]string{"a"}, Acknowledged)
	if got := judge(before, 2); got != "" {
		t.Errorf("what was acknowledged after a read was asked need not be in it: %q", got)
	}
	if got := judge(Known{}, 0); got != "" || len(l.Judge("b", l.Known("b"), 0)) > 0 || len(l.Judge("b", l.Known("b"), 1)) != 1 {
		t.Errorf("a key that nobody has written, and one read before it was: %q", got)
	}
}

// A node that answers with what it knew when it was stopped is found, with the story; refusals, and answers that are
// right, are not.
func TestReadersFindAStaleAnswer(t *testing.T) {
	var l Ledger
	l.Begin([]string{"a"})
	r := &readers{
		ledger: &l, keys: [][]string{{"a"}}, now: func() time.Duration { return 3 * time.Second }, amid: func() string { return `"ebb-1 stops" was the last that had happened` },
		reads: map[Manner]*Reads{BySDK: {}, AtLeader: {}},
	}
	answers := func(got float64, err error) func(context.Context, string) (float64, error) {
		return func(context.Context, string) (float64, error) { return got, err }
	}
	r.read(t.Context(), BySDK, "", answers(0, nil))
	stale := l.Known("a")
	l.End([]string{"a"}, Acknowledged)
	r.read(t.Context(), BySDK, "", answers(1, nil))
	r.read(t.Context(), AtLeader, "ebb-1", answers(0, errors.New("it does not lead")))
	if checked, wrong := r.take(); checked != 2 || len(wrong) != 0 || r.reads[AtLeader].Refused != 1 {
		t.Errorf("%d checked, %v, %+v", checked, wrong, r.reads[AtLeader])
	}
	r.read(t.Context(), AtLeader, "ebb-1", answers(float64(stale.acked), nil))
	_, wrong := r.take()
	if len(wrong) != 2 || wrong[0].invariant != "read-fresh" || wrong[1].invariant != "read-monotone" {
		t.Fatalf("%+v", wrong)
	}
	for _, word := range []string{"a: 0 is read, 1 was acknowledged before", "asked at ebb-1, which says that it leads", "at 3.000s", `"ebb-1 stops"`} {
		if !strings.Contains(wrong[0].what, word) {
			t.Errorf("%q does not say %q", wrong[0].what, word)
		}
	}
}
