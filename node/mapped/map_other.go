//go:build !unix || race

package mapped

// Without mmap, chunks come from Go's heap. So they do under the race detector, which can only see Go's heap.

func mmap(size int) ([]byte, error) { return bytesOf(make([]uint64, size/8)), nil }

func munmap([]byte) {}
