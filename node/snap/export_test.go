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
