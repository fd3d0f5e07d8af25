package shard

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// restorer applies the steps of a restore to a state.
type restorer struct {
	t     *testing.T
	s     *State
	now   int64
	index uint64
}

func (r *restorer) apply(c *ebbv1.Command) *ebbv1.CommandResult {
	r.t.Helper()
	r.index++
	r.now += second
	result := r.s.Apply(r.index, encode(r.t, r.now, c), nil)[0]
	if n := r.s.Successor(); n != nil {
		r.s = n
	}
	return result
}

func (r *restorer) step(c *ebbv1.RestoreShard) *ebbv1.CommandResult {
	r.t.Helper()
	c.Name = "backup-1"
	return r.apply(&ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: c}})
}

func begins(raw []byte) *ebbv1.RestoreShard {
	return &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Begin{Begin: &ebbv1.RestoreBegin{Bytes: uint64(len(raw)), Checksum: xxh3.Hash(raw)}}}
}

func pieceOf(raw []byte, from, to int) *ebbv1.RestoreShard {
	return &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Piece{Piece: &ebbv1.RestorePiece{Offset: uint64(from), Data: raw[from:to]}}}
}

func commits() *ebbv1.RestoreShard {
	return &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Commit{Commit: &ebbv1.RestoreCommit{}}}
}

func cancels() *ebbv1.RestoreShard {
	return &ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Cancel{Cancel: &ebbv1.RestoreCancel{}}}
}

// unheaded is a snapshot without its first block, which says whose it is and of when.
func unheaded(raw []byte) []byte {
	return raw[blockOverhead+binary.LittleEndian.Uint32(raw[1:])+4:]
}

// What a restore leaves is, byte for byte, what the snapshot held: keys, dictionaries, sessions, sources and
// idempotency keys. It stands in the new log, by a clock that has not gone back. A replica that joins between two
// pieces ends with the same.
func TestRestorationThroughTheLog(t *testing.T) {
	from := furnished(t)
	raw := snapshot(t, from)
	for name, now := range map[string]int64{"by an earlier clock": 1_600_000_000 * second, "by a later clock": int64(from.now) + 5*second} {
		t.Run(name, func(t *testing.T) {
			r := &restorer{t: t, s: New(1, &wiping{}), now: now}
			r.apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}})
			third := len(raw) / 3
			for i, c := range []*ebbv1.RestoreShard{
				begins(raw), pieceOf(raw, 0, third), begins(raw), pieceOf(raw, 0, third), pieceOf(raw, third/2, 2*third), pieceOf(raw, 2*third, len(raw)),
			} {
				if result := r.step(c); result.Error != nil || result.Restore.Done {
					t.Fatalf("step %d: %v", i, result)
				}
				r.s = reopen(t, r.s)
				audit(t, r.s)
			}
			if result := r.apply(increments("k", "a")); !errors.Is(proto.FromWire(result.Error), proto.ErrStarting) {
				t.Fatalf("an increment meanwhile: %v", result)
			}
			clock := max(from.now, r.s.now+second)
			if result := r.step(commits()); result.Error != nil || !result.Restore.Done {
				t.Fatal(result)
			}
			audit(t, r.s)
			if r.s.applied != r.index || r.s.now != clock || r.s.lastSession < from.lastSession {
				t.Fatalf("applied %d of %d, clock %d, not %d, last session %d of %d", r.s.applied, r.index, r.s.now, clock, r.s.lastSession, from.lastSession)
			}
			if !bytes.Equal(unheaded(snapshot(t, r.s)), unheaded(raw)) {
				t.Fatalf("before:\n%s\nafter:\n%s", described(from), described(r.s))
			}
			if result := r.step(begins(raw)); result.Error != nil || !result.Restore.Done {
				t.Fatalf("again: %v", result)
			}
			use(t, r.s)
			audit(t, r.s)
		})
	}
}

