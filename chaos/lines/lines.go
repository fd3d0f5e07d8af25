// Package lines keeps the results of a long run in a file, one a line, so that an interrupted run can continue.
package lines

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Whole returns the text up to its last line end.
func Whole(text []byte) []byte { return text[:bytes.LastIndexByte(text, '\n')+1] }

// Open opens or creates a file, and returns its whole lines, which all begin with begins. A run that was interrupted
// may have left a last line without an end. Open leaves this line out if it begins with begins. Otherwise Open fails,
// because this is another kind of file, which must not be shortened. It also fails if the file is not regular.
func Open(file, begins string) (_ *os.File, whole []byte, err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: it is not a regular file", file)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, err
	}
	whole = Whole(text)
	if rest := string(text[len(whole):]); !strings.HasPrefix(rest, begins) && !strings.HasPrefix(begins, rest) {
		return nil, nil, fmt.Errorf("%s: its last line has no end, and does not begin with %s", file, begins)
	}
	return f, whole, nil
}

// Continue truncates f after the whole lines that Open has read, so that the next line is written there.
func Continue(f *os.File, whole []byte) error {
	if err := f.Truncate(int64(len(whole))); err != nil {
		return err
	}
	_, err := f.Seek(int64(len(whole)), io.SeekStart)
	return err
}
