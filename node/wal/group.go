package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

const (
	keyLenMax   = 256
	valueLenMax = 4096
)

// errNotFound has the text with which raft compares.
var errNotFound = errors.New("not found")

// raft's keys for its term and vote.
const (
	keyCurrentTerm = "CurrentTerm"
	keyVoteTerm    = "LastVoteTerm"
	keyVoteCand    = "LastVoteCand"
)

// Group is the part of a Log that belongs to one raft group: its LogStore and its StableStore. All that it returns is
// durable, and a call that stores a record returns when the record is durable.
type Group struct {
	log *Log
	id  uint32

	// ballot is the term of a vote that is not stored yet: raft stores the term first and the candidate second (raft
	// #661). Both become durable together.
	ballot atomic.Uint64

	// guarded by Log.index, written by its writer only
	entries  entries
	term     uint64
	vote     *vote // immutable
	values   map[string][]byte
	boundary boundary
}

type vote struct {
	term      uint64
	candidate []byte
}

type boundary struct{ index, term uint64 }

var (
	_ raft.LogStore          = (*Group)(nil)
	_ raft.MonotonicLogStore = (*Group)(nil)
	_ raft.StableStore       = (*Group)(nil)
)

// ID returns the group's number.
func (g *Group) ID() uint32 { return g.id }

// FirstIndex returns the index of the first entry, 0 if there is none.
func (g *Group) FirstIndex() (uint64, error) {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	return g.entries.first(), nil
}

// LastIndex returns the index of the last entry, 0 if there is none.
func (g *Group) LastIndex() (uint64, error) {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	return g.entries.last(), nil
}

// Bytes returns how many bytes the group's entries take in the log.
func (g *Group) Bytes() int64 {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	return g.entries.bytes
}

// IsMonotonic returns false: after a snapshot was installed, entries may be missing between old and new ones. If it
// returned true, raft would delete the whole log whenever it installs a snapshot.
func (g *Group) IsMonotonic() bool { return false }

// GetLog reads an entry, from memory if it is recent. The caller must not change its bytes. They share a buffer of up
// to 1 MiB: copy what is kept for long. At the boundary, if the entry itself is gone, it returns a synthetic entry with
// the snapshot's term, which is all that raft needs there. It returns raft.ErrLogNotFound unwrapped, since raft
// compares with ==. If the disk cannot read the entry, an error would make raft panic, and the process would end.
// Instead the log fails, and the calling goroutine, which is raft's, ends.
func (g *Group) GetLog(index uint64, to *raft.Log) error {
	l := g.log
	l.index.RLock()
	p := g.entries.find(index)
	if p == nil {
		synthetic := g.synthetic(index)
		term := g.boundary.term
		l.index.RUnlock()
		if !synthetic {
			return raft.ErrLogNotFound
		}
		*to = raft.Log{Index: index, Term: term, Type: raft.LogNoop}
		return nil
	}
	at := *p
	if b := l.tail.at(at); b != nil {
		l.index.RUnlock()
		r := recordAt(b)
		return r.entry(to)
	}
	s := l.segments[at.segment-l.segments[0].number]
	s.acquire()
	l.index.RUnlock()
	b := make([]byte, at.size)
	err := s.readAt(b, int64(at.offset))
	released := s.release()
	if err != nil {
		l.unreadable(g.id, err)
	}
	return errors.Join(g.decode(s, b, at, index, to), released)
}

// synthetic reports whether index is the end of the newest snapshot and the log holds no entry at or before it. It is
// false for index 1: a leader sends entry 1 without a check of the one before, so a synthetic entry could be
// replicated. l.index is held.
func (g *Group) synthetic(index uint64) bool {
	first := g.entries.first()
	return index == g.boundary.index && index > 1 && (first == 0 || first > index)
}

