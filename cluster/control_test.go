package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

func encode(t interface{ Fatal(...any) }, cmd *ebbv1.ControlCommand) []byte {
	raw, err := pb.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func initCommand(id string, table *Table) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_InitCluster{
		InitCluster: &ebbv1.InitCluster{ClusterId: id, Table: table.Wire()},
	}}
}

func setCommand(create bool, ns *ebbv1.Namespace) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetNamespace{
		SetNamespace: &ebbv1.SetNamespaceRequest{Namespace: ns, Create: create},
	}}
}

func putCommand(record *ebbv1.NodeRecord) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_PutNode{PutNode: &ebbv1.PutNode{Record: record}}}
}

// testControl is a control group that applies commands one after the other.
type testControl struct {
	t interface {
		Fatal(...any)
		Helper()
	}
	c *Control
}

func (s testControl) apply(cmd *ebbv1.ControlCommand) *ebbv1.ControlResult {
	s.t.Helper()
	result := s.c.Apply(s.c.Applied()+1, encode(s.t, cmd))
	if result == nil {
		s.t.Fatal("a new entry has no result")
	}
	return result
}

func bornCluster(t *testing.T) testControl {
	s := testControl{t, NewControl()}
	if e := s.apply(initCommand("cluster-a", mustTable(t, nodeNames(3), 8, 0))).GetError(); e != nil {
		t.Fatal(e)
	}
	return s
}

func TestControlIsEmptyUntilTheClusterIsBorn(t *testing.T) {
	s := testControl{t, NewControl()}
	table := s.c.Table()
	if table.ClusterID() != "" || table.Shards() != 0 || table.Namespace("default") != nil {
		t.Errorf("table %v", table.Wire())
	}
	for _, cmd := range []*ebbv1.ControlCommand{
		setCommand(true, &ebbv1.Namespace{Name: "clicks"}),
		putCommand(&ebbv1.NodeRecord{Name: "ebb-0"}),
		initCommand("", mustTable(t, nodeNames(1), 8, 0)),
		initCommand("id", NewControl().Table()),
	} {
		if result := s.apply(cmd); result.GetError() == nil {
			t.Errorf("%v was accepted", cmd)
		}
	}
	if s.c.Table() != table {
		t.Error("refused commands changed the table")
	}
}

func TestControlKeepsItsFirstIdentity(t *testing.T) {
	s := bornCluster(t)
	table := s.c.Table()
	if table.ClusterID() != "cluster-a" || table.Shards() != 8 || table.Epoch() != 2 {
		t.Errorf("cluster %s of %d shards at epoch %d", table.ClusterID(), table.Shards(), table.Epoch())
	}
	result := s.apply(initCommand("cluster-b", mustTable(t, nodeNames(1), 64, 0)))
	if result.GetError() != nil || result.GetClusterId() != "cluster-a" || s.c.Table() != table {
		t.Errorf("the second birth: %v", result)
	}
	standard := table.Namespace("")
	if standard.GetName() != "default" || standard.GetVersion() != 1 || standard.GetHashSeed() == 0 {
		t.Errorf("default namespace %v", standard)
	}
	if err := proto.CheckNamespace(standard); err != nil {
		t.Error(err)
	}
}

