package fs

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// syncDir does nothing: Windows has no such call, and its metadata is journaled.
func syncDir(string) error { return nil }

// lockFile reports whether another process holds the lock. It locks a byte far behind the owner's process id, so that
// other processes can still read the id.
func lockFile(f *os.File) (held bool, err error) {
	at := &windows.Overlapped{Offset: 1 << 20}
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return true, nil
	}
	return false, err
}

func free(name string) (uint64, error) {
	p, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return 0, err
	}
	var available uint64
	if err := windows.GetDiskFreeSpaceEx(p, &available, nil, nil); err != nil {
		return 0, &os.PathError{Op: "free space", Path: name, Err: err}
	}
	return available, nil
}
