package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func (e *fakeCluster) keys(node string) *Keys { return NewKeys(e.router(node), e.coordinator(node)) }

// write adds 1 to a bin of a key.
func (e *fakeCluster) write(key []byte, bin string) {
	e.t.Helper()
	req := &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{{Key: key, Bin: []byte(bin)}}}
	if resp, err := e.router("ebb-0").Increment(e.t.Context(), req); err != nil || resp.GetApplied() != 1 {
		e.t.Fatalf("increment: %v, %v", resp, err)
	}
}

// z is everything ever added to a key.
func (e *fakeCluster) z(key []byte) float64 {
	e.t.Helper()
	q := &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{key}}}}
	resp, err := e.coordinator("ebb-0").Ask(e.t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil || resp.Answers[0].GetError() != nil {
		e.t.Fatalf("ask: %v, %v", resp, err)
	}
	return resp.Answers[0].GetDistribution().GetZ()
}

func (e *fakeCluster) list(q *ebbv1.KeysQuestion) *ebbv1.Answer {
	e.t.Helper()
	question := &ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: q}}
	resp, err := e.coordinator("ebb-0").Ask(e.t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{question}})
	if err != nil || resp.Answers[0].GetError() != nil {
		e.t.Fatalf("ask: %v, %v", resp, err)
	}
	return resp.Answers[0]
}

// A list goes over all shards, in pages that lose and repeat nothing; the hottest keys are those of all shards.
func TestKeysOfAllShards(t *testing.T) {
	e := newFakeCluster(t, 8)
	var names []string
	for i := range 50 {
		name := fmt.Sprintf("link/%02d", i)
		names = append(names, name)
		for range i + 1 {
			e.write([]byte(name), "US")
		}
	}
	var got []string
	for after := ""; ; after = got[len(got)-1] {
		list := e.list(&ebbv1.KeysQuestion{Pattern: []byte("link/*"), Limit: 7, After: []byte(after)})
		if list.GetCoverage().GetShardsAnswered() != 8 {
			t.Fatalf("coverage %v", list.GetCoverage())
		}
		if n := list.GetKeys().GetMatched(); n != uint64(50-len(got)) {
			t.Fatalf("%d of %d matched", n, 50-len(got))
		}
		if len(list.GetKeys().GetKeys()) == 0 {
			break
		}
		for _, info := range list.GetKeys().GetKeys() {
			got = append(got, string(info.GetKey()))
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("listed %v", got)
	}
	hot := e.list(&ebbv1.KeysQuestion{Order: ebbv1.KeyOrder_KEY_ORDER_TOTAL, Limit: 3}).GetKeys()
	for i, info := range hot.GetKeys() {
		if want := names[49-i]; string(info.GetKey()) != want || info.GetTotal().GetValue() != float64(50-i) {
			t.Errorf("number %d is %s with %g, not %s", i, info.GetKey(), info.GetTotal().GetValue(), want)
		}
	}
}

// A pattern makes one answer of all keys that match, on whatever shards.
func TestPatternsOverShards(t *testing.T) {
	e := newFakeCluster(t, 8)
	for i := range 20 {
		e.write(fmt.Appendf(nil, "link/%d", i), fmt.Sprintf("bin-%d", i%3))
	}
	e.write([]byte("other"), "x")
	ask := &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("other"), []byte("link/1")}, Patterns: [][]byte{[]byte("link/*")}}
	q := &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: ask}}
	resp, err := e.coordinator("ebb-1").Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil {
		t.Fatal(err)
	}
	a := resp.Answers[0]
	if d := a.GetDistribution(); d.GetZ() != 21 || d.GetMatched() != 20 || d.GetBinsTotal() != 4 || a.GetCoverage().GetShardsTotal() != 8 {
		t.Errorf("answered %v", a)
	}
}