func TestControlSetsNamespaces(t *testing.T) {
	s := bornCluster(t)
	const day = 24 * 3600 * 1_000_000
	created := s.apply(setCommand(true, &ebbv1.Namespace{Name: "clicks", HalfLifeUs: day})).GetNamespace()
	want := proto.DefaultNamespaceSettings()
	want.Name, want.Version, want.HalfLifeUs, want.HashSeed = "clicks", 1, day, created.GetHashSeed()
	if diff := cmp.Diff(want, created, protocmp.Transform()); diff != "" || want.HashSeed == 0 {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	if e := s.apply(setCommand(true, &ebbv1.Namespace{Name: "clicks"})).GetError(); e.GetCode() != ebbv1.Code_CODE_NAMESPACE_EXISTS {
		t.Errorf("created twice: %v", e)
	}

	changed := s.apply(setCommand(false, &ebbv1.Namespace{Name: "clicks", Clock: ebbv1.Clock_CLOCK_EVENT})).GetNamespace()
	if changed.GetVersion() != 2 || changed.GetClock() != ebbv1.Clock_CLOCK_EVENT || changed.GetHalfLifeUs() != day {
		t.Errorf("changed to %v", changed)
	}
	epoch := s.c.Table().Epoch()
	same := s.apply(setCommand(false, &ebbv1.Namespace{Name: "clicks", HalfLifeUs: day, Version: 77}))
	if same.GetNamespace().GetVersion() != 2 || s.c.Table().Epoch() != epoch {
		t.Errorf("a change to the same counts as one: %v", same)
	}
	if got := s.c.Table().Namespace("clicks"); !pb.Equal(got, changed) {
		t.Errorf("table says %v", got)
	}
	if created.GetVersion() != 1 {
		t.Error("an earlier result was written to")
	}
}

func TestControlRefusesBadNamespaces(t *testing.T) {
	s := bornCluster(t)
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "clicks"}))
	table := s.c.Table()
	for what, in := range map[string]struct {
		ns   *ebbv1.Namespace
		want *proto.Error
	}{
		"nothing":              {nil, proto.ErrBadNamespace},
		"no name":              {&ebbv1.Namespace{HalfLifeUs: 1e6}, proto.ErrBadNamespace},
		"a bad name":           {&ebbv1.Namespace{Name: "a/b"}, proto.ErrBadNamespace},
		"a long name":          {&ebbv1.Namespace{Name: strings.Repeat("n", 65)}, proto.ErrBadNamespace},
		"half-life below 1 s":  {&ebbv1.Namespace{Name: "x", HalfLifeUs: 999_999}, proto.ErrBadHalfLife},
		"half-life negative":   {&ebbv1.Namespace{Name: "x", HalfLifeUs: -1}, proto.ErrBadHalfLife},
		"half-life of 101 y":   {&ebbv1.Namespace{Name: "x", HalfLifeUs: 101 * 31_557_600_000_000}, proto.ErrBadHalfLife},
		"an unknown decay":     {&ebbv1.Namespace{Name: "x", Decay: 9}, proto.ErrBadNamespace},
		"a negative threshold": {&ebbv1.Namespace{Name: "x", Threshold: -1}, proto.ErrBadNamespace},
		"too many bins":        {&ebbv1.Namespace{Name: "x", BinsMax: proto.BinsMaxLimit + 1}, proto.ErrBadNamespace},
		"another hash seed":    {&ebbv1.Namespace{Name: "clicks", HashSeed: 5}, proto.ErrBadNamespace},
		"a change to nonsense": {&ebbv1.Namespace{Name: "clicks", HalfLifeUs: 1}, proto.ErrBadHalfLife},
	} {
		result := s.apply(setCommand(false, in.ns))
		if !errors.Is(proto.FromWire(result.GetError()), in.want) || result.GetNamespace() != nil {
			t.Errorf("%s: %v", what, result)
		}
	}
	if s.c.Table() != table {
		t.Error("refused commands changed the table")
	}
}

func TestControlLimitsHalfLifeChanges(t *testing.T) {
	s := bornCluster(t)
	for i := range proto.HalfLifeChangesMax {
		if e := s.apply(setCommand(false, &ebbv1.Namespace{HalfLifeUs: int64(i+2) * 1e6, Name: "default"})).GetError(); e != nil {
			t.Fatalf("change %d: %v", i, e)
		}
	}
	s.c = reborn(t, s.c) // the count is part of the state
	if e := s.apply(setCommand(false, &ebbv1.Namespace{HalfLifeUs: 1e6, Name: "default"})).GetError(); e.GetCode() != ebbv1.Code_CODE_BAD_NAMESPACE {
		t.Errorf("one change too many: %v", e)
	}
	for i := range 2 * proto.HalfLifeChangesMax {
		if e := s.apply(setCommand(false, &ebbv1.Namespace{BinsMax: uint32(i + 7), Name: "default"})).GetError(); e != nil {
			t.Fatalf("change %d of something else: %v", i, e)
		}
	}
}

