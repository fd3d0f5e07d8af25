// Package lines keeps what a long run has found in a file, one line each, so that a run which is broken off can go on.
package lines

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Whole are the lines that end.
func Whole(text []byte) []byte { return text[:bytes.LastIndexByte(text, '\n')+1] }

// Open opens a file, or makes one, and reads its lines. The last line may have no end, if a run was interrupted while
// it wrote it. Open leaves that line out if it begins as all lines do. Otherwise this is another kind of file, which
// must not be shortened.
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

// Continue cuts off what comes after the whole lines that Open has read, and has the next one written there.
func Continue(f *os.File, whole []byte) error {
	if err := f.Truncate(int64(len(whole))); err != nil {
		return err
	}
	_, err := f.Seek(int64(len(whole)), io.SeekStart)
	return err
}
