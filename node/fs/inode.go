package fs

import (
	"io"
	"maps"
	"math/rand/v2"
	"slices"
)

// inode is a file or a directory of a Mem: the state that is visible now and the state after a crash. All fields are
// guarded by Mem.mu.
type inode struct {
	dir bool

	// of a directory
	entries        map[string]*inode
	durableEntries map[string]*inode
	pendingChanges [][]change // since the last SyncDir, in order; each is atomic

	// of a file; bytes in [len(data), size) are zero
	data        []byte
	size        int64
	durable     []byte
	durableSize int64
	pending     []write // since the last Sync, in order
}

// change sets one name of a directory; a nil node removes it.
type change struct {
	name string
	node *inode
}

// write is a range whose bytes are not durable yet, or a new length (off).
type write struct {
	resize   bool
	off, len int64
}

func newDir() *inode {
	return &inode{dir: true, entries: map[string]*inode{}, durableEntries: map[string]*inode{}}
}

func (n *inode) change(cs ...change) {
	set(n.entries, cs)
	n.pendingChanges = append(n.pendingChanges, cs)
}

// apply makes the first k pending changes durable.
func (n *inode) apply(k int) {
	for _, cs := range n.pendingChanges[:k] {
		set(n.durableEntries, cs)
	}
}

func set(entries map[string]*inode, cs []change) {
	for _, c := range cs {
		if c.node == nil {
			delete(entries, c.name)
		} else {
			entries[c.name] = c.node
		}
	}
}

// bytes is the size of a file, or of all files below a directory.
func (n *inode) bytes() int64 {
	sum := n.size
	for _, e := range n.entries {
		sum += e.bytes()
	}
	return sum
}

func (n *inode) readAt(p []byte, off int64) (int, error) {
	if off >= n.size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), n.size-off)]
	copied := 0
	if off < int64(len(n.data)) {
		copied = copy(want, n.data[off:])
	}
	clear(want[copied:])
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}

func (n *inode) write(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	end := off + int64(len(p))
	n.grow(end)
	copy(n.data[off:], p)
	n.size = max(n.size, end)
	n.pending = append(n.pending, write{off: off, len: int64(len(p))})
}

// grow makes data at least end bytes long.
func (n *inode) grow(end int64) { n.data = grown(n.data, end) }

func grown(b []byte, end int64) []byte {
	if end <= int64(len(b)) {
		return b
	}
	old := len(b)
	b = slices.Grow(b, int(end)-old)[:end]
	clear(b[old:])
	return b
}

func (n *inode) resize(size int64) {
	if size < int64(len(n.data)) {
		n.data = n.data[:size]
	}
	n.size = size
}

// sync makes the first k pending writes durable.
func (n *inode) sync(k int) {
	f := image{data: n.durable, size: n.durableSize}
	for _, w := range n.pending[:k] {
		f.keep(n, w, w.off, w.len)
	}
	n.durable, n.durableSize, n.pending = f.data, f.size, slices.Clone(n.pending[k:])
}

// image is the durable content of a file while it is computed.
type image struct {
	data []byte
	size int64
}

// keep makes [off, off+length) of a pending write durable, or its new length.
func (f *image) keep(n *inode, w write, off, length int64) {
	if w.resize {
		if w.off < int64(len(f.data)) {
			f.data = f.data[:w.off]
		}
		f.size = w.off
		return
	}
	end := off + length
	f.data = grown(f.data, end)
	clear(f.data[off:end])
	if off < int64(len(n.data)) {
		copy(f.data[off:end], n.data[off:])
	}
	f.size = max(f.size, end)
}

const sector = 512 // bytes that a disk writes whole or not at all

// crash returns the file as a power cut may leave it.
func (n *inode) crash(r *rand.Rand) *inode {
	f := image{data: slices.Clone(n.durable), size: n.durableSize}
	switch r.IntN(4) {
	case 0: // nothing that was not synced
	case 1: // all of it
		f.keepPrefix(n, len(n.pending), 0)
	case 2: // in order, up to a torn write
		k := r.IntN(len(n.pending) + 1)
		f.keepPrefix(n, k, r.Float64())
	case 3: // any sectors, in any order
		f.keepSectors(n, r)
	}
	return f.inode()
}