// Whatever change of a namespace the control group accepts comes into force in a shard. A key that is not written keeps
// all eras in memory, and a shard hears of a version only when it writes under it. Neither prevents that.
func TestShardsTakeWhatControlAccepts(t *testing.T) {
	s := bornCluster(t)
	every, some := shard.New(1, shard.Heap{}), shard.New(2, shard.Heap{})
	apply := func(to *shard.State, commands ...*ebbv1.Command) {
		t.Helper()
		entry := &ebbv1.Entry{StampUs: 1e15}
		for _, c := range commands {
			raw, err := pb.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			entry.Commands = append(entry.Commands, raw)
		}
		raw, err := pb.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range to.Apply(to.Applied()+1, raw, nil) {
			if r.GetError() != nil {
				t.Fatal(r.GetError())
			}
		}
	}
	define := func() *ebbv1.Command {
		return &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: s.c.Table().Namespace("default")}}
	}
	idle := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{{Key: []byte("idle"), Bin: []byte("b"), Amount: new(1e9)}}}}}
	apply(every, define(), idle)
	apply(some, define(), idle)
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 8 * proto.HalfLifeChangesMax {
		change := &ebbv1.Namespace{Name: "default"}
		switch random.IntN(8) {
		case 0:
			change.Decay = ebbv1.Decay(1 + random.IntN(3))
		case 1:
			change.HalfLifeUs = int64(1+random.IntN(3)) * 3.6e9
		case 2:
			change.Floor = ebbv1.Floor(1 + random.IntN(3))
		case 3:
			change.Threshold = 0.001 * float64(1+random.IntN(3))
		case 4:
			change.Prior = float64(1 + random.IntN(3))
		case 5:
			change.Precision = ebbv1.Precision(1 + random.IntN(2))
		case 6:
			change.AllowNegative = new(random.IntN(2) == 0)
		case 7:
			change.BinsMax = uint32(1 + random.IntN(3))
		}
		if s.apply(setCommand(false, change)).GetError() != nil {
			refused++
		}
		apply(every, define())
		if random.IntN(3) == 0 {
			apply(some, define())
		}
	}
	if refused == 0 {
		t.Error("the limit was never reached")
	}
	if got, want := every.NamespaceVersion("default"), s.c.Table().Namespace("default").GetVersion(); got != want {
		t.Errorf("the shard is at version %d, not %d", got, want)
	}
}

func TestControlKeepsNodeRecords(t *testing.T) {
	s := bornCluster(t)
	record := &ebbv1.NodeRecord{Name: "ebb-1", GrpcAddress: "10.0.0.9:7070", Alive: true}
	if e := s.apply(putCommand(record)).GetError(); e != nil {
		t.Fatal(e)
	}
	table := s.c.Table()
	if got := table.Node("ebb-1"); got.GetGrpcAddress() != "10.0.0.9:7070" || got.GetAlive() {
		t.Errorf("record %v", got)
	}
	record.Alive = false
	if s.apply(putCommand(record)); s.c.Table() != table {
		t.Error("the same record counts as a change")
	}
	if e := s.apply(putCommand(&ebbv1.NodeRecord{Name: "ebb-3"})).GetError(); e.GetCode() != ebbv1.Code_CODE_BAD_REQUEST {
		t.Errorf("the record of an unknown node: %v", e)
	}
	if e := s.apply(putCommand(nil)).GetError(); e == nil {
		t.Error("no record at all was accepted")
	}
}

