package node

import (
	"testing"
	"time"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// Whoever reads the identity does not wait for the disk that it is being written to, and reads the old one until the
// new one is there.
func TestIdentityIsReadWhileItIsWritten(t *testing.T) {
	disk := fs.NewMem()
	d, err := openDatadir(disk, "/data", "ebb-0", proto.StorageVersions())
	if err != nil {
		t.Fatal(err)
	}
	hangs, release := make(chan struct{}, 1), make(chan struct{})
	disk.Inject(func(op fs.Op, _ string) error {
		if op == fs.OpSync {
			select {
			case hangs <- struct{}{}:
			default:
			}
			<-release
		}
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- d.update(func(id *identity) { id.Disk = "another" }) }()
	<-hangs
	read := make(chan string, 1)
	go func() { read <- d.identity().Disk }()
	select {
	case disk := <-read:
		if disk == "another" {
			t.Error("what is not on disk yet is read")
		}
	case <-time.After(10 * time.Second):
		t.Error("reading waits for the disk")
	}
	close(release)
	if err := <-done; err != nil || d.identity().Disk != "another" {
		t.Errorf("%v, disk %q", err, d.identity().Disk)
	}
}
