package cluster

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"testing/iotest"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// FuzzTable: what is said to be a table, by a file or another node, is refused or complete, and the same after another
// round.
func FuzzTable(f *testing.F) {
	f.Add(encodeTable(f, mustTable(f, nodeNames(3), 8, 0).Wire()))
	f.Add(encodeTable(f, NewControl().Table().Wire()))
	f.Add(encodeTable(f, &ebbv1.Table{Shards: 1, Placement: []*ebbv1.ShardRecord{{}, {Shard: 1}}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		wire := new(ebbv1.Table)
		if pb.Unmarshal(raw, wire) != nil {
			return
		}
		table, err := NewTable(wire)
		if err != nil {
			return
		}
		for shard := range table.Shards() + 1 {
			if table.Shards() > 0 && len(table.Replicas(shard)) > 0 && table.Node(table.Replicas(shard)[0].GetNode()) == nil {
				t.Fatalf("shard %d lies on a node that is not there", shard)
			}
		}
		again, err := NewTable(table.Wire())
		if err != nil || !pb.Equal(again.Wire(), table.Wire()) {
			t.Fatalf("%v became %v, %v", table.Wire(), again, err)
		}
	})
}

func encodeTable(f *testing.F, wire *ebbv1.Table) []byte {
	raw, err := pb.Marshal(wire)
	if err != nil {
		f.Fatal(err)
	}
	return raw
}

// FuzzControlReplicas: of two commands of any bytes two members of the control group make the same, whichever began
// with a snapshot, and one that is refused leaves everything as it was.
func FuzzControlReplicas(f *testing.F) {
	born := encode(f, initCommand("cluster-a", mustTable(f, nodeNames(3), 8, 0)))
	one := encode(f, setCommand(true, &ebbv1.Namespace{Name: "a", HalfLifeUs: 1e6}))
	f.Add(one, encode(f, setCommand(false, &ebbv1.Namespace{Name: "a", HalfLifeUs: 2e6})))
	f.Add(encode(f, putCommand(&ebbv1.NodeRecord{Name: "ebb-0", HttpAddress: "a:1"})), one)
	kinds := (&ebbv1.ControlCommand{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	for i := range kinds.Len() {
		c := &ebbv1.ControlCommand{}
		m := c.ProtoReflect()
		m.Set(kinds.Get(i), m.NewField(kinds.Get(i)))
		f.Add(encode(f, c), one)
	}
	f.Add(encode(f, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{Record: &ebbv1.NodeRecord{Name: "ebb-3", Disk: "d"}}}}),
		encode(f, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetTargets{SetTargets: &ebbv1.SetTargets{}}}))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if CheckControlCommand(first) != nil || CheckControlCommand(second) != nil {
			return
		}
		c := NewControl()
		c.Apply(1, born)
		d := reborn(t, c)
		for index, raw := range [][]byte{first, second} {
			before := state(t, c)
			did := c.Apply(uint64(index)+2, raw)
			if too := d.Apply(uint64(index)+2, raw); !pb.Equal(did, too) || !bytes.Equal(state(t, c), state(t, d)) {
				t.Fatalf("%v and %v", did, too)
			}
			if did.GetError() != nil && !bytes.Equal(before, state(t, c)) {
				t.Fatalf("refused with %v, and something has changed", did.GetError())
			}
			d = reborn(t, d)
		}
	})
}

