//go:build !linux

package fs

import "os"

func preallocate(f *os.File, _, size int64) error { return f.Truncate(size) }

func syncData(f *os.File) error { return f.Sync() }
