package node

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/acked"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// A data directory:
//
//	LOCK         held while a node runs; holds its process id
//	node.json    whose it is: storage version, node, cluster, replicas; ends with a checksum
//	table.pb     the cluster's table as last seen, to start with; ends with a checksum
//	wal/         the log of all groups
//	log.end      how far that was durable
//	acknowledged how far the logs of other nodes' replicas reached, by what they said
//	snap/<group> snapshots of one group
//	reserve/     files that are given up when the disk is full
const (
	lockName     = "LOCK"
	identityName = "node.json"
	tableName    = "table.pb"
	walName      = "wal"
	snapName     = "snap"
	endName      = "log.end"
	ackedName    = "acknowledged"

	// freeBytesMin is the least free space with which a new node starts.
	freeBytesMin = 64 << 20
)

// identity says whose data a directory holds.
type identity struct {
	Layout      uint32   `json:"layout"` // the newest storage version that may be in it; see proto.StorageVersion
	Node        string   `json:"node"`
	Disk        string   `json:"disk"`                 // random; made with the directory
	ClusterID   string   `json:"cluster_id,omitempty"` // empty until the cluster is born
	Founders    []string `json:"founders,omitempty"`   // only of a founder; empty until it has replicas
	Shards      uint32   `json:"shards,omitempty"`     // 0 until this node has replicas
	Replication uint32   `json:"replication,omitempty"`
	// TakesPlace is set when a joining node has learned that a member of its name has another disk. If that member is
	// removed, so is this node.
	TakesPlace bool `json:"takes_place,omitempty"`
	// Founded is set when all replicas have their first configuration. From then on, a replica without any state has
	// lost its state.
	Founded bool `json:"founded,omitempty"`
	// Contacted are the founders whose replicas have ever exchanged a message with one of this node's; see knownPeers.
	Contacted []string `json:"met,omitempty"`
	// Replicas are this node's replicas, by group, once Founded is set.
	Replicas map[uint32]replicaRecord `json:"replicas,omitempty"`
}

// replicaRecord identifies this node's replica of a group, and holds what must survive a restart.
type replicaRecord struct {
	ID uint64 `json:"id"`
	// Epoch is the epoch of a table that listed the replica. A table of that epoch or later that does not list it has
	// dropped it.
	Epoch uint64 `json:"epoch"`
	// Differs is the entry at which the replica was found to differ from the majority of its shard; 0 if it was not, or
	// has been repaired.
	Differs uint64 `json:"differs,omitempty"`
	// Lacks is how far its log must reach before it votes again, by what it acknowledged to others; see recollection.
	Lacks *acked.Mark `json:"lacks,omitempty"`
	// Recovers is the epoch of the table at which the replica was made the only member of its group; 0 if it never was.
	Recovers uint64 `json:"recovers,omitempty"`
}

// fresh reports whether the directory holds no replicas yet.
func (id *identity) fresh() bool { return id.Shards == 0 }

// datadir is an open data directory.
type datadir struct {
	fs    fs.FS
	path  string
	knows proto.Versions // storage versions that this program knows
	lock  io.Closer

	turn chan struct{} // holds a token while the identity on disk is being changed

	mu sync.Mutex // guards id; never held across a wait
	id identity   // as it is on disk
}

// identity returns the identity as it is on disk.
func (d *datadir) identity() identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id
}

// update changes the identity: change gets a copy of it. Until the new identity is on disk, however long that takes,
// others read the old one.
func (d *datadir) update(change func(*identity)) error {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	id := d.identity()
	id.Replicas = maps.Clone(id.Replicas)
	change(&id)
	return d.write(id)
}

// differs records on disk that a replica differs at an entry, or with 0 that it no longer does. It ignores a replica
// that this node no longer has.
func (d *datadir) differs(group uint32, replica, at uint64) error {
	return d.update(func(id *identity) {
		if t, ok := id.Replicas[group]; ok && t.ID == replica {
			t.Differs = at
			id.Replicas[group] = t
		}
	})
}

