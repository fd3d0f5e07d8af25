package snap

import (
	"crypto/sha256"
	"errors"
	"io"
	iofs "io/fs"
	"slices"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// windowLen is how many bytes of a file are read at a time: the chunks of a snapshot follow each other there in the
// order of the list, with gaps.
const windowLen = 256 << 10

// Content is an open snapshot. A chunk is verified before its first byte is returned. A damaged chunk is
// proto.ErrCorrupt, and the snapshot is set aside.
type Content struct {
	store *Store
	id    string
	size  int64 // still to be read
	files []*window
	list  []byte // still to be read
	ends  ends
	chunk []byte // unread part of the present chunk
	err   error

	skipped bool // some chunks were skipped
}

// window reads one file from front to back.
type window struct {
	fs.File
	size int64
	at   int64 // where buf begins
	buf  []byte
}

// chunk returns bytes of the file, valid until the next call.
func (w *window) chunk(offset int64, length int) ([]byte, error) {
	end := offset + int64(length)
	if end > w.size {
		return nil, corrupt(w.File, w.size, "it is cut off")
	}
	if offset < w.at || end > w.at+int64(len(w.buf)) {
		if w.buf == nil {
			w.buf = make([]byte, 0, windowLen)
		}
		w.at, w.buf = offset, w.buf[:min(windowLen, w.size-offset)]
		if n, err := w.ReadAt(w.buf, offset); err != nil && (n < len(w.buf) || !errors.Is(err, io.EOF)) {
			w.buf = w.buf[:0]
			return nil, err
		}
	}
	return w.buf[offset-w.at:][:length], nil
}

// openContent opens a snapshot and the files that hold its chunks.
func (s *Store) openContent(id string) (*meta, *Content, error) {
	c := &Content{store: s, id: id}
	m, err := c.open()
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return m, c, nil
}

func (c *Content) open() (*meta, error) {
	own, err := c.openFile(c.store.path(c.id))
	if err != nil {
		return nil, err
	}
	m, err := readMeta(own)
	if err != nil {
		return nil, err
	}
	c.size = m.Size
	if c.list, err = m.readList(own); err != nil {
		return nil, err
	}
	return m, c.openPieces(m.Files)
}

// openAll opens a file and the older files with its chunks.
func (c *Content) openAll(name string, files []piece) error {
	if _, err := c.openFile(name); err != nil {
		return err
	}
	return c.openPieces(files)
}

// openPieces opens older files. A missing file, or one of another length, is proto.ErrCorrupt.
func (c *Content) openPieces(files []piece) error {
	for _, p := range files {
		f, err := c.openFile(c.store.path(p.ID))
		switch {
		case errors.Is(err, iofs.ErrNotExist):
			return corrupt(c.files[0], 0, "it names "+p.ID+", which is not there")
		case err != nil:
			return err
		case f.size != p.Size:
			return corrupt(f, f.size, "it has another length than when it was written")
		}
	}
	return nil
}

func (c *Content) openFile(name string) (*window, error) {
	f, err := fs.Open(c.store.cfg.FS, name)
	if err != nil {
		return nil, err
	}
	w := &window{File: f}
	c.files = append(c.files, w)
	w.size, err = f.Size()
	return w, err
}

// Read implements io.Reader.
func (c *Content) Read(p []byte) (int, error) {
	for len(c.chunk) == 0 {
		if c.err == nil {
			c.chunk, c.err = c.next()
		}
		if c.err != nil {
			return 0, c.err
		}
	}
	n := copy(p, c.chunk)
	c.chunk = c.chunk[n:]
	return n, nil
}

// Items lists the chunks that are still to be read.
func (c *Content) Items() []Item {
	items := make([]Item, 0, len(c.list)/(hashLen+3))
	list, e := c.list, slices.Clone(c.ends)
	for len(list) > 0 {
		i, rest, ok := e.next(list, len(c.files))
		if !ok {
			break // Next returns the error
		}
		items, list = append(items, Item{i.hash, uint32(i.length)}), rest
	}
	return items
}

// Key returns a hash of the content that is still to be read.
func (c *Content) Key() (key [sha256.Size]byte) {
	h := sha256.New()
	for _, item := range c.Items() {
		_, _ = h.Write(le.AppendUint32(item.Hash[:], item.Length)) // never fails
	}
	return [sha256.Size]byte(h.Sum(key[:0]))
}

// Next returns the next chunk, verified, and valid until the next call; io.EOF after the last one.
func (c *Content) Next() ([]byte, error) {
	if c.err == nil {
		c.chunk, c.err = c.next()
	}
	chunk := c.chunk
	c.chunk = nil
	return chunk, c.err
}

// Skip skips the next chunk; io.EOF after the last one.
func (c *Content) Skip() error {
	e, rest, ok := c.ends.next(c.list, len(c.files))
	if !ok {
		return io.EOF
	}
	c.skipped = true
	c.list, c.size = rest, c.size-int64(e.length)
	return nil
}

// next returns the next chunk.
func (c *Content) next() ([]byte, error) {
	own := c.files[0]
	if len(c.list) == 0 {
		if c.size != 0 {
			return nil, c.damaged(corrupt(own, own.size, "its chunks have another length than it says"))
		}
		if !c.skipped {
			c.store.vouch(c.id)
		}
		return nil, io.EOF
	}
	e, rest, ok := c.ends.next(c.list, len(c.files))
	if !ok {
		return nil, c.damaged(corrupt(own, own.size, "its list does not decode"))
	}
	c.list = rest
	f := c.files[e.at.file()]
	data, err := f.chunk(e.at.offset(), e.length)
	if err == nil && HashOf(data) != e.hash {
		err = corrupt(f, e.at.offset(), "a chunk has a wrong hash")
	}
	c.size -= int64(e.length)
	return data, c.damaged(err)
}

// damaged sets the snapshot aside if the error is proto.ErrCorrupt.
func (c *Content) damaged(err error) error {
	if errors.Is(err, proto.ErrCorrupt) {
		c.store.quarantine(c.id, err)
	}
	return err
}

// Close implements io.Closer.
func (c *Content) Close() error {
	var err error
	for _, f := range c.files {
		err = errors.Join(err, f.Close())
	}
	c.files = nil
	return err
}
