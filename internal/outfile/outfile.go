// Package outfile opens the files and directories that a command writes, and names the flag of one that it cannot
// write.
package outfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ebbdb/ebb/proto"
)

// Report is the page of a run, or another file that is there as a whole or not at all. It is written under another name
// in the same directory and renamed at the end, so that a run that is interrupted leaves the page of an earlier one. A
// nil Report writes nothing.
type Report struct {
	part *os.File
	path string // to rename it to; empty if it is written in place
}

// OpenReport makes sure that a page can be written at path before the run begins; it returns nil for an empty path. A
// pipe or a device is written in place. The error is a proto.ErrBadRequest that names the flag --report and the path.
func OpenReport(path string) (*Report, error) { return Open("--report", path, 0o644) }

// Open is OpenReport for the file of any flag, which others may read as its mode says.
func Open(flag, path string, mode fs.FileMode) (*Report, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no page is wanted
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return nil, proto.ErrBadRequest.Errorf("%s %s: it is a directory; name a file in it", flag, path).
			WithHint("give " + flag + " the name of a file")
	}
	r := &Report{path: path}
	name := fmt.Sprintf("%s.%d.part", path, os.Getpid())
	if err == nil && !info.Mode().IsRegular() { // a rename would replace a pipe or a device
		r.path, name = "", path
	}
	if r.part, err = os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode); err != nil {
		return nil, CannotWrite(flag, path, err)
	}
	return r, nil
}

// Write writes the page with the given function and puts it in its place.
func (r *Report) Write(page func(io.Writer) error) error {
	if r == nil {
		return nil
	}
	err := errors.Join(page(r.part), r.part.Close())
	if err == nil && r.path != "" {
		err = os.Rename(r.part.Name(), r.path)
	}
	return err
}

// Drop removes a page that Write has not put in its place.
func (r *Report) Drop() {
	if r != nil {
		r.part.Close()
		if r.path != "" {
			_ = os.Remove(r.part.Name()) // it is gone after Write
		}
	}
}

// CannotWrite returns a proto.ErrBadRequest that names the flag and the path of a file or directory that could not be
// made or opened. It returns any other error as it is.
func CannotWrite(flag, path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return proto.ErrBadRequest.Errorf("%s %s: it cannot be written: %v", flag, path, at.Err).
			WithHint("give " + flag + " a path in a directory that is there and that you may write")
	}
	return err
}

// NotResumed returns a proto.ErrBadRequest that says why a run cannot continue with the file of --resume at path.
// Where the file could be opened, err begins with its name.
func NotResumed(path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return CannotWrite("--resume", path, err)
	}
	return proto.ErrBadRequest.Errorf("--resume %v", err).
		WithHint("name the file of an earlier run of the same build with the same flags, or a new one")
}

// MakeDir makes a directory, if it is not there, and makes sure that files can be made in it. The error is that of
// CannotWrite.
func MakeDir(flag, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return CannotWrite(flag, dir, err)
	}
	try, err := os.CreateTemp(dir, ".ebb-*")
	if err != nil {
		return CannotWrite(flag, dir, err)
	}
	return errors.Join(try.Close(), os.Remove(try.Name()))
}
