package main

import (
	"os"
	"path/filepath"
)

// unused refuses a directory with files of an earlier run.
func unused(flag, dir string) error {
	for _, name := range []string{"nodes", "disks", "certs"} {
		if dir == "" {
			break
		}
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return usagef("%s %s: it holds an earlier run (%s); name another directory, or remove this one", flag, dir, name)
		}
	}
	return nil
}
