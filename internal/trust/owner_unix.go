//go:build unix

package trust

import (
	"io/fs"
	"os"
	"syscall"
)

// ownedByCaller reports whether this process's user owns a file.
func ownedByCaller(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}
