package snap

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

const (
	suffix    = ".snap"
	tmpSuffix = ".tmp"
	badSuffix = ".bad"
)

// Config describes where and how a group's snapshots are stored.
type Config struct {
	FS     fs.FS
	Dir    string // made if missing; must hold nothing else
	Retain int    // snapshots kept; default 2
	// Owner identifies the owner of the snapshots. A file with another owner counts as damaged.
	Owner  string
	Logger *slog.Logger // nil: silent
	Fail   *fail.Points // nil: no failpoints
	Count  *Counts      // nil: nothing is counted; several stores may share one
	// SyncBytes is after how many written bytes a part of a snapshot is synced; default 8 MiB.
	SyncBytes int64
	// Files is how many older files a snapshot may take chunks from; default 15, which is also the most.
	Files int

	// OnBoundary receives the end of a snapshot after it is durable and before raft can see it. When a store is opened,
	// it receives the end of its newest snapshot. It is usually (*wal.Group).SetBoundary. Its error is returned by
	// Close or Open.
	OnBoundary func(index, term uint64) error
	// Continues reports whether the log continues from a snapshot that ends at this index. An older snapshot from which
	// the log does not continue cannot replace a newer one, and is removed before the next is written. Nil: all are
	// kept.
	Continues func(index uint64) bool
	// OnDamage is called when a snapshot was set aside, so that a new one can be taken. It must not block. Nil: it is
	// not called.
	OnDamage func()
}

// Counts counts bytes of snapshots that were taken or installed: bytes of files written, and of chunks that older files
// had.
type Counts struct {
	Written, Reused atomic.Uint64
}

// Store holds the snapshots of one raft group. It implements raft.SnapshotStore and is safe for concurrent use.
type Store struct {
	cfg Config

	mu       sync.Mutex        // guards what follows; never held across a call to the disk
	listed   []listed          // newest first
	count    uint64            // of the last name assigned
	files    map[string]int64  // the length of every file that is a snapshot or has chunks of one
	sinks    map[*Sink][]piece // the files on which unfinished snapshots are built
	damages  int               // how often a damaged chunk was found
	arriving bool              // the file of the arriving snapshot is in use
	ready    *Arrival          // a snapshot that arrived completely, for raft to take
}

// listed is a snapshot that is not known to be damaged.
type listed struct {
	id    string
	count uint64
	meta  *meta
	sound bool // this process wrote or read all of it and found no damage since: another may be built on it
}

var _ raft.SnapshotStore = (*Store)(nil)

// Open finds a group's snapshots and removes the files of unfinished ones. A file of a newer format is
// proto.ErrNewerVersion. A damaged file is logged and set aside under a name that ends in .bad. If the log does not
// reach back to the remaining snapshots (see wal.Group.Continues), the replica is lost and must be rebuilt.
func Open(cfg Config) (*Store, error) {
	if cfg.Retain == 0 {
		cfg.Retain = 2
	}
	if cfg.FS == nil || cfg.Dir == "" || cfg.Retain < 0 {
		return nil, fmt.Errorf("open snapshots: no file system, no directory, or %d to retain", cfg.Retain)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.SyncBytes == 0 {
		cfg.SyncBytes = syncEvery
	}
	if cfg.Files <= 0 || cfg.Files > filesMax {
		cfg.Files = filesMax
	}
	if cfg.Count == nil {
		cfg.Count = new(Counts)
	}
	s := &Store{cfg: cfg, files: make(map[string]int64), sinks: make(map[*Sink][]piece)}
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("open snapshots %s: %w", cfg.Dir, err)
	}
	if len(s.listed) > 0 && cfg.OnBoundary != nil {
		if err := cfg.OnBoundary(s.listed[0].meta.Index, s.listed[0].meta.Term); err != nil {
			return nil, fmt.Errorf("open snapshots %s: %w", cfg.Dir, err)
		}
	}
	return s, nil
}

