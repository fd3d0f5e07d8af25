package shard

import (
	"bytes"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A record keeps all that there is to say of a distribution, at the ends of what each part may be.
func TestRecordOfADistribution(t *testing.T) {
	for _, bins := range []int{1, 1<<lowerBits - 1, 1 << lowerBits, 1<<24 - 1} {
		for _, micro := range []bool{false, true} {
			want := summary{
				due: clockMax, era: eraMask, pruneAt: pruneMost, pruned: 1<<16 - 1, space: 1<<16 - 1, onEvent: true,
			}
			h := sketch.Header{Z: 1.5, Z2: 2.5, Last: clockMax, Mark: 1<<markBits - 1, Bins: bins, Compact: !micro, Micro: micro}
			if micro {
				h.Z, h.Z2, h.Lost, h.Mark = 0, 0, 2.5, -7 // a level
			}
			want.dist.Load(&h, make([]uint64, 64))
			r := make(record, 80)
			r.begin(headWords, want.space, nameLenMax)
			r.storeDistribution(&want)
			var got summary
			r.load(&got)
			var back sketch.Header
			r.header(&back)
			if back != h || r.bins() != bins || r.nameLen() != nameLenMax || r.head() != headWords {
				t.Fatalf("%+v became %+v, with a name of %d bytes behind %d words", h, back, r.nameLen(), r.head())
			}
			got.dist = want.dist
			if got.due != want.due || got.era != want.era || got.pruneAt != want.pruneAt || got.pruned != want.pruned || got.space != want.space || !got.onEvent {
				t.Fatalf("%+v became %+v", want, got)
			}
		}
	}
}

// Keys of every kind, with names that end before, at and behind the end of a word, keep what they hold when it grows
// and shrinks, when they get another name, and when they are given a time to live and lose it again; and a view keeps
// what it saw.
func TestRecordsMove(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, beginning)
	apply := func(commands ...*ebbv1.Command) {
		t.Helper()
		for _, r := range s.Apply(s.applied+1, encodeEntry(t, beginning, commands), nil) {
			if r.Error != nil || len(r.Refused) > 0 {
				t.Fatal(r)
			}
		}
		audit(t, s)
	}
	name := func(kind string, n int) string { return string(bytes.Repeat([]byte(kind), n)) }
	renamed := func(kind string, n int) string { return name(kind, min(n, nameLenMax-1)) + "!" }
	few, many := make([]uint64, 9), make([]uint64, 2000)
	for i := range many {
		many[i] = uint64(i) << 14
	}
	copy(few, many)
	lengths := []int{1, 7, 8, 9, 16, 17, 200, nameLenMax}
	for _, n := range lengths {
		apply(increments(name("d", n), "a", "b"))
		apply(increments(name("d", n), "c", "d", "e", "f", "g"))
		apply(edits(bitsOf(name("s", n), setOp, few[:3]...)), edits(bitsOf(name("s", n), setOp, few...)))
		apply(edits(bitsOf(name("w", n), setOp, 1<<40)))
		apply(edits(bitsOf(name("l", n), setOp, many...)), edits(bitsOf(name("l", n), setOp, 1<<50)))
		apply(edits(bitsOf(name("l", n), clearOp, 1<<50)), edits(bitsOf(name("w", n), setOp, 7)))
		apply(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{
			{Key: []byte(name("q", n)), Bin: []byte("x"), Amount: new(1.0), Kind: ebbv1.Kind_KIND_DISTINCT},
		}}}})
	}
	view := s.Freeze()
	seen := snapshot(t, view)
	for i, n := range lengths {
		for _, kind := range []string{"d", "s", "w", "l", "q"} {
			key := []byte(name(kind, n))
			apply(&ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{key}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: 1e9}}}})
			to := []byte(renamed(kind, lengths[len(lengths)-1-i]))
			apply(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: to, What: &ebbv1.PutKey_From{From: key}}}})
			apply(&ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{to}}}})
			found, ok := s.findKey(s.lookup(nil), to)
			if !ok || !bytes.Equal(s.keys.bytesOf(found), to) {
				t.Fatalf("%q is not found as %q", key, to)
			}
			if b := s.summaries.record(found); kind == "s" && b.bitmap().ids != uint64(len(few)) || kind == "w" && b.bitmap().ids != 2 || kind == "l" && b.bitmap().ids != uint64(len(many)) || kind == "d" && b.bins() != 7 {
				t.Fatalf("%q does not hold what %q held", to, key)
			}
		}
	}
	if !bytes.Equal(snapshot(t, view), seen) {
		t.Fatal("a view changed")
	}
	view.Release()
	if again := reopen(t, s); again.Checksum() != s.Checksum() {
		t.Fatal("a restored state is another")
	}
	for _, n := range lengths {
		apply(&ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte(renamed("l", n)), []byte(renamed("d", n))}}}})
	}
}
