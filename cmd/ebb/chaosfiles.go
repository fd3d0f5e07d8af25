package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ebbdb/ebb/proto"
)

// reportFile is the page of a run. It is written beside its place and renamed there at the end, so that a run that is broken off leaves what an earlier one has
// written. A nil one is none.
type reportFile struct {
	part *os.File
	path string // to rename it to; empty if it is written in place
}

// openReport makes sure that a page can be written before hours have passed.
func openReport(path string) (*reportFile, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // none was asked for
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return nil, usagef("--report %s: it is a directory; name a file in it", path)
	}
	r := &reportFile{path: path}
	name := fmt.Sprintf("%s.%d.part", path, os.Getpid())
	if err == nil && !info.Mode().IsRegular() { // a pipe or a device is not to be replaced
		r.path, name = "", path
	}
	if r.part, err = os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644); err != nil {
		return nil, cannotWrite("--report", path, err)
	}
	return r, nil
}

// cannotWrite names the flag of a file or directory that cannot be made or opened. Other errors it leaves as they are.
func cannotWrite(flag, path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return proto.ErrBadRequest.Errorf("%s %s: it cannot be written: %v", flag, path, at.Err).
			WithHint("give " + flag + " a path in a directory that is there and that you may write")
	}
	return err
}

// makeDir makes sure that there is a directory in which files can be made.
func makeDir(flag, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cannotWrite(flag, dir, err)
	}
	try, err := os.CreateTemp(dir, ".ebb-*")
	if err != nil {
		return cannotWrite(flag, dir, err)
	}
	return errors.Join(try.Close(), os.Remove(try.Name()))
}

// notResumed refuses to go on with what a file holds. The error begins with its name.
func notResumed(path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return cannotWrite("--resume", path, err)
	}
	return proto.ErrBadRequest.Errorf("--resume %v", err).WithHint("name the file of an earlier run of the same build with the same flags, or a new one")
}

// write writes the page and puts it in its place.
func (r *reportFile) write(page func(io.Writer) error) error {
	if r == nil {
		return nil
	}
	err := errors.Join(page(r.part), r.part.Close())
	if err == nil && r.path != "" {
		err = os.Rename(r.part.Name(), r.path)
	}
	return err
}

// drop removes what has not been put in its place.
func (r *reportFile) drop() {
	if r != nil {
		r.part.Close()
		if r.path != "" {
			_ = os.Remove(r.part.Name()) // it is gone after write
		}
	}
}

// unused refuses a directory in which an earlier run has left something.
func unused(flag, dir string) error {
	for _, name := range []string{"nodes", "disks", "certs"} {
		if dir == "" {
			break
		}
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return usagef("%s %s: it holds an earlier run (%s); name another directory, or remove this one", flag, dir, name)
		}
	}
	return nil
}
