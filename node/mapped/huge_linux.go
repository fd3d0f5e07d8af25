//go:build linux && !race

package mapped

import "syscall"

// inHugePages touches an unused part of a mapping, so that the system places it in huge pages, if it has any to spare.
// Huge pages are requested only now. Later a huge page may be split because a part of it returned to the system, and
// then it must not become whole again. In the end the whole mapping has the same setting as its neighbours, so that the
// system counts them as one mapping.
func inHugePages(all, b []byte, size int) {
	if syscall.Madvise(b, syscall.MADV_HUGEPAGE) != nil {
		return // a system without them
	}
	for i := 0; i < len(b); i += size {
		b[i] = 0
	}
	_ = syscall.Madvise(all, syscall.MADV_NOHUGEPAGE)
}