func (s *Store) hit(name string) error {
	if err := s.cfg.Fail.Hit(name); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (s *Store) scan() error {
	if err := fs.MakeDir(s.cfg.FS, s.cfg.Dir); err != nil {
		return err
	}
	infos, err := s.cfg.FS.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	var found []listed
	damaged := make(map[string]error)
	for _, info := range infos {
		if strings.HasSuffix(info.Name, tmpSuffix) {
			if err := s.cfg.FS.Remove(filepath.Join(s.cfg.Dir, info.Name)); err != nil {
				return err
			}
			continue
		}
		id, _ := strings.CutSuffix(info.Name, suffix)
		count, ok := parseID(id)
		if !ok || id == info.Name {
			continue // another kind of file
		}
		s.files[id], s.count = info.Size, max(s.count, count)
		switch m, err := s.describe(id); {
		case errors.Is(err, proto.ErrCorrupt):
			damaged[id] = err
		case err != nil:
			return err
		default:
			found = append(found, listed{id: id, count: count, meta: m})
		}
	}
	s.list(found, damaged)
	// A rename may be visible that is not durable yet.
	return s.cfg.FS.SyncDir(s.cfg.Dir)
}

// list lists the snapshots among the files found: those whose named files all exist. An incomplete file that is older
// than a complete one was a snapshot before, and may hold chunks. An incomplete file that is newer is damaged, and so
// are files that do not describe themselves.
func (s *Store) list(found []listed, damaged map[string]error) {
	sortListed(found)
	for _, l := range found {
		switch missing := s.missing(l.meta); {
		case missing == "":
			s.listed = append(s.listed, l)
		case len(s.listed) == 0:
			damaged[l.id] = proto.ErrCorrupt.Errorf("snapshot %s is corrupt: it names %s, which is not there or has another length", s.path(l.id), missing)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(damaged)) {
		s.quarantine(id, damaged[id])
	}
}

// missing returns a file that a snapshot names and that is missing or has another length; "" if there is none.
func (s *Store) missing(m *meta) string {
	for _, p := range m.Files {
		if size, ok := s.files[p.ID]; !ok || size != p.Size {
			return p.ID
		}
	}
	return ""
}

// parseID returns the count in the name of a snapshot.
func parseID(id string) (count uint64, ok bool) {
	var index, term uint64
	n, _ := fmt.Sscanf(id, "%d-%d-%d", &index, &term, &count)
	return count, n == 3 && id == formatID(index, term, count)
}

func formatID(index, term, count uint64) string {
	return fmt.Sprintf("%020d-%020d-%d", index, term, count)
}

func (s *Store) describe(id string) (m *meta, err error) {
	f, err := fs.Open(s.cfg.FS, s.path(id))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if m, err = readMeta(f); err == nil && m.Owner != "" && m.Owner != s.cfg.Owner {
		err = corrupt(f, 0, "it is of "+m.Owner+", and this is "+s.cfg.Owner)
	}
	return m, err
}

func (s *Store) path(id string) string { return filepath.Join(s.cfg.Dir, id+suffix) }

func sortListed(l []listed) {
	sort.Slice(l, func(i, j int) bool {
		a, b := &l[i], &l[j]
		newer := cmp.Or(cmp.Compare(a.meta.Index, b.meta.Index), cmp.Compare(a.meta.Term, b.meta.Term), cmp.Compare(a.count, b.count))
		return newer > 0
	})
}

// quarantine sets a damaged snapshot aside. Its file keeps its name if other snapshots have chunks in it. The damage
// may be in a shared chunk, so no snapshot is built on them until they have been read.
func (s *Store) quarantine(id string, why error) {
	s.cfg.Logger.Error("set a damaged snapshot aside", "id", id, "error", why)
	if s.cfg.OnDamage != nil {
		defer s.cfg.OnDamage()
	}
	if s.condemn(id) {
		return
	}
	if err := s.cfg.FS.Rename(s.path(id), s.path(id)+badSuffix); err != nil {
		s.cfg.Logger.Warn("rename a damaged snapshot", "id", id, "error", err)
		return
	}
	if err := s.keepBad(id); err != nil {
		s.cfg.Logger.Warn("remove damaged snapshots that were set aside before", "dir", s.cfg.Dir, "error", err)
	}
}

// keepBad removes damaged files that were set aside before this one. Otherwise they could fill a disk that damages one
// after the other.
func (s *Store) keepBad(id string) error {
	infos, err := s.cfg.FS.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if strings.HasSuffix(info.Name, suffix+badSuffix) && info.Name != id+suffix+badSuffix {
			err = errors.Join(err, s.removeIfExists(filepath.Join(s.cfg.Dir, info.Name)))
		}
	}
	return err
}

// condemn removes a snapshot from the list, and reports whether other snapshots name its file.
func (s *Store) condemn(id string) (named bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damages++
	s.listed = slices.DeleteFunc(s.listed, func(l listed) bool { return l.id == id })
	for i := range s.listed {
		l := &s.listed[i]
		l.sound = false
		named = named || slices.ContainsFunc(l.meta.Files, func(p piece) bool { return p.ID == id })
	}
	if !named {
		delete(s.files, id)
	}
	return named
}

// vouch marks a snapshot as sound after it was read completely.
func (s *Store) vouch(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.listed {
		if l := &s.listed[i]; l.id == id {
			l.sound = true
		}
	}
}

// Newest returns the newest snapshot's index and term, zeros if there is none.
func (s *Store) Newest() (index, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.listed) == 0 {
		return 0, 0
	}
	return s.listed[0].meta.Index, s.listed[0].meta.Term
}

