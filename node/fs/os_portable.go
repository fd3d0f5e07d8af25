//go:build !linux

package fs

import "os"

func preallocate(f *os.File, _, size int64) error { return f.Truncate(size) }

func allocate(f *os.File, from, size int64) error { return preallocate(f, from, size) }

func syncData(f *os.File) error { return f.Sync() }
