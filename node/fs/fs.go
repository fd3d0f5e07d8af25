// Package fs is the file system interface that ebb uses. It has a real implementation (OS) and one in memory (Mem)
// whose machine can crash, and whose calls can fail, hang, or write only a part.
package fs

import (
	"errors"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/ebbdb/ebb/proto"
)

// FS is a file system. Names are paths as the operating system writes them. Errors satisfy errors.Is with
// io/fs.ErrNotExist, ErrExist and the syscall numbers (EIO, ENOSPC, EROFS). Only what Sync and SyncDir have covered
// survives a power failure: Sync makes a file's bytes durable, SyncDir its name.
type FS interface {
	// OpenFile opens a file. flag is as in package os: O_RDONLY or O_RDWR, with O_CREATE, O_EXCL, O_TRUNC, O_APPEND.
	OpenFile(name string, flag int) (File, error)
	// Rename atomically renames from to to, and replaces an existing to.
	Rename(from, to string) error
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// RemoveAll deletes a tree; a missing one is no error.
	RemoveAll(name string) error
	MkdirAll(name string) error
	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]Info, error)
	Stat(name string) (Info, error)
	// SyncDir makes the directory's entries durable.
	SyncDir(name string) error
	// Lock takes a file as an exclusive lock until the Closer is closed. It returns proto.ErrLocked when another
	// process, or this one, holds the lock.
	Lock(name string) (io.Closer, error)
	// Free returns the bytes available to this process on the disk of name.
	Free(name string) (uint64, error)
}

// File is an open file. Read and Write go through the handle's own position.
type File interface {
	io.Reader
	io.Writer
	io.ReaderAt
	io.WriterAt
	io.Closer
	Name() string
	Size() (int64, error)
	Truncate(size int64) error
	// Preallocate makes the file at least size bytes long, with zeros where nothing was written. It reserves the blocks
	// if the system can. It may sync.
	Preallocate(size int64) error
	// Allocate is Preallocate, but writes zeros only if the system cannot reserve blocks without them.
	Allocate(size int64) error
	// Sync makes the file's bytes and length durable. After it failed, all bytes written since the last success may be
	// lost, even if a second Sync succeeds.
	Sync() error
}

// Info describes a file or directory.
type Info struct {
	Name string // last element of its path
	Size int64  // bytes
	Dir  bool
}

// Open opens an existing file for reading.
func Open(fsys FS, name string) (File, error) { return fsys.OpenFile(name, os.O_RDONLY) }

// Create makes an empty file, or empties an existing one, for reading and writing.
func Create(fsys FS, name string) (File, error) {
	return fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

// ReadFile returns a file's bytes.
func ReadFile(fsys FS, name string) (data []byte, err error) {
	f, err := Open(fsys, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	data = make([]byte, size)
	_, err = io.ReadFull(f, data)
	return data, err
}

// WriteFile replaces a file's bytes durably and atomically: after a crash the file holds either the old bytes or the
// new ones.
func WriteFile(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := writeSynced(fsys, tmp, data); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

func writeSynced(fsys FS, name string, data []byte) (err error) {
	f, err := Create(fsys, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

// Taken returns the size in bytes of all files below a directory; 0 if the directory does not exist.
func Taken(fsys FS, dir string) (bytes int64, err error) {
	infos, err := fsys.ReadDir(dir)
	if errors.Is(err, iofs.ErrNotExist) {
		return 0, nil
	}
	for _, f := range infos {
		if !f.Dir {
			bytes += f.Size
			continue
		}
		below, err := Taken(fsys, filepath.Join(dir, f.Name))
		if err != nil {
			return 0, err
		}
		bytes += below
	}
	return bytes, err
}

// MakeDir makes a directory and the missing ones above it, durably.
func MakeDir(fsys FS, name string) error {
	var parents []string // of what is missing, the lowest first
	for at := filepath.Clean(name); ; at = filepath.Dir(at) {
		ok, err := Exists(fsys, at)
		if err != nil {
			return err
		}
		if ok || at == filepath.Dir(at) {
			break
		}
		parents = append(parents, filepath.Dir(at))
	}
	if err := fsys.MkdirAll(name); err != nil {
		return err
	}
	for _, dir := range slices.Backward(parents) {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	if len(parents) > 0 {
		return nil
	}
	// The directory exists, but a process may have died before its name was durable. A process without permission to
	// read the parent directory did not make it either.
	err := fsys.SyncDir(filepath.Dir(filepath.Clean(name)))
	if errors.Is(err, iofs.ErrPermission) {
		return nil
	}
	return err
}

// Exists reports whether name exists.
func Exists(fsys FS, name string) (bool, error) {
	_, err := fsys.Stat(name)
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Explain turns an error of the system about a data directory into proto.ErrDisk with a hint that a user can act on.
// Other errors are returned unchanged.
func Explain(dir string, err error) error {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return proto.ErrDisk.Errorf("data directory %s %s: %v", dir, c.what, err).WithHint(c.hint)
		}
	}
	return err
}

var causes = []struct {
	err        error
	what, hint string
}{
	{syscall.EROFS, "is read-only", "mount it for writing, or use another with --data-dir"},
	{syscall.ENOTDIR, "is not a directory", "use another with --data-dir"},
	{iofs.ErrPermission, "may not be used by this user", "change its owner, or use another with --data-dir"},
	{syscall.ENOSPC, "is on a full disk", "free some space; nothing that was acknowledged is lost"},
	{syscall.EDQUOT, "has used up its quota", "raise the quota or free some space; nothing that was acknowledged is lost"},
	{syscall.EIO, "is on a disk that fails", "replace the disk and rebuild this node from the others"},
}