// keepPrefix keeps the first k pending writes and a fraction of the next.
func (f *image) keepPrefix(n *inode, k int, fraction float64) {
	for i, w := range n.pending {
		switch {
		case i < k:
			f.keep(n, w, w.off, w.len)
		case i == k && !w.resize:
			f.keep(n, w, w.off, int64(fraction*float64(w.len)))
		}
	}
}

func (f *image) keepSectors(n *inode, r *rand.Rand) {
	for _, w := range n.pending {
		if w.resize {
			if r.IntN(2) == 0 {
				f.keep(n, w, 0, 0)
			}
			continue
		}
		for off := w.off; off < w.off+w.len; {
			next := min(w.off+w.len, (off/sector+1)*sector)
			if r.IntN(2) == 0 {
				f.keep(n, w, off, next-off)
			}
			off = next
		}
	}
}

func (f *image) inode() *inode {
	f.data = f.data[:min(int64(len(f.data)), f.size)]
	return &inode{data: f.data, size: f.size, durable: slices.Clone(f.data), durableSize: f.size}
}

// Crash simulates a power failure: it returns the disk as it may be afterwards, and makes every call on the old one
// fail with ErrCrashed. The seed decides which unsynced writes are left: none, all, a prefix with a torn write, or any
// sectors. Of unsynced directory changes a prefix is left in each directory. Calls that hang return.
func (m *Mem) Crash(seed uint64) *Mem {
	r := rand.New(rand.NewPCG(seed, 0x65626221))
	return m.die(func() *inode { return survivor(m.root, r, map[*inode]*inode{}) })
}

// Kill ends the process, not the machine: it returns the disk with all writes, durable or not yet, and makes every call
// on the old one fail with ErrCrashed.
func (m *Mem) Kill() *Mem {
	return m.die(func() *inode { return m.root.clone(map[*inode]*inode{}) })
}

// Copy returns a copy of the disk with all writes, durable or not yet. The original stays in use.
func (m *Mem) Copy() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left(m.root.clone(map[*inode]*inode{}))
}

// left makes a disk with the same settings from the remaining tree. m.mu is held.
func (m *Mem) left(root *inode) *Mem {
	left := NewMem()
	left.capacity, left.readOnly, left.root = m.capacity, m.readOnly, root
	left.used = root.bytes()
	return left
}

func (m *Mem) die(root func() *inode) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.left(root())
	if !m.dead {
		m.dead = true
		close(m.crashed)
	}
	return left
}

// clone copies a tree, with its durable state and its pending changes.
func (n *inode) clone(seen map[*inode]*inode) *inode {
	if n == nil || seen[n] != nil {
		return seen[n]
	}
	c := &inode{
		dir: n.dir, data: slices.Clone(n.data), size: n.size,
		durable: slices.Clone(n.durable), durableSize: n.durableSize, pending: slices.Clone(n.pending),
	}
	seen[n] = c
	if !n.dir {
		return c
	}
	c.entries, c.durableEntries = cloneEntries(n.entries, seen), cloneEntries(n.durableEntries, seen)
	for _, cs := range n.pendingChanges {
		copied := make([]change, len(cs))
		for i, one := range cs {
			copied[i] = change{one.name, one.node.clone(seen)}
		}
		c.pendingChanges = append(c.pendingChanges, copied)
	}
	return c
}

func cloneEntries(entries map[string]*inode, seen map[*inode]*inode) map[string]*inode {
	c := make(map[string]*inode, len(entries))
	for name, n := range entries {
		c[name] = n.clone(seen)
	}
	return c
}

// survivor copies what a power failure leaves of a tree, in the order of names, so that the result depends on the seed
// alone.
func survivor(n *inode, r *rand.Rand, seen map[*inode]*inode) *inode {
	if c := seen[n]; c != nil {
		return c
	}
	if !n.dir {
		seen[n] = n.crash(r)
		return seen[n]
	}
	c := newDir()
	seen[n] = c
	left := maps.Clone(n.durableEntries)
	for _, cs := range n.pendingChanges[:r.IntN(len(n.pendingChanges)+1)] {
		set(left, cs)
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		c.entries[name] = survivor(left[name], r, seen)
	}
	c.durableEntries = maps.Clone(c.entries)
	return c
}
