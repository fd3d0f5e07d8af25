package wal

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"sync"
)

// keeper works in the background, so that the writer need not wait: it makes the next segment and removes old ones.
type keeper struct {
	log   *Log
	wake  chan struct{} // one token
	made  chan made     // passes segments to the writer
	stop  chan struct{}
	ended chan struct{}

	mu     sync.Mutex // guards what follows; never held across a call to the disk
	want   uint32     // the newest segment requested
	have   uint32     // the newest segment that exists
	doomed []*segment // to be removed, oldest first
}

type made struct {
	segment *segment
	err     error
}

// newKeeper makes a keeper for a log whose newest segment is have.
func newKeeper(l *Log, have uint32) *keeper {
	return &keeper{
		log: l, wake: make(chan struct{}, 1), made: make(chan made),
		stop: make(chan struct{}), ended: make(chan struct{}), have: have, want: have,
	}
}

// prepare requests a segment ahead of time.
func (k *keeper) prepare(number uint32) {
	k.mu.Lock()
	asked := k.want == number
	k.want = number
	k.mu.Unlock()
	if !asked {
		k.signal()
	}
}

// next returns the segment of that number, and waits until it is made. If the keeper had failed to make it, perhaps
// long ago when the disk was full, next has it try once more.
func (k *keeper) next(number uint32) (*segment, error) {
	k.prepare(number)
	m := <-k.made
	if m.err != nil {
		k.signal()
		m = <-k.made
	}
	return m.segment, m.err
}

// remove schedules segments for removal.
func (k *keeper) remove(segments []*segment) {
	k.mu.Lock()
	k.doomed = append(k.doomed, segments...)
	k.mu.Unlock()
	k.signal()
}

func (k *keeper) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run is the keeper's goroutine; ready is a prepared segment that recovery found, or nil.
func (k *keeper) run(ready *segment) {
	defer close(k.ended)
	offer, out := made{segment: ready}, k.made
	if ready == nil {
		out = nil
	}
	var doomed []*segment
	for {
		number, more := k.jobs()
		if out == nil && number != 0 {
			offer, out = k.make(number), k.made
		}
		doomed = k.discard(append(doomed, more...))
		select {
		case <-k.wake:
		case out <- offer:
			out = nil
		case <-k.stop:
			if out != nil && offer.segment != nil {
				doomed = append(doomed, offer.segment) // stays on disk, prepared
			}
			k.closeSegments(doomed)
			return
		}
	}
}

// jobs returns the segment to make, 0 if none, and the segments to remove.
func (k *keeper) jobs() (number uint32, doomed []*segment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.want > k.have {
		number = k.want
	}
	doomed, k.doomed = k.doomed, nil
	return number, doomed
}

func (k *keeper) make(number uint32) made {
	size := k.log.cfg.SegmentBytes
	if k.log.cfg.Short != nil && k.log.cfg.Short() {
		size = min(size, max(shortBytesLeast, size/shortShare))
	}
	s, err := k.log.create(number, size)
	if err != nil {
		k.log.cfg.Logger.Error("prepare a segment", "error", err)
		return made{err: err}
	}
	k.mu.Lock()
	k.have = number
	k.mu.Unlock()
	return made{segment: s}
}

// discard removes segments, each durably before the next, so that no gap can appear. It returns those that could not be
// removed now.
func (k *keeper) discard(doomed []*segment) []*segment {
	for i, s := range doomed {
		if err := k.discardOne(s); err != nil {
			k.log.cfg.Logger.Warn("remove a segment", "error", err)
			return doomed[i:]
		}
	}
	return nil
}

func (k *keeper) discardOne(s *segment) error {
	if err := k.log.hit("wal.remove"); err != nil {
		return err
	}
	if !s.abandoned { // before the removal: not every system removes open files
		s.abandoned = true
		if err := s.release(); err != nil {
			return err
		}
	}
	if err := k.log.cfg.FS.Remove(s.name); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", s.name, err)
	}
	if err := k.log.hit("wal.remove.syncdir"); err != nil {
		return err
	}
	if err := k.log.cfg.FS.SyncDir(k.log.cfg.Dir); err != nil {
		return fmt.Errorf("remove %s: %w", s.name, err)
	}
	k.log.counters.removed.Add(1)
	return nil
}

// closeSegments closes segments that stay on disk.
func (k *keeper) closeSegments(segments []*segment) {
	for _, s := range segments {
		if s.abandoned {
			continue
		}
		if err := s.release(); err != nil {
			k.log.cfg.Logger.Warn("close a segment", "error", err)
		}
	}
}

func (k *keeper) close() {
	close(k.stop)
	<-k.ended
}
