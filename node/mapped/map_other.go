//go:build !unix || race

package mapped

// Where there is no mmap, chunks come from Go's heap; and under the race detector, which sees nothing else.

func mmap(size int) ([]byte, error) { return bytesOf(make([]uint64, size/8)), nil }

func munmap([]byte) {}
