package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A data directory:
//
//	LOCK         held while a node runs; holds its process id
//	node.json    whose it is: layout version, node, cluster, replicas
//	table.pb     the cluster's table as last seen, to start with
//	wal/         the log of all groups
//	snap/<group> snapshots of one group
const (
	lockName     = "LOCK"
	identityName = "node.json"
	tableName    = "table.pb"
	walName      = "wal"
	snapName     = "snap"

	// layoutVersion is that of the data directory as a whole.
	layoutVersion = 1
	// freeBytesMin is the least free space with which a node starts.
	freeBytesMin = 64 << 20
)

// identity says whose data a directory holds.
type identity struct {
	Layout      int      `json:"layout"`
	Node        string   `json:"node"`
	ClusterID   string   `json:"cluster_id,omitempty"` // empty until the cluster is born
	Founders    []string `json:"founders,omitempty"`   // empty until this node has replicas
	Shards      uint32   `json:"shards,omitempty"`
	Replication uint32   `json:"replication,omitempty"`
	// Founded is set when all replicas have their first configuration. From
	// then on a replica without any state has lost it.
	Founded bool `json:"founded,omitempty"`
}

// fresh reports whether the directory holds no replicas yet.
func (id *identity) fresh() bool { return len(id.Founders) == 0 }

// datadir is an open data directory.
type datadir struct {
	fs   fs.FS
	path string
	lock io.Closer

	turn chan struct{} // holds a token while somebody changes the identity on disk

	mu sync.Mutex // guards id; never held across a wait
	id identity   // as it is on disk
}

// identity returns whose directory it is.
func (d *datadir) identity() identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id
}

// update changes the identity. Others go on reading the old one until the new
// one is on disk, however long that takes.
func (d *datadir) update(change func(*identity)) error {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	id := d.identity()
	change(&id)
	return d.write(id)
}

// openDatadir locks a directory, made if missing, and checks that it is this node's.
func openDatadir(fsys fs.FS, path, node string) (_ *datadir, err error) {
	if err := fs.MakeDir(fsys, path); err != nil {
		return nil, diskError(path, "make", err)
	}
	d := &datadir{fs: fsys, path: path, turn: make(chan struct{}, 1)}
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
	if free, ferr := fsys.Free(path); ferr == nil && free < freeBytesMin {
		return nil, proto.ErrDisk.Errorf("data directory %s: %d MiB are free: a node needs at least %d", path, free>>20, freeBytesMin>>20).
			WithHint("free some space, or use another --data-dir")
	}
	return d, d.identify(node)
}

// used reports whether this directory has had replicas, and so must have a log.
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

// snapshots is the directory of a group's snapshots.
func (d *datadir) snapshots(group uint32) string {
	return filepath.Join(d.path, snapName, strconv.FormatUint(uint64(group), 10))
}

// diskError says what could not be done, and what a user can do about it.
func diskError(path, what string, err error) *proto.Error {
	var e *proto.Error
	if errors.As(fs.Explain(path, err), &e) {
		return e
	}
	return proto.ErrDisk.Errorf("data directory %s: %s: %v", path, what, err).
		WithHint("look at the disk: is it full, read-only or failing?")
}

// lostIdentity is what to do about a directory that does not say whose it is.
const lostIdentity = "restore " + identityName + " from a copy, or use another --data-dir"

// identify reads whose directory it is, or writes it down for a new one.
func (d *datadir) identify(node string) error {
	raw, err := fs.ReadFile(d.fs, d.file(identityName))
	if errors.Is(err, iofs.ErrNotExist) {
		return d.claim(node)
	}
	if err != nil {
		return diskError(d.path, "read "+identityName, err)
	}
	if err := json.Unmarshal(raw, &d.id); err != nil {
		return proto.ErrCorrupt.Errorf("data directory %s: %s is damaged: %v", d.path, identityName, err).WithHint(lostIdentity)
	}
	switch {
	case d.id.Layout > layoutVersion:
		return proto.ErrNewerVersion.Errorf("data directory %s has layout %d: this program reads up to %d", d.path, d.id.Layout, layoutVersion).
			WithHint("start the newer ebb that wrote it")
	case d.id.Layout < 1:
		return proto.ErrCorrupt.Errorf("data directory %s: %s names no layout", d.path, identityName).WithHint(lostIdentity)
	case d.id.Node != node:
		return proto.ErrBadRequest.Errorf("data directory %s belongs to node %s: this is node %s", d.path, d.id.Node, node).
			WithHint("start it with --node " + d.id.Node + ", or use another --data-dir")
	}
	return nil
}