func TestControlSkipsWhatItHasApplied(t *testing.T) {
	s := bornCluster(t)
	raw := encode(t, setCommand(true, &ebbv1.Namespace{Name: "clicks"}))
	if s.c.Apply(5, raw) == nil || s.c.Apply(5, raw) != nil || s.c.Apply(4, raw) != nil || s.c.Applied() != 5 {
		t.Errorf("applied %d", s.c.Applied())
	}
}

func TestControlStopsAtCommittedBytesItCannotRead(t *testing.T) {
	newer := []byte{0xfa, 0x07, 0x00} // field 127
	for what, in := range map[string]struct {
		raw  []byte
		want *proto.Error
	}{
		"noise":           {[]byte("noise"), proto.ErrCorrupt},
		"nothing":         {nil, proto.ErrCorrupt},
		"a newer command": {newer, proto.ErrNewerVersion},
	} {
		s := bornCluster(t)
		if err := CheckControlCommand(in.raw); !errors.Is(err, in.want) {
			t.Errorf("%s: %v", what, err)
		}
		if !panics(func() { s.c.Apply(9, in.raw) }) || s.c.Applied() != 1 {
			t.Errorf("%s was applied", what)
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func snapshot(t interface{ Fatal(...any) }, c *Control) []byte {
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// restored is a Control of a snapshot.
func restored(raw []byte) (*Control, error) {
	c := NewControl()
	return c, c.Restore(bytes.NewReader(raw))
}

func reborn(t interface{ Fatal(...any) }, c *Control) *Control {
	raw := snapshot(t, c)
	got, err := restored(raw)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(snapshot(t, got), raw) {
		t.Fatal("a restored state writes another snapshot")
	}
	return got
}

// Two replicas apply the same random commands, one of them restarting from
// snapshots now and then; a model says what the namespaces and records are.
func TestControlAgreesWithAModelAndAcrossRestarts(t *testing.T) {
	born := encode(t, initCommand("cluster-a", mustTable(t, nodeNames(3), 8, 0)))
	rapid.Check(t, func(t *rapid.T) {
		a, b := NewControl(), NewControl()
		a.Apply(1, born)
		b.Apply(1, born)
		model := map[string]*ebbv1.Namespace{"default": a.Table().Namespace("default")}
		addresses := map[string]string{"ebb-0": "", "ebb-1": "", "ebb-2": ""}
		for index := uint64(2); index < 40; index++ {
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				b = reborn(t, b)
			}
			cmd := drawCommand(t)
			raw := encode(t, cmd)
			ra, rb := a.Apply(index, raw), b.Apply(index, raw)
			if !pb.Equal(ra, rb) {
				t.Fatalf("%v gave %v and %v", cmd, ra, rb)
			}
			if !bytes.Equal(snapshot(t, a), snapshot(t, b)) {
				t.Fatalf("states differ after %v", cmd)
			}
			track(t, model, addresses, cmd, ra)
			compare(t, a.Table(), model, addresses)
		}
	})
}

func drawCommand(t *rapid.T) *ebbv1.ControlCommand {
	if rapid.Bool().Draw(t, "node") {
		return putCommand(&ebbv1.NodeRecord{
			Name:        rapid.SampledFrom([]string{"ebb-0", "ebb-1", "ebb-2", "ebb-3"}).Draw(t, "name"),
			GrpcAddress: rapid.SampledFrom([]string{"", "a:1", "b:2"}).Draw(t, "address"),
		})
	}
	return setCommand(rapid.Bool().Draw(t, "create"), &ebbv1.Namespace{
		Name:       rapid.SampledFrom([]string{"default", "a", "b", "c", "not/good"}).Draw(t, "namespace"),
		HalfLifeUs: rapid.SampledFrom([]int64{0, 1e6, 2e6, -5}).Draw(t, "half-life"),
		BinsMax:    rapid.SampledFrom([]uint32{0, 10, 20}).Draw(t, "bins"),
		Decay:      rapid.SampledFrom([]ebbv1.Decay{0, ebbv1.Decay_DECAY_LINEAR, ebbv1.Decay_DECAY_NONE}).Draw(t, "decay"),
	})
}

func track(t *rapid.T, model map[string]*ebbv1.Namespace, addresses map[string]string, cmd *ebbv1.ControlCommand, result *ebbv1.ControlResult) {
	if put := cmd.GetPutNode(); put != nil {
		if _, member := addresses[put.Record.Name]; member != (result.GetError() == nil) {
			t.Fatalf("%v: %v", cmd, result)
		}
		if result.GetError() == nil {
			addresses[put.Record.Name] = put.Record.GrpcAddress
		}
		return
	}
	set := cmd.GetSetNamespace()
	have := model[set.Namespace.Name]
	bad := set.Namespace.HalfLifeUs < 0 || set.Namespace.Name == "not/good" || have != nil && set.Create
	if bad != (result.GetError() != nil) {
		t.Fatalf("%v: %v", cmd, result)
	}
	if bad {
		return
	}
	got := result.GetNamespace()
	if have == nil && got.GetVersion() != 1 || have != nil && got.GetVersion() != have.GetVersion() && got.GetVersion() != have.GetVersion()+1 {
		t.Fatalf("version %d follows %v", got.GetVersion(), have)
	}
	if changed := have != nil && !sameSettings(got, have); changed != (have != nil && got.GetVersion() > have.GetVersion()) {
		t.Fatalf("changed %v, and version went from %d to %d", changed, have.GetVersion(), got.GetVersion())
	}
	for _, check := range []bool{
		set.Namespace.HalfLifeUs == 0 || got.GetHalfLifeUs() == set.Namespace.HalfLifeUs,
		set.Namespace.BinsMax == 0 || got.GetBinsMax() == set.Namespace.BinsMax,
		set.Namespace.Decay == 0 || got.GetDecay() == set.Namespace.Decay,
		have == nil || got.GetHashSeed() == have.GetHashSeed(),
		proto.CheckNamespace(got) == nil,
	} {
		if !check {
			t.Fatalf("%v became %v", set, got)
		}
	}
	model[got.GetName()] = got
}

func sameSettings(a, b *ebbv1.Namespace) bool {
	a, b = pb.Clone(a).(*ebbv1.Namespace), pb.Clone(b).(*ebbv1.Namespace)
	a.Version, b.Version = 0, 0
	return pb.Equal(a, b)
}

func compare(t *rapid.T, table *Table, model map[string]*ebbv1.Namespace, addresses map[string]string) {
	if len(table.Namespaces()) != len(model) || len(table.Nodes()) != len(addresses) {
		t.Fatalf("%d namespaces, %d nodes", len(table.Namespaces()), len(table.Nodes()))
	}
	for name, want := range model {
		if !pb.Equal(table.Namespace(name), want) {
			t.Fatalf("namespace %s is %v, want %v", name, table.Namespace(name), want)
		}
	}
	for name, want := range addresses {
		if table.Node(name).GetGrpcAddress() != want {
			t.Fatalf("node %s at %s, want %s", name, table.Node(name).GetGrpcAddress(), want)
		}
	}
}

func TestControlViewStaysAsItWas(t *testing.T) {
	s := bornCluster(t)
	view := s.c.Freeze()
	before := snapshot(t, s.c)
	s.apply(setCommand(false, &ebbv1.Namespace{Name: "default", HalfLifeUs: 5e6}))
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "clicks"}))
	var b bytes.Buffer
	if _, err := view.WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), before) {
		t.Errorf("the view changed, or %v", err)
	}
}

