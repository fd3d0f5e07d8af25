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

// TestAcquaintances: who was met is on disk when meet returns, also when several meet the same at once; a disk that fails or hangs lets nobody be met,
// and one that works again does; strangers to the founding are not written down.
func TestAcquaintances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		d, err := openDatadir(disk, "/data", "ebb-0", proto.StorageVersions())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.update(func(id *identity) { id.Founders = []string{"ebb-0", "ebb-1", "ebb-2"} }); err != nil {
			t.Fatal(err)
		}
		a := newAcquaintances(d)
		meet := func(node string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return a.meet(ctx, node)
		}

		disk.Inject(func(op fs.Op, _ string) error {
			if op == fs.OpWrite {
				return syscall.EIO
			}
			return nil
		})
		if err := meet("ebb-1"); !errors.Is(err, proto.ErrDisk) {
			t.Errorf("a disk that fails: %v, want EBB-4006", err)
		}
		disk.Inject(nil)
		release := make(chan struct{})
		disk.HangSync(release)
		if err := meet("ebb-1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a disk that hangs: %v, want the end of the time", err)
		}
		if met := a.all(nil); len(met) > 0 {
			t.Errorf("it has met %v before the disk has", met)
		}
		close(release)
		disk.HangSync(nil)

		var wg sync.WaitGroup
		for range 8 {
			for _, node := range []string{"ebb-1", "ebb-2", "guest"} {
				wg.Go(func() {
					if err := meet(node); err != nil {
						t.Errorf("meet %s: %v", node, err)
					}
				})
			}
		}
		wg.Wait()
		a.wg.Wait()
		if met, want := a.all([]string{"guest", "ebb-2"}), []string{"ebb-1", "ebb-2", "guest"}; !slices.Equal(met, want) {
			t.Errorf("it has met %v, want %v", met, want)
		}
		again, err := openDatadir(disk.Crash(1), "/data", "ebb-0", proto.StorageVersions())
		if err != nil {
			t.Fatal(err)
		}
		met := again.identity().Met
		slices.Sort(met)
		if want := []string{"ebb-1", "ebb-2"}; !slices.Equal(met, want) {
			t.Errorf("after a loss of power it has met %v, want %v", met, want)
		}
	})
}
