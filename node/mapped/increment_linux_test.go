package mapped

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// BenchmarkIncrement adds to bins that are there, in batches of 1,000. Mapped memory holds a million distributions (or
// EBB_BENCH_KEYS of them) of about 10 bins. One part writes to all keys equally often, which waits for memory each
// time. The other writes to keys as real streams have them (Zipf, exponent 1.1). Besides the time it reports the CPU of
// the applying thread, and what one took in the quietest 100,000. These tell more where others use the machine.
func BenchmarkIncrement(b *testing.B) {
	keys := benchKeys(b)
	draw := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(draw, 1.1, 1, uint64(keys-1))
	b.Run("uniform", func(b *testing.B) { benchmarkIncrement(b, keys, func() int { return draw.IntN(keys) }) })
	b.Run("zipf", func(b *testing.B) { benchmarkIncrement(b, keys, func() int { return int(zipf.Uint64()) }) })
}

func benchmarkIncrement(b *testing.B, keys int, key func() int) {
	const size, stretch = 1000, 100_000
	s := shard.New(1, New())
	stamp, draw := int64(1_700_000_000_000_000), rand.New(rand.NewPCG(3, 4))
	apply := func(entry []byte) {
		stamp += 100
		binary.LittleEndian.PutUint64(entry[1:], uint64(stamp))
		s.Apply(s.Applied()+1, entry, nil)
	}
	apply(entryOf(b, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}}))
	batch := func(key func() int) []byte {
		var increments []byte
		for range size {
			increments = proto.AppendIncrement(increments, &proto.IncrementWire{
				Key:    fmt.Appendf(nil, "clicks/link-%08d", key()),
				Bin:    fmt.Appendf(nil, "country-%03d", draw.IntN(12)),
				Amount: 1,
			})
		}
		command := protowire.AppendTag(nil, proto.FieldCommandIncrements, protowire.BytesType)
		return entryAround(b, protowire.AppendBytes(command, increments))
	}
	for range keys * 10 / size {
		apply(batch(func() int { return draw.IntN(keys) }))
	}
	entries := make([][]byte, 512)
	for i := range entries {
		entries[i] = batch(key)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu := threadCPU()
	n, quiet := 0, math.Inf(1)
	began := time.Now()
	for ; b.Loop(); n++ { // once through the million: Loop does not begin again
		if n%stretch == 0 && n > 0 {
			quiet, began = min(quiet, float64(time.Since(began))/stretch), time.Now()
		}
		if n%size == 0 {
			apply(entries[n/size%len(entries)])
		}
	}
	b.ReportMetric(float64(threadCPU()-cpu)/float64(n), "cpu-ns/op")
	b.ReportMetric(quiet, "quiet-ns/op")
}

// entryOf is a serialised entry, whose stamp lies in the eight bytes after the first.
func entryOf(tb testing.TB, c *ebbv1.Command) []byte {
	command, err := pb.Marshal(c)
	if err != nil {
		tb.Fatal(err)
	}
	return entryAround(tb, command)
}

func entryAround(tb testing.TB, command []byte) []byte {
	entry, err := pb.MarshalOptions{Deterministic: true}.Marshal(&ebbv1.Entry{StampUs: 1, Commands: [][]byte{command}})
	if err != nil {
		tb.Fatal(err)
	}
	return entry
}

// threadCPU is what the thread has used, in ns.
func threadCPU() int64 {
	const thread = 1
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func benchKeys(b *testing.B) int {
	text := os.Getenv("EBB_BENCH_KEYS")
	if text == "" {
		return 1_000_000
	}
	keys, err := strconv.Atoi(text)
	if err != nil || keys < 2 {
		b.Fatalf("EBB_BENCH_KEYS=%q: a number of keys, at least 2", text)
	}
	return keys
}
