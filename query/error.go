package query

import (
	"fmt"

	"github.com/ebbdb/ebb/proto"
)

// Error is what is wrong with a question, and where. errors.Is(err, proto.ErrBadQuery) is true for it.
type Error struct {
	Offset       int // in bytes, from 0
	Line, Column int // from 1; the column in characters
	Message      string
	Hint         string // the next step, if there is one
}

func (e *Error) Error() string {
	if e.Line > 1 {
		return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Message)
	}
	return fmt.Sprintf("column %d: %s", e.Column, e.Message)
}

// Unwrap returns the error as a *proto.Error for the wire.
func (e *Error) Unwrap() error {
	err := proto.ErrBadQuery.Errorf("%s", e.Error()).WithHint(e.Hint)
	err.Line, err.Column = uint32(e.Line), uint32(e.Column)
	return err
}
