package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/hashicorp/raft"
)

// store is what raft and the snapshots see of a group; *wal.Group, the model and
// the Pebble twin all are one.
type store interface {
	raft.LogStore
	raft.StableStore
	SetBoundary(index, term uint64) error
	Forget() error
}

// model is a group as maps: what a test believes.
type model struct {
	entries                     map[uint64]*raft.Log
	values                      map[string]string
	ballot                      uint64
	voteTerm                    uint64
	candidate                   *string
	term                        uint64
	boundaryIndex, boundaryTerm uint64
}

var errNotFound = errors.New("not found")

func newModel() *model {
	return &model{entries: map[uint64]*raft.Log{}, values: map[string]string{}}
}

func (m *model) clone() *model {
	c := *m
	c.entries, c.values = maps.Clone(m.entries), maps.Clone(m.values)
	return &c
}

func (m *model) indexes() []uint64 { return slices.Sorted(maps.Keys(m.entries)) }

func (m *model) FirstIndex() (uint64, error) {
	if all := m.indexes(); len(all) > 0 {
		return all[0], nil
	}
	return 0, nil
}

func (m *model) LastIndex() (uint64, error) {
	if all := m.indexes(); len(all) > 0 {
		return all[len(all)-1], nil
	}
	return 0, nil
}

func (m *model) GetLog(index uint64, to *raft.Log) error {
	if e := m.entries[index]; e != nil {
		*to = *e
		return nil
	}
	first, _ := m.FirstIndex()
	if index == m.boundaryIndex && index > 1 && (first == 0 || first > index) {
		*to = raft.Log{Index: index, Term: m.boundaryTerm, Type: raft.LogNoop}
		return nil
	}
	return raft.ErrLogNotFound
}

func (m *model) StoreLog(e *raft.Log) error { return m.StoreLogs([]*raft.Log{e}) }

func (m *model) StoreLogs(es []*raft.Log) error {
	for _, e := range es {
		c := *e
		m.entries[e.Index] = &c
	}
	return nil
}

func (m *model) DeleteRange(first, last uint64) error {
	maps.DeleteFunc(m.entries, func(i uint64, _ *raft.Log) bool { return i >= first && i <= last })
	return nil
}

func (m *model) SetBoundary(index, term uint64) error {
	if index < m.boundaryIndex {
		return nil
	}
	if m.boundaryIndex == index && m.boundaryTerm == term {
		return nil
	}
	m.boundaryIndex, m.boundaryTerm = index, term
	if e := m.entries[index]; e == nil || e.Term != term {
		return m.DeleteRange(0, index)
	}
	return nil
}

func (m *model) Forget() error {
	*m = *newModel()
	return nil
}

func (m *model) Set(key, value []byte) error {
	if string(key) == "LastVoteCand" {
		c := string(value)
		if m.ballot != 0 {
			m.voteTerm = m.ballot
		}
		m.candidate, m.ballot = &c, 0
		return nil
	}
	m.values[string(key)] = string(value)
	return nil
}

func (m *model) Get(key []byte) ([]byte, error) {
	if string(key) == "LastVoteCand" {
		if m.candidate == nil {
			return nil, errNotFound
		}
		return []byte(*m.candidate), nil
	}
	v, ok := m.values[string(key)]
	if !ok {
		return nil, errNotFound
	}
	return []byte(v), nil
}

func (m *model) SetUint64(key []byte, n uint64) error {
	switch string(key) {
	case "CurrentTerm":
		m.term = n
	case "LastVoteTerm":
		m.ballot = n
	default:
		return m.Set(key, fmt.Appendf(nil, "\x00\x00\x00\x00\x00\x00\x00%c", rune(n&0x7f)))
	}
	return nil
}

func (m *model) GetUint64(key []byte) (uint64, error) {
	switch string(key) {
	case "CurrentTerm":
		return m.term, nil
	case "LastVoteTerm":
		return m.voteTerm, nil
	}
	if v, ok := m.values[string(key)]; ok {
		return uint64(v[7]), nil
	}
	return 0, nil
}

// operation is one step of a workload.
type operation struct {
	name string
	do   func(store) error
}

func (o operation) String() string { return o.name }