// lacks records on disk how far the log of a replica must reach before it votes again, or with nil that it votes. It
// ignores a replica that this node no longer has.
func (d *datadir) lacks(group uint32, replica uint64, mark *acked.Mark) error {
	return d.update(func(id *identity) {
		if t, ok := id.Replicas[group]; ok && t.ID == replica {
			t.Lacks = mark
			id.Replicas[group] = t
		}
	})
}

// openDatadir locks a directory, which it makes if missing, and checks that it belongs to node.
func openDatadir(fsys fs.FS, path, node string, knows proto.Versions) (_ *datadir, err error) {
	if err := fs.MakeDir(fsys, path); err != nil {
		return nil, diskError(path, "make", err)
	}
	d := &datadir{fs: fsys, path: path, knows: knows, turn: make(chan struct{}, 1)}
	if d.lock, err = fsys.Lock(d.file(lockName)); err != nil {
		if errors.Is(err, proto.ErrLocked) {
			return nil, err
		}
		return nil, diskError(path, "lock", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.lock.Close())
		}
	}()
	return d, d.identify(node)
}

// used reports whether this directory ever had replicas, and so must have a log.
func (d *datadir) used() (bool, error) {
	if id := d.identity(); !id.fresh() {
		return true, nil
	}
	snaps, err := fs.Exists(d.fs, d.file(snapName))
	if err != nil {
		return false, diskError(d.path, "look for "+snapName, err)
	}
	return snaps, nil
}

func (d *datadir) file(name string) string { return filepath.Join(d.path, name) }

// snapshots returns the directory of a group's snapshots.
func (d *datadir) snapshots(group uint32) string {
	return filepath.Join(d.path, snapName, strconv.FormatUint(uint64(group), 10))
}

// diskError returns a coded error with the operation that failed and a hint for the user.
func diskError(path, what string, err error) *proto.Error {
	var e *proto.Error
	if errors.As(fs.Explain(path, err), &e) {
		return e
	}
	return proto.ErrDisk.Errorf("data directory %s: %s: %v", path, what, err).
		WithHint("look at the disk: is it full, read-only or failing?")
}

// lostIdentity is the hint for a directory that does not show to which node it belongs.
const lostIdentity = "restore " + identityName + " from a copy, or use another --data-dir"

// identify reads the identity of the directory, or writes it for a new one.
func (d *datadir) identify(node string) error {
	raw, err := fs.ReadFile(d.fs, d.file(identityName))
	if errors.Is(err, iofs.ErrNotExist) {
		return d.claim(node)
	}
	if err != nil {
		return diskError(d.path, "read "+identityName, err)
	}
	if err := d.id.decode(raw); err != nil {
		return proto.ErrCorrupt.Errorf("data directory %s: %s is damaged: %v", d.path, identityName, err).WithHint(lostIdentity)
	}
	switch {
	case d.id.Layout < 1:
		return proto.ErrCorrupt.Errorf("data directory %s: %s names no layout", d.path, identityName).WithHint(lostIdentity)
	case d.id.Layout > d.knows.Newest:
		return proto.ErrNewerVersion.Errorf("data directory %s has storage version %d: this program knows %d to %d", d.path, d.id.Layout, d.knows.Oldest, d.knows.Newest).
			WithHint("start the ebb that wrote it, or a newer one: once all nodes of a cluster were upgraded, none goes back")
	case d.id.Layout < d.knows.Oldest:
		return proto.ErrNewerVersion.Errorf("data directory %s has storage version %d: this program knows %d to %d", d.path, d.id.Layout, d.knows.Oldest, d.knows.Newest).
			WithHint(fmt.Sprintf("run an ebb that knows %d and %d on all nodes first, until `ebb status` shows version %d or later", d.id.Layout, d.knows.Oldest, d.knows.Oldest))
	case d.id.Node != node:
		return proto.ErrBadRequest.Errorf("data directory %s belongs to node %s: this is node %s", d.path, d.id.Node, node).
			WithHint("start it with --node " + d.id.Node + ", or use another --data-dir")
	}
	return nil
}

