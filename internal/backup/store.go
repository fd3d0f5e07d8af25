package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Store keeps objects by their names, which are paths with '/'. An object is stored whole or not at all.
type Store interface {
	// Put writes an object.
	Put(ctx context.Context, name string, data []byte) error
	// Get reads an object of at most limit bytes; ErrMissing if there is none.
	Get(ctx context.Context, name string, limit int64) ([]byte, error)
	// List returns the names that begin with a prefix, in order.
	List(ctx context.Context, prefix string) ([]string, error)
	// Delete removes an object, if it is there.
	Delete(ctx context.Context, name string) error
	// String returns the place of the store, for people.
	String() string
}

// ErrMissing says that a store has no object of a name.
var ErrMissing = errors.New("not there")

// errLong says that an object is longer than the limit.
var errLong = errors.New("longer than it can be")

// Open returns the store at a place: a directory, or s3://bucket/prefix.
func Open(place string) (Store, error) {
	if strings.HasPrefix(place, "s3://") {
		return openBucket(place)
	}
	if scheme, _, ok := strings.Cut(place, "://"); ok {
		return nil, fmt.Errorf("%s: a store of the sort %q is not known: name a directory, or s3://bucket/prefix", place, scheme)
	}
	if place == "" {
		return nil, errors.New("no place for backups: name a directory")
	}
	return directory(place), nil
}

// directory is a store in files.
type directory string

func (d directory) String() string { return string(d) }

func (d directory) path(name string) string {
	return filepath.Join(string(d), filepath.FromSlash(name))
}

// Put implements Store. The file gets its name only after its bytes are on the disk.
func (d directory) Put(_ context.Context, name string, data []byte) (err error) {
	path := d.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the caller gets the first error
		}
	}()
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Get implements Store.
func (d directory) Get(_ context.Context, name string, limit int64) ([]byte, error) {
	f, err := os.Open(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAtMost(f, limit)
}

func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errLong
	}
	return data, err
}

// List implements Store.
func (d directory) List(_ context.Context, prefix string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(d.path(prefix), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			return err
		}
		name, err := filepath.Rel(string(d), path)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	slices.Sort(names)
	return names, err
}

// Delete implements Store.
func (d directory) Delete(_ context.Context, name string) error {
	err := os.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
