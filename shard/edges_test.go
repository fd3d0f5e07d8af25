package shard

import (
	"bytes"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// The edges of what a session remembers, number by number.
func TestWindowOfASession(t *testing.T) {
	const window = 8
	limits := &Limits{SessionWindow: window, SessionResultBytes: 10}
	w := &session{}
	for _, sequence := range []uint64{1, 3, 9, 12} {
		w.remember(sequence, dedupResult{applied: uint32(sequence)}, limits)
	}
	if w.floor(window) != 4 || w.floor(12) != 0 || w.floor(11) != 1 {
		t.Errorf("floors %d, %d, %d", w.floor(window), w.floor(12), w.floor(11))
	}
	for sequence, want := range map[uint64]bool{
		0: false, 1: false, 3: false, 4: false, 5: false, 8: false, 9: true, 10: false, 12: true, 13: false, 17: false,
	} {
		if m, seen := w.recall(sequence, window); seen != want || seen && m.applied != uint32(sequence) {
			t.Errorf("of %d it remembers %v, %v", sequence, m, seen)
		}
	}
	// a number within the window that comes late is remembered, and moves nothing
	w.remember(5, dedupResult{applied: 7}, limits)
	if m, seen := w.recall(5, window); w.top != 12 || !seen || m.applied != 7 {
		t.Errorf("a late one: top %d, %v, %v", w.top, m, seen)
	}
	// a jump of more than the window leaves nothing behind
	w.remember(100, dedupResult{applied: 1}, limits)
	for sequence := uint64(90); sequence < 100; sequence++ {
		if _, seen := w.recall(sequence, window); seen {
			t.Errorf("%d was never seen", sequence)
		}
	}
}

// A ring that grows takes along all that it has.
func TestRingGrows(t *testing.T) {
	limits := &Limits{SessionWindow: 100, SessionResultBytes: 10}
	w := &session{}
	for sequence := uint64(1); sequence <= 90; sequence++ {
		if sequence%3 != 0 {
			w.remember(sequence, dedupResult{applied: uint32(sequence)}, limits)
		}
		for old := uint64(1); old <= sequence; old++ {
			if m, seen := w.recall(old, 100); seen != (old%3 != 0) || seen && m.applied != uint32(old) {
				t.Fatalf("after %d: of %d it remembers %v, %v", sequence, old, m, seen)
			}
		}
	}
	if len(w.ring) != 128 {
		t.Errorf("a ring of %d for 90", len(w.ring))
	}
}

// What more there is to say is kept up to a limit of bytes; the floor moves past what is forgotten for it.
func TestMoreToSayIsBounded(t *testing.T) {
	for _, c := range []struct {
		limit int
		floor uint64
		kept  []uint64
	}{
		{12, 0, []uint64{1, 2, 4}}, // as many bytes as there may be
		{11, 1, []uint64{2, 4}},
		{8, 1, []uint64{2, 4}},
		{7, 2, []uint64{4}},
		{1, 2, []uint64{4}}, // the latest stays
	} {
		limits := &Limits{SessionWindow: 100, SessionResultBytes: c.limit}
		w := &session{}
		for _, sequence := range []uint64{1, 2, 4} {
			w.remember(sequence, dedupResult{applied: 1, more: "more"}, limits)
		}
		var kept []uint64
		for _, o := range w.extras {
			kept = append(kept, o.sequence)
		}
		if w.floor(100) != c.floor || !slices.Equal(kept, c.kept) || w.extraBytes != 4*len(kept) {
			t.Errorf("%d bytes: a floor of %d, %v in %d bytes", c.limit, w.floor(100), kept, w.extraBytes)
		}
	}
}

// Sessions expire after their time, not at it, and no more are looked at than may be.
func TestSessionsExpireAtTheirTime(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1})
	var slots []uint32
	for range 3 {
		slots = append(slots, s.sessionSlots[s.openSession(&command{}).Session])
	}
	from := s.now
	for _, c := range []struct {
		later   sketch.Tick
		expired bool
	}{
		{0, false}, {s.limits.SessionExpiry - 1, false}, {s.limits.SessionExpiry, false}, {s.limits.SessionExpiry + 1, true},
	} {
		s.now = from + c.later
		if got := s.sessionExpired(slots[0]); got != c.expired {
			t.Errorf("after %d: %v", c.later, got)
		}
	}
	for left := uint32(3); left > 0; left-- {
		if s.sessions.live != left {
			t.Errorf("%d sessions are left, want %d", s.sessions.live, left)
		}
		s.expireSessions(0)
		s.expireSessions(1)
	}
	if s.sessions.live != 0 || s.sessionExpiries.len() != 0 {
		t.Errorf("%d sessions and %d cleanups are left", s.sessions.live, s.sessionExpiries.len())
	}
}

