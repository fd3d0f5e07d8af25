// Package tidy holds the repository to its layout: who may import whom, what
// pure packages may not touch, and what a top-level folder may be.
package tidy
