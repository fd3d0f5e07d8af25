//go:build unix

package wal_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
)

// BenchmarkStoreLogs: 64 groups store entries at once on the real disk with
// real syncs. An operation is one StoreLogs call.
func BenchmarkStoreLogs(b *testing.B) {
	for _, groups := range []int{1, 64} {
		for _, size := range []int{1 << 10, 4 << 10} {
			b.Run(fmt.Sprintf("groups=%d/bytes=%d", groups, size), func(b *testing.B) { benchStore(b, groups, size) })
		}
	}
}

func benchStore(b *testing.B, groups, size int) {
	l, err := wal.Open(wal.Config{FS: fs.OS{}, Dir: b.TempDir(), Fatal: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, size)
	b.ReportAllocs()
	b.ResetTimer()
	cpu, start := cpuTime(), time.Now()
	var wg sync.WaitGroup
	for i := range groups {
		n := b.N / groups
		if i < b.N%groups {
			n++
		}
		wg.Go(func() {
			g := l.Group(uint32(i))
			e := raft.Log{Term: 1, Data: data}
			for k := range n {
				e.Index = uint64(k + 1)
				if err := g.StoreLog(&e); err != nil {
					b.Error(err)
					return
				}
				if k%1000 == 999 { // as a snapshot would
					if err := g.DeleteRange(1, uint64(k)); err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/elapsed.Seconds(), "calls/s")
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
	s := l.Stats()
	b.ReportMetric(float64(s.Records)/float64(s.Batches), "records/sync")
	b.ReportMetric(float64(s.SyncTime.Microseconds())/float64(s.Batches), "us/sync")
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOpen reads a log of 256 MiB back.
func BenchmarkOpen(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("entry=%d", size), func(b *testing.B) { benchOpen(b, size) })
	}
}

func benchOpen(b *testing.B, size int) {
	const total, groups = 256 << 20, 64
	cfg := wal.Config{FS: fs.OS{}, Dir: b.TempDir()}
	l, err := wal.Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	es := make([]*raft.Log, (1<<20)/size)
	for i := range total / size / len(es) {
		for k := range es {
			es[k] = entry(uint64(i/groups*len(es)+k+1), 1, size)
		}
		if err := l.Group(uint32(i % groups)).StoreLogs(es); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(total)
	for b.Loop() {
		l, err := wal.Open(cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkGetLog reads entries of 4 KiB from memory and from the segment.
func BenchmarkGetLog(b *testing.B) {
	for name, tail := range map[string]int64{"tail": 64 << 20, "segment": 1} {
		b.Run(name, func(b *testing.B) {
			l, err := wal.Open(wal.Config{FS: fs.OS{}, Dir: b.TempDir(), TailBytes: tail})
			if err != nil {
				b.Fatal(err)
			}
			g := l.Group(1)
			es := make([]*raft.Log, 1000)
			for i := range es {
				es[i] = entry(uint64(i+1), 1, 4<<10)
			}
			if err := g.StoreLogs(es); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var e raft.Log
			i := uint64(0)
			for b.Loop() {
				if err := g.GetLog(i%1000+1, &e); err != nil {
					b.Fatal(err)
				}
				i++
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
