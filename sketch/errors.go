package sketch

import "errors"

// Errors of all kinds. Those that wrap them name the kind, the thing and the limit.
var (
	// ErrCorrupt refuses bytes that no summary of the kind encodes to.
	ErrCorrupt = errors.New("corrupt summary")
	// ErrParams refuses parameters when a summary is made.
	ErrParams = errors.New("parameter out of range")
	// ErrIncompatible refuses to merge summaries of different hash, seed, shape or half-life.
	ErrIncompatible = errors.New("summaries do not merge")
)