// claim makes an empty directory this node's. It refuses a directory with other content.
func (d *datadir) claim(node string) error {
	entries, err := d.fs.ReadDir(d.path)
	if err != nil {
		return diskError(d.path, "read", err)
	}
	for _, e := range entries {
		if slices.Contains([]string{walName, snapName, tableName, reserveName, endName, ackedName}, e.Name) {
			return proto.ErrCorrupt.Errorf("data directory %s has %s but no %s", d.path, e.Name, identityName).
				WithHint(lostIdentity)
		}
		if e.Name != lockName && !strings.HasPrefix(e.Name, identityName) && e.Name != "lost+found" {
			return proto.ErrBadRequest.Errorf("data directory %s is not empty and not ebb's: it has %s", d.path, e.Name).
				WithHint("use another --data-dir")
		}
	}
	if free := freeOf(d.fs, d.path); free < freeBytesMin {
		return proto.ErrDisk.Errorf("data directory %s: %d MiB are free: a new node needs at least %d",
			d.path, free>>20, freeBytesMin>>20).WithHint("free some space, or use another --data-dir")
	}
	return d.write(identity{Layout: d.knows.Oldest, Node: node, Disk: newIdentity()})
}

// write replaces the identity, on disk and then in memory. The caller has the turn, or has not shared d yet.
func (d *datadir) write(id identity) error {
	raw, err := id.encode()
	if err != nil {
		return err
	}
	if err := fs.WriteFile(d.fs, d.file(identityName), raw); err != nil {
		return diskError(d.path, "write "+identityName, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.id = id
	return nil
}

// agree compares this start's settings with those that the cluster was born with, and returns an error if they differ.
func (d *datadir) agree(c *Config) error {
	switch id := d.identity(); {
	case id.fresh():
		return nil
	case c.Shards != 0 && id.Shards != c.Shards:
		return proto.ErrBadRequest.Errorf("the cluster has %d shards and this start asks for %d: the number is fixed when a cluster is born", id.Shards, c.Shards).
			WithHint("leave --shards out")
	case c.BootstrapExpect > 1 && len(id.Founders) > 0 && c.BootstrapExpect != len(id.Founders):
		return proto.ErrWrongCluster.Errorf("data directory %s is of cluster %s, born with %d node(s): this start expects %d", d.path, id.ClusterID, len(id.Founders), c.BootstrapExpect).
			WithHint("use another --data-dir to join another cluster, or leave --bootstrap-expect as it was")
	}
	return nil
}

// settle returns the configuration with the settings that the cluster was born with.
func (d *datadir) settle(full Config) Config {
	id := d.identity()
	if id.fresh() {
		return full
	}
	full.Shards, full.Replication, full.BootstrapExpect = id.Shards, id.Replication, max(1, len(id.Founders))
	full.joins = len(id.Founders) == 0
	return full
}

// table returns the table that was saved last; nil if there is none. Without a table, or with a damaged one, the node
// gets it again from the others.
func (d *datadir) table() (*cluster.Table, error) {
	raw, err := fs.ReadFile(d.fs, d.file(tableName))
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	wire, err := decodeTable(raw)
	if err != nil {
		return nil, err
	}
	if wire.GetClusterId() != d.identity().ClusterID || wire.GetShards() == 0 {
		return nil, nil // of a join that was not completed
	}
	return cluster.NewTable(wire)
}

// saveTable saves a table for the next start.
func (d *datadir) saveTable(t *cluster.Table) error {
	raw, err := encodeTable(t.Wire())
	if err != nil {
		return err
	}
	if err := fs.WriteFile(d.fs, d.file(tableName), raw); err != nil {
		return diskError(d.path, "write "+tableName, err)
	}
	return nil
}

// close unlocks the directory.
func (d *datadir) close() error { return d.lock.Close() }