// An idempotency key is taken from the oldest time to the newest, inclusive.
func TestTimesOfIdempotencyKeys(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1})
	oldest, newest := s.now-s.limits.IdempotencyWindow, s.now+s.limits.Future
	for _, c := range []struct {
		at   sketch.Tick
		code ebbv1.Code
	}{
		{-1, ebbv1.Code_CODE_BAD_REQUEST},
		{0, ebbv1.Code_CODE_BAD_REQUEST},
		{1, ebbv1.Code_CODE_IDEMPOTENCY_KEY_TOO_OLD},
		{oldest - 1, ebbv1.Code_CODE_IDEMPOTENCY_KEY_TOO_OLD},
		{oldest, 0},
		{s.now, 0},
		{newest, 0},
		{newest + 1, ebbv1.Code_CODE_BAD_TIME},
	} {
		code := ebbv1.Code(0)
		if err := s.checkIssue(c.at); err != nil {
			code = failed(err).GetError().GetCode()
		}
		if code != c.code {
			t.Errorf("issued at %d: %v, want %v", c.at, code, c.code)
		}
	}
}

// The rows of a source, one at a time: new ones, repetitions, and those that were refused.
func TestRowsOfASource(t *testing.T) {
	const bad, jump = ebbv1.Code_CODE_BAD_REQUEST, ebbv1.Code_CODE_TIME_JUMP
	var src source
	src.decided(3, 0, 2)
	src.decided(5, bad, 2)
	src.decided(8, jump, 2)
	for _, c := range []struct {
		offset, before uint64
		code           ebbv1.Code
		ok             bool
	}{
		{0, 0, bad, false},
		{4, 4, bad, false},
		{4, 5, bad, false},
		{9, 8, 0, true},
		{9, 0, 0, true},
		{8, 7, jump, false},
		{5, 0, bad, false},
		{3, 0, 0, false},
		{4, 3, 0, false},
		{1, 0, 0, false},
	} {
		if code, ok := src.admit(c.offset, c.before); code != c.code || ok != c.ok {
			t.Errorf("row %d behind %d: %v, %v", c.offset, c.before, code, ok)
		}
	}
	if src.last != 8 || len(src.refused) != 2 || src.fullOfJumps(2) {
		t.Errorf("%+v", src)
	}
	view := src.refused
	src.decided(10, jump, 2)
	if len(src.refused) != 2 || src.refused[0].offset != 8 || !src.fullOfJumps(2) || src.fullOfJumps(3) {
		t.Errorf("one more: %+v", src)
	}
	src.redecided(8, bad)
	if code, _ := src.admit(8, 0); code != bad || src.last != 10 || src.fullOfJumps(2) {
		t.Errorf("decided again: %+v", src)
	}
	src.redecided(10, 0)
	if code, ok := src.admit(10, 0); code != 0 || ok || len(src.refused) != 1 {
		t.Errorf("applied in the end: %+v", src)
	}
	if len(view) != 2 || view[0] != (refusedRow{5, bad}) || view[1] != (refusedRow{8, jump}) {
		t.Errorf("a view sees %v", view)
	}
}

