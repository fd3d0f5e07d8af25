package node

import (
	"log/slog"
	"testing"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// On a large disk the parts of a data directory have their usual sizes, on a small one they fit.
func TestDiskSizes(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		what string
		free uint64
		want diskSizes
	}{
		{"large", 1 << 40, diskSizes{reserve: 64 * mib, segment: 32 * mib, log: 1 << 38}},
		{"unknown", 1 << 63, diskSizes{reserve: 64 * mib, segment: 32 * mib, log: freeUnknown / 4}},
		{"110 MiB", 110 * mib, diskSizes{reserve: 8 * mib, segment: 4 * mib, log: 110 * mib / 4}},
		{"120 MiB", 120 * mib, diskSizes{reserve: 8 * mib, segment: 4 * mib, log: 30 * mib}},
		{"nothing", 0, diskSizes{segment: mib}},
	} {
		if got := sizesFor(c.free, reserveBytes, 32*mib); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	if got := sizesFor(1<<40, reserveBytes, 64<<10).segment; got != 64<<10 {
		t.Errorf("segments of %d bytes where 64 KiB were asked for", got)
	}
}

// A disk is full below the mark. It is not before half more than that is free and the reserve is whole.
func TestDiskAdmissionMarks(t *testing.T) {
	disk := fs.NewMem()
	if err := disk.MkdirAll("/data"); err != nil {
		t.Fatal(err)
	}
	said := &fakeDiskPeers{}
	r, err := openDiskAdmission("a", disk, "/data", 800, 300, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.peers = said
	mark := r.mark()
	grow, err := protobuf.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{}}})
	if err != nil {
		t.Fatal(err)
	}
	command := func() *proto.Error { return r.admit(1, voting{"a", "b", "c"}, grow) }
	for _, step := range []struct {
		what  string
		free  int64 // without the reserve
		peers []string
		full  bool // here
		admit bool
	}{
		{"plenty", 10 * mark, nil, false, true},
		{"the mark", mark, nil, false, true},
		{"less", mark - 1, nil, true, false},
		{"a little more", mark + mark/4, nil, true, false},
		{"half more", mark + mark/2, nil, false, true},
		{"another's disk", 10 * mark, []string{"c"}, false, false},
		{"that of a node without a replica", 10 * mark, []string{"d"}, false, true},
	} {
		disk.SetCapacity(disk.Used() + step.free)
		said.peers = step.peers
		r.look()
		if r.short() != step.full || said.own != step.full || (command() == nil) != step.admit {
			t.Errorf("%s: full %v, said %v, admits %v", step.what, r.short(), said.own, command())
		}
	}
}

// fakeDiskPeers records what a node reports of its disk, and holds what its peers report.
type fakeDiskPeers struct {
	own   bool
	peers []string
}

func (s *fakeDiskPeers) SetDiskFull(full bool) { s.own = full }
func (s *fakeDiskPeers) DiskFull() []string    { return append([]string(nil), s.peers...) }
