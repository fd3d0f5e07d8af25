//go:build !linux && !darwin && !freebsd && !windows

package fs

import "math"

// free knows nothing on these systems: space never looks short.
func free(string) (uint64, error) { return math.MaxInt64, nil }