// Keys of many shards are deleted by one request, once under one idempotency key.
func TestDeleteOverShards(t *testing.T) {
	e := newFakeCluster(t, 8)
	var keys [][]byte
	for i := range 20 {
		keys = append(keys, fmt.Appendf(nil, "link/%d", i))
		e.write(keys[i], "x")
	}
	req := &ebbv1.DeleteRequest{Keys: append(keys, []byte("nobody")), IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: 1}}
	for range 2 {
		resp, err := e.keys("ebb-2").Delete(t.Context(), req)
		if err != nil || resp.GetDeleted() != 20 || len(resp.GetRefused()) > 0 {
			t.Fatalf("delete: %v, %v", resp, err)
		}
		e.write(keys[3], "again") // the second request is a repetition, and must not take it away
	}
	if z := e.z(keys[3]); z != 2 {
		t.Errorf("z = %g", z)
	}
}

// What one shard refuses is said of its keys, and the others are done.
func TestExpireNamesWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 3)
		one, two := e.keyOn(1, 0), e.keyOn(2, 0)
		e.write(one, "x")
		e.write(two, "x")
		e.with(func() { e.leads[2] = "" })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := e.keys("ebb-0").Expire(ctx, &ebbv1.ExpireRequest{Keys: [][]byte{two, one}, TtlUs: 1e6})
		if err != nil || resp.GetChanged() != 1 || len(resp.GetRefused()) != 1 || resp.Refused[0].GetIndex() != 0 {
			t.Errorf("expire: %v, %v", resp, err)
		}
	})
}

func TestRename(t *testing.T) {
	e := newFakeCluster(t, 3)
	here, there := e.keyOn(1, 0), e.keyOn(2, 0)
	beside := e.keyOn(1, 1)
	e.write(here, "x")
	e.write(here, "y")
	rename := func(key, to []byte, overwrite bool) error {
		_, err := e.keys("ebb-1").Rename(t.Context(), &ebbv1.RenameRequest{Key: key, To: to, Overwrite: overwrite})
		return err
	}
	if err := rename(here, beside, false); err != nil || e.z(beside) != 2 || e.z(here) != 0 {
		t.Fatalf("within a shard: %v, %g and %g", err, e.z(beside), e.z(here))
	}
	if err := rename(beside, there, false); err != nil || e.z(there) != 2 || e.z(beside) != 0 {
		t.Fatalf("to another shard: %v, %g and %g", err, e.z(there), e.z(beside))
	}
	e.write(here, "z")
	if err := rename(there, here, false); !errors.Is(err, proto.ErrKeyExists) || e.z(here) != 1 || e.z(there) != 2 {
		t.Fatalf("over a key: %v, %g and %g", err, e.z(here), e.z(there))
	}
	if err := rename(there, here, true); err != nil || e.z(here) != 2 || e.z(there) != 0 {
		t.Fatalf("over a key that may go: %v, %g and %g", err, e.z(here), e.z(there))
	}
	if err := rename(there, beside, false); !errors.Is(err, proto.ErrKeyNotFound) {
		t.Errorf("of a key that is not there: %v", err)
	}
}

// busy is a peer that adds to a key each time that something is put or asked elsewhere: a key that is written while it
// moves.
type busy struct {
	Backend
	before func(*ebbv1.ApplyRequest)
}

func (b busy) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	b.before(req)
	return b.Backend.Apply(ctx, req)
}

// A key that is written while it moves takes along what was written; one that is written all the time stays where it
// is.
func TestRenameUnderWrites(t *testing.T) {
	for writes, want := range map[int]error{1: nil, 3: nil, 100: proto.ErrKeyBusy} {
		e := newFakeCluster(t, 3)
		from, to := e.keyOn(1, 0), e.keyOn(2, 0)
		e.write(from, "x")
		r := e.router("ebb-0")
		for i := range e.leads {
			e.leads[i] = "ebb-0"
		}
		written := 1
		r.cfg.Local = busy{replica{e, "ebb-0"}, func(req *ebbv1.ApplyRequest) {
			if req.Commands[0].GetShard() == 2 && written <= writes {
				written++
				e.write(from, "x")
			}
		}}
		_, err := NewKeys(r, e.coordinator("ebb-0")).Rename(t.Context(), &ebbv1.RenameRequest{Key: from, To: to})
		if !errors.Is(err, want) {
			t.Errorf("%d writes: %v", writes, err)
		}
		left, right := e.z(from), e.z(to)
		if want == nil && (left != 0 || right != float64(written)) || want != nil && (left != float64(written) || right != 0) {
			t.Errorf("%d writes: %g of %d are under the old name, %g under the new one", writes, left, written, right)
		}
	}
}