// claim makes an empty directory this node's. What is not ours is left alone.
func (d *datadir) claim(node string) error {
	entries, err := d.fs.ReadDir(d.path)
	if err != nil {
		return diskError(d.path, "read", err)
	}
	for _, e := range entries {
		if slices.Contains([]string{walName, snapName, tableName}, e.Name) {
			return proto.ErrCorrupt.Errorf("data directory %s has %s but no %s", d.path, e.Name, identityName).
				WithHint(lostIdentity)
		}
		if e.Name != lockName && !strings.HasPrefix(e.Name, identityName) && e.Name != "lost+found" {
			return proto.ErrBadRequest.Errorf("data directory %s is not empty and not ebb's: it has %s", d.path, e.Name).
				WithHint("use another --data-dir")
		}
	}
	return d.write(identity{Layout: layoutVersion, Node: node})
}

// write replaces the identity, on disk and then here. The caller has the turn, or
// nobody else knows of d yet.
func (d *datadir) write(id identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", identityName, err)
	}
	if err := fs.WriteFile(d.fs, d.file(identityName), append(raw, '\n')); err != nil {
		return diskError(d.path, "write "+identityName, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.id = id
	return nil
}

// agree holds this start's settings against those that the cluster was born with.
func (d *datadir) agree(c *Config) error {
	switch id := d.identity(); {
	case id.fresh():
		return nil
	case c.Shards != 0 && id.Shards != c.Shards:
		return proto.ErrBadRequest.Errorf("the cluster has %d shards and this start asks for %d: the number is fixed when a cluster is born", id.Shards, c.Shards).
			WithHint("leave --shards out")
	case c.BootstrapExpect > 1 && c.BootstrapExpect != len(id.Founders):
		return proto.ErrWrongCluster.Errorf("data directory %s is of cluster %s, born with %d node(s): this start expects %d", d.path, id.ClusterID, len(id.Founders), c.BootstrapExpect).
			WithHint("use another --data-dir to join another cluster, or leave --bootstrap-expect as it was")
	}
	return nil
}

// settle returns the configuration with what the cluster was born with.
func (d *datadir) settle(full Config) Config {
	id := d.identity()
	if id.fresh() {
		return full
	}
	full.Shards, full.Replication, full.BootstrapExpect = id.Shards, id.Replication, len(id.Founders)
	return full
}

// table returns the cluster's table as last seen, or nil.
func (d *datadir) table() *cluster.Table {
	raw, err := fs.ReadFile(d.fs, d.file(tableName))
	if err != nil {
		return nil
	}
	var wire ebbv1.Table
	if protobuf.Unmarshal(raw, &wire) != nil || wire.GetClusterId() != d.identity().ClusterID || wire.GetShards() == 0 {
		return nil
	}
	table, err := cluster.NewTable(&wire)
	if err != nil {
		return nil
	}
	return table
}

// saveTable keeps a table for the next start.
func (d *datadir) saveTable(t *cluster.Table) error {
	raw, err := protobuf.Marshal(t.Wire())
	if err != nil {
		return fmt.Errorf("encode %s: %w", tableName, err)
	}
	if err := fs.WriteFile(d.fs, d.file(tableName), raw); err != nil {
		return diskError(d.path, "write "+tableName, err)
	}
	return nil
}

// close unlocks the directory.
func (d *datadir) close() error { return d.lock.Close() }
