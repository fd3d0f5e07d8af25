// Package tidy checks the layout of the repository: which package may import which, what pure packages may not use, and
// which top-level folders may exist.
package tidy
