package wal

import "sort"

// chunk is a batch in its encoding on disk.
type chunk struct {
	segment uint32
	offset  int64
	buf     []byte // immutable: readers keep slices of it
}

func (c *chunk) before(segment uint32, offset int64) bool {
	return c.segment < segment || c.segment == segment && c.offset+int64(len(c.buf)) <= offset
}

// tail keeps the most recent batches in memory, so that followers and the state machine get entries without reads from
// the disk. Guarded by Log.index.
type tail struct {
	chunks []chunk // in the order of the log
	bytes  int64
}

// add takes over the newest batch and drops the oldest over the limit.
func (t *tail) add(c chunk, limit int64) {
	t.chunks = append(t.chunks, c)
	t.bytes += int64(len(c.buf))
	n := 0
	for t.bytes > limit && n < len(t.chunks) {
		t.bytes -= int64(len(t.chunks[n].buf))
		t.chunks[n].buf = nil
		n++
	}
	t.chunks = t.chunks[n:]
}

// at returns the bytes of a record; nil if they are no longer here.
func (t *tail) at(p place) []byte {
	offset := int64(p.offset)
	i := sort.Search(len(t.chunks), func(i int) bool { return !t.chunks[i].before(p.segment, offset) })
	if i == len(t.chunks) || t.chunks[i].segment != p.segment || t.chunks[i].offset > offset {
		return nil
	}
	from := offset - t.chunks[i].offset
	return t.chunks[i].buf[from : from+int64(p.size)]
}
