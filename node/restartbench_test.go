package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// TestRestartOfSnapshots prints how long one node takes to serve again that has EBB_RESTART_KEYS distributions
// (1,000,000 if not set) of ten bins in the snapshots of 64 shards, and nothing in its log. With EBB_RESTART_DIR its
// data stays there, for other measurements.
func TestRestartOfSnapshots(t *testing.T) {
	if os.Getenv("EBB_BENCH") == "" {
		t.Skip("a measurement: set EBB_BENCH=1")
	}
	keys := 1_000_000
	if text := os.Getenv("EBB_RESTART_KEYS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		keys = n
	}
	dir := os.Getenv("EBB_RESTART_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	open := func() *Node {
		n, err := Open(context.Background(), Config{
			Name: "ebb-0", DataDir: dir, GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Gossip: Off,
			BootstrapExpect: 1, Shards: 64, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
			Fatal: func(err error) { t.Errorf("fatal: %v", err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-n.Ready():
		case <-time.After(5 * time.Minute):
			t.Fatal(n.Status())
		}
		return n
	}
	n := open()
	size, state := int64(0), int64(0)
	for _, r := range n.groups.Load().replicas {
		written, mapped := furnish(t, r, keys)
		size, state = size+written, state+mapped
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		runtime.GC()
		start, cpu := time.Now(), spent()
		n := open()
		ready := time.Since(start)
		c, err := ebb.Dial(context.Background(), n.Addresses().GRPC)
		if err != nil {
			t.Fatal(err)
		}
		top, err := c.Top(context.Background(), "", linkNamed(keys/2), 10)
		if err != nil || len(top.Bins) != 10 {
			t.Fatal(top, err)
		}
		took, cpu := time.Since(start), spent()-cpu
		t.Logf("%d MB of snapshots, %d MB of state: ready after %v, first answer after %v: %.0f MB/s of snapshots, %.0f of state; %v of CPU, %.0f MB/s a core",
			size/1e6, state/1e6, ready, took, float64(size)/1e6/took.Seconds(), float64(state)/1e6/took.Seconds(), cpu, float64(size)/1e6/cpu.Seconds())
		_ = c.Close()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func linkNamed(i int) string { return fmt.Sprintf("clicks/link/%08d", i) }

// furnish gives a shard its share of so many keys, as a snapshot behind all that its log has.
func furnish(t *testing.T, r *replica, keys int) (written, state int64) {
	t.Helper()
	i := r.now.Load()
	conf := i.raft.GetConfiguration()
	if err := conf.Error(); err != nil {
		t.Fatal(err)
	}
	index, term := i.raft.AppliedIndex(), i.raft.CurrentTerm()
	r.member.stop()
	view := r.machine.(*shardMachine).freeze()
	defer view.Release()
	var raw bytes.Buffer
	if _, err := view.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	mem := mapped.New()
	s, err := shard.Restore(shard.ID(r.group), mem, &raw) // it knows the namespace
	if err != nil {
		t.Fatal(err)
	}
	now := int64(s.Now())
	var body []byte
	flush := func() {
		command := protowire.AppendBytes(protowire.AppendTag(nil, proto.FieldCommandIncrements, protowire.BytesType), body)
		now, index, body = now+1000, index+1, body[:0]
		entry := binary.LittleEndian.AppendUint64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), uint64(now))
		for _, result := range s.Apply(index, protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), command), nil) {
			if result.Error != nil {
				t.Fatal(result.Error)
			}
		}
	}
	if s.NamespaceVersion(proto.DefaultNamespace) == 0 {
		define, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: proto.DefaultNamespace, Version: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		index++
		entry := binary.LittleEndian.AppendUint64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), uint64(now))
		s.Apply(index, protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), define), nil)
	}
	for key := range keys {
		name := []byte(linkNamed(key))
		if proto.ShardOf(proto.DefaultNamespace, name, 64) != r.group {
			continue
		}
		for bin := range 10 {
			body = proto.AppendIncrement(body, &proto.IncrementWire{Key: name, Bin: fmt.Appendf(nil, "bin %d", (key+bin)%50), Amount: 1})
		}
		if len(body) > 64<<10 {
			flush()
		}
	}
	flush()
	sink, err := r.snaps.Create(raft.SnapshotVersionMax, index, term, conf.Configuration(), 1, nil) // that of its first entry
	if err != nil {
		t.Fatal(err)
	}
	whole := s.Freeze()
	defer whole.Release()
	if written, err = whole.WriteTo(sink); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	first, err := r.wal.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := r.wal.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.wal.DeleteRange(first, last); err != nil {
		t.Fatal(err)
	}
	return written, mem.Mapped()
}

// spent is the time that cores have worked for this process.
func spent() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
