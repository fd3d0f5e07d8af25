package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// sample is a small manifest.
func sample(t testing.TB) *Manifest {
	t.Helper()
	m := &Manifest{
		Format: format, ClusterID: "c0ffee", Time: time.Date(2026, 11, 22, 3, 30, 0, 5e6, time.UTC), Version: "v1", Replication: 3,
		Shards: []Shard{
			{Shard: 1, Applied: 9, Term: 2, ClockUS: 1_700_000_000_000_000, Keys: 3, Bytes: 30, Checksum: 0x0123456789abcdef, Chunks: []Chunk{{[32]byte{1}, 10}, {[32]byte{2}, 20}}},
			{Shard: 2, Bytes: 10, Chunks: []Chunk{{[32]byte{3}, 10}}},
		},
	}
	ns := proto.DefaultNamespaceSettings()
	ns.Name, ns.Version, ns.HashSeed = "default", 1, 7
	if err := m.setNamespaces([]*ebbv1.Namespace{ns}); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestManifestIsReadBack(t *testing.T) {
	m := sample(t)
	raw, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := decode(m.ID, raw)
	if err != nil || !reflect.DeepEqual(back, m) {
		t.Fatalf("%+v, not %+v: %v", back, m, err)
	}
	if !strings.HasPrefix(m.ID, "20261122T033000.005Z-") || len(m.ID) > proto.RestoreNameLenMax {
		t.Errorf("id %s", m.ID)
	}
	if m.Bytes() != 40 || m.Keys() != 3 {
		t.Errorf("%d bytes, %d keys", m.Bytes(), m.Keys())
	}
}

func TestManifestsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *Manifest)
		want   error
	}{
		"a newer version":         {func(m *Manifest) { m.Format++ }, proto.ErrNewerVersion},
		"no version":              {func(m *Manifest) { m.Format = 0 }, proto.ErrCorrupt},
		"no cluster":              {func(m *Manifest) { m.ClusterID = "" }, proto.ErrCorrupt},
		"no shards":               {func(m *Manifest) { m.Shards = nil }, proto.ErrCorrupt},
		"a shard twice":           {func(m *Manifest) { m.Shards[1].Shard = 1 }, proto.ErrCorrupt},
		"a shard too few":         {func(m *Manifest) { m.Shards = m.Shards[1:] }, proto.ErrCorrupt},
		"a chunk too few":         {func(m *Manifest) { m.Shards[0].Chunks = m.Shards[0].Chunks[1:] }, proto.ErrCorrupt},
		"no chunks":               {func(m *Manifest) { m.Shards[1].Chunks, m.Shards[1].Bytes = nil, 0 }, proto.ErrCorrupt},
		"an empty chunk":          {func(m *Manifest) { m.Shards[1].Chunks[0].Length, m.Shards[1].Bytes = 0, 0 }, proto.ErrCorrupt},
		"a chunk that is too big": {func(m *Manifest) { m.Shards[1].Chunks[0].Length, m.Shards[1].Bytes = 1<<20+1, 1<<20+1 }, proto.ErrCorrupt},
		"no namespace":            {func(m *Manifest) { m.Namespaces[0] = json.RawMessage(`{"name":"` + strings.Repeat("x", 99) + `"}`) }, proto.ErrCorrupt},
		"no settings":             {func(m *Manifest) { m.Namespaces[0] = json.RawMessage(`{"half":7}`) }, proto.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			m := sample(t)
			c.change(m)
			raw, err := m.encode()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decode(m.ID, raw); !errors.Is(err, c.want) {
				t.Error(err)
			}
		})
	}
}

// What a file of a store became since it was written is found where it is read.
func TestManifestsThatWereAltered(t *testing.T) {
	ctx := context.Background()
	store := directory(t.TempDir())
	m := sample(t)
	b := &backupRun{store: store}
	if err := b.putManifest(ctx, m); err != nil {
		t.Fatal(err)
	}
	path := store.path(manifestsPrefix + m.ID + manifestSuffix)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{raw[:len(raw)-1], {}, bytes.Replace(raw, []byte("c0ffee"), []byte("c0ffef"), 1), append(bytes.Clone(raw), ' ')} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(ctx, store, ""); !errors.Is(err, proto.ErrCorrupt) {
			t.Error(err)
		}
	}
	if _, err := Load(ctx, store, "20000101T000000.000Z-00"); !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), "has no backup 2000") {
		t.Error(err)
	}
	if _, err := Load(ctx, directory(filepath.Join(t.TempDir(), "nothing")), ""); !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), "has no backups") {
		t.Error(err)
	}
}

// Any bytes are refused, or are a manifest that is written and read back as it is.
func FuzzManifest(f *testing.F) {
	raw, err := sample(f).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"shards":[{"shard":1,"chunks":[["00",1,2]]}]}`))
	f.Add(bytes.Replace(raw, []byte(`"0123456789abcdef"`), []byte(`"-"`), 1))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := decodeManifest(raw)
		if err != nil {
			if !errors.Is(err, proto.ErrCorrupt) && !errors.Is(err, proto.ErrNewerVersion) {
				t.Fatal(err)
			}
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := decode(m.ID, again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if third, err := back.encode(); err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%s became %s: %v", again, third, err)
		}
	})
}
