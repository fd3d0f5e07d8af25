package fs_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
)

// A write that finds the disk full takes from the reserve, and only what it needs.
func TestReserve(t *testing.T) {
	for name, disk := range map[string]func(t *testing.T) (fs.FS, string){
		"memory":  func(*testing.T) (fs.FS, string) { return fs.NewMem(), "/data" },
		"machine": func(t *testing.T) (fs.FS, string) { return fs.OS{}, t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			base, dir := disk(t)
			must(t, base.MkdirAll(dir))
			full := false // after which only what the reserve gives back is there
			var freed, taken int64
			fsys := &bounded{FS: base, room: func(more int64) bool {
				if full && taken+more > freed {
					return false
				}
				taken += more
				return true
			}, gone: func(size int64) { freed += size }}
			r, err := fs.NewReserve(fsys, dir+"/reserve", 80, 80)
			must(t, err)
			for missing := true; missing; {
				missing, err = r.Refill()
				must(t, err)
			}
			f, err := r.All().OpenFile(dir+"/log", os.O_RDWR|os.O_CREATE)
			must(t, err)
			s, err := r.Most().OpenFile(dir+"/snapshot", os.O_RDWR|os.O_CREATE)
			must(t, err)
			if now, whole := r.Held(); now != 80 || whole != 80 {
				t.Fatal(now, whole)
			}

			full, taken, freed = true, 0, 0
			if n, err := f.Write(make([]byte, 15)); n != 15 || err != nil {
				t.Fatal(n, err)
			}
			if now, _ := r.Held(); now != 60 {
				t.Fatalf("%d are held after a write of 15", now)
			}
			if n, err := s.WriteAt(make([]byte, 100), 0); n == 100 || !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(n, err)
			}
			if now, _ := r.Held(); now != 20 {
				t.Fatalf("a snapshot leaves %d", now)
			}
			must(t, r.Remove(dir+"/snapshot"))
			must(t, f.Preallocate(60))
			if err := f.Preallocate(1000); !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			if now, _ := r.Held(); now != 0 {
				t.Fatalf("%d are held when all is used up", now)
			}
			freed = taken // another process has what the reserve gave back
			if missing, err := r.Refill(); !missing || !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(missing, err)
			}

			full = false
			_, err = r.Refill()
			must(t, err)
			must(t, fs.WriteFile(base, dir+"/reserve/7", make([]byte, 3))) // half made
			again, err := fs.NewReserve(fsys, dir+"/reserve", 80, 80)
			must(t, err)
			if now, _ := again.Held(); now != 10 {
				t.Fatalf("%d are held by the next process", now)
			}
			smaller, err := fs.NewReserve(fsys, dir+"/reserve", 16, 80)
			must(t, err)
			if now, whole := smaller.Held(); now != 10 || whole != 80 {
				t.Fatalf("%d of %d are held on a disk that has become fuller", now, whole)
			}
			must(t, errors.Join(f.Close(), s.Close()))
		})
	}
}

// bounded is a file system that asks whether there is room for what files grow by.
type bounded struct {
	fs.FS
	room func(more int64) bool
	gone func(size int64)
}

func (b *bounded) OpenFile(name string, flag int) (fs.File, error) {
	f, err := b.FS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return boundedFile{f, b}, nil
}

func (b *bounded) Remove(name string) error {
	info, err := b.Stat(name)
	if err != nil {
		return err
	}
	b.gone(info.Size)
	return b.FS.Remove(name)
}

type boundedFile struct {
	fs.File
	of *bounded
}

func (f boundedFile) grow(to int64) error {
	size, err := f.Size()
	if err != nil || to <= size {
		return err
	}
	if !f.of.room(to - size) {
		return syscall.ENOSPC
	}
	return nil
}

// Write writes as much as there is room for.
func (f boundedFile) Write(p []byte) (int, error) {
	for i := range p {
		size, err := f.Size()
		if err == nil {
			err = f.grow(size + 1)
		}
		if err == nil {
			_, err = f.File.Write(p[i : i+1])
		}
		if err != nil {
			return i, err
		}
	}
	return len(p), nil
}

func (f boundedFile) WriteAt(p []byte, off int64) (int, error) {
	for i := range p {
		err := f.grow(off + int64(i) + 1)
		if err == nil {
			_, err = f.File.WriteAt(p[i:i+1], off+int64(i))
		}
		if err != nil {
			return i, err
		}
	}
	return len(p), nil
}

func (f boundedFile) Preallocate(size int64) error {
	if err := f.grow(size); err != nil {
		return err
	}
	return f.File.Preallocate(size)
}

func (f boundedFile) Allocate(size int64) error {
	if err := f.grow(size); err != nil {
		return err
	}
	return f.File.Allocate(size)
}
