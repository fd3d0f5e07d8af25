package node

import (
	"log/slog"
	"math/bits"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

const (
	// reserveBytes is how many bytes of disk a node reserves, but at most 1/reserveShare of the space that is free at
	// the start.
	reserveBytes, reserveShare = 64 << 20, 8
	// segmentShare limits a segment of the log to 1/segmentShare of the space that is free at the start. There are at
	// least two.
	segmentShare = 16
	// logShare limits the log to 1/logShare of the space that is free at the start: above that, snapshots shorten it.
	logShare = 4
	// freeUnknown stands for the free space where the system does not report it. Then only a write that fails shows a
	// full disk.
	freeUnknown = 1 << 60
	// reserveName is the directory of the reserve.
	reserveName = "reserve"
)

// diskSizes are the sizes of the parts of a data directory, in bytes.
type diskSizes struct {
	reserve int64 // held back
	segment int64 // of the log
	log     int64 // above which it is shortened
}

// sizesFor computes the sizes for a disk. free is the free space, with the space that the parts take already.
func sizesFor(free uint64, reserve, segment int64) diskSizes {
	space := int64(min(free, freeUnknown))
	return diskSizes{
		reserve: powerOfTwo(min(reserve, space/reserveShare)),
		segment: min(segment, max(wal.SegmentBytesLeast, powerOfTwo(space/segmentShare))),
		log:     space / logShare,
	}
}

// powerOfTwo returns the largest power of two that is not above n, or 0. So sizes stay the same although others use the
// disk too.
func powerOfTwo(n int64) int64 {
	if n < 1 {
		return 0
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}

// diskFullness is how nodes report to each other that their disks are full.
type diskFullness interface {
	SetDiskFull(full bool)
	DiskFull() []string
}

var _ diskFullness = (*transport.Mux)(nil)

// diskAdmission refuses commands that grow a shard while one of its nodes has no disk space left for more. The log and
// the snapshots of that node continue in what is left and in a reserve: for deletes, votes, changes of membership, and
// snapshots that shorten the log. The node ends only when the reserve is used up too, as with every disk that fails.
//
// Leaders decide before the log, as they do for memory: see memoryAdmission.
type diskAdmission struct {
	node    string
	path    string // of the data directory
	reserve *fs.Reserve
	sizes   diskSizes
	peers   diskFullness
	logger  *slog.Logger
	needs   atomic.Pointer[snapshotter] // computes what the next snapshots may need; nil before there are groups
	// peersUnderstand reports whether all nodes run a version that supports messages about full disks.
	peersUnderstand func() bool

	looking  sync.Mutex  // held while one goroutine looks; others do not wait
	trouble  string      // why the reserve could not be made, as it was logged last; guarded by looking
	next     int64       // what the next snapshots may need; guarded by looking
	looks    int         // since next was first computed; guarded by looking
	full     atomic.Bool // this node's disk is full
	free     atomic.Int64
	nodes    atomic.Pointer[[]string] // nodes whose disk is full; nil: none
	refusals atomic.Uint64
}

// openDiskAdmission makes the reserve of a data directory, and computes the sizes of its parts for the disk.
func openDiskAdmission(
	node string, fsys fs.FS, path string, reserve, segment int64, logger *slog.Logger,
) (*diskAdmission, error) {
	a := &diskAdmission{node: node, path: path, logger: logger, peersUnderstand: func() bool { return true }}
	taken := int64(0)
	// Other files are not ebb's, and may not be readable.
	for _, part := range []string{walName, snapName, reserveName, quarantineDir} {
		bytes, err := fs.Taken(fsys, filepath.Join(path, part))
		if err != nil {
			return nil, diskError(path, "look through "+part, err)
		}
		taken += bytes
	}
	a.sizes = sizesFor(uint64(freeOf(fsys, path)+taken), reserve, segment)
	var err error
	if a.reserve, err = fs.NewReserve(fsys, filepath.Join(path, reserveName), a.sizes.reserve, reserve); err != nil {
		return nil, diskError(path, "look through "+reserveName, err)
	}
	a.measure()
	return a, nil
}

// freeOf returns the free bytes of a disk; freeUnknown where the system does not report them.
func freeOf(fsys fs.FS, path string) int64 {
	free, err := fsys.Free(path)
	if err != nil {
		return freeUnknown
	}
	return int64(min(free, freeUnknown))
}

// looksMax is after how many looks the need of the next snapshots is computed again while there is plenty of space.
// That looks at all files of snapshots.
const looksMax = 16

// mark returns the free space, in bytes, below which the disk counts as full. It must hold the next segment of the log,
// the writes until the next look, and the snapshots that shorten the log.
func (a *diskAdmission) mark() int64 {
	_, whole := a.reserve.Held()
	mark := max(2*a.sizes.segment, whole)
	if s := a.needs.Load(); s != nil {
		if a.looks%looksMax == 0 || a.free.Load() < 4*(mark+a.next) {
			a.next = s.nextBytes()
		}
		a.looks++
		mark += a.next
	}
	return mark
}

// short reports whether this node's disk was full at the last check.
func (a *diskAdmission) short() bool { return a.full.Load() }

// shortNow measures the disk at once, and reports whether it is full. The log calls it when it makes a file, since
// files fill a disk.
func (a *diskAdmission) shortNow() bool {
	a.measure()
	return a.short()
}

// measure looks at the disk, unless another goroutine does so. The disk becomes full below the mark. It stays full
// until one and a half times the mark is free and the reserve is complete.
func (a *diskAdmission) measure() {
	if !a.looking.TryLock() {
		return
	}
	defer a.looking.Unlock()
	was, mark := a.short(), a.mark()
	if was {
		mark += mark / 2
	}
	whole, err := a.refill(mark)
	if err != nil && !fs.NoSpace(err) { // that does not make the disk full
		if text := err.Error(); text != a.trouble {
			a.trouble = text
			a.logger.Warn("the disk's reserve cannot be made", "data_dir", a.path, "err", err)
		}
		whole, err = true, nil
	}
	free := freeOf(a.reserve, a.path)
	a.free.Store(free)
	full := free < mark || (was || err != nil) && !whole
	if full == was {
		return
	}
	a.full.Store(full)
	held, _ := a.reserve.Held()
	if full {
		a.logger.Error("no disk space left: writes that need more are refused, reads and deletes are not",
			"data_dir", a.path, "free_bytes", free, "needed_bytes", mark, "reserve_bytes", held, "err", err)
	} else {
		a.logger.Info("there is disk space again: writes are accepted", "data_dir", a.path, "free_bytes", free)
	}
}

// refill restores the reserve, as far as leave bytes stay free. It reports whether the reserve is complete.
func (a *diskAdmission) refill(leave int64) (whole bool, err error) {
	for {
		held, all := a.reserve.Held()
		if held == all {
			return true, nil
		}
		if freeOf(a.reserve, a.path) < leave+all/4 {
			return false, nil
		}
		if _, err := a.reserve.Refill(); err != nil {
			return false, err
		}
	}
}

// look is called every watchEvery.
func (a *diskAdmission) look() {
	a.measure()
	full := a.short()
	a.peers.SetDiskFull(full && a.peersUnderstand())
	nodes := a.peers.DiskFull()
	if full {
		nodes = append(nodes, a.node)
	}
	if len(nodes) == 0 {
		a.nodes.Store(nil)
		return
	}
	a.nodes.Store(&nodes)
}

// fullOf returns a node that has a voter of the group and a full disk; "" if there is none. here reports whether this
// node's disk is full.
func (a *diskAdmission) fullOf(nodes *[]string, here bool, of electorate) string {
	_, voters := of.voters()
	if here && slices.Contains(voters, a.node) {
		return a.node
	}
	if nodes == nil {
		return ""
	}
	return oneOf(*nodes, voters)
}

// admit refuses a command that makes a shard larger if a voter of the shard has no disk space left.
func (a *diskAdmission) admit(shard uint32, of electorate, command []byte) *proto.Error {
	nodes, here := a.nodes.Load(), a.short()
	if nodes == nil && !here || !proto.CommandGrows(command) {
		return nil
	}
	full := a.fullOf(nodes, here, of)
	if full == "" {
		return nil
	}
	a.refusals.Add(1)
	err := proto.ErrDiskFull.Errorf("shard %d: node %s has no disk space left for more", shard, full).
		WithHint("free some space on its disk, or delete keys; reads and deletes go on, " +
			"and writes do by themselves then").
		WithShard(shard)
	err.RetryAfterUS = fullRetry.Microseconds()
	return err
}
