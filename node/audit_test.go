package node

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

func TestVerdict(t *testing.T) {
	type sums = map[string]uint64
	for _, c := range []struct {
		name      string
		sums      sums
		voters    int
		minority  []string
		undecided bool
	}{
		{"all alike", sums{"a": 1, "b": 1, "c": 1}, 3, nil, false},
		{"one differs", sums{"a": 1, "b": 2, "c": 1}, 3, []string{"b"}, false},
		{"one differs, one says nothing", sums{"a": 1, "b": 2}, 3, nil, true},
		{"all differ", sums{"a": 1, "b": 2, "c": 3}, 3, nil, true},
		{"two of five differ", sums{"a": 1, "b": 2, "c": 1, "d": 3, "e": 1}, 5, []string{"b", "d"}, false},
		{"three of five, and two are silent", sums{"a": 1, "b": 1, "c": 1}, 5, nil, false},
		{"two against two", sums{"a": 1, "b": 1, "c": 2, "d": 2}, 4, nil, true},
		{"two voters differ", sums{"a": 1, "b": 2}, 2, nil, true},
		{"nobody says anything", nil, 3, nil, false},
		{"one says something", sums{"a": 1}, 3, nil, false},
	} {
		minority, undecided := verdict(c.sums, c.voters)
		if !slices.Equal(minority, c.minority) || undecided != c.undecided {
			t.Errorf("%s: %v, undecided %v", c.name, minority, undecided)
		}
	}
}

// An idle shard is left alone when all voters have agreed about all of its parts, and not before.
func TestAuditsOfAnIdleShardEnd(t *testing.T) {
	for _, c := range []struct {
		name        string
		idle, alike func(audit int) bool
		left        int // the audit after which it is left alone; -1: never
	}{
		{"all agree", func(n int) bool { return n > 0 }, func(int) bool { return true }, auditParts - 1},
		{"one voter was down at first", func(n int) bool { return n > 0 }, func(n int) bool { return n > 5 }, auditParts + 5},
		{"one voter is down", func(n int) bool { return n > 0 }, func(int) bool { return false }, -1},
		{"one part differed", func(n int) bool { return n > 0 }, func(n int) bool { return n != 7 }, auditParts + 7},
		{"something was written", func(n int) bool { return n > 0 && n != 4 }, func(int) bool { return true }, auditParts + 3},
		{"it is never idle", func(int) bool { return false }, func(int) bool { return true }, -1},
	} {
		r, left := &auditRound{}, -1
		parts := map[uint32]bool{}
		for n := 0; n < 3*auditParts && left < 0; n++ {
			parts[r.part] = true
			r.over(uint64(n), c.idle(n), c.alike(n))
			if r.compared(uint64(n)) {
				left = n
			}
		}
		if left != c.left || len(parts) != auditParts || r.compared(1000) {
			t.Errorf("%s: left alone after audit %d, with %d parts compared; want %d", c.name, left, len(parts), c.left)
		}
	}
}

// An audit waits for a voter that is late, and not for one that has nothing to say: it does not answer, or it does and
// has computed nothing.
func TestAuditWaitsForNobodyWhoIsAbsent(t *testing.T) {
	const index = 7
	known := &ebbv1.AuditedResponse{Known: true, Checksum: 5}
	for _, c := range []struct {
		name string
		says func(ctx context.Context, since time.Duration) (*ebbv1.AuditedResponse, error)
		most time.Duration
		want map[string]uint64
	}{
		{"it is down", func(context.Context, time.Duration) (*ebbv1.AuditedResponse, error) {
			return nil, proto.ErrUnreachable
		}, 3 * time.Second, map[string]uint64{"a": 5, "b": 5}},
		{"it hangs", func(ctx context.Context, _ time.Duration) (*ebbv1.AuditedResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, 4 * time.Second, map[string]uint64{"a": 5, "b": 5}},
		{"it had no time", func(context.Context, time.Duration) (*ebbv1.AuditedResponse, error) {
			return &ebbv1.AuditedResponse{Absent: true}, nil
		}, time.Second, map[string]uint64{"a": 5, "b": 5}},
		{"it is late", func(_ context.Context, since time.Duration) (*ebbv1.AuditedResponse, error) {
			if since < 10*time.Second {
				return &ebbv1.AuditedResponse{}, nil
			}
			return &ebbv1.AuditedResponse{Known: true, Checksum: 6}, nil
		}, 11 * time.Second, map[string]uint64{"a": 5, "b": 5, "c": 6}},
		{"it starts again meanwhile", func(_ context.Context, since time.Duration) (*ebbv1.AuditedResponse, error) {
			if since < time.Second {
				return nil, proto.ErrUnreachable
			}
			return known, nil
		}, 2 * time.Second, map[string]uint64{"a": 5, "b": 5, "c": 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), auditMax)
				defer cancel()
				start := time.Now()
				a := &auditor{node: "a", found: newAudits(auditsAtOnce), ask: func(ctx context.Context, node string, _ *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
					if node == "b" {
						return known, nil
					}
					return c.says(ctx, time.Since(start))
				}}
				a.found.note(1, finding{index: index, sum: 5})
				r := &replica{member: newMember(memberConfig{group: 1}), state: newShardMachine(1, func() shard.Memory { return shard.Heap{} }, nil, nil, nil, nil)}
				if got := a.gather(ctx, r, []string{"a", "b", "c"}, index); !maps.Equal(got, c.want) {
					t.Errorf("%v, want %v", got, c.want)
				}
				if took := time.Since(start); took > c.most {
					t.Errorf("it takes %v, want %v at most", took, c.most)
				}
			})
		})
	}
}
