package fs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// zeros is what preallocate writes at a time: so few bytes that a sync of another file does not wait long behind them.
var zeros [1 << 20]byte

// preallocate reserves blocks, so that a write within them cannot find the disk full, and writes zeros into them. A
// later sync then writes data but no metadata: 145 us instead of 213 on ext4.
func preallocate(f *os.File, from, size int64) error {
	if _, err := fallocate(f, size); err != nil {
		return err
	}
	return fill(f, from, size)
}

// allocate only reserves the blocks. It writes zeros if the system cannot reserve them.
func allocate(f *os.File, from, size int64) error {
	if done, err := fallocate(f, size); done || err != nil {
		return err
	}
	return fill(f, from, size)
}

// fallocate reports whether the system reserved the blocks.
func fallocate(f *os.File, size int64) (done bool, err error) {
	err = retry(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return false, nil
	}
	return err == nil, wrap("fallocate", f, err)
}

func fill(f *os.File, from, size int64) error {
	for at := from; at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
			return err
		}
		if err := syncData(f); err != nil {
			return err
		}
	}
	return nil
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
