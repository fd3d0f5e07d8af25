package fs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// preallocate reserves blocks, so that a write within them cannot find the disk
// full and a sync need not record a new length.
func preallocate(f *os.File, size int64) error {
	err := retry(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return f.Truncate(size)
	}
	return wrap("fallocate", f, err)
}

func syncData(f *os.File) error {
	return wrap("fdatasync", f, retry(func() error { return unix.Fdatasync(int(f.Fd())) }))
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func wrap(op string, f *os.File, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: f.Name(), Err: err}
}