// A restore is refused, and leaves the shard as it is, where it would lose or damage something.
func TestRestorationRefused(t *testing.T) {
	raw := snapshot(t, furnished(t))
	other := snapshot(t, New(2, &wiping{}))
	wrong := begins(raw)
	wrong.GetBegin().Checksum++
	damaged := bytes.Clone(raw)
	damaged[len(damaged)/2] ^= 1
	all := func(raw []byte) []*ebbv1.RestoreShard {
		return []*ebbv1.RestoreShard{begins(raw), pieceOf(raw, 0, len(raw)), commits()}
	}
	for name, c := range map[string]struct {
		before []*ebbv1.Command
		steps  []*ebbv1.RestoreShard
		want   error
	}{
		"over keys":              {[]*ebbv1.Command{increments("k", "a")}, all(raw), proto.ErrBadRequest},
		"over a source":          {[]*ebbv1.Command{{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "f", Token: 5}}}}, all(raw), proto.ErrBadRequest},
		"over a dictionary":      {[]*ebbv1.Command{naming("words", 1, "a")}, all(raw), proto.ErrBadRequest},
		"without a beginning":    {nil, all(raw)[1:], proto.ErrBadRequest},
		"no bytes":               {nil, []*ebbv1.RestoreShard{begins(raw), commits()}, proto.ErrBadRequest},
		"not all bytes":          {nil, []*ebbv1.RestoreShard{begins(raw), pieceOf(raw, 0, 9), commits()}, proto.ErrBadRequest},
		"a gap":                  {nil, []*ebbv1.RestoreShard{begins(raw), pieceOf(raw, 9, 99)}, proto.ErrBadRequest},
		"too many bytes":         {nil, []*ebbv1.RestoreShard{begins(raw[:9]), pieceOf(raw, 0, 10)}, proto.ErrBadRequest},
		"another backup":         {nil, []*ebbv1.RestoreShard{begins(raw), begins(raw[:9])}, proto.ErrBadRequest},
		"another checksum":       {nil, []*ebbv1.RestoreShard{wrong, pieceOf(raw, 0, len(raw)), commits()}, proto.ErrCorrupt},
		"another shard's":        {nil, all(other), proto.ErrCorrupt},
		"damaged before backup":  {nil, all(damaged), proto.ErrCorrupt},
		"cut before it was sent": {nil, all(raw[:len(raw)-9]), proto.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			r := &restorer{t: t, s: New(1, &wiping{}), now: 1_600_000_000 * second}
			r.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}})
			r.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
				Name: "words", Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE, Dictionary: &ebbv1.Dictionary{Parts: 1},
			}}})
			for _, before := range c.before {
				if result := r.apply(before); result.Error != nil {
					t.Fatal(result)
				}
			}
			was := unheaded(snapshot(t, r.s))
			var last *ebbv1.CommandResult
			for _, step := range c.steps {
				last = r.step(step)
			}
			if !errors.Is(proto.FromWire(last.Error), c.want) {
				t.Fatalf("%v, not %v", last, c.want)
			}
			if result := r.step(cancels()); result.Error != nil {
				t.Fatal(result)
			}
			if !bytes.Equal(unheaded(snapshot(t, r.s)), was) {
				t.Fatal("it has changed the shard")
			}
			audit(t, r.s)
		})
	}
}

// chunksOf returns the chunks of a state by their hashes.
func chunksOf(t *testing.T, s *State) map[[sha256.Size]byte]int {
	t.Helper()
	out := map[[sha256.Size]byte]int{}
	var whole []byte
	c := &Chunks{Each: func(chunk []byte) error {
		out[sha256.Sum256(chunk)] = len(chunk)
		whole = append(whole, chunk...)
		return nil
	}}
	if _, err := s.WriteTo(c); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(whole, snapshot(t, s)) {
		t.Fatal("chunks are not the snapshot, cut up")
	}
	return out
}

// A small change of a large state changes few chunks: keys that grow, new ones and a large bitmap among them.
func TestFewChunksChange(t *testing.T) {
	r := &restorer{t: t, s: New(1, &wiping{}), now: 1_700_000_000 * second}
	r.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}})
	for i := range 20_000 {
		if i%100 == 0 {
			r.apply(edits(rangeOf(fmt.Sprint("bits/", i), setOp, uint64(i), 1<<24)))
		}
		r.apply(increments(fmt.Sprint("clicks/link/", i), "us", "de", fmt.Sprint("country of ", i%50)))
	}
	ids := make([]uint64, 5_000)
	for i := range 60 { // over a megabyte in one key
		for j := range ids {
			ids[j] = uint64(i)<<16 + uint64(j)*13
		}
		r.apply(edits(bitsOf("bits/all", setOp, ids...)))
	}
	before := chunksOf(t, r.s)
	for _, i := range []int{3, 7_000, 7_001, 12_345} {
		r.apply(increments(fmt.Sprint("clicks/link/", i), "jp", "fr", "it", "es"))
	}
	r.apply(increments("clicks/link/new", "us"))
	r.apply(edits(bitsOf("bits/all", setOp, 1, 2, 3, 1<<18+1)))
	total, fresh, chunks := 0, 0, 0
	for hash, n := range chunksOf(t, r.s) {
		total += n
		if _, same := before[hash]; !same {
			fresh += n
			chunks++
		}
	}
	if len(before) < 20 || chunks > 12 || fresh > total/2 {
		t.Fatalf("%d of %d chunks are new, %d of %d bytes", chunks, len(before), fresh, total)
	}
	t.Logf("%d of %d chunks are new, %d of %d bytes", chunks, len(before), fresh, total)
}

// An audit compares what a restore has brought so far: a replica that has another piece differs in one part.
func TestAuditOfARestore(t *testing.T) {
	const of = 4
	staged := func(second string) *State {
		r := &restorer{t: t, s: New(1, Heap{}), now: beginning}
		whole := []byte("first" + second + "third")
		r.step(begins(whole))
		for from := 0; from < len(whole); from += 5 {
			if e := r.step(pieceOf(whole, from, from+5)).GetError(); e != nil {
				t.Fatal(e)
			}
		}
		r.s.staged.checksum = 7 // each replica has what the command said
		return r.s
	}
	a, b := staged("piece"), staged("wrong")
	differ := 0
	for part := range uint32(of) {
		audit := Audit{Part: part, Of: of}
		if a.PartChecksum(audit) != staged("piece").PartChecksum(audit) {
			t.Errorf("part %d of the same differs", part)
		}
		if a.PartChecksum(audit) != b.PartChecksum(audit) {
			differ++
		}
	}
	if differ != 1 {
		t.Errorf("%d parts differ where one piece does", differ)
	}
}
