package fs

import (
	"errors"
	"io"
	iofs "io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/ebbdb/ebb/proto"
)

// ErrCrashed is the error of every call on a crashed Mem and on its files.
var ErrCrashed = errors.New("the disk's machine has crashed")

// Op is a kind of call for Inject.
type Op string

// The calls for which the function of Inject runs.
const (
	OpOpen        Op = "open"
	OpRead        Op = "read"
	OpWrite       Op = "write"
	OpTruncate    Op = "truncate"
	OpPreallocate Op = "preallocate"
	OpSync        Op = "sync"
	OpSyncDir     Op = "syncdir"
	OpRename      Op = "rename"
	OpRemove      Op = "remove"
	OpMkdir       Op = "mkdir"
	OpList        Op = "list"
	OpLock        Op = "lock"
)

// Mem is a file system in memory that knows which writes are durable. Crash returns the disk as a power failure may
// leave it. No lock is held while a call waits, so Mem works inside a testing/synctest bubble.
type Mem struct {
	crashed chan struct{} // closed by Crash and Kill

	mu        sync.Mutex // guards what follows and all inodes; never held across a wait
	dead      bool
	root      *inode
	locks     map[string]bool
	inject    func(op Op, name string) error
	hang      <-chan struct{} // Sync waits until it is closed
	lie       func(op Op, name string) (done float64)
	misdirect func(name string, offset int64, bytes int) (to string, at int64, ok bool)
	readOnly  bool
	capacity  int64 // bytes; 0 is no limit
	used      int64 // bytes of all files
}

// NewMem returns an empty file system.
func NewMem() *Mem {
	return &Mem{crashed: make(chan struct{}), root: newDir(), locks: make(map[string]bool)}
}

