//go:build !linux && !darwin && !freebsd && !windows

package fs

import "math"

// free cannot measure the space on these systems: it never looks short.
func free(string) (uint64, error) { return math.MaxInt64, nil }
