package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// A repair ends when its replica moves to another node: the repairer does not wait for it, and it does not count as
// quarantined.
func TestRepairEndsWithTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		r := &replica{
			member: newMember(memberConfig{group: 1, node: "a", logger: hclog.NewNullLogger()}),
			state:  newShardMachine(1, func() shard.Memory { return shard.Heap{} }, nil, nil, nil, nil),
		}
		r.quarantined.Store(true)
		count := &auditMetrics{}
		p := &repairer{
			dir: "quarantine", fs: fs.NewMem(), count: count, others: func(*replica) {},
			fetch: func(context.Context, string, uint32, io.Writer) (*ebbv1.SnapshotSummary, error) {
				t.Error("a state is fetched from nobody")
				return nil, io.EOF
			},
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.repair(ctx, repair{replica: r, index: 7})
		}()
		time.Sleep(time.Minute) // virtual: no leader is known
		if count.repairing.Load() != 1 {
			t.Error("it is given up while the replica is here")
		}
		r.member.stop()
		<-done
		if ctx.Err() != nil || count.repairing.Load() != 0 || count.repairs.Load() != 0 {
			t.Errorf("it ends with %v, %d replicas in repair and %d repaired", ctx.Err(), count.repairing.Load(), count.repairs.Load())
		}
	})
}

// A replica in quarantine that leads hands no snapshot on: only its log and its votes are sound. It can still step down
// and campaign.
func TestNoStateFromQuarantine(t *testing.T) {
	carries := func() carrier { return (*transport.Group)(nil) }
	r := newReplica(memberConfig{group: 1, node: "a", logger: hclog.NewNullLogger(), carrier: carries}, nil, replicaConfig{counts: new(counts)})
	r.quarantined.Store(true)
	l := newLink(r.member.carrier())
	l.unsound = r.member.unsound
	if err := l.InstallSnapshot("2", "b/2", nil, nil, nil); !errors.Is(err, errUnsound) {
		t.Errorf("the snapshot of a replica that differs is sent: %v", err)
	}
	if _, ok := l.carrier.(local); !ok {
		t.Error("the transport takes no requests from its own replica")
	}
}

// The limits of a shard hold for each state of it, also for one that is restored.
func TestLimitsOutliveASnapshot(t *testing.T) {
	machine := func() *shardMachine {
		mem := func() shard.Memory { return shard.Heap{} }
		m := newShardMachine(1, mem, make(chan struct{}, 1), new(applyMetrics), nil, nil)
		limits := shard.DefaultLimits()
		limits.Sessions = 1
		m.limit(limits)
		return m
	}
	open, err := protobuf.Marshal(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}})
	must(t, err)
	entry := func(index uint64) *raft.Log {
		b, err := protobuf.Marshal(&ebbv1.Entry{StampUs: 1_000_000, Commands: [][]byte{open}})
		must(t, err)
		return &raft.Log{Index: index, Data: b}
	}
	m := machine()
	m.apply(entry(1))
	var raw bytes.Buffer
	_, err = shardSnapshot{m.freeze()}.view.WriteTo(&raw)
	must(t, err)
	again := machine()
	must(t, again.Restore(io.NopCloser(&raw)))
	for _, m := range []*shardMachine{m, again} {
		r := m.apply(entry(2))
		if len(r) != 1 || r[0].GetError().GetCode() != ebbv1.Code_CODE_TOO_MANY_SESSIONS {
			t.Errorf("a second session: %v", r)
		}
	}
}

// A replica takes a state over only with all that came during the repair. Otherwise the error says what came between.
func TestWhatComesBetweenARepair(t *testing.T) {
	machine := func() *shardMachine {
		return newShardMachine(1, func() shard.Memory { return shard.Heap{} }, make(chan struct{}, 1), new(applyMetrics), nil, nil)
	}
	m := machine()
	fetch := func() *shard.State { return machine().state }
	m.record(true)
	m.note(&raft.Log{Index: 1, Data: make([]byte, recordedMax+1)})
	if _, err := m.replace(fetch()); !errors.Is(err, proto.ErrOverloaded) {
		t.Errorf("after too many entries: %v", err)
	}
	m.record(true)
	installed := shardSnapshot{machine().freeze()}
	var raw bytes.Buffer
	_, err := installed.view.WriteTo(&raw)
	must(t, err)
	must(t, m.Restore(io.NopCloser(&raw)))
	if _, err := m.replace(fetch()); !errors.Is(err, proto.ErrTooStale) || !strings.Contains(err.Error(), "a snapshot was installed") {
		t.Errorf("after an install: %v", err)
	}
	m.record(true)
	if _, err := m.replace(fetch()); err != nil {
		t.Errorf("when nothing comes between: %v", err)
	}
}
