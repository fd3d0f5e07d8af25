package wal

import (
	"fmt"
	"runtime"
	"slices"
)

// run is the writer: it takes pending records, writes and syncs them, applies them to the index, and wakes their
// callers. After a failure it ends.
func (l *Log) run() {
	err := l.writeAll()
	if err != nil {
		l.cfg.Logger.Error("the log has failed and stores nothing more", "dir", l.cfg.Dir, "error", err)
		l.failure.Store(&err)
	}
	close(l.written)
	if err != nil && l.cfg.Fatal != nil {
		l.cfg.Fatal(err)
	}
}

func (l *Log) writeAll() error {
	for {
		if err := l.unread.Load(); err != nil {
			return *err
		}
		b := l.take()
		if b == nil {
			if l.ended() {
				return l.finish()
			}
			<-l.wake
			continue
		}
		if err := l.commit(b); err != nil {
			l.stuck = b
			return err
		}
		l.inflight.Store(0)
		close(b.done)
	}
}

// unreadable makes the log fail and ends the calling goroutine.
func (l *Log) unreadable(group uint32, err error) {
	l.cfg.Logger.Error("end a raft group that cannot read its log", "group", group, "error", err)
	l.unread.CompareAndSwap(nil, &err)
	l.signal()
	runtime.Goexit()
}

// ended reports whether Close was called and nothing is left to write.
func (l *Log) ended() bool {
	l.queue.Lock()
	defer l.queue.Unlock()
	return l.closing && l.pending.count == 0
}

// commit makes a batch durable and visible.
func (l *Log) commit(b *batch) error {
	s := l.active()
	if s.end+int64(len(b.buf))+batchHeaderLen > s.size { // leave room for a mark, too
		if err := l.roll(len(b.buf)); err != nil {
			return fmt.Errorf("start a segment: %w", err)
		}
		s = l.active()
	}
	h := b.writeHeader(l.sequence, l.salt)
	at := s.end
	if err := l.persist(s, b.buf); err != nil {
		return err
	}
	if err := l.publish(s, at, h, b.buf); err != nil {
		return err
	}
	if err := l.hit("wal.applied"); err != nil {
		return err
	}
	if l.idle() {
		return l.mark()
	}
	return nil
}

// persist writes a batch with its header at the end of a segment and syncs it. A failed sync is never repeated: the
// second sync would succeed without the data.
func (l *Log) persist(s *segment, buf []byte) error {
	if err := l.hit("wal.write"); err != nil {
		return err
	}
	began := l.now() // on a stalled disk even the write may block
	if _, err := s.file.WriteAt(buf, s.end); err != nil {
		return fmt.Errorf("write %s: %w", s.name, err)
	}
	if err := l.hit("wal.sync"); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.name, err)
	}
	l.counters.synced(l.now()-began, len(buf))
	if err := l.hit("wal.synced"); err != nil {
		return err
	}
	s.end += int64(len(buf))
	l.sequence++
	if l.end == nil {
		return nil
	}
	if err := l.end.put(l.sequence); err != nil {
		return fmt.Errorf("write %s: %w", l.cfg.EndFile, err)
	}
	return nil
}

// publish applies a durable batch to the index and frees segments that no group needs.
func (l *Log) publish(s *segment, at int64, h batchHeader, buf []byte) error {
	l.index.Lock()
	defer l.index.Unlock()
	l.tail.add(chunk{segment: s.number, offset: at, buf: buf}, l.cfg.TailBytes)
	if err := l.apply(s, at+batchHeaderLen, h, buf[batchHeaderLen:]); err != nil {
		return err
	}
	l.counters.records.Add(int64(h.count))
	l.free()
	if s.end > s.size/2 {
		l.keeper.prepare(s.number + 1)
	}
	return nil
}

// free schedules unneeded segments for removal, from the oldest on. l.index is held.
func (l *Log) free() {
	n := 0
	for n < len(l.segments)-1 && l.segments[n].live == 0 {
		n++
	}
	if n > 0 {
		l.keeper.remove(l.segments[:n])
		l.segments = slices.Delete(l.segments, 0, n)
	}
}

// mark writes behind the last batch that it is durable. The mark is not synced: it only helps after the process is
// killed.
func (l *Log) mark() error {
	s := l.active()
	if err := l.hit("wal.mark"); err != nil {
		return err
	}
	var b [batchHeaderLen]byte
	batchHeader{sequence: l.sequence}.put(b[:], l.salt)
	if _, err := s.file.WriteAt(b[:], s.end); err != nil {
		return fmt.Errorf("write %s: %w", s.name, err)
	}
	return nil
}

// seal writes durably, behind the last batch of a segment, that the log continues in the next one. Nothing in the next
// segment is acknowledged before.
func (l *Log) seal(s, next *segment) error {
	if err := l.hit("wal.seal"); err != nil {
		return err
	}
	var b [batchHeaderLen]byte
	batchHeader{sequence: next.first, sum: next.number}.put(b[:], l.salt)
	if _, err := s.file.WriteAt(b[:], s.end); err != nil {
		return fmt.Errorf("write %s: %w", s.name, err)
	}
	if err := l.hit("wal.seal.sync"); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.name, err)
	}
	return nil
}

// finish makes the last mark durable, so that a log closed in order can distinguish damage in its last batch from a
// torn write.
func (l *Log) finish() error {
	if err := l.active().file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", l.active().name, err)
	}
	return nil
}

// roll starts the next segment with the state of all groups, which is durable before any other batch, and seals the
// segment before. The new segment has room for a batch of batch bytes, whatever the usual size.
func (l *Log) roll(batch int) error {
	next := uint32(1)
	if len(l.segments) > 0 {
		next = l.active().number + 1
	}
	s, err := l.keeper.next(next)
	if err != nil {
		return err
	}
	b := l.state()
	b.writeHeader(l.sequence, l.salt)
	if need := int64(segmentHeaderLen + len(b.buf) + batch + batchHeaderLen); need > s.size {
		if err := s.release(); err != nil {
			return err
		}
		if s, err = l.create(next, need); err != nil {
			return err
		}
	}
	if err := l.hit("wal.roll"); err != nil {
		return err
	}
	s.first = l.sequence
	if err := l.persist(s, b.buf); err != nil {
		return err
	}
	if err := l.hit("wal.rolled"); err != nil {
		return err
	}
	if len(l.segments) > 0 {
		if err := l.seal(l.active(), s); err != nil {
			return err
		}
	}
	l.index.Lock()
	defer l.index.Unlock()
	l.segments = append(l.segments, s)
	l.counters.rolls.Add(1)
	l.free()
	return nil
}

// state encodes the state of all groups as the first batch of a segment. Recovery encodes it again and compares.
func (l *Log) state() *batch {
	l.index.RLock()
	defer l.index.RUnlock()
	var records []record
	for _, id := range l.groupIDs() {
		records = l.groups[id].state(records)
	}
	b := &batch{buf: make([]byte, batchHeaderLen)}
	b.addRecord(l.salt, &record{kind: kindBegin, index: uint64(len(records))})
	for i := range records {
		b.addRecord(l.salt, &records[i])
	}
	return b
}

// groupIDs returns the groups, sorted. l.index is held.
func (l *Log) groupIDs() []uint32 {
	ids := make([]uint32, 0, len(l.groups))
	for id := range l.groups {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
