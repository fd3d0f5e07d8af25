package main

import "strconv"

// idJSON is an id of a bitmap in JSON, as HTTP has it. Above 2^53 it is a string, because many JSON readers lose digits
// of larger numbers.
type idJSON uint64

func (id idJSON) MarshalJSON() ([]byte, error) {
	digits := strconv.FormatUint(uint64(id), 10)
	if id > 1<<53 {
		return strconv.AppendQuote(nil, digits), nil
	}
	return []byte(digits), nil
}

// idsJSON returns ids for JSON; it is never nil, so that no ids are [] and not null.
func idsJSON(ids []uint64) []idJSON {
	out := make([]idJSON, len(ids))
	for i, id := range ids {
		out[i] = idJSON(id)
	}
	return out
}
