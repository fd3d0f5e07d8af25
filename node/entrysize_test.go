package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// An entry that no frame holds would lie in the leader's log for ever, and nothing behind it would be committed. It is
// refused, and what comes after it goes through.
func TestEntriesThatNoFrameHoldsAreRefused(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.leader()
		m := p.members[a]
		if err := m.propose(make([]byte, transport.EntryBytesMax)).Error(); err != nil {
			t.Fatalf("the largest entry: %v", err)
		}
		last := m.now.Load().raft.LastIndex()
		future := m.propose(make([]byte, transport.EntryBytesMax+1))
		err := future.Error()
		if want := fmt.Sprintf("entry of %d bytes: the limit is %d", transport.EntryBytesMax+1, transport.EntryBytesMax); !errors.Is(err, proto.ErrMessageTooLarge) || !strings.Contains(err.Error(), want) {
			t.Errorf("one byte more: %v", err)
		}
		if future.Index() != 0 || future.Response() != nil {
			t.Errorf("what is refused has index %d and response %v", future.Index(), future.Response())
		}
		if now := m.now.Load().raft.LastIndex(); now != last {
			t.Errorf("the log grew from %d to %d", last, now)
		}
		if err := p.propose(a); err != nil {
			t.Errorf("after it: %v", err)
		}
		c := newControl(m.memberConfig, nil, nil, slog.New(slog.DiscardHandler), func() {})
		c.now.Store(m.now.Load())
		_, err = c.propose(context.Background(), &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetNamespace{SetNamespace: &ebbv1.SetNamespaceRequest{
			Namespace: &ebbv1.Namespace{Name: strings.Repeat("n", transport.EntryBytesMax)},
		}}})
		if !errors.Is(err, proto.ErrMessageTooLarge) {
			t.Errorf("of the control group: %v", err)
		}
	})
}

// greatest returns a namespace of the largest size: each of its messages takes as much as a request may have.
func greatest(t *testing.T, name string) *ebbv1.Namespace {
	t.Helper()
	ns := proto.DefaultNamespaceSettings()
	ns.Name, ns.Version, ns.HashSeed = name+strings.Repeat("x", proto.NamespaceLenMax-len(name)), 1<<62, 1<<63
	ns.HalfLifeUs, ns.Threshold, ns.Prior = proto.HalfLifeMaxUS, 1e9, 1e9
	ns.BinsMax, ns.SlowHalfLifeUs, ns.WindowUs = proto.BinsMaxLimit, protobuf.Int64(proto.HalfLifeMinUS), protobuf.Int64(proto.HalfLifeMaxUS)
	ns.Universe, ns.BitmapPlacement = []byte(strings.Repeat("u", proto.KeyLenMax)), ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY
	ns.Rollups, ns.Dictionary = new(ebbv1.Rollups), &ebbv1.Dictionary{Parts: proto.ShardsMax}
	for _, m := range []protoreflect.ProtoMessage{ns.Sizes, ns.Rollups, ns.Dictionary} { // what newer clients have said
		m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 2047, protowire.BytesType), make([]byte, proto.NamespaceBytesMax)))
	}
	if err := proto.CheckNamespace(ns); err != nil {
		t.Fatal(err)
	}
	return ns
}

// commandOfSize is a command of so many bytes under a namespace.
func commandOfSize(ns string, size int) []byte {
	raw := protowire.AppendString(protowire.AppendTag(nil, proto.FieldCommandNamespace, protowire.BytesType), ns)
	for pad := max(size-len(raw)-2, 0); ; pad-- {
		if out := protowire.AppendBytes(protowire.AppendTag(raw[:len(raw):len(raw)], proto.FieldCommandIncrements, protowire.BytesType), make([]byte, pad)); len(out) <= size || pad == 0 {
			return out
		}
	}
}

// A single command fits into an entry with its definition, however large both are; two of them go after each other.
func TestTheGreatestCommandFitsWithItsDefinition(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		c := newCall(2)
		for i, name := range []string{"a", "b"} {
			ns := greatest(t, name)
			l.table[ns.GetName()] = ns
			p.enqueue(c, i, commandOfSize(ns.GetName(), proto.CommandBytesMax))
		}
		p.kick()
		synctest.Wait()
		for i := range 2 {
			l.commit(i, nil)
			if f := l.sent()[i]; f.size > proto.EntryBytesHard || f.size < proto.CommandBytesMax || len(f.entry.Commands) != 2 {
				t.Errorf("entry %d has %d commands in %d bytes", i, len(f.entry.Commands), f.size)
			}
		}
		for _, r := range c.wait(t.Context(), nil) {
			if r.GetApplied() != 1 {
				t.Errorf("result %v", r)
			}
		}
	})
}

