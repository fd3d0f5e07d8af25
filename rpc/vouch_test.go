package rpc

import (
	"encoding/hex"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// An answer is believed if it is vouched for by a key of the asking node, for its own challenge, and not another word
// of it was changed.
func TestVouchedAnswers(t *testing.T) {
	const root, secret, said = "a root token of a cluster", "a secret of that cluster", "status"
	const challenge = "00112233445566778899aabbccddeeff"
	asks := NewAccess(AccessConfig{
		Tokens: (&tokenBox{}).tokens, Node: "ebb-0", Root: []string{"another root token", root}, Secrets: []string{secret},
	})
	header := func(vouchers ...[]byte) metadata.MD {
		md := metadata.MD{}
		for _, v := range vouchers {
			md.Append(vouchKey, hex.EncodeToString(v))
		}
		return md
	}
	for _, c := range []struct {
		what   string
		header metadata.MD
		want   bool
	}{
		{"by the second root token", header(voucher(root, challenge, said)), true},
		{"by the secret", header(voucher(secret, challenge, said)), true},
		{"by two, of which one is known", header(voucher("eve", challenge, said), voucher(secret, challenge, said)), true},
		{"by nothing", header(), false},
		{"by a key that is not known", header(voucher("eve", challenge, said)), false},
		{"for another challenge", header(voucher(root, strings.Repeat("0", challengeLen), said)), false},
		{"for another answer", header(voucher(root, challenge, "statut")), false},
		{"by half a voucher", header(voucher(root, challenge, said)[:16]), false},
		{"by what is no number", metadata.Pairs(vouchKey, "x"), false},
	} {
		if got := asks.vouched(c.header, challenge, said); got != c.want {
			t.Errorf("vouched for %s: %v", c.what, got)
		}
	}
}

// What is vouched for of a status has all that decisions are made by.
func TestVouchersCoverWhatDecides(t *testing.T) {
	whole := &ebbv1.StatusResponse{ClusterId: "c", Nodes: []*ebbv1.NodeStatus{{
		Node:  &ebbv1.NodeRecord{Name: "ebb-0", GrpcAddress: "a:1", Disk: "d"},
		Phase: "serving", StartedUs: 7, StorageOldest: 1, StorageNewest: 8, Hears: []string{"ebb-1"}, Met: []string{"ebb-2"},
		Replicas: []*ebbv1.ReplicaStatus{{Shard: 3, Role: "leader", Term: 9}},
	}}}
	for what, change := range map[string]func(*ebbv1.StatusResponse, *ebbv1.NodeStatus){
		"cluster": func(s *ebbv1.StatusResponse, _ *ebbv1.NodeStatus) { s.ClusterId = "x" },
		"name":    func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.Node.Name = "x" },
		"address": func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.Node.GrpcAddress = "x" },
		"disk":    func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.Node.Disk = "x" },
		"phase":   func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.Phase = "x" },
		"start":   func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.StartedUs = 1 },
		"storage": func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.StorageNewest = 1 },
		"hears":   func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.Hears = nil },
		"met":     func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.Met = []string{"ebb-2", "ebb-3"} },
		"leads":   func(_ *ebbv1.StatusResponse, n *ebbv1.NodeStatus) { n.Replicas[0].Term = 1 },
	} {
		other := pb.CloneOf(whole)
		if change(other, other.Nodes[0]); statusSaid(other) == statusSaid(whole) {
			t.Errorf("the %s can be changed", what)
		}
	}
	table := &ebbv1.TableResponse{Node: "ebb-0", Table: &ebbv1.Table{
		ClusterId: "c", Epoch: 3, Nodes: []*ebbv1.NodeRecord{{Name: "ebb-0", Disk: "d", Enrolled: true}},
	}}
	for what, change := range map[string]func(*ebbv1.Table){
		"cluster": func(t *ebbv1.Table) { t.ClusterId = "x" },
		"epoch":   func(t *ebbv1.Table) { t.Epoch++ },
		"nodes":   func(t *ebbv1.Table) { t.Nodes = nil },
		"disk":    func(t *ebbv1.Table) { t.Nodes[0].Disk = "x" },
		"removed": func(t *ebbv1.Table) { t.Removed = []string{"ebb-0"} },
	} {
		other := pb.CloneOf(table)
		if change(other.Table); tableSaid(other) == tableSaid(table) {
			t.Errorf("the %s of a table can be changed", what)
		}
	}
}
