// Package tidy holds the repository to its layout: which package may import which, what pure packages may not touch,
// and what a top-level folder may be.
package tidy