// List returns the snapshots, newest first.
func (s *Store) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	metas := make([]*raft.SnapshotMeta, 0, len(s.listed))
	for _, l := range s.listed {
		metas = append(metas, l.meta.raft(l.id))
	}
	return metas, nil
}

// Open returns a snapshot's content, a *Content, which is verified as it is read. If the list is damaged or a file is
// missing, the snapshot is set aside and the error is proto.ErrCorrupt.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if _, ok := parseID(id); !ok {
		return nil, nil, fmt.Errorf("open snapshot %q: %w", id, iofs.ErrNotExist)
	}
	m, c, err := s.openContent(id)
	if errors.Is(err, proto.ErrCorrupt) {
		s.quarantine(id, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	return m.raft(id), c, nil
}

// Create starts a snapshot of the state up to index, an entry of term. If all of it has arrived from another node, the
// arrived one is used: see Arrival.Ready.
func (s *Store) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("create snapshot: raft's version %d is not known", version)
	}
	k := s.take(index, term)
	if k != nil {
		k.meta.Configuration, k.meta.ConfigurationIndex = configuration.Clone(), configurationIndex
		return k, nil
	}
	k, err := s.begin(index, term)
	if err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	k.meta.Configuration, k.meta.ConfigurationIndex = configuration.Clone(), configurationIndex
	return k, nil
}

// begin creates the file of a snapshot.
func (s *Store) begin(index, term uint64) (_ *Sink, err error) {
	s.makeRoom()
	k := s.register(index, term)
	defer func() {
		if err != nil {
			s.forget(k)
		}
	}()
	k.build()
	k.name = filepath.Join(s.cfg.Dir, k.id+tmpSuffix)
	if err := s.hit("snap.create"); err != nil {
		return nil, err
	}
	if k.file, err = fs.Create(s.cfg.FS, k.name); err != nil {
		return nil, err
	}
	k.out = bufio.NewWriterSize(k.file, writeBufLen)
	if _, err := k.out.Write(header()); err != nil {
		return nil, errors.Join(err, k.Cancel())
	}
	return k, nil
}

// register assigns a number to a snapshot, so that two snapshots of one index have different names.
func (s *Store) register(index, term uint64) *Sink {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	k := &Sink{store: s, id: formatID(index, term, s.count), count: s.count, at: headerLen, damages: s.damages, meta: meta{Index: index, Term: term, Owner: s.cfg.Owner}}
	s.sinks[k] = nil
	return k
}