// decode decodes an entry from the bytes of its segment.
func (g *Group) decode(s *segment, b []byte, at place, index uint64, to *raft.Log) error {
	r, _, _, err := decodeRecord(b, g.log.salt)
	if err != nil {
		return corrupt(s, int64(at.offset), err.Error())
	}
	if r.kind != kindEntry || r.group != g.id || r.index != index {
		return corrupt(s, int64(at.offset), fmt.Sprintf("entry %d of group %d is not there", index, g.id))
	}
	return r.entry(to)
}

// StoreLog stores one entry.
func (g *Group) StoreLog(e *raft.Log) error { return g.StoreLogs([]*raft.Log{e}) }

// StoreLogs stores entries, all or none, and returns when they are durable. An entry replaces an existing one at the
// same index; gaps are allowed. The entries' bytes are copied.
func (g *Group) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	for _, e := range entries {
		if e.Index == 0 {
			return fmt.Errorf("store an entry of group %d: index 0", g.id)
		}
	}
	return g.log.writeEntries(g.id, entries)
}

// DeleteRange deletes the entries from first to last, inclusive. Missing entries are no error.
func (g *Group) DeleteRange(first, last uint64) error {
	g.log.index.RLock()
	none := len(g.entries.runs) == 0 || last < g.entries.first() || first > g.entries.last()
	g.log.index.RUnlock()
	if none || first > last {
		return nil
	}
	return g.log.write(record{kind: kindDelete, group: g.id, index: first, term: last})
}

// Compact deletes the entries up to index, except those after the end of the newest snapshot, which a restart needs. It
// is used when a group keeps old segments from being removed: raft's TrailingLogs counts entries and never shortens a
// short log. A follower that still needs deleted entries gets the snapshot.
func (g *Group) Compact(index uint64) error {
	end, _ := g.Boundary()
	return g.DeleteRange(0, min(index, end))
}

// Trailing returns the first index of the longest end of the log that takes at most that many bytes. It returns last+1
// if even the last entry takes more, and 0 if there is no entry.
func (g *Group) Trailing(bytes int64) uint64 {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	first := uint64(0)
	for _, r := range slices.Backward(g.entries.runs) {
		if first == 0 {
			first = r.last() + 1
		}
		for i, p := range slices.Backward(r.places) {
			if bytes -= int64(p.size); bytes < 0 {
				return first
			}
			first = r.first + uint64(i)
		}
	}
	return first
}

// SetBoundary records that the newest snapshot ends at index, an entry of term. From then on GetLog answers at index
// even if the entry is gone. Otherwise a follower whose log had diverged would refuse its leader forever (raft #697).
// If the entry at index has another term, the entries up to index are deleted. An index before the present boundary is
// ignored.
func (g *Group) SetBoundary(index, term uint64) error {
	l := g.log
	if l.deafToBoundary {
		return nil
	}
	l.index.RLock()
	known := g.boundary == boundary{index, term} || index < g.boundary.index
	l.index.RUnlock()
	if known {
		return nil
	}
	return l.write(record{kind: kindBoundary, group: g.id, index: index, term: term})
}

// Boundary returns the end of the newest snapshot; zeros if there is none.
func (g *Group) Boundary() (index, term uint64) {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	return g.boundary.index, g.boundary.term
}

// Continues reports whether the log holds every entry after index, up to its last entry and to the newest snapshot's
// end. If not, a replica whose newest readable snapshot ends at index cannot be started: raft panics on the missing
// entry.
func (g *Group) Continues(index uint64) bool {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	last := max(g.entries.last(), g.boundary.index)
	if last <= index {
		return true
	}
	i := g.entries.after(index + 1)
	return i < len(g.entries.runs) && g.entries.runs[i].first <= index+1 && g.entries.runs[i].last() == last
}

// Forget deletes everything that the group has stored: entries, term, vote, values and boundary. It is for a replica
// that was removed permanently.
func (g *Group) Forget() error {
	g.ballot.Store(0)
	return g.log.write(record{kind: kindForget, group: g.id})
}