// Inject sets a function that runs before every call takes effect; nil removes it. An error that it returns is the
// call's error, and it may sleep or block. A Sync that fails this way behaves as on a real disk: bytes that were not
// durable stay readable but never become durable, and the next Sync succeeds without them.
func (m *Mem) Inject(f func(op Op, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inject = f
}

// HangSync makes each Sync wait until release is closed or the disk crashes; nil ends that for later calls.
func (m *Mem) HangSync(release <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hang = release
}

// Lie makes each Sync and SyncDir do only a part of its work, and report success. f returns the part, from 0 for
// nothing to 1 for all. The rest stays unsynced: a later sync may do it. nil ends that.
func (m *Mem) Lie(f func(op Op, name string) (done float64)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lie = f
}

// Misdirect sets a function that runs before every write takes effect, without a lock; nil removes it. If it returns
// true, the write goes to that offset of that file, as far as the file has bytes there, and reports success. The
// intended place keeps its bytes, or gets zeros if it is behind the end of its file.
func (m *Mem) Misdirect(f func(name string, offset int64, bytes int) (to string, at int64, ok bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.misdirect = f
}

// part returns how many of n changes a sync makes durable. m.mu is held.
func (m *Mem) part(op Op, name string, n int) int {
	if m.lie == nil {
		return n
	}
	return int(float64(n) * m.lie(op, name))
}

// SetReadOnly makes every change fail with EROFS.
func (m *Mem) SetReadOnly(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readOnly = on
}

// SetCapacity limits the bytes of all files; a write above it gets ENOSPC. 0 means no limit.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// Used returns the bytes of all files.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// FlipByte inverts one bit of a byte in a file, as a decaying medium does: without an error, and durably.
func (m *Mem) FlipByte(name string, offset int64, bit uint) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.file("flip", name)
	if err != nil {
		return err
	}
	if offset < 0 || offset >= n.size {
		return pathError("flip", name, io.ErrUnexpectedEOF)
	}
	n.grow(offset + 1)
	n.data[offset] ^= 1 << (bit % 8)
	if offset < int64(len(n.durable)) {
		n.durable[offset] ^= 1 << (bit % 8)
	}
	return nil
}

// Zero replaces some bytes of a file by zeros, without an error, and durably.
func (m *Mem) Zero(name string, offset, bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.file("zero", name)
	if err != nil {
		return err
	}
	for _, b := range [][]byte{n.data, n.durable} {
		end := min(offset+bytes, int64(len(b)))
		clear(b[min(offset, end):end])
	}
	return nil
}

// begin starts every call: it runs the injected fault, and then checks the state of the disk.
func (m *Mem) begin(op Op, name string) error {
	m.mu.Lock()
	inject, hang, dead := m.inject, m.hang, m.dead
	m.mu.Unlock()
	if dead {
		return ErrCrashed
	}
	if inject != nil {
		if err := inject(op, name); err != nil {
			return pathError(string(op), name, err)
		}
	}
	if op == OpSync && hang != nil {
		select {
		case <-hang:
		case <-m.crashed:
		}
	}
	return nil
}

// usable returns an error if changes are not possible now. m.mu is held.
func (m *Mem) usable(op Op, name string) error {
	switch {
	case m.dead:
		return ErrCrashed
	case m.readOnly:
		return pathError(string(op), name, syscall.EROFS)
	}
	return nil
}

func pathError(op, name string, err error) error {
	return &os.PathError{Op: op, Path: name, Err: err}
}

func clean(name string) string { return path.Clean("/" + filepath.ToSlash(name)) }

// walk returns the node of a path. m.mu is held.
func (m *Mem) walk(op, name string) (*inode, error) {
	n := m.root
	for _, part := range strings.Split(clean(name)[1:], "/") {
		if part == "" {
			continue
		}
		if !n.dir {
			return nil, pathError(op, name, syscall.ENOTDIR)
		}
		if n = n.entries[part]; n == nil {
			return nil, pathError(op, name, syscall.ENOENT)
		}
	}
	return n, nil
}

func (m *Mem) file(op, name string) (*inode, error) {
	n, err := m.walk(op, name)
	if err == nil && n.dir {
		err = pathError(op, name, syscall.EISDIR)
	}
	return n, err
}

// parent returns the directory that holds name, and name's last element.
func (m *Mem) parent(op, name string) (*inode, string, error) {
	dir, base := path.Split(clean(name))
	n, err := m.walk(op, dir)
	if err != nil {
		return nil, "", pathError(op, name, syscall.ENOENT)
	}
	if !n.dir {
		return nil, "", pathError(op, name, syscall.ENOTDIR)
	}
	return n, base, nil
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int) (File, error) {
	if err := m.begin(OpOpen, name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, ErrCrashed
	}
	writable := flag&(os.O_RDWR|os.O_WRONLY) != 0
	if writable || flag&os.O_CREATE != 0 {
		if err := m.usable(OpOpen, name); err != nil {
			return nil, err
		}
	}
	n, err := m.openNode(name, flag)
	if err != nil {
		return nil, err
	}
	if flag&os.O_TRUNC != 0 {
		m.resize(n, 0)
	}
	h := &memFile{m: m, n: n, name: name, writable: writable}
	if flag&os.O_APPEND != 0 {
		h.pos = n.size
	}
	return h, nil
}

func (m *Mem) openNode(name string, flag int) (*inode, error) {
	dir, base, err := m.parent("open", name)
	if err != nil {
		return nil, err
	}
	n := dir.entries[base]
	switch {
	case n == nil && flag&os.O_CREATE == 0:
		return nil, pathError("open", name, syscall.ENOENT)
	case n == nil:
		n = &inode{}
		dir.change(change{base, n})
	case n.dir:
		return nil, pathError("open", name, syscall.EISDIR)
	case flag&os.O_EXCL != 0:
		return nil, pathError("open", name, syscall.EEXIST)
	}
	return n, nil
}

// Rename implements FS.
func (m *Mem) Rename(from, to string) error {
	if err := m.begin(OpRename, from); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(OpRename, from); err != nil {
		return err
	}
	fromDir, fromBase, err := m.parent("rename", from)
	if err != nil {
		return err
	}
	toDir, toBase, err := m.parent("rename", to)
	if err != nil {
		return err
	}
	n := fromDir.entries[fromBase]
	if n == nil {
		return pathError("rename", from, syscall.ENOENT)
	}
	old := toDir.entries[toBase]
	if old == n {
		return nil
	}
	if old != nil && old.dir && len(old.entries) > 0 {
		return pathError("rename", to, syscall.ENOTEMPTY)
	}
	if old != nil {
		m.used -= old.bytes()
	}
	if fromDir == toDir {
		fromDir.change(change{fromBase, nil}, change{toBase, n})
		return nil
	}
	toDir.change(change{toBase, n})
	fromDir.change(change{fromBase, nil})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	return m.remove(name, func(n *inode) error {
		if n == nil {
			return pathError("remove", name, syscall.ENOENT)
		}
		if n.dir && len(n.entries) > 0 {
			return pathError("remove", name, syscall.ENOTEMPTY)
		}
		return nil
	})
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	err := m.remove(name, func(*inode) error { return nil })
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	return err
}

func (m *Mem) remove(name string, check func(*inode) error) error {
	if err := m.begin(OpRemove, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(OpRemove, name); err != nil {
		return err
	}
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n := dir.entries[base]
	if err := check(n); err != nil || n == nil {
		return err
	}
	m.used -= n.bytes()
	dir.change(change{base, nil})
	return nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string) error {
	if err := m.begin(OpMkdir, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, part := range strings.Split(clean(name)[1:], "/") {
		if part == "" {
			continue
		}
		next := n.entries[part]
		if next == nil {
			if err := m.usable(OpMkdir, name); err != nil {
				return err
			}
			next = newDir()
			n.change(change{part, next})
		}
		if !next.dir {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		n = next
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]Info, error) {
	if err := m.begin(OpList, name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, ErrCrashed
	}
	n, err := m.walk("list", name)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, pathError("list", name, syscall.ENOTDIR)
	}
	infos := make([]Info, 0, len(n.entries))
	for base, e := range n.entries {
		infos = append(infos, Info{Name: base, Size: e.size, Dir: e.dir})
	}
	sort.Slice(infos, func(i, j int) bool { return infos[i].Name < infos[j].Name })
	return infos, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return Info{}, ErrCrashed
	}
	n, err := m.walk("stat", name)
	if err != nil {
		return Info{}, err
	}
	return Info{Name: path.Base(clean(name)), Size: n.size, Dir: n.dir}, nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	if err := m.begin(OpSyncDir, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return ErrCrashed
	}
	n, err := m.walk("syncdir", name)
	if err != nil {
		return err
	}
	k := m.part(OpSyncDir, name, len(n.pendingChanges))
	n.apply(k)
	n.pendingChanges = n.pendingChanges[k:]
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	if err := m.begin(OpLock, name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(OpLock, name); err != nil {
		return nil, err
	}
	if _, err := m.openNode(name, os.O_RDWR|os.O_CREATE); err != nil {
		return nil, err
	}
	key := clean(name)
	if m.locks[key] {
		return nil, proto.ErrLocked.Errorf("%s is locked by another process", name)
	}
	m.locks[key] = true
	return &memLock{m: m, key: key}, nil
}

type memLock struct {
	m   *Mem
	key string
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.key)
	return nil
}

// Free implements FS.
func (m *Mem) Free(string) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.dead:
		return 0, ErrCrashed
	case m.capacity == 0:
		return 1 << 50, nil
	}
	return uint64(max(0, m.capacity-m.used)), nil
}

