package backup

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"

	"github.com/ebbdb/ebb/proto"
)

// A backup with an inverted bit is refused as corrupt. With EBB_FLIPS=all the test inverts each bit of the manifest,
// where it is loaded, and one of each byte of every chunk, where that is read. Otherwise it inverts one bit of each
// byte of the manifest, and of one in 101 of the chunks.
func TestEveryFlippedBitOfABackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, c := newCluster(t, 1, 2)
		fillCluster(t, c)
		m, _ := take(t, c, store)
		all, step := os.Getenv("EBB_FLIPS") == "all", 101
		if all {
			step = 1
		}
		name := manifestsPrefix + m.ID + manifestSuffix
		raw := read(t, store, name)
		file, err := os.OpenFile(store.path(name), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		flips := 0
		for at := range raw {
			for bit := range 8 {
				if !all && bit != at%8 {
					continue
				}
				raw[at] ^= 1 << bit
				if _, err := file.WriteAt(raw[at:at+1], int64(at)); err != nil { // neither cut nor synced, which takes as long as a disk does
					t.Fatal(err)
				}
				if _, err := Load(t.Context(), store, m.ID); !errors.Is(err, proto.ErrCorrupt) {
					t.Errorf("bit %d of byte %d of the manifest: %v, want CORRUPT", bit, at, err)
				}
				raw[at] ^= 1 << bit
				flips++
			}
			if _, err := file.WriteAt(raw[at:at+1], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("manifest: %d flips refused", flips)
		random := rand.New(rand.NewPCG(3, 9))
		flips = 0
		for i := range m.Shards {
			for _, chunk := range m.Shards[i].Chunks {
				data, err := fetch(t.Context(), store, &chunk)
				if err != nil {
					t.Fatal(err)
				}
				for at := random.IntN(min(step, len(data))); at < len(data); at += step {
					bit := random.IntN(8)
					data[at] ^= 1 << bit
					if err := chunk.check(data); !errors.Is(err, proto.ErrCorrupt) {
						t.Errorf("bit %d of byte %d of a chunk: %v, want CORRUPT", bit, at, err)
					}
					data[at] ^= 1 << bit
					flips++
				}
			}
		}
		if flips == 0 {
			t.Error("no chunk was read")
		}
		t.Logf("chunks: %d flips refused", flips)
	})
}

func read(t *testing.T, store Store, name string) []byte {
	t.Helper()
	raw, err := store.Get(t.Context(), name, manifestBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