func TestControlRejectsEveryFlippedAndTruncatedByte(t *testing.T) {
	s := bornCluster(t)
	raw := snapshot(t, s.c)
	c := NewControl()
	for i := range raw {
		for _, bad := range [][]byte{flip(raw, i), raw[:i], append(raw[:len(raw):len(raw)], byte(i))} {
			if err := c.Restore(bytes.NewReader(bad)); !errors.Is(err, proto.ErrCorrupt) {
				t.Fatalf("byte %d: %v", i, err)
			}
		}
	}
	if c.Applied() != 0 || c.Table().ClusterID() != "" {
		t.Error("rejected bytes changed the state")
	}
	if err := c.Restore(bytes.NewReader(raw)); err != nil || c.Table().ClusterID() != "cluster-a" {
		t.Errorf("after them a good one: %v", err)
	}
}

func flip(raw []byte, i int) []byte {
	bad := bytes.Clone(raw)
	bad[i] ^= 1 << (i % 8)
	return bad
}

// encodeSnapshot makes a snapshot of any payload, with version and checksum right.
func encodeSnapshot(version uint16, payload []byte) []byte {
	b := append([]byte(controlMagic), 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint16(b[len(controlMagic):], version)
	binary.LittleEndian.PutUint32(b[len(controlMagic)+2:], uint32(len(payload)))
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func TestControlRejectsASnapshotOfTheFuture(t *testing.T) {
	if _, err := restored(encodeSnapshot(2, nil)); !errors.Is(err, proto.ErrNewerVersion) {
		t.Error(err)
	}
}

func FuzzControlRestore(f *testing.F) {
	c := NewControl()
	f.Add(snapshot(f, c)[controlHeaderLen:])
	c.Apply(1, encode(f, initCommand("cluster-a", mustTable(f, nodeNames(3), 8, 0))))
	raw := snapshot(f, c)
	f.Add(raw[controlHeaderLen : len(raw)-controlTrailerLen])
	c.clients = clientChanges{{hi: 1, lo: 2}, {hi: 3, lo: 4, refused: proto.ErrBadNamespace.Errorf("no").Wire()}}
	raw = snapshot(f, c)
	f.Add(raw[controlHeaderLen : len(raw)-controlTrailerLen])
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := restored(encodeSnapshot(controlVersion, payload))
		if err != nil {
			return
		}
		reborn(t, reborn(t, got))
		got.Apply(got.Applied()+1, encode(t, setCommand(false, &ebbv1.Namespace{Name: "default", HalfLifeUs: 2e6})))
		reborn(t, got)
	})
}

