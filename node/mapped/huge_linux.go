//go:build linux && !race

package mapped

import "syscall"

// inHugePages touches a part of a mapping that has not been used yet, so that the system lays it into huge pages, if it
// has any to spare. It asks for them only now: a huge page may be broken up later, because a part of it went back to
// the system, and must not be filled up again. In the end the whole mapping is of one kind, as its neighbours are: the
// system counts them as one.
func inHugePages(all, b []byte, size int) {
	if syscall.Madvise(b, syscall.MADV_HUGEPAGE) != nil {
		return // a system without them
	}
	for i := 0; i < len(b); i += size {
		b[i] = 0
	}
	_ = syscall.Madvise(all, syscall.MADV_NOHUGEPAGE)
}
