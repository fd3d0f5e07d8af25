//go:build unix

package fs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func syncDir(name string) (err error) {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// lockFile reports whether another process, or another open file, holds the lock.
func lockFile(f *os.File) (held bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
