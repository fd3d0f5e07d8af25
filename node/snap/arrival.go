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

// partName is the file of what has arrived of a snapshot from elsewhere. It stays when the rest does not come, also
// over a restart:
//
//	header   as of every file
//	chunks   hash 20 | length 4 | the chunk
//
// It ends at the first chunk that does not verify. The list is written behind it when all are there, and it gets the
// snapshot's name.
const (
	partName  = "arriving.part"
	recordLen = hashLen + 4
)

// Item is one chunk of a snapshot.
type Item struct {
	Hash   Hash
	Length uint32
}

// signMagic begins what raft writes of a snapshot that has arrived, and no content: the sink of another snapshot
// refuses it.
const signMagic = "\x00this snapshot has arrived: "

// missing is the place of a chunk that is not here.
const missing = ^place(0)

// Arrival is a snapshot on its way here: the chunks that this store has, and those that come.
type Arrival struct {
	sink   *Sink
	items  []Item
	places []place
	next   int  // the first item that may be missing
	taken  bool // by raft: guarded by the store's mu
}

// Arrive begins a snapshot of these chunks, or continues one that broke off. There is one at a time.
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

// occupy takes the file of what arrives.
func (s *Store) occupy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arriving {
		return false
	}
	s.arriving = true
	return true
}

// begin finds out what is here.
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

// resume reads the chunks that are in the file, and cuts off what follows them. What it keeps it writes once more: a
// sync of it may have failed, of this process or of one before, and then it can be read, and the next sync succeeds,
// though it is not on the disk.
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

// worthwhile begins the file anew if little of it is of this snapshot: what is of earlier ones would stay in it.
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

// found begins the file.
func (k *Sink) found() error {
	if _, err := k.file.WriteAt(header(), 0); err != nil {
		return err
	}
	return k.store.cfg.FS.SyncDir(k.store.cfg.Dir)
}

// Has reports whether a chunk of the list is here.
func (a *Arrival) Has(i int) bool { return a.places[i] != missing }

// Put takes the first chunk of the list that is missing.
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

// Whole returns the content when all chunks are here.
func (a *Arrival) Whole() (*Content, error) {
	k := a.sink
	if i := slices.Index(a.places, missing); i >= 0 {
		return nil, proto.ErrCorrupt.Errorf("snapshot %s: chunk %d is missing", k.id, i)
	}
	if k.meta.Size == 0 { // else it is listed
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

// Ready has the next Create of this snapshot take what is here, once Whole has returned it. What raft then writes,
// instead of the content, is what Ready returns.
func (a *Arrival) Ready() []byte {
	s := a.sink.store
	s.mu.Lock()
	defer s.mu.Unlock()
	a.sink.sign = append(slices.Clip([]byte(signMagic)), a.sink.id...)
	s.ready = a
	return a.sink.sign
}

// take returns what has arrived of a snapshot, if that is all.
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

// Close lets go of the snapshot, unless raft has taken it. What has arrived stays for the next attempt.
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

// confirm takes what raft writes instead of the content.
func (k *Sink) confirm(p []byte) (int, error) {
	if len(p) > len(k.sign) || string(p) != string(k.sign[:len(p)]) {
		return 0, fmt.Errorf("write snapshot %s: it has arrived already", k.id)
	}
	k.sign = k.sign[len(p):]
	return len(p), nil
}

// discard removes what arrived of a snapshot that never came whole: there is a newer one.
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
