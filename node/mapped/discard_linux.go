//go:build linux && !race

package mapped

import "syscall"

// discard gives the memory of whole pages back to the system, and says whether it did: they are zeros then.
func discard(b []byte) bool { return syscall.Madvise(b, syscall.MADV_DONTNEED) == nil }
