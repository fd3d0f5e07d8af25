//go:build linux || darwin || freebsd

package fs

import (
	"os"

	"golang.org/x/sys/unix"
)

func free(name string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(name, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: name, Err: err}
	}
	return uint64(s.Bavail) * uint64(s.Bsize), nil
}
