//go:build unix && !race

package mapped

import "syscall"

func mmap(size int) ([]byte, error) {
	return syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

func munmap(b []byte) {
	if err := syscall.Munmap(b); err != nil {
		panic("unmap: " + err.Error()) // not a mapping: a serious bug
	}
}
