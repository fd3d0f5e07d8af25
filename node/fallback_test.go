package node

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/node/wal"
)

// must fails the test at once.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A snapshot that was installed leaves nothing of the log. When it turns out to
// be damaged at the next start, an older one must not take its place: the
// replica would lack entries that it has acknowledged, and could be elected.
func TestOlderSnapshotWithoutItsLogIsNotRestored(t *testing.T) {
	disk := fs.NewMem()
	log, err := wal.Open(wal.Config{FS: disk, Dir: "/wal", Fatal: func(err error) { t.Error(err) }})
	must(t, err)
	defer log.Close()
	group := log.Group(1)
	must(t, group.SetUint64([]byte("CurrentTerm"), 2))
	address := transport.Address("n0", 1)
	c := raft.Configuration{Servers: []raft.Server{{ID: serverID(1), Address: address}}}
	open := func() *snap.Store {
		snaps, err := snap.Open(snap.Config{FS: disk, Dir: "/snap", OnBoundary: group.SetBoundary})
		must(t, err)
		return snaps
	}
	snaps := open()
	for _, index := range []uint64{10, 20} {
		sink, err := snaps.Create(raft.SnapshotVersionMax, index, 2, c, 1, nil)
		must(t, err)
		_, err = sink.Write([]byte("a state of so many bytes"))
		must(t, err)
		must(t, sink.Close())
	}
	infos, err := disk.ReadDir("/snap")
	must(t, err)
	for _, info := range infos {
		if strings.HasPrefix(info.Name, "00000000000000000020-") {
			must(t, disk.FlipByte("/snap/"+info.Name, 20, 3)) // of the content
		}
	}

	_, in := raft.NewInmemTransport(address)
	e := newEvents()
	defer e.close()
	m := newMember(memberConfig{
		group: 1, replica: 1, node: "n0", timeout: time.Second,
		machine: new(tally), wal: group, snaps: open(),
		carrier: func() carrier { return &wire{InmemTransport: in} }, events: e, stall: newDiskStall(),
		logger: newRaftLogger(slog.New(slog.DiscardHandler), newRepeats(), 1),
		led:    func(uint64) {}, seen: func(string, uint64) {},
	})
	must(t, m.intact())
	if err := m.start(); err == nil {
		t.Errorf("started at entry %d, after a snapshot that ended at 20", m.now.Load().raft.LastIndex())
	}
	m.stop()
}
