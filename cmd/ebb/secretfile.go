package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/internal/outfile"
)

// secretFile is the file into which a command writes a secret instead of printing it.
type secretFile struct {
	path  string
	force bool
}

func (f *secretFile) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "out", "", "`file` that gets it, readable for its owner alone, instead of printing it")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace --out if it is there")
}

// open creates the file for the secret before the secret is made, because a secret is shown only once. Without --out it
// returns nil, which drop and writeSecret accept.
func (f *secretFile) open() (*pendingFile, error) {
	if f.path == "" {
		return nil, nil
	}
	if info, err := os.Stat(f.path); err == nil && info.IsDir() {
		return nil, usagef("--out %s: it is a directory; name a file in it", f.path)
	}
	if err := checkAbsent(f.force, f.path); err != nil {
		return nil, outfile.CannotWrite("--out", f.path, err)
	}
	out, err := createFile(f.path, 0o600)
	if err != nil {
		return nil, outfile.CannotWrite("--out", f.path, err)
	}
	return out, nil
}

// checkAbsent returns an error if a file exists, unless force is set.
func checkAbsent(force bool, paths ...string) error {
	for _, path := range paths {
		switch _, err := os.Lstat(path); {
		case force || errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return usageError{err}
		default:
			return usagef("%s is there: --force replaces it", path)
		}
	}
	return nil
}

// pendingFile is a file that gets its name only when it is complete.
type pendingFile struct {
	*os.File
	path string
}

// createFile begins a file. It has the given mode, whatever mode an earlier file had.
func createFile(path string, mode os.FileMode) (*pendingFile, error) {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	return &pendingFile{f, path}, nil
}

// keep writes the content, and gives the file its name.
func (f *pendingFile) keep(content []byte) error {
	_, err := f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), f.path)
}

// drop removes a file that was not kept.
func (f *pendingFile) drop() {
	if f != nil && f.Close() == nil { // closing fails if the file was kept
		_ = os.Remove(f.Name()) // the file is empty
	}
}

// replaceFile writes a file as a whole or not at all.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	f, err := createFile(path, mode)
	if err != nil {
		return err
	}
	return f.keep(content)
}

// writeSecret writes a secret to its file. If f is nil, it prints the secret; as is what --json prints.
func (s *session) writeSecret(f *pendingFile, text string, as any) error {
	if f == nil {
		if s.output == "json" {
			return printJSON(s.term.out, as)
		}
		_, err := fmt.Fprintln(s.term.out, text)
		return err
	}
	if err := f.keep([]byte(text + "\n")); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.term.err, "%s holds it, for its owner alone\n", f.path)
	return err
}
