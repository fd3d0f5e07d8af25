package main

import "strconv"

// idJSON is an id of a bitmap as JSON over HTTP has it: beyond 2^53, where many readers of JSON lose digits of numbers,
// it is a string.
type idJSON uint64

func (id idJSON) MarshalJSON() ([]byte, error) {
	digits := strconv.FormatUint(uint64(id), 10)
	if id > 1<<53 {
		return strconv.AppendQuote(nil, digits), nil
	}
	return []byte(digits), nil
}

// idsJSON is never nil.
func idsJSON(ids []uint64) []idJSON {
	out := make([]idJSON, len(ids))
	for i, id := range ids {
		out[i] = idJSON(id)
	}
	return out
}
