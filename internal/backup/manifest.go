package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Formats of manifests. The second also has deleted namespaces, or the version of purged ones. It is written only if
// there are any, so that builds that know only the first format can read the other backups.
const (
	formatFirst    = 1
	formatDeletion = 2
	format         = formatDeletion
)

const (
	manifestsPrefix = "manifests/"
	chunksPrefix    = "chunks/"
	manifestSuffix  = ".json"
	// manifestBytesMax bounds a manifest, at some 2.5 million chunks.
	manifestBytesMax = 256 << 20
	// chunkBytesMax bounds a chunk; actual chunks are smaller.
	chunkBytesMax = 1 << 20
	timeLayout    = "20060102T150405.000Z"
)

// Manifest lists the contents of a backup.
type Manifest struct {
	Format      int               `json:"format"`
	ClusterID   string            `json:"cluster_id"`
	Time        time.Time         `json:"time"` // when the backup began
	Version     string            `json:"version"`
	Replication uint32            `json:"replication"`
	Namespaces  []json.RawMessage `json:"namespaces"` // ebb.v1.Namespace, each at least as new as in the shards
	Shards      []Shard           `json:"shards"`     // all of them, in order, from 1
	// DroppedVersion is the one of the table: shards may remember purged namespaces up to this version.
	DroppedVersion uint64 `json:"dropped_version,omitempty"`

	// ID is the name of the manifest in its store.
	ID string `json:"-"`
}

// Shard is the state of one shard. Each shard is backed up at a time of its own.
type Shard struct {
	Shard    uint32  `json:"shard"`
	Applied  uint64  `json:"applied"`  // the last log entry that the state includes
	Term     uint64  `json:"term"`     // of the leader that wrote the snapshot
	ClockUS  int64   `json:"clock_us"` // the shard's clock: the state includes everything written before
	Keys     uint64  `json:"keys"`
	Bytes    uint64  `json:"bytes"`
	Checksum Sum64   `json:"checksum"` // XXH3-64 of the bytes of all chunks
	Chunks   []Chunk `json:"chunks"`
}

// Chunk names bytes by their hash: in JSON ["<SHA-256>", length].
type Chunk struct {
	Hash   [sha256.Size]byte
	Length uint32
}

// Name returns the name of the chunk in the store.
func (c *Chunk) Name() string {
	text := hex.EncodeToString(c.Hash[:])
	return chunksPrefix + text[:2] + "/" + text
}

// MarshalJSON implements json.Marshaler.
func (c Chunk) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `["%x",%d]`, c.Hash[:], c.Length), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Chunk) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &[]any{&text, &c.Length}); err != nil {
		return err
	}
	hash, err := hex.DecodeString(text)
	if err != nil || len(hash) != len(c.Hash) {
		return fmt.Errorf("%q is no SHA-256", text)
	}
	c.Hash = [sha256.Size]byte(hash)
	return nil
}

// Sum64 is a checksum; in JSON it has 16 hexadecimal digits.
type Sum64 uint64

// MarshalText implements encoding.TextMarshaler.
func (s Sum64) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(s)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sum64) UnmarshalText(raw []byte) error {
	var b [8]byte
	if len(raw) != 16 {
		return fmt.Errorf("%q is no checksum of 64 bits", raw)
	}
	if _, err := hex.Decode(b[:], raw); err != nil {
		return err
	}
	*s = 0
	for _, x := range b {
		*s = *s<<8 | Sum64(x)
	}
	return nil
}

// Bytes returns how many bytes the snapshots of the backup have.
func (m *Manifest) Bytes() (n uint64) {
	for i := range m.Shards {
		n += m.Shards[i].Bytes
	}
	return n
}

// Keys returns how many keys the backup has.
func (m *Manifest) Keys() (n uint64) {
	for i := range m.Shards {
		n += m.Shards[i].Keys
	}
	return n
}

func (m *Manifest) setNamespaces(all []*ebbv1.Namespace) error {
	for _, ns := range all {
		raw, err := protojson.Marshal(ns)
		if err != nil {
			return err
		}
		var compact bytes.Buffer // protojson inserts random blanks
		if err := json.Compact(&compact, raw); err != nil {
			return err
		}
		m.Namespaces = append(m.Namespaces, compact.Bytes())
		if ns.GetDeletion() != nil {
			m.Format = formatDeletion
		}
	}
	return nil
}

