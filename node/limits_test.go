package node

import (
	"testing"
	"time"
)

// TestDefaultsOfLimits: without limits a node has those of production. What is left out here has its default where it
// is used.
func TestDefaultsOfLimits(t *testing.T) {
	want := Limits{
		EntriesInFlight: 4, EntryBytes: 64 << 10, QueueBytes: 4 << 20, AppendEntries: 64, TrailingBytes: 1 << 20,
		LogBytes: 256 << 20, SnapshotsAtOnce: 2, SnapshotEvery: time.Second, AuditEvery: time.Minute, AuditsAtOnce: 2,
		NodeBytes: 128 << 20, CommitEvery: time.Second, UnknownNames: 1000,
		PlanEvery: 500 * time.Millisecond, MovesAtOnce: 4, ReconcileEvery: 250 * time.Millisecond,
		BalanceEvery: 250 * time.Millisecond, BalanceAfter: 10 * time.Second, RegisterEvery: time.Second,
		RaiseEvery: time.Second, UsageEvery: time.Second, ForgetEvery: 10 * time.Second,
		SweepEvery: 5 * time.Second, SweepAtOnce: 1000, PurgeEvery: time.Second,
	}
	if got := (Limits{}).filled(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	few := Limits{NodeBytes: 1, SweepAtOnce: 1, MovesAtOnce: 1, PlanEvery: 1}.filled()
	if few.NodeBytes != 1 || few.SweepAtOnce != 1 || few.MovesAtOnce != 1 || few.PlanEvery != 1 {
		t.Errorf("small limits are not kept: %+v", few)
	}
}
