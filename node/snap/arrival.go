package snap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ebbdb/ebb/proto"
)

// partName is the file that holds the received part of a snapshot from another node. It stays when the rest does not
// arrive, also over a restart:
//
//	header   as of every file
//	chunks   hash 20 | length 4 | the chunk
//
// The file ends at the first chunk that fails verification. When all chunks are there, the list is written behind them,
// and the file gets the snapshot's name.
const (
	partName  = "arriving.part"
	recordLen = hashLen + 4
)

// Item is one chunk of a snapshot.
type Item struct {
	Hash   Hash
	Length uint32
}

// signMagic begins the bytes that raft writes for a snapshot that has already arrived. It never begins a snapshot's
// content: the sink of another snapshot refuses it.
const signMagic = "\x00this snapshot has arrived: "

// missing is the place of a chunk that this store does not have.
const missing = ^place(0)

// Arrival is a snapshot that is being received: the chunks that this store has, and those that arrive.
type Arrival struct {
	sink   *Sink
	items  []Item
	places []place
	next   int  // the first item that may be missing
	taken  bool // raft uses it; guarded by the store's mu
}

// Arrive begins to receive a snapshot of these chunks, or continues an interrupted one. While another snapshot arrives,
// it returns proto.ErrOverloaded.
func (s *Store) Arrive(index, term uint64, items []Item) (*Arrival, error) {
	k := s.register(index, term)
	if !s.occupy() {
		s.forget(k)
		return nil, proto.ErrOverloaded.Errorf("a snapshot is arriving at %s already", s.cfg.Dir)
	}
	a := &Arrival{sink: k, items: items, places: make([]place, len(items))}
	if err := a.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("begin snapshot %s: %w", k.id, err), a.Close())
	}
	return a, nil
}

// occupy reserves the file of the arriving snapshot.
func (s *Store) occupy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arriving {
		return false
	}
	s.arriving = true
	return true
}

