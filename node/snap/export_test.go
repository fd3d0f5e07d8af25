package snap

import (
	"hash/crc32"
	"os"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
)

// SetVersion makes a file one of another format, with a sound header.
func SetVersion(t *testing.T, fsys fs.FS, name string, version uint32) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	b := header()
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], crc32.Checksum(b[:12], castagnoli))
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// Section is a stretch of bytes of a file.
type Section struct {
	Name     string
	From, To int64
}

// Sections names the bytes of a sound file.
func Sections(t *testing.T, fsys fs.FS, name string) []Section {
	t.Helper()
	f, err := fs.Open(fsys, name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := readMeta(f)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	return []Section{
		{"header", 0, headerLen},
		{"chunks", headerLen, m.listAt},
		{"list", m.listAt, m.listAt + m.ListLen},
		{"description", m.listAt + m.ListLen, size - trailerLen},
		{"trailer", size - trailerLen, size},
	}
}
