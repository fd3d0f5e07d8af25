package snap

import (
	"cmp"
	"errors"
	"slices"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

const (
	// filesMax is how many older files a snapshot names at most: all of them are read in parallel.
	filesMax = 15
	// sparseShare: a file is sparse if less than one part in sparseShare of it is still named. Its remaining chunks are
	// written again over time, so the files take little more than twice their content. movedShare: for movedShare new
	// bytes, one such byte is written.
	sparseShare = 4
	movedShare  = 6
)

// base holds the chunks that a new snapshot need not write: those of the newest snapshot.
type base struct {
	files  []piece // 0 is the newest snapshot's file
	chunks map[Hash]place
	sparse []bool // by file

	listLen int
}

// newBase reads the list of a snapshot.
func (s *Store) newBase(l *listed) (*base, error) {
	f, err := fs.Open(s.cfg.FS, s.path(l.id))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	list, err := l.meta.readList(f)
	if err != nil {
		return nil, err
	}
	b := &base{files: append([]piece{{ID: l.id, Size: size}}, l.meta.Files...), listLen: len(list), chunks: make(map[Hash]place, len(list)/(hashLen+4))}
	live, e := make([]int64, len(b.files)), ends(nil)
	for len(list) > 0 {
		c, rest, ok := e.next(list, len(b.files))
		if !ok {
			return nil, corrupt(f, l.meta.listAt, "its list does not decode")
		}
		list = rest
		b.chunks[c.hash] = c.at
		live[c.at.file()] += int64(c.length)
	}
	b.leave(live, s.cfg.Files)
	return b, nil
}

// leave marks sparse files. If there are too many files, it drops the chunks of those with the fewest named bytes from
// the base. live is how many bytes of each file are named.
func (b *base) leave(live []int64, files int) {
	order := make([]int, len(live)) // the fullest first
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(live[y], live[x]) })
	b.sparse = make([]bool, len(live))
	for i := range live {
		b.sparse[i] = live[i]*sparseShare < b.files[i].Size
	}
	if len(order) <= files {
		return
	}
	for hash, at := range b.chunks {
		if slices.Contains(order[files:], at.file()) {
			delete(b.chunks, hash)
		}
	}
}

// build finds the chunks that the snapshot need not write.
func (k *Sink) build() {
	if k.base = k.store.base(k); k.base != nil {
		k.named = make([]int, len(k.base.files))
		k.list = make([]byte, 0, k.base.listLen+k.base.listLen/16) // it will be about as long
	}
}

// base returns the base for a new snapshot, whose files are kept for it; nil if there is none.
func (s *Store) base(k *Sink) *base {
	newest, ok := s.keep(k)
	if !ok {
		return nil
	}
	b, err := s.newBase(&newest)
	if errors.Is(err, proto.ErrCorrupt) {
		s.quarantine(newest.id, err)
	}
	if err != nil {
		s.cfg.Logger.Warn("a snapshot is written whole: the one before cannot be read", "id", newest.id, "error", err)
		return nil
	}
	return b
}

// keep protects the files of the newest snapshot from removal while k is written. ok is false if that snapshot is not
// known to be undamaged.
func (s *Store) keep(k *Sink) (newest listed, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.listed) == 0 || !s.listed[0].sound {
		return listed{}, false
	}
	newest = s.listed[0]
	s.sinks[k] = append([]piece{{ID: newest.id}}, newest.meta.Files...)
	return newest, true
}
