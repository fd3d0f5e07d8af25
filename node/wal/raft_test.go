package wal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// sum is a state machine that adds numbers up.
type sum struct{ total, applied uint64 }

func (s *sum) Apply(e *raft.Log) any {
	s.total += binary.BigEndian.Uint64(e.Data)
	s.applied = e.Index
	return nil
}

func (s *sum) Snapshot() (raft.FSMSnapshot, error) { c := *s; return &c, nil }

func (s *sum) Persist(k raft.SnapshotSink) error {
	_, err := k.Write(binary.BigEndian.AppendUint64(nil, s.total))
	return err
}

func (s *sum) Release() {}

func (s *sum) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if len(b) == 8 {
		s.total = binary.BigEndian.Uint64(b)
	}
	return err
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// replica is a real raft over a real log and snapshots on a disk in memory.
type replica struct {
	log   *wal.Log
	snaps *snap.Store
	fsm   *sum
	raft  *raft.Raft
}

func start(t *testing.T, disk fs.FS, id raft.ServerID, trans raft.Transport, conf raft.Configuration, deaf bool) *replica {
	r := &replica{fsm: &sum{}, log: open(t, disk, func(c *wal.Config) { c.Fatal = nil })}
	if deaf {
		wal.DeafToBoundary(r.log)
	}
	g := r.log.Group(7)
	var err error
	r.snaps, err = snap.Open(snap.Config{FS: disk, Dir: "/data/7", OnBoundary: g.SetBoundary})
	must(t, err)
	c := raft.DefaultConfig()
	c.LocalID, c.Logger, c.NoLegacyTelemetry = id, hclog.NewNullLogger(), true
	c.HeartbeatTimeout, c.ElectionTimeout = 30*time.Second, 30*time.Second
	c.SnapshotThreshold, c.TrailingLogs = 1<<30, 3
	has, err := raft.HasExistingState(g, g, r.snaps)
	must(t, err)
	if !has {
		must(t, raft.BootstrapCluster(c, g, g, r.snaps, trans, conf))
	}
	r.raft, err = raft.NewRaft(c, r.fsm, g, g, r.snaps, trans)
	must(t, err)
	return r
}

func (r *replica) stop(t *testing.T) {
	must(t, r.raft.Shutdown().Error())
	must(t, r.log.Close())
}

// TestInstallOverDivergedSuffix: a follower holds entries that a new leader never had, longer than what the leader's
// snapshot covers. After the snapshot is installed raft asks for the entry at its end (raft #697). With the boundary
// the follower continues. Without it, the follower refuses the leader for ever.
func TestInstallOverDivergedSuffix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if rounds, ok := installs(t, false); !ok || rounds != 1 {
			t.Fatalf("accepted: %v, after %d snapshots", ok, rounds)
		}
		if _, ok := installs(t, true); ok {
			t.Fatal("the fault that this contains was not seen")
		}
	})
}