// draw chooses an operation that raft could do where the model stands, and now
// and then one that it would not.
func draw(r *rand.Rand, m *model) operation {
	first, _ := m.FirstIndex()
	last, _ := m.LastIndex()
	switch n := r.IntN(100); {
	case n < 55:
		return appendOp(r, m, max(last, m.boundaryIndex)+1)
	case n < 60:
		return appendOp(r, m, last+1+r.Uint64N(20)) // a gap
	case n < 63 && last > 0:
		return appendOp(r, m, first+r.Uint64N(last-first+1)) // over what is there
	case n < 70 && last > 0:
		return deleteOp(last-r.Uint64N(min(5, last-first+1)), last)
	case n < 78 && last > 0:
		return deleteOp(r.Uint64N(first+1), first+r.Uint64N(last-first+1))
	case n < 80 && last > 0:
		at := first + r.Uint64N(last-first+1)
		return deleteOp(at, at+r.Uint64N(3))
	case n < 85:
		term := m.term + 1 + r.Uint64N(2)
		return operation{fmt.Sprintf("term %d", term), func(s store) error { return s.SetUint64([]byte("CurrentTerm"), term) }}
	case n < 91:
		return voteOp(m.term+r.Uint64N(2)+1, fmt.Sprintf("ebb-%d/%d", r.IntN(3), r.IntN(9)))
	case n < 94:
		key, value := fmt.Appendf(nil, "key %d", r.IntN(3)), fmt.Appendf(nil, "%d", r.Uint64())
		return operation{fmt.Sprintf("set %s %s", key, value), func(s store) error { return s.Set(key, value) }}
	case n < 95:
		v := r.Uint64N(100)
		return operation{fmt.Sprintf("number %d", v), func(s store) error { return s.SetUint64([]byte("number"), v) }}
	case n < 99:
		return boundaryOp(r, m, first, last)
	case r.IntN(4) == 0:
		return operation{"forget", store.Forget}
	}
	return appendOp(r, m, max(last, m.boundaryIndex)+1)
}

func appendOp(r *rand.Rand, m *model, from uint64) operation {
	es := make([]*raft.Log, 1+r.IntN(5))
	for i := range es {
		size := r.IntN(300)
		if r.IntN(60) == 0 { // more than a segment of the tests holds
			size = 5000
		}
		es[i] = entry(from+uint64(i), m.term+1, size)
		es[i].Type = raft.LogType(r.IntN(6))
		if r.IntN(5) == 0 {
			es[i].Extensions = []byte("extension")
		}
	}
	return operation{
		fmt.Sprintf("append %d..%d of term %d", from, from+uint64(len(es))-1, m.term+1),
		func(s store) error { return s.StoreLogs(es) },
	}
}

func deleteOp(first, last uint64) operation {
	return operation{fmt.Sprintf("delete %d..%d", first, last), func(s store) error { return s.DeleteRange(first, last) }}
}

func voteOp(term uint64, candidate string) operation {
	return operation{fmt.Sprintf("vote %d %s", term, candidate), func(s store) error {
		if err := s.SetUint64([]byte("LastVoteTerm"), term); err != nil {
			return err
		}
		return s.Set([]byte("LastVoteCand"), []byte(candidate))
	}}
}

func boundaryOp(r *rand.Rand, m *model, first, last uint64) operation {
	index := 1 + first + r.Uint64N(last-first+8)
	term := m.term + r.Uint64N(2)
	if e := m.entries[index]; e != nil && r.IntN(3) > 0 {
		term = e.Term
	}
	return operation{fmt.Sprintf("boundary %d/%d", index, term), func(s store) error { return s.SetBoundary(index, term) }}
}

// differ returns how two stores differ in what raft can read of them; "" if not.
func differ(got, want store, upTo uint64) string {
	for _, ask := range []struct {
		name string
		of   func(store) string
	}{
		{"first", func(s store) string { return fmt.Sprint(s.FirstIndex()) }},
		{"last", func(s store) string { return fmt.Sprint(s.LastIndex()) }},
		{"term", func(s store) string { return fmt.Sprint(s.GetUint64([]byte("CurrentTerm"))) }},
		{"vote term", func(s store) string { return fmt.Sprint(s.GetUint64([]byte("LastVoteTerm"))) }},
		{"vote", func(s store) string { return fmt.Sprint(s.Get([]byte("LastVoteCand"))) }},
		{"number", func(s store) string { return fmt.Sprint(s.GetUint64([]byte("number"))) }},
		{"key 0", func(s store) string { return fmt.Sprint(s.Get([]byte("key 0"))) }},
		{"key 1", func(s store) string { return fmt.Sprint(s.Get([]byte("key 1"))) }},
		{"key 2", func(s store) string { return fmt.Sprint(s.Get([]byte("key 2"))) }},
	} {
		if g, w := ask.of(got), ask.of(want); g != w {
			return fmt.Sprintf("%s: %s instead of %s", ask.name, g, w)
		}
	}
	for i := uint64(0); i <= upTo; i++ {
		var g, w raft.Log
		gErr, wErr := got.GetLog(i, &g), want.GetLog(i, &w)
		if gErr != wErr || !same(&g, &w) {
			return fmt.Sprintf("entry %d: %+v %v instead of %+v %v", i, g, gErr, w, wErr)
		}
	}
	return ""
}

// reach is how far differ must look to see all of a model.
func (m *model) reach() uint64 {
	last, _ := m.LastIndex()
	return max(last, m.boundaryIndex) + 3
}

func same(a, b *raft.Log) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Type == b.Type && a.AppendedAt.Equal(b.AppendedAt) &&
		bytes.Equal(a.Data, b.Data) && bytes.Equal(a.Extensions, b.Extensions)
}