// A time to live is taken up to the longest there is; a time to die is any that is not negative.
func TestTimesToLive(t *testing.T) {
	for _, c := range []struct {
		name  string
		until *ebbv1.ExpireKeys
		ok    bool
	}{
		{"none", &ebbv1.ExpireKeys{}, true},
		{"of 0", &ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_TtlUs{}}, true},
		{"negative", &ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: -1}}, false},
		{"the longest", &ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: proto.TTLMaxUS}}, true},
		{"longer", &ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: proto.TTLMaxUS + 1}}, false},
		{"until 0", &ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_AtUs{}}, true},
		{"until before 0", &ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_AtUs{AtUs: -1}}, false},
	} {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
		applyOne(t, s, increments("k", "a"))
		c.until.Keys = [][]byte{[]byte("k"), []byte("not there")}
		r := applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: c.until}})
		if (r.Error == nil) != c.ok || c.ok && r.Applied != 1 {
			t.Errorf("%s: %v", c.name, r)
		}
		audit(t, s)
	}
}

// Of a snapshot the namespaces can be read alone: not slow namespaces, and none that is emptied.
func TestNamespacesOfASnapshot(t *testing.T) {
	l := newLife(t, Heap{})
	var all []*ebbv1.Namespace
	for _, name := range []string{"a", "b", "c"} {
		ns := proto.FillNamespace(&ebbv1.Namespace{Name: name, Version: 1}, proto.DefaultNamespaceSettings())
		ns.SlowHalfLifeUs = new(int64(1_000_000 * second))
		l.define(ns)
		all = append(all, ns)
	}
	l.define(inGrace(all[1]))
	gone := beingPurged(all[2])
	l.define(gone)
	held := func() (names []string) {
		raw := snapshot(t, l.s)
		namespaces, err := SnapshotNamespaces(1, bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range namespaces {
			names = append(names, ns.Name)
		}
		if _, err := SnapshotNamespaces(2, bytes.NewReader(raw)); err == nil {
			t.Error("another shard's are read")
		}
		return slices.Sorted(slices.Values(names))
	}
	if got := held(); !slices.Equal(got, []string{"a", "b", "c"}) || len(l.s.namespaces) <= 3 {
		t.Errorf("%v of %d", got, len(l.s.namespaces))
	}
	for from, done := uint64(0), false; !done; {
		r := l.must(purgeOf(gone, from)).GetPurge()
		from, done = r.GetNext(), r.GetDone()
	}
	if got := held(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("one is emptied: %v", got)
	}
}

// What a view shows stays, also of a namespace whose keys are deleted before its first event, which is at once.
func TestViewKeepsKeysThatAreDeleted(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Clock: ebbv1.Clock_CLOCK_EVENT}, beginning)
	applyOne(t, s, edits(bitsOf("deleted", setOp, 1, 2), bitsOf("kept", setOp, 3)))
	before := snapshot(t, s)
	view := s.Freeze()
	defer view.Release()
	deletion := &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("deleted")}}
	if r := applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: deletion}}); r.Applied != 1 {
		t.Fatal(r)
	}
	if after := snapshot(t, view); !bytes.Equal(after, before) {
		t.Error("a view has changed")
	}
	audit(t, s)
}

// Each entry pays for cleanups of sessions that may be over: those of producers that went go without another session.
func TestSessionsGoWithEntries(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1})
	for range 100 {
		s.openSession(&command{})
	}
	late := int64(s.now + s.limits.SessionExpiry + 1)
	for range 100 {
		if s.sessions.live == 0 {
			break
		}
		s.Apply(s.Applied()+1, encode(t, late, increments("k", "a")), nil)
	}
	if s.sessions.live != 0 {
		t.Errorf("%d of 100 sessions are left", s.sessions.live)
	}
}
