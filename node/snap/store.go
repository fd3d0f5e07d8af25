package snap

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"
	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

const (
	suffix    = ".snap"
	tmpSuffix = ".tmp"
	badSuffix = ".bad"
)

// Config says where a group's snapshots lie.
type Config struct {
	FS     fs.FS
	Dir    string       // made if missing; holds nothing else
	Retain int          // snapshots kept; default 2
	Logger *slog.Logger // nil: silent
	Fail   *fail.Points // nil: no failpoints

	// OnBoundary is told the end of a snapshot when it is durable and before raft
	// can see it, and when a store is opened that of its newest; (*wal.Group).SetBoundary
	// is made for it. Its error is Close's, or Open's.
	OnBoundary func(index, term uint64) error
}

// Store is the snapshots of one raft group. It implements raft.SnapshotStore and
// may be used from any goroutine.
type Store struct {
	cfg Config

	mu     sync.Mutex // guards what follows; never held across a call to the disk
	listed []listed   // newest first
	count  uint64     // of the last name given
}

// listed is a snapshot that can be opened, as far as one knows.
type listed struct {
	id    string
	count uint64
	meta  *meta
}

var _ raft.SnapshotStore = (*Store)(nil)

// Open finds a group's snapshots and removes what unfinished ones left. A file
// of a newer format is proto.ErrNewerVersion; one that is damaged is set aside
// under a name that ends in .bad, and logged. If the log does not reach back to
// what is left (see wal.Group.Continues), the replica is lost and must be rebuilt.
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
	s := &Store{cfg: cfg}
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
	for _, info := range infos {
		if err := s.admit(info.Name); err != nil {
			return err
		}
	}
	sortListed(s.listed)
	// A rename may have been seen that is not durable yet.
	return s.cfg.FS.SyncDir(s.cfg.Dir)
}

// admit looks at one name in the directory.
func (s *Store) admit(name string) error {
	if strings.HasSuffix(name, tmpSuffix) {
		return s.cfg.FS.Remove(filepath.Join(s.cfg.Dir, name))
	}
	id, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return nil
	}
	var index, term, count uint64
	if n, _ := fmt.Sscanf(id, "%d-%d-%d", &index, &term, &count); n != 3 {
		return nil // not ours
	}
	s.count = max(s.count, count)
	m, err := s.describe(id)
	if errors.Is(err, proto.ErrCorrupt) {
		s.quarantine(id, err)
		return nil
	}
	if err != nil {
		return err
	}
	s.listed = append(s.listed, listed{id: id, count: count, meta: m})
	return nil
}

func (s *Store) describe(id string) (m *meta, err error) {
	f, err := fs.Open(s.cfg.FS, s.path(id))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return readMeta(f)
}

func (s *Store) path(id string) string { return filepath.Join(s.cfg.Dir, id+suffix) }

func sortListed(l []listed) {
	slices.SortFunc(l, func(a, b listed) int {
		return cmp.Or(cmp.Compare(b.meta.Index, a.meta.Index), cmp.Compare(b.meta.Term, a.meta.Term), cmp.Compare(b.count, a.count))
	})
}

// quarantine sets a damaged file aside.
func (s *Store) quarantine(id string, why error) {
	s.cfg.Logger.Error("set a damaged snapshot aside", "id", id, "error", why)
	if err := s.cfg.FS.Rename(s.path(id), s.path(id)+badSuffix); err != nil {
		s.cfg.Logger.Warn("rename a damaged snapshot", "id", id, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = slices.DeleteFunc(s.listed, func(l listed) bool { return l.id == id })
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

// Bytes returns the content's size of all snapshots kept.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum int64
	for _, l := range s.listed {
		sum += l.meta.Size
	}
	return sum
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

// Open verifies a snapshot, all of it, and returns its content. A damaged one is
// set aside and is proto.ErrCorrupt.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, f, err := s.open(id)
	if errors.Is(err, proto.ErrCorrupt) {
		s.quarantine(id, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	return m.raft(id), &content{Reader: bufio.NewReaderSize(m.content(f), hashBufLen), file: f}, nil
}

// content is an open snapshot.
type content struct {
	io.Reader
	file fs.File
}

func (c *content) Close() error { return c.file.Close() }

func (s *Store) open(id string) (*meta, fs.File, error) {
	if filepath.Base(id) != id {
		return nil, nil, iofs.ErrNotExist
	}
	f, err := fs.Open(s.cfg.FS, s.path(id))
	if err != nil {
		return nil, nil, err
	}
	m, err := readMeta(f)
	if err == nil {
		err = m.checkContent(f)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return m, f, nil
}

// Create starts a snapshot of the state up to index, an entry of term.
func (s *Store) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("create snapshot: raft's version %d is not known", version)
	}
	count := s.next()
	id := fmt.Sprintf("%020d-%020d-%d", index, term, count)
	k := &Sink{store: s, id: id, count: count, hash: xxh3.New(), meta: meta{
		Index: index, Term: term, Configuration: configuration.Clone(), ConfigurationIndex: configurationIndex,
	}}
	if err := s.hit("snap.create"); err != nil {
		return nil, err
	}
	var err error
	if k.file, err = fs.Create(s.cfg.FS, k.tmp()); err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	k.out = bufio.NewWriterSize(k.file, writeBufLen)
	if _, err := k.out.Write(header()); err != nil {
		return nil, errors.Join(fmt.Errorf("create snapshot: %w", err), k.Cancel())
	}
	return k, nil
}

// next numbers a file, so that two snapshots of one index have two names.
func (s *Store) next() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return s.count
}

// publish gives a synced file its name, reports it and removes older ones.
func (s *Store) publish(k *Sink) error {
	if err := s.hit("snap.rename"); err != nil {
		return err
	}
	if err := s.cfg.FS.Rename(k.tmp(), s.path(k.id)); err != nil {
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
	s.reap(s.add(k))
	return nil
}

// add lists a new snapshot and returns those that are over the limit.
func (s *Store) add(k *Sink) []listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = append(s.listed, listed{id: k.id, count: k.count, meta: &k.meta})
	sortListed(s.listed)
	keep := min(s.cfg.Retain, len(s.listed))
	old := slices.Clone(s.listed[keep:])
	s.listed = s.listed[:keep]
	return old
}

// reap removes snapshots. One that cannot be removed is found again at the next opening.
func (s *Store) reap(old []listed) {
	for _, l := range old {
		err := s.hit("snap.remove")
		if err == nil {
			err = s.removeIfExists(s.path(l.id))
		}
		if err != nil {
			s.cfg.Logger.Warn("remove an old snapshot", "id", l.id, "error", err)
		}
	}
}

func (s *Store) removeIfExists(name string) error {
	if err := s.cfg.FS.Remove(name); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	return nil
}