// begin finds out which chunks are already here.
func (a *Arrival) begin() error {
	k := a.sink
	k.name, k.arrived = filepath.Join(k.store.cfg.Dir, partName), true
	k.build()
	f, err := k.store.cfg.FS.OpenFile(k.name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	k.file = f
	here, err := k.resume()
	if err != nil {
		return err
	}
	if here, err = k.worthwhile(here, a.items); err != nil {
		return err
	}
	for i, item := range a.items {
		if item.Length == 0 || item.Length > chunkBytesMax {
			return proto.ErrCorrupt.Errorf("a chunk of %d bytes: the limit is %d", item.Length, chunkBytesMax)
		}
		if at, ok := k.reuse(item.Hash, int(item.Length)); ok {
			a.places[i] = at
		} else if at, ok := here[item.Hash]; ok {
			a.places[i] = at
		} else {
			a.places[i] = missing
		}
	}
	return nil
}

// resume reads the chunks that are in the file, and cuts off what follows them. It writes the chunks that it keeps
// again. An earlier sync may have failed, of this process or of one before. Then the bytes can be read and the next
// sync succeeds, although they are not on the disk.
func (k *Sink) resume() (map[Hash]place, error) {
	size, err := k.file.Size()
	if err != nil {
		return nil, err
	}
	here := make(map[Hash]place)
	if checkHeader(k.file, size) == nil {
		if _, err := k.file.WriteAt(header(), 0); err != nil {
			return nil, err
		}
		r := bufio.NewReaderSize(io.NewSectionReader(k.file, headerLen, size-headerLen), windowLen)
		record := make([]byte, recordLen+chunkBytesMax) // and its chunk
		for k.at+recordLen < size {
			if _, err := io.ReadFull(r, record[:recordLen]); err != nil {
				return nil, err
			}
			n := int64(le.Uint32(record[hashLen:]))
			if n == 0 || n > chunkBytesMax || n > size-k.at-recordLen {
				break
			}
			chunk := record[recordLen:][:n]
			if _, err := io.ReadFull(r, chunk); err != nil {
				return nil, err
			}
			hash := HashOf(chunk)
			if hash != Hash(record[:hashLen]) {
				break
			}
			if _, err := k.file.WriteAt(record[:recordLen+n], k.at); err != nil {
				return nil, err
			}
			here[hash] = placeAt(0, k.at+recordLen)
			k.at += recordLen + n
		}
	} else if err := k.found(); err != nil {
		return nil, err
	}
	if err := k.file.Truncate(k.at); err != nil {
		return nil, err
	}
	k.out = bufio.NewWriterSize(io.NewOffsetWriter(k.file, k.at), writeBufLen)
	return here, nil
}

// worthwhile empties the file if it holds little of this snapshot: chunks of earlier ones would stay in it.
func (k *Sink) worthwhile(here map[Hash]place, items []Item) (map[Hash]place, error) {
	var wanted int64
	for _, item := range items {
		if _, ok := here[item.Hash]; ok {
			wanted += int64(item.Length)
		}
	}
	if wanted*sparseShare >= k.at-headerLen {
		return here, nil
	}
	k.at = headerLen
	k.out.Reset(io.NewOffsetWriter(k.file, k.at))
	return nil, k.file.Truncate(k.at)
}

// found writes the beginning of a new file.
func (k *Sink) found() error {
	if _, err := k.file.WriteAt(header(), 0); err != nil {
		return err
	}
	return k.store.cfg.FS.SyncDir(k.store.cfg.Dir)
}

// Has reports whether a chunk of the list is here.
func (a *Arrival) Has(i int) bool { return a.places[i] != missing }

// Put stores the first missing chunk of the list. It returns proto.ErrCorrupt if chunk is not that one.
func (a *Arrival) Put(chunk []byte) error {
	for a.next < len(a.items) && a.Has(a.next) {
		a.next++
	}
	k := a.sink
	switch {
	case a.next == len(a.items):
		return proto.ErrCorrupt.Errorf("snapshot %s: a chunk that was not asked for", k.id)
	case len(chunk) != int(a.items[a.next].Length) || HashOf(chunk) != a.items[a.next].Hash:
		return proto.ErrCorrupt.Errorf("snapshot %s: chunk %d arrived with other bytes", k.id, a.next)
	}
	if err := k.store.hit("snap.arrive"); err != nil {
		return err
	}
	record := le.AppendUint32(append(make([]byte, 0, recordLen), a.items[a.next].Hash[:]...), uint32(len(chunk)))
	if err := k.append(record); err != nil {
		return err
	}
	a.places[a.next] = placeAt(0, k.at)
	return k.append(chunk)
}

// Whole returns the content. It returns proto.ErrCorrupt if a chunk is missing.
func (a *Arrival) Whole() (*Content, error) {
	k := a.sink
	if i := slices.Index(a.places, missing); i >= 0 {
		return nil, proto.ErrCorrupt.Errorf("snapshot %s: chunk %d is missing", k.id, i)
	}
	if k.meta.Size == 0 { // otherwise the list is already written
		for i, item := range a.items {
			k.list = k.ends.appendEntry(k.list, &entry{hash: item.Hash, length: int(item.Length), at: a.places[i]})
			if k.meta.Size += int64(item.Length); a.places[i].file() != 0 {
				k.reused += int64(item.Length)
			}
		}
		if err := k.out.Flush(); err != nil {
			return nil, err
		}
	}
	c := &Content{store: k.store, id: k.id, size: k.meta.Size, list: k.list}
	if err := c.openAll(k.name, k.meta.Files); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Ready makes the next Create of this snapshot use the chunks that have arrived; Whole must have succeeded before. Raft
// must then write the bytes that Ready returns instead of the content.
func (a *Arrival) Ready() []byte {
	s := a.sink.store
	s.mu.Lock()
	defer s.mu.Unlock()
	a.sink.sign = append(slices.Clip([]byte(signMagic)), a.sink.id...)
	s.ready = a
	return a.sink.sign
}

// take returns the sink of this snapshot if all of it has arrived.
func (s *Store) take(index, term uint64) *Sink {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.ready
	if a == nil || a.sink.meta.Index != index || a.sink.meta.Term != term {
		return nil
	}
	s.ready, a.taken = nil, true
	return a.sink
}

// Close releases the snapshot, unless raft has taken it. The chunks that arrived stay for the next attempt.
func (a *Arrival) Close() error {
	k := a.sink
	s := k.store
	s.mu.Lock()
	if s.ready == a {
		s.ready = nil
	}
	taken := a.taken
	s.mu.Unlock()
	if taken {
		return nil
	}
	return k.Cancel()
}

// confirm checks the bytes that raft writes instead of the content.
func (k *Sink) confirm(p []byte) (int, error) {
	if len(p) > len(k.sign) || string(p) != string(k.sign[:len(p)]) {
		return 0, fmt.Errorf("write snapshot %s: it has arrived already", k.id)
	}
	k.sign = k.sign[len(p):]
	return len(p), nil
}

// discard removes the file of a snapshot that never arrived completely: there is a newer snapshot.
func (s *Store) discard() {
	if !s.occupy() {
		return
	}
	if err := s.removeIfExists(filepath.Join(s.cfg.Dir, partName)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		s.cfg.Logger.Warn("remove what arrived of a snapshot", "dir", s.cfg.Dir, "error", err)
	}
	s.vacate()
}

func (s *Store) vacate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arriving = false
}
