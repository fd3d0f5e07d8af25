//go:build !unix

package trust

import "io/fs"

// ownedByCaller is always false here: files have no Unix owners, and their permissions mean nothing.
func ownedByCaller(fs.FileInfo) bool { return false }
