package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// A node that has not heard that callers need a token passes on what anybody asks it. It says with every call whose it
// is, and the others go by that. Over any number of such nodes a caller may do what he could have done himself, and
// what the node asks by itself is the node's.
func TestANodeWithoutTokensLendsNobodyItsRights(t *testing.T) {
	open := func(name string) *Access {
		return NewAccess(AccessConfig{Tokens: (&tokenBox{}).tokens, Node: name})
	}
	guarded := NewAccess(AccessConfig{Tokens: boxOf().tokens, Node: "ebb-0"})
	node := overTLS("ebb-1", "node")
	for _, c := range []struct {
		name, method, want string
		ctx                context.Context
		md                 []string
	}{
		{"a stranger", ebbv1grpc.Ebb_Delete_FullMethodName, "who?", context.Background(), nil},
		{"a stranger over TLS", ebbv1grpc.Ebb_Delete_FullMethodName, "who?", overTLS(""), nil},
		{"a stranger's shard", ebbv1grpc.Shards_ReadIndex_FullMethodName, "who?", context.Background(), nil},
		{"a stranger asks the control group", ebbv1grpc.Shards_Manage_FullMethodName, "who?", context.Background(), nil},
		{"a stranger who says that it is nobody's node", ebbv1grpc.Ebb_Delete_FullMethodName, "who?", context.Background(), []string{originKey, "operator"}},
		{"a stranger's status", ebbv1grpc.Shards_NodeStatus_FullMethodName, "who?", context.Background(), nil},
		{"health, which is everybody's", "/grpc.health.v1.Health/Check", "yes", context.Background(), nil},
		{"a writer", ebbv1grpc.Ebb_Delete_FullMethodName, "yes", context.Background(), []string{authorizationKey, "Bearer " + secretOf("writer")}},
		{"a reader", ebbv1grpc.Ebb_Delete_FullMethodName, "no", context.Background(), []string{authorizationKey, "Bearer " + secretOf("reader")}},
		{"a token of another cluster", ebbv1grpc.Ebb_Delete_FullMethodName, "who?", context.Background(), []string{authorizationKey, "Bearer " + secretOf("eve")}},
		{"no token at all", ebbv1grpc.Ebb_Delete_FullMethodName, "who?", context.Background(), []string{authorizationKey, "Basic x"}},
		{"a certificate of a writer", ebbv1grpc.Ebb_Delete_FullMethodName, "yes", overTLS("ada", "writer=cl*"), nil},
		{"a certificate of a reader", ebbv1grpc.Ebb_Delete_FullMethodName, "no", overTLS("ada", "reader"), nil},
		{"a node for itself", ebbv1grpc.Ebb_Delete_FullMethodName, "yes", node, []string{peerKey, "ebb-2", originKey, "node"}},
	} {
		ctx, md, method := c.ctx, metadata.Pairs(c.md...), c.method
		for _, relay := range []*Access{open("ebb-1"), open("ebb-2")} {
			var who caller
			if err := relay.identify(ctx, method, md, &who); err != nil {
				t.Fatalf("%s: %s says %v, and knows no token", c.name, relay.cfg.Node, err)
			}
			if err := relay.admit(context.WithValue(ctx, callerKey{}, &who), method, nil); err != nil {
				t.Fatalf("%s: %s says %v, and knows no token", c.name, relay.cfg.Node, err)
			}
			shown, err := relay.Credentials().GetRequestMetadata(context.WithValue(ctx, callerKey{}, &who))
			if err != nil {
				t.Fatal(err)
			}
			ctx, md = node, metadata.New(shown)
		}
		in, _, _ := sample(t, method)
		var who caller
		err := guarded.identify(ctx, method, md, &who)
		if err == nil {
			err = who.mayCall(method, in)
		}
		if got := verdict(err); got != c.want {
			t.Errorf("%s: %s (%v), want %s", c.name, got, err, c.want)
		}
	}
	own, err := open("ebb-1").Credentials().GetRequestMetadata(context.Background())
	if err != nil || own[originKey] != "node" {
		t.Errorf("what a node asks by itself is of %q (%v)", own[originKey], err)
	}
}

// Tokens may come into force while a call is on its way. What its caller has shown then counts, over TLS and without
// it, asked directly and by way of another node.
func TestTokensComeIntoForceDuringACall(t *testing.T) {
	const method = ebbv1grpc.Ebb_Delete_FullMethodName
	node := overTLS("ebb-1", "node")
	shows := func(who string) []string { return []string{authorizationKey, "Bearer " + secretOf(who)} }
	for _, c := range []struct {
		name, want string
		ctx        context.Context
		md         []string
	}{
		{"nothing", "who?", context.Background(), nil},
		{"a writer's token", "yes", context.Background(), shows("writer")},
		{"a reader's token", "no", context.Background(), shows("reader")},
		{"a token of another cluster", "who?", context.Background(), shows("eve")},
		{"a certificate of a writer", "yes", overTLS("ada", "writer=cl*"), nil},
		{"a certificate of a reader", "no", overTLS("ada", "reader"), nil},
		{"a node for a writer's token", "yes", node, []string{peerKey, "ebb-1", originKey, "writer"}},
		{"a node for a reader's token", "no", node, []string{peerKey, "ebb-1", originKey, "reader"}},
		{"a node for anyone", "who?", node, []string{peerKey, "ebb-1", originKey, "anyone"}},
		{"a node for itself", "yes", node, []string{peerKey, "ebb-1", originKey, "node"}},
	} {
		box, who := &tokenBox{}, caller{}
		access := NewAccess(AccessConfig{Tokens: box.tokens, Node: "ebb-0"})
		if err := access.identify(c.ctx, method, metadata.Pairs(c.md...), &who); err != nil {
			t.Fatalf("%s: %v, before tokens are in force", c.name, err)
		}
		ctx := context.WithValue(c.ctx, callerKey{}, &who)
		box.records = boxOf().records
		in, _, _ := sample(t, method)
		if got := verdict(access.admit(ctx, method, in)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if c.want == "yes" && who.token == nil && !who.own {
			t.Errorf("%s: the handler takes the caller for one who needs no token", c.name)
		}
	}
}

// Checksums make leaders write: only an operator may ask for them.
func TestChecksumsAreForOperators(t *testing.T) {
	s, access := guardedServices(boxOf())
	conn := serve(t, s)
	req := &ebbv1.StatusRequest{Checksums: []*ebbv1.ChecksumRequest{{Shard: 1}}}
	for who, want := range map[string]string{"nobody": "who?", "reader": "no", "admin": "no", "operator": "yes", "node": "yes"} {
		for _, method := range []string{ebbv1grpc.Ebb_Status_FullMethodName, ebbv1grpc.Shards_NodeStatus_FullMethodName} {
			err := conn.Invoke(as(t, access, who), method, req, &ebbv1.StatusResponse{})
			if got := verdict(ebbv1grpc.FromStatus(err)); got != want {
				t.Errorf("%s by %s: %s, want %s", method, who, got, want)
			}
		}
	}
}