// state is all that is replicated but the index.
func state(t *testing.T, c *Control) []byte {
	v := c.Freeze()
	v.applied = 0
	var b bytes.Buffer
	if _, err := v.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzMemberName: a name by gossip is refused, or what the member that it is of would give itself.
func FuzzMemberName(f *testing.F) {
	f.Add(Member{Node: "ebb-0", Boot: 1_767_225_600_000_000}.name())
	f.Add("a/b+1")
	f.Add("ebb-0+-1")
	f.Add("+")
	f.Fuzz(func(t *testing.T, name string) {
		node, boot, ok := parseMemberName(name)
		if !ok {
			return
		}
		if CheckNodeName(node) != nil {
			t.Fatalf("%q is node %q", name, node)
		}
		again := Member{Node: node, Boot: boot}.name()
		if n, b, ok := parseMemberName(again); !ok || n != node || b != boot {
			t.Fatalf("%q is %s, %d, which is called %q", name, node, boot, again)
		}
	})
}

// FuzzPacketSum: of what comes as a packet, and of any message with a checksum, no inverted bit goes unnoticed; a
// message arrives as it was.
func FuzzPacketSum(f *testing.F) {
	f.Add([]byte("a ping"), uint16(0))
	f.Add(withSum([]byte("news")), uint16(9))
	f.Add([]byte{summedType}, uint16(3))
	f.Add([]byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, packet []byte, bit uint16) {
		sound(packet)
		if len(packet) == 0 || packet[0] == summedType {
			return // it has one already, right or wrong
		}
		sent := withSum(packet)
		if !sound(sent) || !bytes.Equal(sent[summedHead:], packet) {
			t.Fatalf("%x is sent as %x", packet, sent)
		}
		at := int(bit) % (8 * len(sent))
		if sent[at/8] ^= 1 << (at % 8); sound(sent) {
			t.Fatalf("%x: bit %d is inverted, and nobody notices", packet, at)
		}
	})
}

// FuzzGossipKeys: what is said to be keys of gossip is refused, without a word of it in the error, or a ring of them.
func FuzzGossipKeys(f *testing.F) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, gossipKeyBytes))
	for _, text := range []string{key, "# ours\n\n " + key + "\r\n", key + "\n" + key, "short", "", "AAAA", strings.Repeat("A", 44) + "\n" + key} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := ParseGossipKeys(text)
		if err != nil {
			for line := range bytes.Lines(text) {
				if line = bytes.TrimSpace(line); len(line) > 20 && strings.Contains(err.Error(), string(line)) {
					t.Fatalf("the error shows %q: %v", line, err)
				}
			}
			return
		}
		if ring, err := keyring(keys); err != nil || len(ring.GetKeys()) != len(keys) || len(keys) > gossipKeysMax {
			t.Fatalf("%d keys make a ring of %v, %v", len(keys), ring, err)
		}
	})
}

// FuzzGossipScreen: what is refused of a packet or a stream has a reason, and a stream is judged alike whether it
// comes at once or byte by byte. Of what is let pass no message is compressed, and nothing is behind its end.
func FuzzGossipScreen(f *testing.F) {
	ping := []byte("\x00\x82\xa5SeqNo\x01\xa4Node\xa7ebb-0+1")
	for _, b := range [][]byte{
		ping, withSum(ping),
		{compressType, 0x80},
		{labelType, 1, 'x', 0},
		{encryptType, 0, 0, 0, 9},
		{compoundType, 2, 0, 1, 0, 1, 0, 0},
		[]byte("\x06\x83\xa5Nodes\x01\xacUserStateLen\x00\xa4Join\xc3\x81\xa4Meta\xc4\x02xy"),
		[]byte("\x0d\x81\xa5Error\xa3why"), []byte("\x04\x81\xa4Port\xcd\x1b\x9f"),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := screenPacket(b, nil); err != nil {
			if _, ok := refusalOf(err); !ok {
				t.Fatalf("packet %x: %v is no reason", b, err)
			}
		} else if rest := bytes.TrimPrefix(b, []byte{summedType}); len(rest) == len(b) && len(b) > 0 && b[0] == compressType {
			t.Fatalf("packet %x is compressed", b)
		}
		whole, wholeErr := screenStream(bytes.NewReader(b).Read, nil)
		slow, slowErr := screenStream(iotest.OneByteReader(bytes.NewReader(b)).Read, nil)
		if (wholeErr == nil) != (slowErr == nil) || wholeErr == nil && !bytes.Equal(whole, slow) {
			t.Fatalf("stream %x: %x, %v, and byte by byte %x, %v", b, whole, wholeErr, slow, slowErr)
		}
		if wholeErr == nil && (!bytes.HasPrefix(b, whole) || whole[0] == compressType || len(whole) > gossipStreamMax) {
			t.Fatalf("stream %x is let pass as %x", b, whole)
		}
		key := bytes.Repeat([]byte{7}, gossipKeyBytes)
		_ = screenPacket(b, [][]byte{key})
		_, _ = screenStream(bytes.NewReader(b).Read, [][]byte{key})
	})
}