// When the new name is written as well, nothing is lost: both are there, and the error says so.
func TestRenameOfTwoKeysThatAreWritten(t *testing.T) {
	e := newFakeCluster(t, 3)
	from, to := e.keyOn(1, 0), e.keyOn(2, 0)
	e.write(from, "x")
	for i := range e.leads {
		e.leads[i] = "ebb-0"
	}
	r, seen := e.router("ebb-0"), 0
	r.cfg.Local = busy{replica{e, "ebb-0"}, func(req *ebbv1.ApplyRequest) {
		if seen++; seen == 2 { // the deletion of the old name
			e.write(from, "x")
			e.write(to, "y")
		}
	}}
	_, err := NewKeys(r, e.coordinator("ebb-0")).Rename(t.Context(), &ebbv1.RenameRequest{Key: from, To: to})
	if !errors.Is(err, proto.ErrKeyBusy) || e.z(from) != 2 || e.z(to) != 2 {
		t.Errorf("%v, %g and %g", err, e.z(from), e.z(to))
	}
}

// A shard whose clock is behind is waited for.
func TestRenameWaitsForTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 3)
		from, to := e.keyOn(1, 0), e.keyOn(2, 0)
		e.with(func() { e.stamp += 1000 })
		e.write(from, "x")
		e.with(func() { e.stamp -= 1000 })
		go func() {
			time.Sleep(50 * time.Millisecond)
			e.with(func() { e.stamp += 2000 })
		}()
		if _, err := e.keys("ebb-0").Rename(t.Context(), &ebbv1.RenameRequest{Key: from, To: to}); err != nil || e.z(to) == 0 {
			t.Errorf("%v, and %g has moved", err, e.z(to))
		}
	})
}

// led is a router of ebb-0, which leads all shards, that calls before ahead of each command.
func (e *fakeCluster) led(before func(*ebbv1.ApplyRequest)) *Keys {
	for i := range e.leads {
		e.leads[i] = "ebb-0"
	}
	r := e.router("ebb-0")
	r.cfg.Local = busy{replica{e, "ebb-0"}, before}
	return NewKeys(r, e.coordinator("ebb-0"))
}

// Two renames of one key to one name at once: whatever the order of their steps, what the key held is under one name or
// the other, and only one of the two says that it has moved it.
func TestRenamesAtOnceLoseNothing(t *testing.T) {
	for _, c := range []struct {
		overwrite bool // of the second
		at        int  // the step of the first before which the second comes: 1 its put, 2 its deletion
		written   bool // the old name once more, after the second
	}{
		{false, 1, false},
		{false, 2, false},
		{false, 2, true},
		{true, 1, false},
		{true, 2, false},
		{true, 2, true},
	} {
		e := newFakeCluster(t, 3)
		from, to := e.keyOn(1, 0), e.keyOn(2, 0)
		e.write(from, "x")
		e.write(from, "y")
		total, moved, seen := 2.0, 0, 0
		keys := e.led(func(*ebbv1.ApplyRequest) {
			if seen++; seen != c.at {
				return
			}
			second := NewKeys(e.router("ebb-0"), e.coordinator("ebb-0"))
			if _, err := second.Rename(t.Context(), &ebbv1.RenameRequest{Key: from, To: to, Overwrite: c.overwrite}); err == nil {
				moved++
			}
			if c.written {
				e.write(from, "x")
				total++
			}
		})
		if _, err := keys.Rename(t.Context(), &ebbv1.RenameRequest{Key: from, To: to}); err == nil {
			moved++
		}
		if left, right := e.z(from), e.z(to); left+right != total || moved > 1 {
			t.Errorf("%+v: %g under the old name and %g under the new one of %g, moved %d times", c, left, right, total, moved)
		}
	}
}

