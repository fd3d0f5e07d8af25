package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// overTLS is the context of a call over TLS by the holder of a certificate with roles; without roles, of a caller
// without a certificate.
func overTLS(name string, roles ...string) context.Context {
	state := tls.ConnectionState{}
	if len(roles) > 0 {
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		for _, r := range roles {
			cert.Subject.OrganizationalUnit = append(cert.Subject.OrganizationalUnit, "ebb:"+r)
		}
		state.VerifiedChains = [][]*x509.Certificate{{cert}}
	}
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
}

// Over TLS a caller is a node if it has the certificate of one, whatever else it shows. A client may do what its
// certificate says, unless it shows a token, and no more if it says that it is a node.
func TestCertificates(t *testing.T) {
	access := accessOf(boxOf())
	claim := []string{peerKey, claimOf(access, statement{to: "ebb-0", method: ebbv1grpc.Shards_Repair_FullMethodName, origin: proto.NameNode}), originKey, proto.NameNode}
	repair, ask, remove := ebbv1grpc.Shards_Repair_FullMethodName, ebbv1grpc.Ebb_Ask_FullMethodName, ebbv1grpc.Ebb_Delete_FullMethodName
	for _, c := range []struct {
		name, method, want string
		ctx                context.Context
		md                 []string
	}{
		{"a node", repair, "yes", overTLS("ebb-1", "node"), claim},
		{"a node without a root token", repair, "yes", overTLS("ebb-1", "node"), []string{peerKey, "ebb-1", originKey, proto.NameNode}},
		{"a node for a stranger", repair, "who?", overTLS("ebb-1", "node"), []string{peerKey, "ebb-1", originKey, proto.NameAnyone}},
		{"a node's certificate without the claim", repair, "no", overTLS("ebb-1", "node"), nil},
		{"a client that claims to be a node", repair, "no", overTLS("ada", "operator"), claim},
		{"a reader that claims to be a node for root", remove, "no", overTLS("ada", "reader"), []string{peerKey, "ebb-1", originKey, proto.NameRoot}},
		{"nobody that claims to be a node", repair, "who?", overTLS(""), claim},
		{"a reader of all", ask, "yes", overTLS("ada", "reader"), nil},
		{"a reader of all deletes", remove, "no", overTLS("ada", "reader"), nil},
		{"a writer of the namespace", remove, "yes", overTLS("ada", "reader", "writer=cl*"), nil},
		{"a writer of another", remove, "no", overTLS("ada", "writer=other"), nil},
		{"an operator", remove, "yes", overTLS("ada", "operator"), nil},
		{"no role that there is", ask, "no", overTLS("ada", "king", "reader=a/b", "operator=x"), nil},
		{"a token goes first", remove, "no", overTLS("ada", "operator"), []string{authorizationKey, "Bearer " + secretOf("reader")}},
		{"no certificate", ask, "who?", overTLS(""), nil},
		{"a node for a client with a certificate", remove, "yes", overTLS("ebb-1", "node"), []string{peerKey, "ebb-1", originKey, "cert:ada+b writer=clicks"}},
		{"a node for a client that may not", remove, "no", overTLS("ebb-1", "node"), []string{peerKey, "ebb-1", originKey, "cert:ada reader=clicks"}},
		{"a node for a client without roles", remove, "no", overTLS("ebb-1", "node"), []string{peerKey, "ebb-1", originKey, "cert:ada"}},
	} {
		var who caller
		in, _, _ := sample(t, c.method)
		err := access.identify(c.ctx, c.method, metadata.Pairs(c.md...), &who)
		if err == nil {
			err = who.mayCall(c.method, in)
		}
		if verdict(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// If a caller has shown a certificate, a refusal names the certificate, not a token.
func TestRefusalsOfCertificates(t *testing.T) {
	for _, c := range []struct {
		who  *cluster.Token
		want string
	}{
		{certificateToken(trust.Identity{Name: "bob", Roles: []string{"reader"}}), "certificate bob "},
		{cluster.Granted("bob", nil), "token bob "},
	} {
		who := &caller{token: c.who}
		for _, err := range []error{who.needs(operator, ""), who.needs(writer, "clicks")} {
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %v", c.who.Name, err)
			}
		}
	}
}

// What a node says of a certificate's holder, another reads as it was meant.
func TestOriginsOfCertificates(t *testing.T) {
	var who caller
	if err := accessOf(boxOf()).identify(overTLS("Ada, of \"Sales\"\n", "reader=clicks", "operator"), "", nil, &who); err != nil {
		t.Fatal(err)
	}
	again := certifiedOrigin(originOf(who.token))
	if again == nil || again.Name != who.token.Name || len(again.Grants()) != 2 || !again.May(operator, "") {
		t.Errorf("%q is read as %+v", originOf(who.token), again)
	}
	for _, r := range originOf(who.token) {
		if r < ' ' || r > '~' {
			t.Errorf("%q cannot be sent", originOf(who.token))
		}
	}
	if certifiedOrigin("dashboard") != nil || proto.CheckTokenName(who.token.Name) == nil {
		t.Error("a token and a certificate could have one name")
	}
	if g := parseGrant("writer"); g.GetRole() != ebbv1.Role_ROLE_WRITER || g.GetNamespaces() != "*" {
		t.Errorf("writer is read as %v", g)
	}
}

func BenchmarkAdmit(b *testing.B) {
	req := &ebbv1.AskRequest{Questions: []*ebbv1.Question{clicksKey}}
	for name, box := range map[string]*tokenBox{"open": {}, "tokens": boxOf()} {
		tokens := box.tokens()
		access := NewAccess(AccessConfig{Tokens: func() *cluster.Tokens { return tokens }, Node: "ebb-0"})
		md := metadata.Pairs(authorizationKey, "Bearer "+secretOf("reader"))
		r := &receipt{Context: context.Background()}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.caller = caller{}
				if err := access.identify(r, ebbv1grpc.Ebb_Ask_FullMethodName, md, &r.caller); err != nil {
					b.Fatal(err)
				}
				if err := access.admit(r, ebbv1grpc.Ebb_Ask_FullMethodName, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
