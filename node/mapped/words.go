package mapped

import "unsafe"

// This is the only unsafe code of the repository. Mapped memory comes as bytes, bins are words, and huge pages begin at
// boundaries. Reading words byte by byte would cost every increment some nanoseconds for each of its bins. Mappings
// begin at pages, so the alignment is right.

func wordsOf(b []byte) []uint64 { return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8) }

func bytesOf(w []uint64) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8) }

// aligned returns b from the first address on that boundary, a power of two, divides.
func aligned(b []byte, boundary uintptr) []byte {
	return b[-uintptr(unsafe.Pointer(&b[0]))&(boundary-1):]
}
