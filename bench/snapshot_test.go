package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// entryOf is an entry of a log with increments of so many keys from first on, each of ten bins' one.
func entryOf(b *testing.B, stamp int64, keys []int) []byte {
	b.Helper()
	batch := &ebbv1.Increments{}
	for _, key := range keys {
		for bin := range 10 {
			batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: fmt.Appendf(nil, "clicks/link/%08d", key), Bin: fmt.Appendf(nil, "bin %d", (key+bin)%50), Amount: new(1.0)})
		}
	}
	raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}})
	if err != nil {
		b.Fatal(err)
	}
	entry := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), uint64(stamp))
	return protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), raw)
}

// One shard of EBB_SNAPSHOT_KEYS distributions of ten bins (100,000 if not set) is applied to without a pause, at first
// alone, then while a snapshot of it is written to nowhere: how long an entry of 500 increments takes, what the
// snapshot takes of memory, how fast it is, and how fast a state is made of it again.
func BenchmarkSnapshotBesideApplies(b *testing.B) {
	keys := 100_000
	if text := os.Getenv("EBB_SNAPSHOT_KEYS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		keys = n
	}
	mem := mapped.New()
	s := shard.New(1, mem)
	index, now := uint64(0), int64(1_700_000_000_000_000)
	apply := func(entry []byte) time.Duration {
		index++
		now += 1000
		binary.LittleEndian.PutUint64(entry[1:], uint64(now))
		start := time.Now()
		s.Apply(index, entry, nil)
		return time.Since(start)
	}
	raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}}})
	if err != nil {
		b.Fatal(err)
	}
	define := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), 0)
	apply(protowire.AppendBytes(protowire.AppendTag(define, 2, protowire.BytesType), raw))
	for key := 0; key < keys; key += 50 {
		batch := make([]int, 50)
		for i := range batch {
			batch[i] = key + i
		}
		apply(entryOf(b, now, batch))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	entries := make([][]byte, 2000) // to random keys
	for i := range entries {
		batch := make([]int, 50)
		for j := range batch {
			batch[j] = rng.IntN(keys)
		}
		entries[i] = entryOf(b, now, batch)
	}
	var quiet, beside []time.Duration
	var wrote, restored time.Duration
	var size, before, most int64
	for b.Loop() {
		for _, entry := range entries {
			quiet = append(quiet, apply(entry))
		}
		before = mem.Mapped()
		view := s.Freeze()
		done := make(chan error, 1)
		start := time.Now()
		go func() {
			n, err := view.WriteTo(io.Discard)
			size, wrote = n, time.Since(start)
			done <- err
		}()
		for i := 0; len(done) == 0; i++ {
			beside = append(beside, apply(entries[i%len(entries)]))
			most = max(most, mem.Mapped())
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		view.Release()
		var whole bytes.Buffer
		whole.Grow(int(size) + 1<<20)
		if _, err := s.WriteTo(&whole); err != nil {
			b.Fatal(err)
		}
		start = time.Now()
		if _, err := shard.Restore(1, mapped.New(), &whole); err != nil {
			b.Fatal(err)
		}
		restored = time.Since(start)
	}
	p99 := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)*99/100].Microseconds())
	}
	b.ReportMetric(p99(quiet), "quiet-p99-us")
	b.ReportMetric(p99(beside), "beside-p99-us")
	b.ReportMetric(float64(before)/(1<<20), "state-MiB")
	b.ReportMetric(float64(most-before)/(1<<20), "more-MiB")
	b.ReportMetric(float64(size)/(1<<20), "snapshot-MiB")
	b.ReportMetric(float64(size)/(1<<20)/wrote.Seconds(), "write-MiB/s")
	b.ReportMetric(float64(size)/(1<<20)/restored.Seconds(), "restore-MiB/s")
}
