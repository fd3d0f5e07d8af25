package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// BenchmarkRestore makes states of snapshots of EBB_RESTORE_KEYS keys (100,000 if not set) of one kind each: bytes a
// second that pass, and bytes for each second that any core is at work, the collector included.
func BenchmarkRestore(b *testing.B) {
	keys := 100_000
	if text := os.Getenv("EBB_RESTORE_KEYS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		keys = n
	}
	for _, kind := range []struct {
		name string
		fill func(f *filler, b *testing.B, keys int)
	}{
		{"distributions", (*filler).distributions},
		{"counts", (*filler).counts},
		{"bitmaps", (*filler).bitmaps},
		{"large-bitmaps", (*filler).largeBitmaps},
		{"distinct", func(f *filler, b *testing.B, keys int) { f.sketches(b, keys, ebbv1.Kind_KIND_DISTINCT, 40) }},
		{"sets", func(f *filler, b *testing.B, keys int) { f.sketches(b, keys, ebbv1.Kind_KIND_SET, 20) }},
	} {
		b.Run(kind.name, func(b *testing.B) {
			f := &filler{state: shard.New(1, mapped.New()), now: 1_700_000_000_000_000, rng: rand.New(rand.NewPCG(1, 2))}
			kind.fill(f, b, keys)
			var whole bytes.Buffer
			if _, err := f.state.WriteTo(&whole); err != nil {
				b.Fatal(err)
			}
			b.Run("write", func(b *testing.B) {
				measured(b, whole.Len(), func() error { _, err := f.state.WriteTo(io.Discard); return err })
			})
			f.state = nil
			b.Run("restore", func(b *testing.B) {
				measured(b, whole.Len(), func() error {
					_, err := shard.Restore(1, mapped.New(), bytes.NewReader(whole.Bytes()))
					return err
				})
			})
		})
	}
}

// measured runs what reads or writes so many bytes.
func measured(b *testing.B, size int, run func() error) {
	b.SetBytes(int64(size))
	cpu := time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		before := used()
		b.StartTimer()
		if err := run(); err != nil {
			b.Fatal(err)
		}
		cpu += used() - before
	}
	b.ReportMetric(float64(size)*float64(b.N)/1e6/cpu.Seconds(), "MB/core-s")
	b.ReportMetric(float64(size)/1e6, "MB")
}

// used is the time that cores have worked for this process.
func used() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// filler writes to a state what a log would bring.
type filler struct {
	state *shard.State
	index uint64
	now   int64
	rng   *rand.Rand
}

func (f *filler) apply(b *testing.B, c *ebbv1.Command) {
	b.Helper()
	raw, err := pb.Marshal(c)
	if err != nil {
		b.Fatal(err)
	}
	f.index++
	f.now += 1000
	entry := protowire.AppendTag(nil, 1, protowire.Fixed64Type)
	entry = binary.LittleEndian.AppendUint64(entry, uint64(f.now))
	for _, r := range f.state.Apply(f.index, protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), raw), nil) {
		if r.Error != nil {
			b.Fatal(r.Error)
		}
	}
}

func (f *filler) define(b *testing.B, ns *ebbv1.Namespace) {
	f.apply(b, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
}

func (f *filler) increments(b *testing.B, all []*ebbv1.Increment) {
	f.apply(b, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: all}}})
}

// distributions have 9 bins on average, of 500, and are touched in no order.
func (f *filler) distributions(b *testing.B, keys int) {
	f.define(b, &ebbv1.Namespace{Name: "default", Version: 1, BinsMax: paretoBinsMax})
	sizes, err := ShapePareto.sizes(keys)
	if err != nil {
		b.Fatal(err)
	}
	for _, key := range f.rng.Perm(keys) {
		batch := make([]*ebbv1.Increment, 0, sizes[key])
		first := f.rng.IntN(500)
		for bin := range int(sizes[key]) {
			name := fmt.Appendf(nil, "bin %d", (first+bin*7)%500)
			if bin >= 500 {
				name = fmt.Appendf(nil, "bin %d", bin)
			}
			batch = append(batch, &ebbv1.Increment{Key: fmt.Appendf(nil, "clicks/link/%08d", key), Bin: name, Amount: new(float64(1 + f.rng.IntN(9)))})
		}
		f.increments(b, batch)
	}
}

// counts are distributions of ten bins without decay.
func (f *filler) counts(b *testing.B, keys int) {
	f.define(b, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE})
	for key := range keys {
		batch := make([]*ebbv1.Increment, 10)
		for bin := range batch {
			batch[bin] = &ebbv1.Increment{Key: fmt.Appendf(nil, "clicks/link/%08d", key), Bin: fmt.Appendf(nil, "bin %d", (key+bin)%50), Amount: new(1.0)}
		}
		f.increments(b, batch)
	}
}

// bitmaps are small: 20 ids each.
func (f *filler) bitmaps(b *testing.B, keys int) {
	f.define(b, &ebbv1.Namespace{Name: "default", Version: 1})
	for key := range keys {
		f.set(b, fmt.Sprintf("users/%08d", key), 20, 1<<20)
	}
}

// largeBitmaps have 5,000 ids of a million each.
func (f *filler) largeBitmaps(b *testing.B, keys int) {
	f.define(b, &ebbv1.Namespace{Name: "default", Version: 1})
	for key := range (keys + 99) / 100 {
		f.set(b, fmt.Sprintf("users/%08d", key), 5000, 1<<20)
	}
}

func (f *filler) set(b *testing.B, key string, ids, below int) {
	change := &ebbv1.BitChange{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET}
	step := uint64(below / ids)
	for i := range ids {
		change.Ids = append(change.Ids, uint64(i)*step+f.rng.Uint64N(step))
	}
	f.apply(b, &ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{proto.EditOf(change)}}}})
}

// sketches are summaries of a kind, each of so many events.
func (f *filler) sketches(b *testing.B, keys int, kind ebbv1.Kind, events int) {
	f.define(b, &ebbv1.Namespace{Name: "default", Version: 1})
	for key := range keys {
		batch := make([]*ebbv1.Increment, events)
		for i := range batch {
			batch[i] = &ebbv1.Increment{Key: fmt.Appendf(nil, "clicks/link/%08d", key), Bin: fmt.Appendf(nil, "user-%d", f.rng.IntN(1<<20)), Kind: kind, Amount: new(1.0)}
		}
		f.increments(b, batch)
	}
}
