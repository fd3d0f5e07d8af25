package wal

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// Open reads a log, or makes a new one, and starts its goroutines. A batch that was being written when the process
// ended is cut off, and that is logged. Open returns proto.ErrCorrupt for a damaged log and proto.ErrNewerVersion for a
// newer one. The caller must hold the data directory's lock.
func Open(cfg Config) (_ *Log, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	l := &Log{
		cfg: cfg, salt: newSalt(), start: time.Now(), sequence: 1,
		chunk:  int(min(chunkBytesMax, max(chunkBytesMin, cfg.SegmentBytes/8))),
		groups: make(map[uint32]*Group),
		wake:   make(chan struct{}, 1), written: make(chan struct{}), closed: make(chan struct{}), ends: make(chan struct{}),
	}
	l.renew(nil)
	spare, err := l.recover()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open log %s: %w", cfg.Dir, err), l.release())
	}
	if err := l.checkEnd(); err != nil {
		if spare != nil {
			err = errors.Join(err, spare.release())
		}
		return nil, errors.Join(fmt.Errorf("open log %s: %w", cfg.Dir, err), l.release())
	}
	if err := l.begin(spare); err != nil {
		return nil, fmt.Errorf("open log %s: %w", cfg.Dir, err)
	}
	return l, nil
}

// begin starts the goroutines, and makes the first segment of a new log.
func (l *Log) begin(spare *segment) error {
	have := uint32(0)
	if len(l.segments) > 0 {
		have = l.active().number
	}
	if spare != nil {
		have = spare.number
	}
	l.keeper = newKeeper(l, have)
	go l.keeper.run(spare)
	var err error
	if len(l.segments) == 0 {
		err = l.roll(0)
	}
	if err == nil {
		err = l.mark()
	}
	if err == nil {
		err = l.end.begin(l.sequence)
	}
	if err != nil {
		l.keeper.close()
		return errors.Join(err, l.end.close(), l.release())
	}
	go l.run()
	if l.end == nil {
		close(l.ends)
	} else {
		go l.syncEnds()
	}
	return nil
}

// recover reads all segments. It returns a prepared segment if there is one.
func (l *Log) recover() (spare *segment, err error) {
	began := l.now()
	found, err := l.find()
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if l.cfg.Existing {
			return nil, proto.ErrCorrupt.Errorf("no segment of the log is left in %s: it was deleted", l.cfg.Dir).WithHint(restore)
		}
		return nil, nil
	}
	opened, err := l.openAll(found)
	if err != nil {
		return nil, errors.Join(err, closeSegments(opened))
	}
	r := recovery{log: l, found: opened}
	if err := r.run(); err != nil {
		return nil, errors.Join(err, closeSegments(opened[len(l.segments):]))
	}
	l.cfg.Logger.Info("log read", "dir", l.cfg.Dir, "segments", len(l.segments), "bytes", r.bytes,
		"groups", len(l.groups), "took", l.now()-began)
	return r.spare, nil
}

func closeSegments(segments []*segment) (err error) {
	for _, s := range segments {
		err = errors.Join(err, s.release())
	}
	return err
}

// restore is the hint for missing files.
const restore = "restore the directory as it was when the node stopped, if it was moved; do not start the node without it"