// A rename that is sent again under its identity, because its answer was lost, is done: also when the key was written
// while it moved.
func TestRenameAgain(t *testing.T) {
	for _, writes := range []int{0, 2} {
		e := newFakeCluster(t, 3)
		from, to := e.keyOn(1, 0), e.keyOn(2, 0)
		e.write(from, "x")
		left := writes
		keys := e.led(func(req *ebbv1.ApplyRequest) {
			if req.Commands[0].GetShard() == 2 && left > 0 {
				left--
				e.write(from, "x")
			}
		})
		req := &ebbv1.RenameRequest{Key: from, To: to, IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: 1, Lo: 2}}
		for try := range 3 {
			if _, err := keys.Rename(t.Context(), req); err != nil || e.z(to) != float64(1+writes) || e.z(from) != 0 {
				t.Errorf("%d writes, attempt %d: %v, %g and %g", writes, try, err, e.z(from), e.z(to))
			}
		}
		req.IdempotencyKey = nil
		_, err := keys.Rename(t.Context(), req)
		if !errors.Is(err, proto.ErrKeyNotFound) || !strings.Contains(proto.AsError(err).Hint, string(to)) {
			t.Errorf("another request: %v, hint %q", err, proto.AsError(err).Hint)
		}
		e.write(from, "y")
		req.IdempotencyKey = &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: 1, Lo: 2}
		if _, err := keys.Rename(t.Context(), req); !errors.Is(err, proto.ErrKeyExists) || e.z(from) != 1 {
			t.Errorf("again, when the old name is another key: %v, and %g is left of it", err, e.z(from))
		}
	}
}

// A rename that gives up puts back what it went over.
func TestRenameGivesBackWhatItWentOver(t *testing.T) {
	e := newFakeCluster(t, 3)
	from, to := e.keyOn(1, 0), e.keyOn(2, 0)
	e.write(from, "x")
	for range 5 {
		e.write(to, "old")
	}
	written := 1
	keys := e.led(func(req *ebbv1.ApplyRequest) {
		if req.Commands[0].GetShard() == 2 {
			written++
			e.write(from, "x")
		}
	})
	_, err := keys.Rename(t.Context(), &ebbv1.RenameRequest{Key: from, To: to, Overwrite: true})
	if !errors.Is(err, proto.ErrKeyBusy) || e.z(to) != 5 || e.z(from) != float64(written) {
		t.Errorf("%v: %g of 5 are under the new name, and %g of %d under the old one", err, e.z(to), e.z(from), written)
	}
}

// A rename that cannot take the old name away is no refusal, for both names are there: tried again it would find its
// own copy.
func TestRenameThatStopsHalfway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 3)
		from, to := e.keyOn(1, 0), e.keyOn(2, 0)
		e.write(from, "x")
		keys := e.led(func(req *ebbv1.ApplyRequest) {
			if req.Commands[0].GetShard() == 1 {
				e.with(func() { e.leads[1] = "" })
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := keys.Rename(ctx, &ebbv1.RenameRequest{Key: from, To: to})
		e.with(func() { e.leads[1] = "ebb-0" })
		if !errors.Is(err, proto.ErrUnknownOutcome) || e.z(from) != 1 || e.z(to) != 1 {
			t.Errorf("%v, %g and %g", err, e.z(from), e.z(to))
		}
	})
}

// What a rename went over may fade before the rename gives up: then there is nothing to put back, and the copy goes all
// the same.
func TestRenameTakesItsCopyBackWhenTheOldTargetHasFaded(t *testing.T) {
	e := newFakeCluster(t, 3)
	from, to := e.keyOn(1, 0), e.keyOn(2, 0)
	e.write(from, "x")
	for range 5 {
		e.write(to, "old")
	}
	if _, err := e.keys("ebb-0").Expire(t.Context(), &ebbv1.ExpireRequest{Keys: [][]byte{to}, TtlUs: 4_000_000}); err != nil {
		t.Fatal(err)
	}
	written := 1
	keys := e.led(func(req *ebbv1.ApplyRequest) {
		if req.Commands[0].GetShard() == 2 {
			written++
			e.stamp += 1_000_000
			e.write(from, "x")
		}
	})
	_, err := keys.Rename(t.Context(), &ebbv1.RenameRequest{Key: from, To: to, Overwrite: true})
	if !errors.Is(err, proto.ErrKeyBusy) || e.z(to) != 0 || e.z(from) == 0 {
		t.Errorf("%v after %d writes: %g under the new name, %g under the old", err, written, e.z(to), e.z(from))
	}
}