func FuzzControlApply(f *testing.F) {
	f.Add(encode(f, initCommand("cluster-b", mustTable(f, nodeNames(1), 8, 0))))
	f.Add(encode(f, setCommand(true, &ebbv1.Namespace{Name: "a", HalfLifeUs: 1e6})))
	f.Add(encode(f, putCommand(&ebbv1.NodeRecord{Name: "ebb-0", HttpAddress: "a:1"})))
	born := encode(f, initCommand("cluster-a", mustTable(f, nodeNames(3), 8, 0)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if CheckControlCommand(raw) != nil {
			return
		}
		for _, c := range []*Control{NewControl(), NewControl()} {
			if c.Apply(1, raw) == nil {
				t.Fatal("no result")
			}
			c.Apply(2, born)
			c.Apply(3, raw)
			reborn(t, c)
		}
	})
}

func BenchmarkControlSetNamespace(b *testing.B) {
	c := NewControl()
	c.Apply(1, encode(b, initCommand("cluster-a", mustTable(b, nodeNames(3), 64, 0))))
	for i := range 1000 {
		c.Apply(c.Applied()+1, encode(b, setCommand(true, &ebbv1.Namespace{Name: fmt.Sprint("ns-", i)})))
	}
	for b.Loop() {
		half := int64(c.Applied()+10) * 1e6
		c.Apply(c.Applied()+1, encode(b, setCommand(false, &ebbv1.Namespace{Name: "ns-500", BinsMax: uint32(half / 1e6)})))
	}
}