// find lists the segments' numbers and removes temporary files of unfinished ones.
func (l *Log) find() ([]uint32, error) {
	if err := fs.MakeDir(l.cfg.FS, l.cfg.Dir); err != nil {
		return nil, err
	}
	infos, err := l.cfg.FS.ReadDir(l.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var numbers []uint32
	for _, info := range infos {
		if number, ok := segmentNumber(info.Name); ok {
			numbers = append(numbers, number)
		} else if strings.HasSuffix(info.Name, segmentSuffix+".tmp") {
			if err := l.cfg.FS.Remove(filepath.Join(l.cfg.Dir, info.Name)); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != numbers[0]+uint32(i) {
			return nil, proto.ErrCorrupt.Errorf("%s is missing; %s exists",
				segmentName(l.cfg.Dir, n-1), segmentName(l.cfg.Dir, n)).WithHint(restore)
		}
	}
	return numbers, l.cfg.FS.SyncDir(l.cfg.Dir)
}

func (l *Log) openAll(numbers []uint32) (opened []*segment, err error) {
	for i, number := range numbers {
		s, salt, err := openSegment(l.cfg.FS, l.cfg.Dir, number)
		if err != nil {
			return opened, err
		}
		opened = append(opened, s)
		if i == 0 {
			l.salt = salt
		}
		if salt != l.salt {
			return opened, corrupt(s, 24, "it belongs to another log")
		}
	}
	return opened, nil
}

// recovery is the state while a log is read.
type recovery struct {
	log   *Log
	found []*segment
	buf   []byte // the bytes of the segment being read
	bytes int64
	spare *segment
	// last is the offset of the last batch in the segment that was read last; 0 if it has none, or if a mark shows that
	// the batch is durable.
	last int64
}

func (r *recovery) run() error {
	l := r.log
	for i, s := range r.found {
		if err := r.load(s); err != nil {
			return err
		}
		if i == 0 && !r.firstSequence() {
			return r.fresh()
		}
		end, why, err := r.replay(s)
		if err != nil {
			return err
		}
		if end > segmentHeaderLen {
			s.end = end
			if r.continues(i) {
				continue
			}
		}
		return r.finish(i, end, why)
	}
	return fmt.Errorf("no end of the log in %s", l.cfg.Dir)
}

func (r *recovery) load(s *segment) error {
	size, err := s.file.Size() // all of the file, even if it is longer than it has to be
	if err != nil {
		return err
	}
	if int64(cap(r.buf)) < size {
		r.buf = make([]byte, size)
	}
	r.buf = r.buf[:size]
	r.bytes += size
	return s.readAt(r.buf, 0)
}

// firstSequence takes the sequence number from the oldest segment's first batch.
func (r *recovery) firstSequence() bool {
	h, ok := parseBatchHeader(r.buf[segmentHeaderLen:], r.log.salt)
	if ok {
		r.log.sequence = h.sequence
	}
	return ok
}

// replay applies a segment's batches up to the first missing one. It returns the offset there. why says why no batch is
// there; nil if a mark is there.
func (r *recovery) replay(s *segment) (end int64, why error, err error) {
	l := r.log
	end, r.last = segmentHeaderLen, 0
	for {
		b := r.buf[end:]
		h, ok := parseBatchHeader(b, l.salt)
		if !ok {
			return end, errors.New("no sound batch starts here"), nil
		}
		if h.sequence != l.sequence {
			return end, nil, corrupt(s, end, fmt.Sprintf("batch %d is expected and %d is there", l.sequence, h.sequence))
		}
		if h.mark() {
			s.sealed, r.last = h.next() != 0, 0
			return end, nil, nil
		}
		body := b[batchHeaderLen:]
		if err := h.verify(body, l.salt); err != nil {
			return end, err, nil
		}
		if end == segmentHeaderLen {
			err = r.admit(s, h, body)
		} else {
			err = l.apply(s, end+batchHeaderLen, h, body)
		}
		if err != nil {
			return end, nil, corrupt(s, end, err.Error())
		}
		l.sequence++
		r.last = end
		end += batchHeaderLen + int64(h.length)
	}
}

// admit adds a segment to the log if its first batch, the state, is valid. The oldest segment's state is taken over; a
// later one must match the batches read before it.
func (r *recovery) admit(s *segment, h batchHeader, body []byte) error {
	l := r.log
	if recordAt(body).kind != kindBegin {
		return errors.New("it does not start with the state of all groups")
	}
	s.first = h.sequence
	if len(l.segments) == 0 {
		l.segments = append(l.segments, s)
		return l.adopt(h, body)
	}
	if state := l.state().buf[batchHeaderLen:]; !bytes.Equal(state, body[:h.length]) {
		return errors.New("the state of all groups is not what the segments before it say")
	}
	l.segments = append(l.segments, s)
	return nil
}

// continues reports whether the segment after the i-th starts with the next batch.
func (r *recovery) continues(i int) bool {
	if i+1 == len(r.found) {
		return false
	}
	var b [batchHeaderLen]byte
	if r.found[i+1].readAt(b[:], segmentHeaderLen) != nil {
		return false
	}
	h, ok := parseBatchHeader(b[:], r.log.salt)
	return ok && h.sequence == r.log.sequence && !h.mark()
}

// finish ends the reading at an offset in the i-th segment, whose bytes are loaded: no later batch may follow.
func (r *recovery) finish(i int, end int64, why error) error {
	l, s := r.log, r.found[i]
	if len(l.segments) == 0 && (s.number != 1 || l.cfg.Existing) {
		return corrupt(s, end, fmt.Sprintf("%v, and nothing is before it", why))
	}
	if why == nil {
		why = errors.New("the log ends here")
	}
	if err := r.sealed(i, end, why); err != nil {
		return err
	}
	if at := l.later(r.buf[end:]); at >= 0 {
		return corrupt(s, end, fmt.Sprintf("%v, but batches follow at offset %d", why, end+int64(at)))
	}
	rest := []remains{{s, end, r.torn(end)}}
	for _, next := range r.found[i+1:] {
		if err := r.load(next); err != nil {
			return err
		}
		if at := l.later(r.buf[segmentHeaderLen:]); at >= 0 {
			if rest[0].torn == 0 { // then the start of the next segment is damaged
				s, end = r.found[i+1], segmentHeaderLen
			}
			return corrupt(s, end, fmt.Sprintf("%v, but batches follow at offset %d of %s", why, segmentHeaderLen+at, next.name))
		}
		rest = append(rest, remains{next, segmentHeaderLen, r.torn(segmentHeaderLen)})
	}
	if err := r.paid(); err != nil {
		return err
	}
	// Only now, when the log is known to be undamaged, is anything changed.
	if err := r.repeat(s, end); err != nil {
		return err
	}
	for _, m := range rest {
		if err := r.clean(m); err != nil {
			return err
		}
	}
	if n := len(l.segments); n > 1 { // the process may have died before it did this
		if err := l.seal(l.segments[n-2], l.segments[n-1]); err != nil {
			return err
		}
	}
	return r.settle(i, end)
}

// sealed returns an error if the log ends in a segment after which it once continued. That segment is the i-th or the
// one before it.
func (r *recovery) sealed(i int, end int64, why error) error {
	n := len(r.log.segments)
	if n == 0 || !r.log.segments[n-1].sealed {
		return nil
	}
	full := r.log.segments[n-1]
	switch {
	case r.found[i] != full: // the next segment, whose first batch is damaged
		return corrupt(r.found[i], end, fmt.Sprintf("%v, but the log went on here from %s", why, full.name))
	case i+1 < len(r.found):
		return corrupt(r.found[i+1], segmentHeaderLen, fmt.Sprintf("no sound batch starts here, but the log went on here from %s", full.name))
	}
	return corrupt(full, end, fmt.Sprintf("the log went on in %s, which is missing", segmentName(r.log.cfg.Dir, full.number+1)))
}

// remains is the part of a segment behind its last batch.
type remains struct {
	segment *segment
	end     int64
	torn    int64 // bytes from end on that are not zeros and not a mark
}

// torn returns how many bytes from end on a torn write has left in the loaded segment: 0 if only a mark and zeros
// follow.
func (r *recovery) torn(end int64) int64 {
	rest := r.buf[end:]
	n := used(rest)
	if h, ok := parseBatchHeader(rest, r.log.salt); ok && h.mark() && n <= batchHeaderLen {
		return 0
	}
	return int64(n)
}

// settle decides which segments are written to: the last one with a batch and, as a spare, the one after it. Others
// after that are removed, the last one first.
func (r *recovery) settle(i int, end int64) error {
	if end > segmentHeaderLen {
		i++
	}
	rest := r.found[i:]
	for len(rest) > 1 {
		last := rest[len(rest)-1]
		rest = rest[:len(rest)-1]
		if err := errors.Join(last.release(), r.log.cfg.FS.Remove(last.name)); err != nil {
			return err
		}
	}
	if len(rest) == 1 {
		r.spare = rest[0]
	}
	return r.log.cfg.FS.SyncDir(r.log.cfg.Dir)
}

// later returns the offset in b of a batch that was written after the missing one; -1 if there is none.
func (l *Log) later(b []byte) int {
	for at := 0; at+batchHeaderLen <= len(b); at += 8 {
		if le.Uint32(b[at:]) != batchMagic {
			continue
		}
		if h, ok := parseBatchHeader(b[at:], l.salt); ok && h.sequence > l.sequence {
			return at
		}
	}
	return -1
}

// repeat writes the last batch of a segment, which ends at end, once more. The process may have died after the sync of
// the batch failed: then the batch can be read, and another sync succeeds without writing it, but a power failure loses
// it. The batches before it were synced before it was written.
func (r *recovery) repeat(s *segment, end int64) error {
	if r.last == 0 || r.last >= end {
		return nil
	}
	b := make([]byte, end-r.last)
	if err := s.readAt(b, r.last); err != nil {
		return err
	}
	if _, err := s.file.WriteAt(b, r.last); err != nil {
		return fmt.Errorf("write %s: %w", s.name, err)
	}
	return nil
}

// clean makes sure that only zeros follow, so that no later read takes torn bytes for a batch. It also makes all before
// durable: those bytes may come from the page cache, if the process was killed before its sync. The zeros are written
// in place: the file keeps its length in a power failure, and torn bytes that are left are still torn bytes.
func (r *recovery) clean(m remains) error {
	s := m.segment
	if m.torn > 0 {
		r.log.cfg.Logger.Warn("cut off a write that was not finished", "segment", s.name, "offset", m.end,
			"sequence", r.log.sequence)
		if _, err := s.file.WriteAt(make([]byte, m.torn), m.end); err != nil {
			return fmt.Errorf("write %s: %w", s.name, err)
		}
	}
	return s.file.Sync()
}

// used returns the length of b without the zeros at its end.
func used(b []byte) int {
	for len(b) >= 8 && le.Uint64(b[len(b)-8:]) == 0 {
		b = b[:len(b)-8]
	}
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return len(b)
}

// paid checks that every entry that a group holds was found.
func (r *recovery) paid() error {
	for _, id := range r.log.groupIDs() {
		g := r.log.groups[id]
		found := true
		g.entries.each(func(p place) bool {
			found = p.segment != 0
			return found
		})
		if !found {
			return proto.ErrCorrupt.Errorf("segments before %s are missing: group %d has entries there", r.found[0].name, id).WithHint(restore)
		}
	}
	return nil
}

// fresh handles a log that was never written to, or that is damaged at its very start.
func (r *recovery) fresh() error {
	r.log.sequence = 0
	err := r.finish(0, segmentHeaderLen, errors.New("no sound batch starts here"))
	r.log.sequence = 1
	return err
}
