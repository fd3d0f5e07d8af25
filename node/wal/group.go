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

// errNotFound has the text that raft compares.
var errNotFound = errors.New("not found")

// raft's names for what it votes by.
const (
	keyCurrentTerm = "CurrentTerm"
	keyVoteTerm    = "LastVoteTerm"
	keyVoteCand    = "LastVoteCand"
)

// Group is the part of a Log that belongs to one raft group: its LogStore and
// its StableStore. What it returns was durable, and a call that stores returns
// when its record is.
type Group struct {
	log *Log
	id  uint32

	// ballot is a vote's term on its way: raft stores it first and the candidate
	// second (raft #661), and only both together become durable.
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

// Bytes returns what the group's entries take in the log.
func (g *Group) Bytes() int64 {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	return g.entries.bytes
}

// IsMonotonic is false: after an installed snapshot entries may be missing
// between old and new ones. Were it true, raft would delete the whole log
// whenever it installs a snapshot.
func (g *Group) IsMonotonic() bool { return false }

// GetLog reads an entry, from memory if it is recent. Its bytes must not be changed, and share a buffer of up to 1 MiB:
// copy what is to be kept for long. At the boundary, when the entry itself is gone, it answers a synthetic one with the
// snapshot's term, which is all that raft asks there. It returns raft.ErrLogNotFound itself, which raft compares with
// ==. When the disk cannot read it, raft would panic, and with it every other node in the process: the log fails, and
// the calling goroutine, which is raft's, ends.
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

// synthetic reports whether index is the end of the newest snapshot and nothing
// at or before it is held. It never is at 1: a leader sends entry 1 without
// looking at the one before, so a made-up one could be replicated. l.index is held.
func (g *Group) synthetic(index uint64) bool {
	first := g.entries.first()
	return index == g.boundary.index && index > 1 && (first == 0 || first > index)
}

// decode takes an entry from what its segment has.
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

// StoreLogs stores entries, all or none, and returns when they are durable. An
// entry at an index that is taken replaces the one there; gaps are allowed. The
// entries' bytes are copied.
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

// DeleteRange deletes the entries from first to last, inclusive. Entries that
// are not there are no error.
func (g *Group) DeleteRange(first, last uint64) error {
	g.log.index.RLock()
	none := len(g.entries.runs) == 0 || last < g.entries.first() || first > g.entries.last()
	g.log.index.RUnlock()
	if none || first > last {
		return nil
	}
	return g.log.write(record{kind: kindDelete, group: g.id, index: first, term: last})
}

// Compact deletes the entries up to index, but none that a restart needs: those
// after the end of the newest snapshot stay. It takes the place of raft's
// TrailingLogs, which counts entries and never touches a short log, when a group
// pins old segments. A follower that still needs them gets the snapshot.
func (g *Group) Compact(index uint64) error {
	end, _ := g.Boundary()
	return g.DeleteRange(0, min(index, end))
}

// Trailing returns the first index of the longest end of the log that takes at
// most that many bytes; last+1 if not even the last entry does, 0 if there is none.
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

// SetBoundary says that the newest snapshot ends at index, an entry of term. From
// then on GetLog answers there even when the entry is gone, without which a
// follower whose log had diverged would refuse its leader for ever (raft #697).
// If the entry held at index is of another term, the entries up to index are
// deleted with it. Going backwards is ignored.
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

// Boundary returns the end of the newest snapshot, zeros if there is none.
func (g *Group) Boundary() (index, term uint64) {
	g.log.index.RLock()
	defer g.log.index.RUnlock()
	return g.boundary.index, g.boundary.term
}

// Continues reports whether the log holds every entry after index, up to its last
// one and to the newest snapshot's end. If not, a replica whose newest readable
// snapshot ends at index cannot be started: raft panics on the missing entry.
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

// Forget deletes everything that the group has stored: entries, term, vote,
// values and boundary. For a replica that is gone for good.
func (g *Group) Forget() error {
	g.ballot.Store(0)
	return g.log.write(record{kind: kindForget, group: g.id})
}

// Set stores a value under a key of at most 256 bytes; the value has at most 4096.
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

// castVote stores term and candidate of a vote as one record.
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

// SetUint64 stores a number. When the log has failed or was closed, raft's
// CurrentTerm is special: raft would panic on an error, and with it every other
// node in the process, so the calling goroutine, which is raft's, ends instead.
func (g *Group) SetUint64(key []byte, n uint64) error {
	switch string(key) {
	case keyVoteTerm:
		return g.openBallot(n)
	case keyCurrentTerm:
		return g.setTerm(n)
	}
	return g.Set(key, binary.BigEndian.AppendUint64(nil, n))
}

// openBallot keeps a vote's term until the candidate comes.
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
	if err != nil && term > 1 { // 1 is a bootstrap's, whose caller handles errors
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
