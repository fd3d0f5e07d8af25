package fs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ebbdb/ebb/proto"
)

// OS is the file system of the machine.
type OS struct{}

const (
	filePerm = 0o640
	dirPerm  = 0o750
)

type osFile struct{ *os.File }

// OpenFile implements FS.
func (OS) OpenFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, filePerm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// RemoveAll implements FS.
func (OS) RemoveAll(name string) error { return os.RemoveAll(name) }

// MkdirAll implements FS.
func (OS) MkdirAll(name string) error { return os.MkdirAll(name, dirPerm) }

// ReadDir implements FS.
func (OS) ReadDir(name string) ([]Info, error) {
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue // it was removed after the listing
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, Info{Name: e.Name(), Size: info.Size(), Dir: e.IsDir()})
	}
	return infos, nil
}

// Stat implements FS.
func (OS) Stat(name string) (Info, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	return Info{Name: info.Name(), Size: info.Size(), Dir: info.IsDir()}, nil
}

// SyncDir implements FS.
func (OS) SyncDir(name string) error { return syncDir(name) }

// Free implements FS.
func (OS) Free(name string) (uint64, error) { return free(name) }

// Lock implements FS. The file holds the process id of its owner, for the error message of the next process.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return nil, err
	}
	held, err := lockFile(f)
	if err == nil && held {
		err = locked(name, f)
	}
	if err == nil {
		err = writeOwner(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func locked(name string, f *os.File) error {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0) // the owner is only for the message
	owner := ""
	if pid := strings.TrimSpace(string(buf[:n])); pid != "" {
		owner = " with process id " + pid
	}
	return proto.ErrLocked.Errorf("%s is locked by another process%s", name, owner).
		WithHint("stop it, or use another data directory")
}

func writeOwner(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	if NoSpace(err) {
		return nil // a node with a full disk must start, too
	}
	return err
}

// Size implements File.
func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Preallocate implements File.
func (f osFile) Preallocate(size int64) error {
	have, err := f.Size()
	if err != nil || have >= size {
		return err
	}
	return preallocate(f.File, have, size)
}

// Allocate implements File.
func (f osFile) Allocate(size int64) error {
	have, err := f.Size()
	if err != nil || have >= size {
		return err
	}
	return allocate(f.File, have, size)
}

// Sync implements File.
func (f osFile) Sync() error { return syncData(f.File) }