func installs(t *testing.T, deaf bool) (rounds int, accepted bool) {
	_, in := raft.NewInmemTransportWithTimeout("F", 2*time.Second)
	_, out := raft.NewInmemTransportWithTimeout("L2", 2*time.Second)
	out.Connect("F", in)
	conf := raft.Configuration{Servers: []raft.Server{{ID: "F", Address: "F"}, {ID: "L1", Address: "L1"}, {ID: "L2", Address: "L2"}}}
	disk := fs.NewMem()
	r := start(t, disk, "F", in, conf, deaf)
	header := func(id string) raft.RPCHeader {
		return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: []byte(id)}
	}
	send := func(leader string, term, prev, prevTerm, from, to, commit uint64) bool {
		var es []*raft.Log
		for i := from; i <= to; i++ {
			es = append(es, &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: number(i)})
		}
		var resp raft.AppendEntriesResponse
		must(t, out.AppendEntries("F", "F", &raft.AppendEntriesRequest{
			RPCHeader: header(leader), Term: term, PrevLogEntry: prev, PrevLogTerm: prevTerm, Entries: es, LeaderCommitIndex: commit,
		}, &resp))
		return resp.Success
	}
	if !send("L1", 2, 1, 1, 2, 10, 1) {
		t.Fatal("the first leader's entries were refused")
	}
	for rounds = 1; rounds <= 3 && !accepted; rounds++ {
		var resp raft.InstallSnapshotResponse
		must(t, out.InstallSnapshot("F", "F", &raft.InstallSnapshotRequest{
			RPCHeader: header("L2"), SnapshotVersion: 1, Term: 4, LastLogIndex: 5, LastLogTerm: 3, Size: 8,
			Configuration: raft.EncodeConfiguration(conf), ConfigurationIndex: 1,
		}, &resp, bytes.NewReader(number(1000))))
		accepted = send("L2", 4, 5, 3, 6, 8, 5)
	}
	rounds--
	if accepted && !send("L2", 4, 8, 4, 9, 12, 12) {
		t.Fatal("the next entries were refused")
	}
	r.stop(t)
	if !accepted {
		return rounds, false
	}
	// What it holds survives, and the state is the snapshot's and the new leader's.
	r = start(t, disk, "F", in, conf, false)
	if !send("L2", 4, 12, 4, 13, 13, 13) {
		t.Fatal("refused after a restart")
	}
	synctest.Wait()
	if want := uint64(1000 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13); r.fsm.total != want {
		t.Fatalf("total %d instead of %d", r.fsm.total, want)
	}
	r.stop(t)
	return rounds, true
}

// TestRaftRestarts runs one voter through writes, snapshots and power cuts: the
// sum is always that of what was acknowledged.
func TestRaftRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		var total uint64
		for round := range uint64(6) {
			_, trans := raft.NewInmemTransport("A")
			conf := raft.Configuration{Servers: []raft.Server{{ID: "A", Address: "A"}}}
			r := start(t, disk, "A", trans, conf, false)
			<-r.raft.LeaderCh()
			must(t, r.raft.Barrier(0).Error())
			if r.fsm.total != total {
				t.Fatalf("round %d: %d instead of %d", round, r.fsm.total, total)
			}
			for i := range uint64(40) {
				must(t, r.raft.Apply(number(i), 0).Error())
				total += i
				if i == 20 && round%2 == 0 {
					must(t, r.raft.Snapshot().Error())
				}
			}
			first, _ := r.log.Group(7).FirstIndex()
			if round > 0 && first < round*40-40 {
				t.Fatalf("the log still starts at %d", first)
			}
			after := disk.Crash(round)
			must(t, r.raft.Shutdown().Error())
			_ = r.log.Close() // its disk is gone
			disk = after
		}
	})
}

// TestRaftWithFailedLog: a follower whose disk fails while it stores a new term
// hangs, as it must; once the log is closed it can be shut down without taking
// the process with it.
func TestRaftWithFailedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, in := raft.NewInmemTransportWithTimeout("F", 2*time.Second)
		_, out := raft.NewInmemTransportWithTimeout("L", 2*time.Second)
		out.Connect("F", in)
		conf := raft.Configuration{Servers: []raft.Server{{ID: "F", Address: "F"}, {ID: "L", Address: "L"}}}
		disk := fs.NewMem()
		r := start(t, disk, "F", in, conf, false)
		disk.Inject(func(op fs.Op, _ string) error {
			if op == fs.OpSync {
				return syscall.EIO
			}
			return nil
		})
		req := &raft.RequestVoteRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("L"), Addr: []byte("L")},
			Term:      5, LastLogIndex: 100, LastLogTerm: 4,
		}
		var resp raft.RequestVoteResponse
		if err := out.RequestVote("F", "F", req, &resp); err == nil {
			t.Fatal("answered", resp)
		}
		<-r.log.Failed()
		if err := r.log.Close(); !errors.Is(err, proto.ErrDisk) {
			t.Fatal(err)
		}
		must(t, r.raft.Shutdown().Error())
	})
}