// Set stores a value of at most 4096 bytes under a key of at most 256 bytes.
func (g *Group) Set(key, value []byte) error {
	if err := checkValue(key, value); err != nil {
		return err
	}
	if string(key) == keyVoteCand {
		return g.castVote(value)
	}
	if have, err := g.Get(key); err == nil && bytes.Equal(have, value) {
		return nil
	}
	return g.log.write(valueRecord(g.id, string(key), value))
}

func checkValue(key, value []byte) error {
	if len(key) > keyLenMax || len(value) > valueLenMax {
		return proto.ErrBadRequest.Errorf("a stable value of %d bytes under a key of %d; at most %d and %d",
			len(value), len(key), valueLenMax, keyLenMax)
	}
	return nil
}

// castVote stores the term and the candidate of a vote as one record.
func (g *Group) castVote(candidate []byte) error {
	term := g.ballot.Load()
	have := g.voted()
	if term == 0 && have != nil {
		term = have.term
	}
	if have != nil && have.term == term && bytes.Equal(have.candidate, candidate) {
		return nil
	}
	err := g.log.write(record{kind: kindVote, group: g.id, index: term, body: candidate})
	if err == nil {
		g.ballot.Store(0)
	}
	return err
}

func (g *Group) voted() *vote {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	return g.vote
}

// Get returns the value of a key, or an error whose text is exactly "not found".
func (g *Group) Get(key []byte) ([]byte, error) {
	switch string(key) {
	case keyVoteCand:
		if v := g.voted(); v != nil {
			return bytes.Clone(v.candidate), nil
		}
		return nil, errNotFound
	case keyVoteTerm, keyCurrentTerm:
		n, err := g.GetUint64(key)
		if err == nil && n == 0 {
			err = errNotFound
		}
		return binary.BigEndian.AppendUint64(nil, n), err
	}
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	value, ok := g.values[string(key)]
	if !ok {
		return nil, errNotFound
	}
	return bytes.Clone(value), nil
}

// SetUint64 stores a number. If the log has failed or was closed, raft's CurrentTerm is special: raft would panic on an
// error, and the process would end. Instead the calling goroutine, which is raft's, ends.
func (g *Group) SetUint64(key []byte, n uint64) error {
	switch string(key) {
	case keyVoteTerm:
		return g.openBallot(n)
	case keyCurrentTerm:
		return g.setTerm(n)
	}
	return g.Set(key, binary.BigEndian.AppendUint64(nil, n))
}

// openBallot keeps a vote's term until the candidate is set.
func (g *Group) openBallot(term uint64) error {
	if g.log.splitVote {
		v := vote{}
		if have := g.voted(); have != nil {
			v = *have
		}
		return g.log.write(record{kind: kindVote, group: g.id, index: term, body: v.candidate})
	}
	g.ballot.Store(term)
	return nil
}

func (g *Group) setTerm(term uint64) error {
	g.log.index.RLock()
	same := g.term == term
	g.log.index.RUnlock()
	if same {
		return nil
	}
	err := g.log.write(record{kind: kindTerm, group: g.id, index: term})
	if err != nil && term > 1 { // 1 is the term of a bootstrap, whose caller handles errors
		g.log.cfg.Logger.Error("end a raft group that cannot store its term", "group", g.id, "error", err)
		runtime.Goexit()
	}
	return err
}

// GetUint64 returns the number stored under a key, 0 if there is none.
func (g *Group) GetUint64(key []byte) (uint64, error) {
	switch string(key) {
	case keyVoteTerm:
		if v := g.voted(); v != nil {
			return v.term, nil
		}
		return 0, nil
	case keyCurrentTerm:
		g.log.index.RLock()
		defer g.log.index.RUnlock()
		return g.term, nil
	}
	value, err := g.Get(key)
	if errors.Is(err, errNotFound) {
		return 0, nil
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("the value of %q has %d bytes and is no number", key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}
