package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func sampleIdentity() identity {
	return identity{
		Layout: 2, Node: "ebb-1", Disk: "5f0c", ClusterID: "c1d2", Founders: []string{"ebb-0", "ebb-1", "ebb-2"}, Shards: 8, Replication: 3, Founded: true,
		Replicas: map[uint32]replicaRecord{0: {ID: 2, Epoch: 5}, 3: {ID: 9, Epoch: 6, Differs: 77}},
	}
}

func sampleTable(t testing.TB) *ebbv1.Table {
	t.Helper()
	c := cluster.NewControl()
	wire := protobuf.Clone(c.Table().Wire()).(*ebbv1.Table)
	wire.ClusterId, wire.Epoch, wire.Shards, wire.Replication = "c1d2", 9, 1, 1
	wire.Nodes = []*ebbv1.NodeRecord{{Name: "ebb-1", GrpcAddress: "10.0.0.1:7070"}}
	for shard := range uint32(2) {
		wire.Placement = append(wire.Placement, &ebbv1.ShardRecord{Shard: shard, Replicas: []*ebbv1.ReplicaRecord{{Id: 1, Node: "ebb-1"}}, Preferred: "ebb-1"})
	}
	return wire
}

// No bit of node.json and of table.pb may be another, and neither may be cut off: an epoch of a table that is too high
// would beat every table to come.
func TestFileChecksumsRejectDamage(t *testing.T) {
	id := sampleIdentity()
	own, err := id.encode()
	must(t, err)
	table, err := encodeTable(sampleTable(t))
	must(t, err)
	for name, c := range map[string]struct {
		raw  []byte
		read func(raw []byte) error
	}{
		identityName: {own, func(raw []byte) error { return new(identity).decode(raw) }},
		tableName:    {table, func(raw []byte) error { _, err := decodeTable(raw); return err }},
	} {
		must(t, c.read(c.raw))
		for i := range c.raw {
			for bit := range 8 {
				bad := bytes.Clone(c.raw)
				bad[i] ^= 1 << bit
				if c.read(bad) == nil {
					t.Errorf("%s: bit %d of byte %d of %d is another, and nobody sees it: %q", name, bit, i, len(bad), bad)
				}
			}
			if c.read(c.raw[:i]) == nil {
				t.Errorf("%s: cut to %d of %d bytes, and nobody sees it", name, i, len(c.raw))
			}
		}
		if c.read(append(bytes.Clone(c.raw), '\n', 'x')) == nil {
			t.Errorf("%s: something follows its end, and nobody sees it", name)
		}
		t.Logf("%s: %d flips and %d cuts of %d bytes, all found", name, 8*len(c.raw), len(c.raw), len(c.raw))
	}
}

// This build reads what builds without checksums wrote, except tables, and they read what this one writes.
func TestFilesOfBuildsWithoutSeals(t *testing.T) {
	want := sampleIdentity()
	old, err := json.MarshalIndent(want, "", "  ")
	must(t, err)
	summed, err := want.encode()
	must(t, err)
	for name, raw := range map[string][]byte{"without": append(old, '\n'), "with": summed} {
		var id identity
		must(t, id.decode(raw))
		if diff := cmp.Diff(want, id); diff != "" {
			t.Errorf("%s a checksum: %s", name, diff)
		}
	}
	var id identity
	must(t, json.Unmarshal(summed, &id)) // as they do
	if diff := cmp.Diff(want, id); diff != "" {
		t.Errorf("to an older build: %s", diff)
	}
	if err := id.decode([]byte(strings.Replace(string(summed), "ebb-1", "ebb-2", 1))); !errors.Is(err, errWrongChecksum) || id.Node != "ebb-1" {
		t.Errorf("edited by hand: %v, and the node is %s", err, id.Node)
	}

	table := sampleTable(t)
	raw, err := encodeTable(table)
	must(t, err)
	got, err := decodeTable(raw)
	must(t, err)
	if diff := cmp.Diff(table, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	var seen ebbv1.Table
	must(t, protobuf.Unmarshal(raw, &seen)) // as they do
	if seen.GetEpoch() != table.GetEpoch() || seen.GetClusterId() != table.GetClusterId() {
		t.Errorf("to an older build it is %v", &seen)
	}
}

// FuzzFileChecksums: any bytes are refused or read, alike after another round, and an identity that refuses them stays
// as it was.
func FuzzFileChecksums(f *testing.F) {
	id := sampleIdentity()
	own, err := id.encode()
	if err != nil {
		f.Fatal(err)
	}
	table, err := encodeTable(sampleTable(f))
	if err != nil {
		f.Fatal(err)
	}
	for _, raw := range [][]byte{own, table, []byte("{}"), []byte(`{"layout":1,"node":"ebb-0","replicas":{"0":{"id":1}}}`), []byte(`{"layout":1}{}`), withChecksum(nil)} {
		f.Add(raw, false)
		f.Add(raw, true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, summed bool) {
		asJSON, asTable := bytes.Clone(raw), bytes.Clone(raw)
		if summed { // so that the fuzzer gets past the checksums
			asJSON, asTable = append(asJSON, checksumMemberOf(raw)...), withChecksum(asTable)
		}
		got := identity{Node: "before"}
		if err := got.decode(asJSON); err != nil {
			if diff := cmp.Diff(identity{Node: "before"}, got); diff != "" {
				t.Errorf("refused, and changed: %s", diff)
			}
		} else {
			again, err := got.encode()
			must(t, err)
			var back identity
			must(t, back.decode(again))
			if twice, _ := back.encode(); !bytes.Equal(again, twice) {
				t.Errorf("%s became %s", again, twice)
			}
		}
		wire, err := decodeTable(asTable)
		if err != nil {
			return
		}
		if table, err := cluster.NewTable(wire); err == nil {
			raw, err := encodeTable(table.Wire())
			must(t, err)
			if again, err := decodeTable(raw); err != nil || !protobuf.Equal(again, table.Wire()) {
				t.Errorf("%v became %v, %v", table.Wire(), again, err)
			}
		}
	})
}