// namespaces returns the settings of the namespaces.
func (m *Manifest) namespaces() ([]*ebbv1.Namespace, error) {
	out := make([]*ebbv1.Namespace, len(m.Namespaces))
	for i, raw := range m.Namespaces {
		out[i] = new(ebbv1.Namespace)
		if err := protojson.Unmarshal(raw, out[i]); err != nil {
			return nil, err
		}
		if err := proto.CheckNamespace(out[i]); err != nil {
			return nil, err
		}
		if err := proto.CheckDeletion(out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Deleted returns the deleted namespaces, with the state of each. It is empty if the manifest does not decode.
func (m *Manifest) Deleted() (deleted []*ebbv1.Namespace) {
	all, _ := m.namespaces()
	for _, ns := range all {
		if ns.GetDeletion() != nil {
			deleted = append(deleted, ns)
		}
	}
	return deleted
}

// setTable stores the namespaces of a table that was read after all shards. before is the table from before they were
// read. A namespace that was purged in between may still be in some shards, and is restored as one that is being
// purged. held are the namespaces that shards have, if any was purged in between: such a namespace may be in neither
// table, because it was also created in between. Without held its keys would stay until a namespace of that name is
// created.
func (m *Manifest) setTable(before, after *ebbv1.Table, held []*ebbv1.Namespace) error {
	all := slices.Clone(after.GetNamespaces())
	there := make(map[string]*ebbv1.Namespace, len(all))
	for _, ns := range all {
		there[ns.GetName()] = ns
	}
	for _, ns := range slices.Concat(before.GetNamespaces(), held) {
		switch now := there[ns.GetName()]; {
		case now == nil:
			gone := pb.CloneOf(ns)
			gone.Version = max(gone.GetVersion(), after.GetDroppedVersion())
			gone.Deletion = &ebbv1.NamespaceDeletion{
				DeletedUs: ns.GetDeletion().GetDeletedUs(), PurgeUs: ns.GetDeletion().GetPurgeUs(), Purging: true,
			}
			all = append(all, gone)
			there[ns.GetName()] = gone
		case now.GetHashSeed() != ns.GetHashSeed():
			return proto.ErrTooStale.Errorf("namespace %s was deleted and created anew while shards were backed up", ns.GetName()).
				WithHint("take the backup again")
		}
	}
	if m.DroppedVersion = after.GetDroppedVersion(); m.DroppedVersion > 0 {
		m.Format = formatDeletion
	}
	return m.setNamespaces(all)
}

// encode returns the bytes of a manifest, and gives it its ID.
func (m *Manifest) encode() ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	m.ID = idOf(m.Time, raw)
	return raw, nil
}

func idOf(t time.Time, raw []byte) string {
	return t.UTC().Format(timeLayout) + "-" + digest(raw)
}

func digest(raw []byte) string {
	hash := sha256.Sum256(raw)
	return hex.EncodeToString(hash[:8])
}

// decode reads a manifest, and checks everything on which a restore relies.
func decode(id string, raw []byte) (*Manifest, error) {
	_, want, _ := strings.Cut(id, "-")
	if digest(raw) != want {
		return nil, corruptf("backup %s: its manifest has been altered or cut", id)
	}
	m, err := decodeManifest(raw)
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", id, err)
	}
	m.ID = id
	return m, nil
}

func decodeManifest(raw []byte) (*Manifest, error) {
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(raw, &version); err != nil {
		return nil, corruptf("manifest: %v", err)
	}
	if version.Format > format {
		return nil, proto.ErrNewerVersion.Errorf("manifest of format %d: this ebb reads up to %d", version.Format, format).WithHint("use the ebb that wrote it, or a newer one")
	}
	m := new(Manifest)
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, corruptf("manifest: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, corruptf("manifest: something follows its end")
	}
	return m, m.check()
}

func (m *Manifest) check() error {
	switch {
	case m.Format < 1:
		return corruptf("manifest of format %d", m.Format)
	case m.ClusterID == "":
		return corruptf("manifest without a cluster")
	case len(m.Shards) == 0 || len(m.Shards) > proto.ShardsMax:
		return corruptf("manifest of %d shards: there are 1 to %d", len(m.Shards), proto.ShardsMax)
	}
	for i := range m.Shards {
		s := &m.Shards[i]
		if s.Shard != uint32(i)+1 {
			return corruptf("manifest: shard %d in the place of %d", s.Shard, i+1)
		}
		total := uint64(0)
		for _, c := range s.Chunks {
			if c.Length == 0 || c.Length > chunkBytesMax {
				return corruptf("manifest: shard %d has a chunk of %d bytes", s.Shard, c.Length)
			}
			total += uint64(c.Length)
		}
		if total != s.Bytes || total == 0 {
			return corruptf("manifest: shard %d has %d bytes in chunks, and should have %d", s.Shard, total, s.Bytes)
		}
	}
	if _, err := m.namespaces(); err != nil {
		return corruptf("manifest: namespaces: %v", err)
	}
	return nil
}

func corruptf(text string, args ...any) error {
	return proto.ErrCorrupt.Errorf(text, args...).WithHint("take another backup of the store: ebb backup list")
}

// IDs returns the names of all backups of a store, oldest first.
func IDs(ctx context.Context, store Store) ([]string, error) {
	names, err := store.List(ctx, manifestsPrefix)
	if err != nil {
		return nil, fmt.Errorf("list backups in %s: %w", store, err)
	}
	var ids []string
	for _, name := range names {
		if id, ok := strings.CutSuffix(path.Base(name), manifestSuffix); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Load reads the manifest of a backup, or of the newest backup if id is empty.
func Load(ctx context.Context, store Store, id string) (*Manifest, error) {
	if id == "" {
		ids, err := IDs(ctx, store)
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			return nil, proto.ErrBadRequest.Errorf("%s has no backups", store).WithHint("make one: ebb backup " + store.String())
		}
		id = ids[len(ids)-1]
	}
	raw, err := store.Get(ctx, manifestsPrefix+id+manifestSuffix, manifestBytesMax)
	switch {
	case errors.Is(err, ErrMissing):
		return nil, proto.ErrBadRequest.Errorf("%s has no backup %s", store, id).WithHint("see which it has: ebb backup list " + store.String())
	case errors.Is(err, errLong):
		return nil, corruptf("backup %s: its manifest is longer than %d bytes", id, manifestBytesMax)
	case err != nil:
		return nil, fmt.Errorf("read backup %s from %s: %w", id, store, err)
	}
	return decode(id, raw)
}