// forget releases the files on which a snapshot was built.
func (s *Store) forget(k *Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sinks, k)
	if k.arrived {
		s.arriving = false
	}
}

// publish renames a synced file to its final name, reports the boundary and removes older files.
func (s *Store) publish(k *Sink) error {
	if err := s.grounded(k); err != nil {
		return err
	}
	if err := s.hit("snap.rename"); err != nil {
		return err
	}
	if err := s.cfg.FS.Rename(k.name, s.path(k.id)); err != nil {
		return err
	}
	if err := s.hit("snap.syncdir"); err != nil {
		return err
	}
	if err := s.cfg.FS.SyncDir(s.cfg.Dir); err != nil {
		return errors.Join(err, s.removeIfExists(s.path(k.id)))
	}
	if err := s.hit("snap.boundary"); err != nil {
		return err
	}
	if s.cfg.OnBoundary != nil {
		if err := s.cfg.OnBoundary(k.meta.Index, k.meta.Term); err != nil {
			return err
		}
	}
	s.cfg.Count.Written.Add(uint64(k.at))
	s.cfg.Count.Reused.Add(uint64(k.reused))
	s.reap(s.add(k))
	if !k.arrived {
		s.discard()
	}
	return nil
}

// grounded returns an error for a snapshot that may have been built on damaged chunks.
func (s *Store) grounded(k *Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(k.meta.Files) > 0 && k.damages != s.damages {
		return proto.ErrCorrupt.Errorf("damage was found in snapshots of %s while this one was built on one", s.cfg.Dir)
	}
	return nil
}

// add lists a new snapshot and returns the files that no snapshot needs any more.
func (s *Store) add(k *Sink) (unneeded []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[k.id] = k.at
	s.listed = append(s.listed, listed{id: k.id, count: k.count, meta: &k.meta, sound: true})
	sortListed(s.listed)
	s.listed = s.listed[:min(s.cfg.Retain, len(s.listed))]
	return s.unneeded()
}

// makeRoom removes older snapshots from which the log does not continue.
func (s *Store) makeRoom() {
	if s.cfg.Continues == nil {
		return
	}
	s.mu.Lock()
	older := slices.Clone(s.listed[min(1, len(s.listed)):])
	s.mu.Unlock()
	useless := make(map[string]bool)
	for _, l := range older {
		if !s.cfg.Continues(l.meta.Index) {
			useless[l.id] = true
		}
	}
	if len(useless) == 0 {
		return
	}
	s.mu.Lock()
	s.listed = slices.DeleteFunc(s.listed, func(l listed) bool { return useless[l.id] })
	unneeded := s.unneeded()
	s.mu.Unlock()
	s.reap(unneeded)
}

// unneeded returns the files that no snapshot needs any more. s.mu is held.
func (s *Store) unneeded() (unneeded []string) {
	needed := make(map[string]bool)
	need := func(files []piece) {
		for _, p := range files {
			needed[p.ID] = true
		}
	}
	for _, l := range s.listed {
		needed[l.id] = true
		need(l.meta.Files)
	}
	for _, files := range s.sinks {
		need(files)
	}
	for id := range s.files {
		if !needed[id] {
			unneeded = append(unneeded, id)
		}
	}
	slices.Sort(unneeded)
	return unneeded
}

// reap removes files. A file that cannot be removed is tried again after the next snapshot.
func (s *Store) reap(unneeded []string) {
	for _, id := range unneeded {
		err := s.hit("snap.remove")
		if err == nil {
			err = s.removeIfExists(s.path(id))
		}
		if err != nil {
			s.cfg.Logger.Warn("remove an old snapshot", "id", id, "error", err)
			continue
		}
		s.mu.Lock()
		delete(s.files, id)
		s.mu.Unlock()
	}
}

func (s *Store) removeIfExists(name string) error {
	if err := s.cfg.FS.Remove(name); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	return nil
}
