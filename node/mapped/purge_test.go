package mapped_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// purged is a shard with one namespace, and how long entries take.
type purged struct {
	t     *testing.T
	s     *shard.State
	ns    *ebbv1.Namespace
	stamp int64
}

func newPurged(t *testing.T, ns *ebbv1.Namespace) *purged {
	ns = proto.FillNamespace(ns, proto.DefaultNamespaceSettings())
	p := &purged{t: t, s: shard.New(1, mapped.New()), ns: ns, stamp: 1_700_000_000_000_000}
	p.ns.Name, p.ns.Version, p.ns.HashSeed = "a", 1, 7
	p.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: shard.BehaviourDeletion}}})
	p.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: p.ns}})
	return p
}

func (p *purged) apply(c *ebbv1.Command) (*ebbv1.CommandResult, time.Duration) {
	p.t.Helper()
	p.stamp++
	command, err := pb.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	entry, err := pb.Marshal(&ebbv1.Entry{StampUs: p.stamp, Commands: [][]byte{command}})
	if err != nil {
		p.t.Fatal(err)
	}
	began := time.Now()
	r := p.s.Apply(p.s.Applied()+1, entry, nil)[0]
	took := time.Since(began)
	if r.GetError() != nil || len(r.GetRefused()) > 0 {
		p.t.Fatal(r)
	}
	return r, took
}

// purge purges the namespace, and returns the longest entry of that.
func (p *purged) purge() (longest time.Duration, entries int) {
	p.ns.Version, p.ns.Deletion = 2, &ebbv1.NamespaceDeletion{Purging: true}
	p.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: p.ns}})
	for from, done := uint64(0), false; !done; entries++ {
		body := &ebbv1.Command_PurgeNamespace{PurgeNamespace: &ebbv1.PurgeNamespace{Version: 2, From: from}}
		r, took := p.apply(&ebbv1.Command{Namespace: "a", Body: body})
		longest = max(longest, took)
		from, done = r.GetPurge().GetNext(), r.GetPurge().GetDone()
	}
	return longest, entries
}

// A purge drops a key or a part of a dictionary by one entry. What that takes is bounded by their limits, as for ebb
// delete: the test says what it takes here, and fails if it comes to be 20 times as much as when it was written.
func TestLongestEntryOfAPurge(t *testing.T) {
	t.Run("a part of a dictionary", func(t *testing.T) {
		const names, batch = 500_000, 5000
		p := newPurged(t, &ebbv1.Namespace{Dictionary: &ebbv1.Dictionary{Parts: 1}})
		for from := 0; from < names; from += batch {
			list := &ebbv1.Names{Shards: 1}
			for i := range batch {
				list.Names = append(list.Names, fmt.Appendf(nil, "%0200d", from+i))
			}
			p.apply(&ebbv1.Command{Namespace: "a", Body: &ebbv1.Command_Names{Names: list}})
		}
		used := mapped.Used()
		longest, entries := p.purge()
		t.Logf("%d strings, %d MiB: %d entries, the longest %v", names, used>>20, entries, longest)
		if most := 200 * time.Millisecond; longest > most {
			t.Errorf("an entry takes %v: more than %v", longest, most)
		}
		for began := time.Now(); mapped.Used() > used/4; time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("%d bytes are used of %d", mapped.Used(), used)
			}
		}
	})
	t.Run("a bitmap of many slices", func(t *testing.T) {
		const ids, batch = 1_000_000, 20_000
		p := newPurged(t, &ebbv1.Namespace{})
		for from := uint64(0); from < ids; from += batch {
			list := make([]uint64, 0, batch)
			for i := range uint64(batch) {
				list = append(list, (from+i)<<16) // each in a slice of its own, which costs most
			}
			edit := &ebbv1.BitEdit{Key: []byte("k"), Op: ebbv1.BitOp_BIT_OP_SET, Ids: proto.AppendBitIDs(nil, list)}
			edits := &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{edit}}
			p.apply(&ebbv1.Command{Namespace: "a", Body: &ebbv1.Command_Bits{Bits: edits}})
		}
		used := mapped.Used()
		longest, entries := p.purge()
		t.Logf("%d slices, %d MiB: %d entries, the longest %v", ids, used>>20, entries, longest)
		if most := 2 * time.Second; longest > most {
			t.Errorf("an entry takes %v: more than %v", longest, most)
		}
	})
	t.Run("a key of many bins", func(t *testing.T) {
		const bins, batch = 1_000_000, 10_000
		p := newPurged(t, &ebbv1.Namespace{BinsMax: bins})
		for from := uint32(0); from < bins; from += batch {
			list := &ebbv1.Increments{}
			for i := range uint32(batch) {
				bin := binary.BigEndian.AppendUint32(nil, from+i)
				list.Increments = append(list.Increments, &ebbv1.Increment{Key: []byte("k"), Bin: bin})
			}
			p.apply(&ebbv1.Command{Namespace: "a", Body: &ebbv1.Command_Increments{Increments: list}})
		}
		used := mapped.Used()
		longest, entries := p.purge()
		t.Logf("%d bins, %d MiB: %d entries, the longest %v", bins, used>>20, entries, longest)
		if most := 4 * time.Second; longest > most {
			t.Errorf("an entry takes %v: more than %v", longest, most)
		}
	})
}
