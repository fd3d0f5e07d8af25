// Package outfile opens the files and directories that a command writes. Its errors name the flag of a file that cannot
// be written.
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

// Report is the page of a run, or another file that is replaced as a whole or not at all. It is written under another
// name in the same directory and renamed at the end. So an interrupted run keeps the page of an earlier run. A nil
// Report writes nothing.
type Report struct {
	part *os.File
	path string // the final name; empty if the file is written in place
}

// OpenReport opens the page at path before the run begins, so that a wrong path fails early. It returns nil for an
// empty path. A pipe or a device is written in place. The error is a proto.ErrBadRequest that names the flag --report
// and the path.
func OpenReport(path string) (*Report, error) { return Open("--report", path, 0o644) }

// Open does what OpenReport does for the file of any flag. mode is the mode of a new file.
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

// Write writes the page with the function page, and renames it to its final name.
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

// Drop removes the file of a page that was not written.
func (r *Report) Drop() {
	if r != nil {
		r.part.Close()
		if r.path != "" {
			_ = os.Remove(r.part.Name()) // after Write the file is gone
		}
	}
}

// CannotWrite returns a proto.ErrBadRequest that names the flag and the path of a file or directory that could not be
// created or opened. It returns any other error unchanged.
func CannotWrite(flag, path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return proto.ErrBadRequest.Errorf("%s %s: it cannot be written: %v", flag, path, at.Err).
			WithHint("give " + flag + " a path in a directory that is there and that you may write")
	}
	return err
}

// NotResumed returns a proto.ErrBadRequest that says why a run cannot continue with the file of --resume at path. If
// the file was opened, err begins with its name.
func NotResumed(path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return CannotWrite("--resume", path, err)
	}
	return proto.ErrBadRequest.Errorf("--resume %v", err).
		WithHint("name the file of an earlier run of the same build with the same flags, or a new one")
}

// MakeDir creates a directory if it does not exist, and checks that files can be created in it. The error is that of
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
