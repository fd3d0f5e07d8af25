//go:build linux && !race

package mapped

import "syscall"

// discard returns the memory of whole pages to the system, and reports whether it did; then they are zeros.
func discard(b []byte) bool { return syscall.Madvise(b, syscall.MADV_DONTNEED) == nil }
