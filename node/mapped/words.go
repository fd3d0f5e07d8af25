package mapped

import "unsafe"

// The only unsafe code of the repository: mapped memory comes as bytes, and bins are words. Reading words byte by byte
// would cost every increment some nanoseconds for each of its bins. Mappings begin at pages, so the alignment is right.

func wordsOf(b []byte) []uint64 { return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8) }

func bytesOf(w []uint64) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8) }
