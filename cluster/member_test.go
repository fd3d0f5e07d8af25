package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMemberTravelsInFewBytes(t *testing.T) {
	for name, c := range map[string]struct {
		in         Member
		grpc, http string // as others see them
		sizeMax    int
	}{
		"on one host": {
			Member{GRPC: "10.0.0.3:7070", HTTP: "10.0.0.3:7080", Gossip: "10.0.0.3:7071", Version: "v1.2.3", Cluster: "0123456789abcdef"},
			"10.0.0.3:7070", "10.0.0.3:7080", 38,
		},
		"listening at any address": {
			Member{GRPC: "0.0.0.0:7070", HTTP: "[::]:7080", Gossip: "10.0.0.3:7071"},
			"10.0.0.3:7070", "10.0.0.3:7080", 21,
		},
		"without a host": {
			Member{GRPC: ":7070", HTTP: ":7080", Gossip: "[2001:db8::7]:7071"},
			"[2001:db8::7]:7070", "[2001:db8::7]:7080", 21,
		},
		"by name": {
			Member{GRPC: "ebb-0.ebb.default.svc.cluster.local:7070", HTTP: "ebb-0.ebb.default.svc.cluster.local:7080", Gossip: "10.0.0.3:7071", Version: "v1.2.3", Cluster: "0123456789abcdef"},
			"ebb-0.ebb.default.svc.cluster.local:7070", "ebb-0.ebb.default.svc.cluster.local:7080", 78,
		},
		"two hosts": {
			Member{GRPC: "[2001:db8:85a3::8a2e:370:7334]:7070", HTTP: "[2001:db8:85a3::8a2e:370:7335]:7080", Gossip: "10.0.0.3:7071", Version: "v1.2.3"},
			"[2001:db8:85a3::8a2e:370:7334]:7070", "[2001:db8:85a3::8a2e:370:7335]:7080", 101,
		},
		"with its disk": {
			Member{GRPC: "10.0.0.3:7070", HTTP: "10.0.0.3:7080", Gossip: "10.0.0.3:7071", Version: "v1.2.3", Cluster: "0123456789abcdef", Settled: true, Disk: "01234567"},
			"10.0.0.3:7070", "10.0.0.3:7080", 47,
		},
		"no doors": {Member{Gossip: "10.0.0.3:7071"}, "", "", 11},
	} {
		meta, err := c.in.appendMeta(nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := Member{Gossip: c.in.Gossip}
		got.parseMeta(meta)
		want := Member{GRPC: c.grpc, HTTP: c.http, Gossip: c.in.Gossip, Version: c.in.Version, Cluster: c.in.Cluster, Settled: c.in.Settled, Disk: c.in.Disk}
		if diff := cmp.Diff(want, got); diff != "" || len(meta) > c.sizeMax {
			t.Errorf("%s: %d bytes (-want +got):\n%s", name, len(meta), diff)
		}
	}
	full := Member{Version: strings.Repeat("v", metaLenMax-6), Disk: "01234567"}
	meta, err := full.appendMeta(nil)
	if full.Disk = ""; err != nil {
		t.Errorf("without room for the disk: %v", err)
	}
	var got Member
	if got.parseMeta(meta); got != full {
		t.Errorf("without room for the disk %+v is %+v", full, got)
	}
	long := Member{GRPC: strings.Repeat("x", 120) + ":7070", Version: "v1"}
	if meta, err := long.appendMeta(nil); err == nil {
		t.Errorf("%d bytes of metadata were accepted", len(meta))
	}
}

func TestMemberNames(t *testing.T) {
	m := Member{Node: "ebb-0", Boot: 1_767_225_600_000_000}
	if node, boot, ok := parseMemberName(m.name()); !ok || node != m.Node || boot != m.Boot {
		t.Errorf("%s is %s, %d, %v", m.name(), node, boot, ok)
	}
	for _, bad := range []string{"", "ebb-0", "+1", "ebb-0+", "ebb-0+-1", "a+1+2", "a/b+1", "a+" + strings.Repeat("z", 20)} {
		if node, boot, ok := parseMemberName(bad); ok {
			t.Errorf("%q is %s, %d", bad, node, boot)
		}
	}
}

// A member's disk was replaced if the cluster knows another one. That is not so of a node that may have no disk there
// yet, or does not say which it has.
func TestMemberDiskReplaced(t *testing.T) {
	mine := diskMark("0123456789abcdef")
	for _, c := range []struct {
		disk, cluster, known string
		want                 bool
	}{
		{mine, "c", "0123456789abcdef", false},
		{mine, "c", "fedcba9876543210", true},
		{mine, "c", "", false},
		{"", "c", "fedcba9876543210", false},
		{mine, "", "fedcba9876543210", false},
	} {
		if got := (Member{Disk: c.disk, Cluster: c.cluster}).diskReplaced(c.known); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func FuzzMemberMeta(f *testing.F) {
	meta, err := Member{GRPC: "a:1", HTTP: "b:2", Gossip: "10.0.0.3:7071", Version: "v1", Disk: "01234567"}.appendMeta(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(meta)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := Member{Gossip: "10.0.0.3:7071"}
		m.parseMeta(raw)
		again, err := m.appendMeta(nil)
		if err != nil {
			return // what others may send can be longer than what this node would
		}
		n := Member{Gossip: m.Gossip}
		if n.parseMeta(again); n.Version != m.Version || n.Disk != m.Disk && n.Disk != "" {
			t.Errorf("%+v became %+v", m, n)
		}
	})
}

func TestKnownMembersPicksTheStartOfANode(t *testing.T) {
	r := newKnownMembers()
	is := func(what string, boot uint64, alive bool) {
		t.Helper()
		if got := r.best("a").member; got.Boot != boot || got.Alive != alive {
			t.Errorf("%s: boot %d, alive %v", what, got.Boot, got.Alive)
		}
	}
	r.put(Member{Node: "a", Boot: 5, Alive: true})
	r.put(Member{Node: "a", Boot: 7, Alive: true})
	is("the newer of two", 7, true)
	r.noteAnswer(Member{Node: "a", Boot: 7}, false)
	is("the one that answers", 5, true)
	r.noteAnswer(Member{Node: "a", Boot: 7}, true)
	is("the newer one, which answers again", 7, true)
	r.put(Member{Node: "a", Boot: 7})
	is("the living one", 5, true)
	r.put(Member{Node: "a", Boot: 5})
	is("a dead one", 5, false)
	r.put(Member{Node: "a", Boot: 3})
	is("an older dead one", 5, false)
	if len(r.boots["a"]) != 1 {
		t.Errorf("%d starts are kept of a dead node", len(r.boots["a"]))
	}
	r.put(Member{Node: "b", Boot: 1, Alive: true, Gossip: "10.0.0.2:1"})
	if got := r.members(); len(got) != 2 || got[0].Node != "a" || got[1].Node != "b" {
		t.Errorf("members %v", got)
	}
	if duplicates := r.duplicates(); len(duplicates) != 0 {
		t.Errorf("duplicates %v", duplicates)
	}
}

// Which of two processes of one name stays, as everybody sees it: data counts
// before seniority, and clocks, which may be wrong, count last.
func TestMemberOutranks(t *testing.T) {
	for name, c := range map[string]struct{ stays, goes Member }{
		"an older boot":                 {Member{Boot: 1}, Member{Boot: 2}},
		"settled":                       {Member{Boot: 2, Settled: true}, Member{Boot: 1}},
		"of a cluster":                  {Member{Boot: 2, Cluster: "c"}, Member{Boot: 1}},
		"of a cluster, not yet settled": {Member{Boot: 2, Cluster: "c"}, Member{Boot: 1, Settled: true}},
		"both of it, one settled":       {Member{Boot: 2, Cluster: "c", Settled: true}, Member{Boot: 1, Cluster: "c"}},
		"both of it and settled":        {Member{Boot: 1, Cluster: "c", Settled: true}, Member{Boot: 2, Cluster: "c", Settled: true}},
	} {
		if !c.stays.outranks(c.goes) || c.goes.outranks(c.stays) {
			t.Errorf("%s: the wrong one goes", name)
		}
	}
}

// The start that was heard of first makes room, but not this process's own, nor the first at the address where its node
// is connected.
func TestKnownMembersEvicts(t *testing.T) {
	r := newKnownMembers()
	for boot := range uint64(4) {
		r.put(Member{Node: "a", Boot: 10 - boot, Alive: true, GRPC: fmt.Sprint("at-", boot/2)})
	}
	connected := func(m Member) bool { return m.GRPC == "at-0" }
	evict := func(want bool, left ...uint64) {
		t.Helper()
		if r.evict("a", connected, 8) != want || r.starts("a") != len(left) {
			t.Errorf("%d starts count, want %d", r.starts("a"), len(left))
		}
		for _, boot := range left {
			if !r.boots["a"][boot].counts() {
				t.Errorf("start %d does not count", boot)
			}
		}
	}
	evict(true, 10, 8, 7)
	evict(true, 10, 8)
	evict(false, 10, 8)
	if !r.living("a", 9) || r.evicted() != 2 || len(r.duplicates()[0]) != 2 {
		t.Errorf("%d are evicted; duplicates %v", r.evicted(), r.duplicates())
	}
	r.put(Member{Node: "a", Boot: 9, Alive: true}) // news of it
	r.put(Member{Node: "a", Boot: 10})
	r.put(Member{Node: "a", Boot: 8})
	if best := r.best("a").member; best.Boot != 9 || r.evicted() != 2 {
		t.Errorf("start %d speaks for the node when the others are dead", best.Boot)
	}
}
