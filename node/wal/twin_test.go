package wal_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble"
	"github.com/cockroachdb/pebble/vfs"
	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
)

// twin keeps a group in Pebble: slow, simple, and written without a look at the
// log.
type twin struct {
	db     *pebble.DB
	group  uint32
	ballot uint64
}

func (t *twin) key(table byte, rest []byte) []byte {
	return append(append(binary.BigEndian.AppendUint32(nil, t.group), table), rest...)
}

func (t *twin) entryKey(index uint64) []byte {
	return t.key('e', binary.BigEndian.AppendUint64(nil, index))
}

func (t *twin) get(key []byte) []byte {
	v, c, err := t.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		panic(err)
	}
	defer func() { _ = c.Close() }()
	return append([]byte{}, v...)
}

func (t *twin) set(key, value []byte) error { return t.db.Set(key, value, pebble.Sync) }

func (t *twin) edge(move func(*pebble.Iterator) bool) uint64 {
	it, err := t.db.NewIter(&pebble.IterOptions{LowerBound: t.entryKey(0), UpperBound: t.key('f', nil)})
	if err != nil {
		panic(err)
	}
	defer func() { _ = it.Close() }()
	if !move(it) {
		return 0
	}
	return binary.BigEndian.Uint64(it.Key()[5:])
}

func (t *twin) FirstIndex() (uint64, error) { return t.edge((*pebble.Iterator).First), nil }
func (t *twin) LastIndex() (uint64, error)  { return t.edge((*pebble.Iterator).Last), nil }

func (t *twin) GetLog(index uint64, to *raft.Log) error {
	if v := t.get(t.entryKey(index)); v != nil {
		*to = decodeTwin(index, v)
		return nil
	}
	at, term := t.bound()
	if first := t.edge((*pebble.Iterator).First); index == at && index > 1 && (first == 0 || first > index) {
		*to = raft.Log{Index: index, Term: term, Type: raft.LogNoop}
		return nil
	}
	return raft.ErrLogNotFound
}

func encodeTwin(e *raft.Log) []byte {
	b := binary.BigEndian.AppendUint64(nil, e.Term)
	b = binary.BigEndian.AppendUint64(b, uint64(e.AppendedAt.UnixNano()))
	b = append(b, byte(e.Type), byte(len(e.Extensions)))
	b = append(b, e.Extensions...)
	return append(b, e.Data...)
}

func decodeTwin(index uint64, v []byte) raft.Log {
	n := int(v[17])
	return raft.Log{
		Index: index, Term: binary.BigEndian.Uint64(v), Type: raft.LogType(v[16]), Extensions: v[18 : 18+n],
		Data: v[18+n:], AppendedAt: time.Unix(0, int64(binary.BigEndian.Uint64(v[8:]))),
	}
}

func (t *twin) StoreLog(e *raft.Log) error { return t.StoreLogs([]*raft.Log{e}) }

func (t *twin) StoreLogs(es []*raft.Log) error {
	b := t.db.NewBatch()
	for _, e := range es {
		if err := b.Set(t.entryKey(e.Index), encodeTwin(e), nil); err != nil {
			return err
		}
	}
	return b.Commit(pebble.Sync)
}

func (t *twin) DeleteRange(first, last uint64) error {
	if first > last {
		return nil
	}
	return t.db.DeleteRange(t.entryKey(first), t.entryKey(last+1), pebble.Sync)
}

func (t *twin) bound() (index, term uint64) {
	v := t.get(t.key('b', nil))
	if v == nil {
		return 0, 0
	}
	return binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
}

func (t *twin) SetBoundary(index, term uint64) error {
	haveIndex, haveTerm := t.bound()
	if index < haveIndex || index == haveIndex && term == haveTerm {
		return nil
	}
	v := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, index), term)
	if err := t.set(t.key('b', nil), v); err != nil {
		return err
	}
	if e := t.get(t.entryKey(index)); e == nil || binary.BigEndian.Uint64(e) != term {
		return t.DeleteRange(0, index)
	}
	return nil
}

func (t *twin) Forget() error {
	t.ballot = 0
	return t.db.DeleteRange(binary.BigEndian.AppendUint32(nil, t.group), binary.BigEndian.AppendUint32(nil, t.group+1), pebble.Sync)
}

func (t *twin) Set(key, value []byte) error {
	if string(key) == "LastVoteCand" && t.ballot != 0 {
		if err := t.set(t.key('v', []byte("LastVoteTerm")), binary.BigEndian.AppendUint64(nil, t.ballot)); err != nil {
			return err
		}
		t.ballot = 0
	}
	return t.set(t.key('v', key), value)
}

func (t *twin) Get(key []byte) ([]byte, error) {
	if v := t.get(t.key('v', key)); v != nil {
		return v, nil
	}
	return nil, errNotFound
}

func (t *twin) SetUint64(key []byte, n uint64) error {
	if string(key) == "LastVoteTerm" {
		t.ballot = n
		return nil
	}
	return t.set(t.key('v', key), binary.BigEndian.AppendUint64(nil, n))
}

func (t *twin) GetUint64(key []byte) (uint64, error) {
	v := t.get(t.key('v', key))
	if v == nil {
		return 0, nil
	}
	return binary.BigEndian.Uint64(v), nil
}

// TestTwin runs random operations on the log, on Pebble and on the model, with
// closings and openings, and compares all three as it goes.
func TestTwin(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runTwin(t, seed) })
	}
}

func runTwin(t *testing.T, seed uint64) {
	const groups = 3
	r := rand.New(rand.NewPCG(seed, 1))
	disk, twinDisk := fs.NewMem(), vfs.NewMem()
	l := open(t, disk)
	db, err := pebble.Open("twin", &pebble.Options{FS: twinDisk, Logger: discardLogger{}})
	must(t, err)
	defer func() { must(t, db.Close()) }()
	var twins [groups]*twin
	var models [groups]*model
	for i := range groups {
		twins[i], models[i] = &twin{db: db, group: uint32(i)}, newModel()
	}
	for step := range 1500 {
		i := r.IntN(groups)
		op := draw(r, models[i])
		must(t, errors.Join(op.do(l.Group(uint32(i))), op.do(twins[i]), op.do(models[i])))
		switch r.IntN(60) {
		case 0:
			must(t, l.Close())
			l = open(t, disk)
		case 1:
			must(t, db.Close())
			db, err = pebble.Open("twin", &pebble.Options{FS: twinDisk, Logger: discardLogger{}})
			must(t, err)
			for _, tw := range twins {
				tw.db = db
			}
		case 2:
			g := l.Group(uint32(i))
			if d := differ(g, models[i], models[i].reach()); d != "" {
				t.Fatalf("step %d, group %d after %v: %s", step, i, op, d)
			}
			if d := differ(g, twins[i], models[i].reach()); d != "" {
				t.Fatalf("step %d, group %d after %v, twin: %s", step, i, op, d)
			}
		}
	}
	must(t, l.Close())
}

type discardLogger struct{}

func (discardLogger) Infof(string, ...any)           {}
func (discardLogger) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
