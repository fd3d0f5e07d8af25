package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// batchOf builds a serialised Command of size increments for pseudo-random
// keys and bins.
func batchOf(size, keys, bins int, state *uint64) []byte {
	var body []byte
	for range size {
		*state += 0x9e3779b97f4a7c15
		x := *state
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		body = proto.AppendIncrement(body, &proto.IncrementWire{
			Key:    fmt.Appendf(nil, "clicks/link-%08d", x%uint64(keys)),
			Bin:    fmt.Appendf(nil, "country-%03d", x>>32%uint64(bins)),
			Amount: 1,
		})
	}
	var c []byte
	c = protowire.AppendTag(c, proto.FieldCommandIncrements, protowire.BytesType)
	return protowire.AppendBytes(c, body)
}

// entryOf builds a serialised Entry without going through messages.
func entryOf(stamp int64, commands ...[]byte) []byte {
	e := protowire.AppendTag(nil, fieldEntryStamp, protowire.Fixed64Type)
	e = binary.LittleEndian.AppendUint64(e, uint64(stamp))
	for _, c := range commands {
		e = protowire.AppendTag(e, fieldEntryCommands, protowire.BytesType)
		e = protowire.AppendBytes(e, c)
	}
	return e
}

func defined(tb testing.TB, def *ebbv1.Namespace) *State {
	s := New(1, Heap{})
	behave := &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourMax}}}
	define := &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}}
	for _, r := range s.Apply(1, encode(tb, 1_700_000_000_000_000, behave, define), nil) {
		if r.Error != nil {
			tb.Fatal(r.Error)
		}
	}
	return s
}

func BenchmarkApplyBatch(b *testing.B) {
	const keys = 100_000
	for _, size := range []int{16, 100, 1000} {
		b.Run(fmt.Sprintf("%d", size), func(b *testing.B) {
			s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1})
			seed := uint64(1)
			stamp := int64(1_700_000_000_000_000)
			for range keys * 5 / 1000 {
				stamp += 1000
				s.Apply(s.Applied()+1, entryOf(stamp, batchOf(1000, keys, 260, &seed)), nil)
			}
			entries := make([][]byte, 4096*16/size+16)
			for i := range entries {
				entries[i] = entryOf(0, batchOf(size, keys, 260, &seed))
			}
			var results []*ebbv1.CommandResult
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				e := entries[i%len(entries)]
				stamp += 100
				binary.LittleEndian.PutUint64(e[1:], uint64(stamp))
				results = s.Apply(s.Applied()+1, e, results[:0])
				if results[0].Applied != uint64(size) {
					b.Fatal(results[0])
				}
			}
			b.ReportMetric(float64(b.N)*float64(size)/b.Elapsed().Seconds(), "increments/s")
		})
	}
}

// BenchmarkApplyTwice is BenchmarkApplyBatch in a namespace with two half-lives.
func BenchmarkApplyTwice(b *testing.B) {
	const keys, size = 100_000, 1000
	s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1, SlowHalfLifeUs: new(int64(86_400 * second))})
	stamp, seed := int64(1_700_000_000_000_000), uint64(1)
	for range keys * 5 / size {
		stamp += 1000
		s.Apply(s.Applied()+1, entryOf(stamp, batchOf(size, keys, 260, &seed)), nil)
	}
	entries := make([][]byte, 128)
	for i := range entries {
		entries[i] = entryOf(0, batchOf(size, keys, 260, &seed))
	}
	var results []*ebbv1.CommandResult
	b.ResetTimer()
	for i := range b.N {
		e := entries[i%len(entries)]
		stamp += 100
		binary.LittleEndian.PutUint64(e[1:], uint64(stamp))
		if results = s.Apply(s.Applied()+1, e, results[:0]); results[0].Applied != size {
			b.Fatal(results[0])
		}
	}
	b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "increments/s")
}

func BenchmarkAskTop10(b *testing.B) {
	b.Run("260", func(b *testing.B) { benchmarkAskTop10(b, 100, 16, 260) })
	b.Run("1M", func(b *testing.B) { benchmarkAskTop10(b, 3000, 1, 1_000_000) })
}

func benchmarkAskTop10(b *testing.B, batches, keys, bins int) {
	s := defined(b, &ebbv1.Namespace{Name: "default", Version: 1, BinsMax: uint32(bins)})
	seed := uint64(7)
	for i := range batches {
		s.Apply(uint64(i)+2, entryOf(1_700_000_001_000_000+int64(i), batchOf(1000, keys, bins, &seed)), nil)
	}
	q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte("clicks/link-00000000")}, Select: &ebbv1.DistributionQuestion_Top{Top: 10},
	}}}}
	if d := s.Ask(q, 0).GetAnswer().GetDistribution(); int(d.GetBinsTotal()) < bins*9/10 || len(d.Bins) != 10 {
		b.Fatal(d)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Ask(q, 0)
	}
}

// filled is a state with many keys of some five bins each.
func filled(b *testing.B, keys int) (s *State, stamp int64) {
	s = defined(b, &ebbv1.Namespace{Name: "default", Version: 1})
	stamp = 1_700_000_000_000_000
	seed := uint64(1)
	for range keys * 5 / 1000 {
		stamp += 100
		s.Apply(s.Applied()+1, entryOf(stamp, batchOf(1000, keys, 260, &seed)), nil)
	}
	return s, stamp
}

func BenchmarkFreeze(b *testing.B) {
	s, _ := filled(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		s.Freeze().Release()
	}
}

// Increments while a view is held: pages and summaries are copied once each.
func BenchmarkApplyFrozen(b *testing.B) {
	const size = 1000
	s, stamp := filled(b, 100_000)
	seed := uint64(2)
	entries := make([][]byte, 64)
	for i := range entries {
		entries[i] = entryOf(0, batchOf(size, 100_000, 260, &seed))
	}
	var results []*ebbv1.CommandResult
	view := s.Freeze()
	b.ResetTimer()
	for i := range b.N {
		if i%200 == 0 {
			view = s.Freeze()
		}
		stamp += 100
		binary.LittleEndian.PutUint64(entries[i%64][1:], uint64(stamp))
		results = s.Apply(s.Applied()+1, entries[i%64], results[:0])
	}
	view.Release()
	b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "increments/s")
}

func BenchmarkSnapshot(b *testing.B) {
	s, _ := filled(b, 100_000)
	raw := snapshot(b, s)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, err := s.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, err := Restore(1, Heap{}, bytes.NewReader(raw)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkMemory reports bytes of heap for each key and bin, all included.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s, _ := filled(b, 1_000_000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		bins := 0
		for key := range s.summaries.keys.all {
			bins += s.summaries.record(key).bins()
		}
		used := float64(after.HeapAlloc - before.HeapAlloc)
		b.ReportMetric(used/float64(s.Keys()), "B/key")
		b.ReportMetric(used/float64(bins), "B/bin")
		b.ReportMetric(float64(bins)/float64(s.Keys()), "bins/key")
	}
}
