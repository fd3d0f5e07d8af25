package fs

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// reserveFiles is how many files a reserve has: they are removed and made again one at a time.
const reserveFiles = 8

// Reserve is a file system that keeps some disk space in reserve for when the disk is full: files of zeros in their own
// directory. A write that finds the disk full removes one of these files and tries again, until none is left. Refill
// makes them again.
type Reserve struct {
	FS
	dir   string
	bytes int64 // of one file

	turn chan struct{} // holds a token while a file is removed

	mu   sync.Mutex // guards have; never held across a call to the disk
	have [reserveFiles]bool
}

// NewReserve keeps about bytes in reserve in dir. It makes no files itself: it takes over those of an earlier process,
// even larger ones, up to most bytes in total. Refill makes the missing files.
func NewReserve(base FS, dir string, bytes, most int64) (*Reserve, error) {
	r := &Reserve{FS: base, dir: dir, bytes: max(1, bytes/reserveFiles), turn: make(chan struct{}, 1)}
	files, err := base.ReadDir(dir)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files { // existing files stay, even if fewer bytes would be reserved now
		if r.number(f.Name) >= 0 && f.Size <= most/reserveFiles {
			r.bytes = max(r.bytes, f.Size)
		}
	}
	for _, f := range files {
		i := r.number(f.Name)
		if i >= 0 && f.Size == r.bytes {
			r.have[i] = true
			continue
		}
		// It is incomplete, or of a reserve of another size.
		if err := base.RemoveAll(filepath.Join(dir, f.Name)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Reserve) name(i int) string { return filepath.Join(r.dir, fmt.Sprintf("%d", i)) }

// number returns the number in a file's name; -1 if the file is not of a reserve.
func (r *Reserve) number(name string) int {
	for i := range reserveFiles {
		if name == filepath.Base(r.name(i)) {
			return i
		}
	}
	return -1
}

// Held returns how many bytes are in reserve now, and how many should be.
func (r *Reserve) Held() (now, whole int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, have := range r.have {
		if have {
			now += r.bytes
		}
	}
	return now, r.bytes * reserveFiles
}

// Refill makes one missing file. It reports whether any file is still missing.
func (r *Reserve) Refill() (missing bool, err error) {
	if now, whole := r.Held(); now == whole {
		return false, nil
	}
	if err := MakeDir(r.FS, r.dir); err != nil {
		return true, err
	}
	for i := range reserveFiles {
		if r.has(i) {
			continue
		}
		if err := r.make(i); err != nil {
			return true, err
		}
		break
	}
	now, whole := r.Held()
	return now != whole, nil
}

// make makes one file. The file counts only once it is complete.
func (r *Reserve) make(i int) error {
	name := r.name(i)
	f, err := Create(r.FS, name)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Allocate(r.bytes), f.Close()); err != nil {
		return errors.Join(err, r.Remove(name))
	}
	r.set(i, true)
	return nil
}

func (r *Reserve) has(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have[i]
}

func (r *Reserve) set(i int, have bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have[i] = have
}

// last returns the last existing file, and how many exist.
func (r *Reserve) last() (last, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, have := range r.have {
		if have {
			last, n = i, n+1
		}
	}
	return last, n
}

// give removes one file if more than keep are left. It reports whether it did.
func (r *Reserve) give(keep int) bool {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	i, n := r.last()
	if n <= keep {
		return false
	}
	if err := r.Remove(r.name(i)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return false
	}
	r.set(i, false)
	return true
}

// Most returns a file system whose writes leave a quarter of the reserve to other users. Snapshots use it, so that the
// log has the rest.
func (r *Reserve) Most() FS { return lending{FS: r.FS, from: r, keep: reserveFiles / 4} }

// All returns a file system whose writes may use all of the reserve.
func (r *Reserve) All() FS { return lending{FS: r.FS, from: r} }

// lending is a file system that uses the reserve when its writes find the disk full.
type lending struct {
	FS
	from *Reserve
	keep int // files that must be left
}

// NoSpace reports whether an error means that no space is left, on the disk or in a quota.
func NoSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// retry repeats call until there is space, or the reserve gives no more.
func (l lending) retry(call func() error) error {
	for {
		err := call()
		if !NoSpace(err) || !l.from.give(l.keep) {
			return err
		}
	}
}

// OpenFile implements FS.
func (l lending) OpenFile(name string, flag int) (f File, err error) {
	err = l.retry(func() error {
		f, err = l.FS.OpenFile(name, flag)
		return err
	})
	if err != nil || flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		return f, err
	}
	return lent{File: f, of: l}, nil
}

// Rename implements FS.
func (l lending) Rename(from, to string) error {
	return l.retry(func() error { return l.FS.Rename(from, to) })
}

// MkdirAll implements FS.
func (l lending) MkdirAll(name string) error {
	return l.retry(func() error { return l.FS.MkdirAll(name) })
}

// lent is a file of a lending file system. Its Sync is not repeated: bytes of a failed sync may be lost.
type lent struct {
	File
	of lending
}

// Write implements File.
func (f lent) Write(p []byte) (n int, err error) {
	err = f.of.retry(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements File.
func (f lent) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.of.retry(func() error {
		m, err := f.File.WriteAt(p[n:], off+int64(n))
		n += m
		return err
	})
	return n, err
}

// Truncate implements File.
func (f lent) Truncate(size int64) error {
	return f.of.retry(func() error { return f.File.Truncate(size) })
}

// Preallocate implements File.
func (f lent) Preallocate(size int64) error {
	return f.of.retry(func() error { return f.File.Preallocate(size) })
}