// flood enqueues a command for each of so many namespaces that are new to the shard, and returns what they say in which
// order.
func flood(t *testing.T, p *proposer, l *fakeLog, n int) (c *call, order []string) {
	c = newCall(n)
	for i := range n {
		ns := &ebbv1.Namespace{Name: fmt.Sprintf("n%05d", i), Version: 1, Universe: make([]byte, proto.KeyLenMax)}
		l.table[ns.GetName()] = ns
		order = append(order, ns.GetName())
		p.enqueue(c, i, command(ns.GetName()))
	}
	p.kick()
	synctest.Wait()
	return c, order
}

// Definitions count towards an entry's size. What does not fit waits for the next entry, in order, and counts as
// waiting.
func TestDefinitionsTakeRoom(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		const n = 5_000
		c, order := flood(t, p, l, n)
		var got []string
		for i := 0; i < len(l.sent()); i++ {
			l.commit(i, nil)
			f := l.sent()[i]
			if f.size > proto.EntryBytesHard {
				t.Errorf("entry %d has %d bytes", i, f.size)
			}
			defined := make(map[string]bool)
			for _, raw := range f.entry.Commands {
				cmd := new(ebbv1.Command)
				if err := protobuf.Unmarshal(raw, cmd); err != nil {
					t.Fatal(err)
				}
				if cmd.GetDefineNamespace() != nil {
					defined[cmd.GetNamespace()] = true
					continue
				}
				got = append(got, cmd.GetNamespace())
				if !defined[cmd.GetNamespace()] {
					t.Fatalf("entry %d: %s comes without its definition", i, cmd.GetNamespace())
				}
			}
		}
		if !slices.Equal(got, order) {
			t.Errorf("%d commands of %d, or in another order", len(got), n)
		}
		for i, r := range c.wait(t.Context(), nil) {
			if r.GetApplied() != 1 {
				t.Fatalf("result %d: %v", i, r)
			}
		}
		if waiting := p.count.waiting.Load(); waiting != 0 || p.bytes != 0 || p.flushers != 0 {
			t.Errorf("%d bytes are said to wait, %d at the shard; %d goroutines are left", waiting, p.bytes, p.flushers)
		}
	})
}

// What waits behind definitions is kept back by a pause, and refused by the end, as whatever else waits.
func TestDefinitionsTakeRoomToTheEnd(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		c, order := flood(t, p, l, 2_000)
		before := len(l.sent())
		paused := make(chan bool)
		go func() { paused <- p.pause(time.Minute) }()
		synctest.Wait()
		for i := range before {
			l.commit(i, nil)
		}
		if !<-paused || len(l.sent()) != before {
			t.Errorf("%d entries are sent, %d of them while paused", len(l.sent()), len(l.sent())-before)
		}
		p.resume()
		synctest.Wait()
		if len(l.sent()) == before {
			t.Error("nothing goes on after the pause")
		}
		p.close()
		for i := before; i < len(l.sent()); i++ {
			l.commit(i, nil)
		}
		sent := 0
		for _, code := range codes(c.wait(t.Context(), nil)) {
			if code == 0 {
				sent++
			} else if code != ebbv1.Code_CODE_SHUTTING_DOWN {
				t.Errorf("code %v", code)
			}
		}
		if sent == 0 || sent == len(order) {
			t.Errorf("%d commands of %d got into the log", sent, len(order))
		}
		if waiting := p.count.waiting.Load(); waiting != 0 {
			t.Errorf("%d bytes are said to wait", waiting)
		}
	})
}

// What comes back to the queue after the end is refused.
func TestNothingComesBackAfterTheEnd(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, _ *fakeLog) {
		p.close()
		c := newCall(1)
		p.putBack([]waiting{{command: command("a"), call: c}})
		if got := codes(c.wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_SHUTTING_DOWN || p.count.waiting.Load() != 0 {
			t.Errorf("%v, and %d bytes wait", got, p.count.waiting.Load())
		}
	})
}

// An entry that was refused for its size never reached the log: whoever sent it knows.
func TestRefusedForItsSize(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		c := add(p, 1)
		l.commit(0, proto.ErrMessageTooLarge.Errorf("entry of 2 bytes: the limit is 1"))
		if got := codes(c.wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_MESSAGE_TOO_LARGE {
			t.Errorf("%v, want MESSAGE_TOO_LARGE", got)
		}
	})
}
