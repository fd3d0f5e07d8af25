package wal

import (
	"errors"
	"fmt"
)

// Verify reads the segments that are no longer written. wait is called before each batch with its length; its error
// ends the reading and is returned as err. damaged is the newest segment with damage or bytes that the disk cannot
// read, and what is its error; 0 if there is none. Verify changes nothing: the effects of damaged entries are in memory
// and in snapshots, or on other nodes.
func (l *Log) Verify(wait func(bytes int) error) (damaged uint32, what, err error) {
	for number := uint32(0); ; {
		s := l.sealedAfter(number)
		if s == nil {
			return damaged, what, nil
		}
		number = s.number
		wrong, err := l.verify(s, wait)
		if err = errors.Join(err, s.release()); err != nil {
			return damaged, what, err
		}
		if wrong != nil {
			damaged, what = number, wrong
		}
	}
}

// sealedAfter returns the oldest segment after a number that is no longer written, acquired for reading; nil if there
// is none.
func (l *Log) sealedAfter(number uint32) *segment {
	l.index.RLock()
	defer l.index.RUnlock()
	for _, s := range l.segments[:len(l.segments)-1] {
		if s.number > number {
			s.acquire()
			return s
		}
	}
	return nil
}

// verify reads one segment, batch by batch.
func (l *Log) verify(s *segment, wait func(bytes int) error) (wrong, err error) {
	var head [batchHeaderLen]byte
	var body []byte
	at := int64(segmentHeaderLen)
	for sequence := s.first; ; sequence++ {
		if at+batchHeaderLen > s.size {
			return corrupt(s, at, "it has no end"), nil
		}
		if err := s.readAt(head[:], at); err != nil {
			return err, nil
		}
		h, ok := parseBatchHeader(head[:], l.salt)
		switch {
		case !ok:
			return corrupt(s, at, "no sound batch starts here"), nil
		case h.sequence != sequence:
			return corrupt(s, at, fmt.Sprintf("batch %d is expected and %d is there", sequence, h.sequence)), nil
		case h.mark() && h.next() == 0:
			return corrupt(s, at, "the log ends here and goes on in another segment"), nil
		case h.mark():
			return nil, nil
		case int64(h.length) > s.size-at-batchHeaderLen:
			return corrupt(s, at, "a batch is longer than its segment"), nil
		}
		if err := wait(batchHeaderLen + h.length); err != nil {
			return nil, err
		}
		if cap(body) < h.length {
			body = make([]byte, h.length)
		}
		body = body[:h.length]
		if err := s.readAt(body, at+batchHeaderLen); err != nil {
			return err, nil
		}
		if err := h.verify(body, l.salt); err != nil {
			return corrupt(s, at, err.Error()), nil
		}
		at += batchHeaderLen + int64(h.length)
	}
}
