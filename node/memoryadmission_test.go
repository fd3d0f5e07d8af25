package node

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// fakePeers records what a node reports to its peers, and holds what they report.
type fakePeers struct {
	own      bool
	peers    []string
	press    bool
	pressers []string
}

func (f *fakePeers) SetFull(full bool)       { f.own = full }
func (f *fakePeers) Full() []string          { return slices.Clone(f.peers) }
func (f *fakePeers) SetPressed(pressed bool) { f.press = pressed }
func (f *fakePeers) Pressed() []string       { return slices.Clone(f.pressers) }

type voting []string

func (v voting) voters() ([]raft.ServerAddress, []string) { return nil, v }

// A node is full from nine tenths of its limit on, and until it is well below. Shards that it votes in take nothing
// more, whoever leads them; what makes room, they take.
func TestMemoryAdmission(t *testing.T) {
	raw := func(cmd *ebbv1.Command) []byte {
		b, err := protobuf.Marshal(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	edit := func(op ...ebbv1.BitOp) []byte {
		edits := &ebbv1.BitEdits{}
		for _, o := range op {
			edits.Edits = append(edits.Edits, &ebbv1.BitEdit{Key: []byte("k"), Op: o, Ids: []byte{1}})
		}
		return raw(&ebbv1.Command{Namespace: "default", Body: &ebbv1.Command_Bits{Bits: edits}})
	}
	const set, clear = ebbv1.BitOp_BIT_OP_SET, ebbv1.BitOp_BIT_OP_CLEAR
	grow := raw(&ebbv1.Command{Namespace: "default", Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{}}})
	free := raw(&ebbv1.Command{Namespace: "default", Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{}}})
	open := raw(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}})

	used, peers := int64(0), &fakePeers{}
	r := newMemoryAdmission("ebb-0", 1000, func() int64 { return used }, peers, slog.New(slog.DiscardHandler))
	refuses := func(command []byte, voters ...string) bool {
		t.Helper()
		err := r.admit(7, voting(voters), command)
		if err != nil && (!errors.Is(err, proto.ErrOutOfMemory) || err.Hint == "" || err.Shard != 7 || err.RetryAfterUS == 0) {
			t.Errorf("refused with %v", err)
		}
		return err != nil
	}
	for _, c := range []struct {
		used    int64
		peers   []string
		own     bool // it is full
		others  bool // a shard of ebb-1 and ebb-2 is refused
		refused bool // and one of ebb-0 and ebb-1
	}{
		{used: 899},
		{used: 900, own: true, refused: true},
		{used: 850, own: true, refused: true}, // not at once again
		{used: 849},
		{used: 899},
		{used: 100, peers: []string{"ebb-2"}, others: true},
		{used: 100, peers: []string{"ebb-1"}, others: true, refused: true},
		{used: 100},
	} {
		used, peers.peers = c.used, c.peers
		r.look()
		if r.full() != c.own || peers.own != c.own || refuses(grow, "ebb-0", "ebb-1") != c.refused || refuses(grow, "ebb-1", "ebb-2") != c.others {
			t.Errorf("%+v: full %v, reported %v, refuses its own %v, others' %v", c, r.full(), peers.own, refuses(grow, "ebb-0", "ebb-1"), refuses(grow, "ebb-1", "ebb-2"))
		}
	}
	used = 1000
	r.look()
	restored := func(step *ebbv1.RestoreShard) []byte {
		return raw(&ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: step}})
	}
	numbered := func(h *ebbv1.HomeCommand) []byte { return raw(&ebbv1.Command{Body: &ebbv1.Command_Home{Home: h}}) }
	for name, c := range map[string]struct {
		command []byte
		refused bool
	}{
		"increments": {grow, true}, "a delete": {free, false}, "a session": {open, false},
		"ids set": {edit(set), true}, "ids cleared": {edit(clear), false}, "both": {edit(clear, set), true},
		"a piece of a backup": {restored(&ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Piece{Piece: &ebbv1.RestorePiece{}}}), true},
		"a number reserved":   {numbered(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Reserve{Reserve: &ebbv1.HomeNumber{Number: 1}}}), true},
		"a number put":        {numbered(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: &ebbv1.HomeNumber{Number: 1}, Count: 1}}}), true},
		"a number of nothing": {numbered(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: &ebbv1.HomeNumber{Number: 1}}}}), false},
		"numbers swept":       {numbered(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Swept{Swept: &ebbv1.HomeSwept{Numbers: []uint64{1}}}}), false},
		"a restore given up":  {restored(&ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Cancel{Cancel: &ebbv1.RestoreCancel{}}}), false},
		"no command":          {[]byte{0xff}, false},
	} {
		if got := refuses(c.command, "ebb-0"); got != c.refused {
			t.Errorf("%s: refused %v", name, got)
		}
	}
	unlimited := newMemoryAdmission("ebb-0", 0, func() int64 { return 1 << 60 }, peers, slog.New(slog.DiscardHandler))
	unlimited.look()
	if unlimited.full() {
		t.Error("full without a limit")
	}
}