// resize sets a file's length, as a change that is not durable yet. m.mu is held.
func (m *Mem) resize(n *inode, size int64) {
	if size == n.size {
		return
	}
	m.used += size - n.size
	n.resize(size)
	n.pending = append(n.pending, write{resize: true, off: size})
}

// memFile is an open file.
type memFile struct {
	m        *Mem
	n        *inode
	name     string
	writable bool

	pos    int64 // guarded by m.mu
	closed bool  // guarded by m.mu
}

func (f *memFile) Name() string { return f.name }

// usable returns an error if the handle cannot be used. f.m.mu is held.
func (f *memFile) usable(op Op, change bool) error {
	switch {
	case f.m.dead:
		return ErrCrashed
	case f.closed:
		return pathError(string(op), f.name, os.ErrClosed)
	case change && f.m.readOnly:
		return pathError(string(op), f.name, syscall.EROFS)
	case change && !f.writable:
		return pathError(string(op), f.name, syscall.EBADF)
	}
	return nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, os.ErrClosed)
	}
	f.closed = true
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.n.size, f.usable(OpRead, false)
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.m.begin(OpRead, f.name); err != nil {
		return 0, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable(OpRead, false); err != nil {
		return 0, err
	}
	return f.n.readAt(p, off)
}

func (f *memFile) Read(p []byte) (int, error) {
	if err := f.m.begin(OpRead, f.name); err != nil {
		return 0, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable(OpRead, false); err != nil {
		return 0, err
	}
	n, err := f.n.readAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.m.begin(OpWrite, f.name); err != nil {
		return 0, err
	}
	to := f.misdirected(p, off)
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.write(p, off, to)
}

func (f *memFile) Write(p []byte) (int, error) {
	if err := f.m.begin(OpWrite, f.name); err != nil {
		return 0, err
	}
	f.m.mu.Lock()
	off := f.pos
	f.m.mu.Unlock()
	to := f.misdirected(p, off)
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n, err := f.write(p, f.pos, to)
	f.pos += int64(n)
	return n, err
}

// place is the target of a misdirected write.
type place struct {
	name string
	off  int64
}

// misdirected returns the target of a misdirected write; nil if the write is not misdirected.
func (f *memFile) misdirected(p []byte, off int64) *place {
	f.m.mu.Lock()
	misdirect := f.m.misdirect
	f.m.mu.Unlock()
	if misdirect == nil {
		return nil
	}
	name, at, ok := misdirect(f.name, off, len(p))
	if !ok {
		return nil
	}
	return &place{name, at}
}

func (f *memFile) write(p []byte, off int64, to *place) (int, error) {
	if err := f.usable(OpWrite, true); err != nil {
		return 0, err
	}
	fits, err := f.room(p, off)
	if to != nil && err == nil {
		f.m.writeMisdirected(p, to)
		f.m.resize(f.n, max(f.n.size, off+int64(len(p))))
		return len(p), nil
	}
	f.m.used -= f.n.size
	f.n.write(p[:fits], off)
	f.m.used += f.n.size
	return fits, err
}

// writeMisdirected writes at a place of a file, but not behind the file's end. m.mu is held.
func (m *Mem) writeMisdirected(p []byte, to *place) {
	n, err := m.file("write", to.name)
	if err != nil || to.off >= n.size {
		return // the write is lost
	}
	n.write(p[:min(int64(len(p)), n.size-to.off)], to.off)
}

// room returns how many bytes of a write fit on the disk.
func (f *memFile) room(p []byte, off int64) (int, error) {
	grows := off + int64(len(p)) - f.n.size
	if f.m.capacity == 0 || grows <= 0 || f.m.used+grows <= f.m.capacity {
		return len(p), nil
	}
	over := f.m.used + grows - f.m.capacity
	return int(max(0, int64(len(p))-over)), pathError("write", f.name, syscall.ENOSPC)
}

func (f *memFile) Truncate(size int64) error {
	if err := f.m.begin(OpTruncate, f.name); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable(OpTruncate, true); err != nil {
		return err
	}
	f.m.resize(f.n, size)
	return nil
}

func (f *memFile) Preallocate(size int64) error {
	if err := f.m.begin(OpPreallocate, f.name); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable(OpPreallocate, true); err != nil {
		return err
	}
	grows := size - f.n.size
	if grows <= 0 {
		return nil
	}
	if f.m.capacity != 0 && f.m.used+grows > f.m.capacity {
		return pathError("preallocate", f.name, syscall.ENOSPC)
	}
	f.m.resize(f.n, size)
	return nil
}

// Allocate implements File.
func (f *memFile) Allocate(size int64) error { return f.Preallocate(size) }

func (f *memFile) Sync() error {
	err := f.m.begin(OpSync, f.name)
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if bad := f.usable(OpSync, false); bad != nil {
		return bad
	}
	if err != nil {
		f.n.pending = nil // after a failed sync the unwritten bytes are dropped, as on real disks
		return err
	}
	f.n.sync(f.m.part(OpSync, f.name, len(f.n.pending)))
	return nil
}
