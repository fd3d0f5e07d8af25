package sketch

import "errors"

// Errors of all kinds. An error that wraps one of them names the kind, the parameter and the limit.
var (
	// ErrCorrupt refuses bytes that no summary of the kind encodes to.
	ErrCorrupt = errors.New("corrupt summary")
	// ErrParams refuses parameters when a summary is made.
	ErrParams = errors.New("parameter out of range")
	// ErrIncompatible refuses to merge summaries of different hash, seed, shape or half-life.
	ErrIncompatible = errors.New("summaries do not merge")
)
