package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// A peer is on disk when remember returns, also when several callers remember it at once. A disk that fails or stalls
// adds no peer, and a disk that works again does. Peers that are no founders are not written down.
func TestKnownPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		d, err := openDatadir(disk, "/data", "ebb-0", proto.StorageVersions())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.update(func(id *identity) { id.Founders = []string{"ebb-0", "ebb-1", "ebb-2"} }); err != nil {
			t.Fatal(err)
		}
		a := newKnownPeers(d)
		remember := func(node string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return a.remember(ctx, node)
		}

		disk.Inject(func(op fs.Op, _ string) error {
			if op == fs.OpWrite {
				return syscall.EIO
			}
			return nil
		})
		if err := remember("ebb-1"); !errors.Is(err, proto.ErrDisk) {
			t.Errorf("a disk that fails: %v, want EBB-4006", err)
		}
		disk.Inject(nil)
		release := make(chan struct{})
		disk.HangSync(release)
		if err := remember("ebb-1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a disk that stalls: %v, want the end of the time", err)
		}
		if contacted := a.all(nil); len(contacted) > 0 {
			t.Errorf("it knows %v before they are on disk", contacted)
		}
		close(release)
		disk.HangSync(nil)

		var wg sync.WaitGroup
		for range 8 {
			for _, node := range []string{"ebb-1", "ebb-2", "guest"} {
				wg.Go(func() {
					if err := remember(node); err != nil {
						t.Errorf("remember %s: %v", node, err)
					}
				})
			}
		}
		wg.Wait()
		a.wg.Wait()
		if contacted, want := a.all([]string{"guest", "ebb-2"}), []string{"ebb-1", "ebb-2", "guest"}; !slices.Equal(contacted, want) {
			t.Errorf("it knows %v, want %v", contacted, want)
		}
		again, err := openDatadir(disk.Crash(1), "/data", "ebb-0", proto.StorageVersions())
		if err != nil {
			t.Fatal(err)
		}
		contacted := again.identity().Contacted
		slices.Sort(contacted)
		if want := []string{"ebb-1", "ebb-2"}; !slices.Equal(contacted, want) {
			t.Errorf("after a loss of power it knows %v, want %v", contacted, want)
		}
	})
}
