package rpc

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Whatever stands in the headers of a call, it is refused, or its caller stays unknown, unless it holds a secret. No
// other words make a caller known.
func FuzzIdentify(f *testing.F) {
	access := accessOf(boxOf())
	for _, name := range []string{"", "nobody", "operator", "root", "cert:x operator"} {
		f.Add("Bearer "+name, "", "")
		f.Add("", "ebb-1 "+name, name)
		f.Add("", "ebb-1 1700000000000 00000000000000000000000000000000", name)
		f.Add("bearer\t"+strings.Repeat(name, 40), "ebb-1", "cert:"+name+" operator reader=*")
	}
	f.Fuzz(func(t *testing.T, authorization, claim, origin string) {
		for _, secret := range append([]string{rootSecret}, secretOf("reader"), secretOf("stranger"), secretOf("writer"), secretOf("admin"), secretOf("operator")) {
			if strings.Contains(authorization, secret) || strings.Contains(claim, secret) {
				t.Skip("it holds a secret")
			}
		}
		var who caller
		err := access.identify(context.Background(), ebbv1grpc.Ebb_Ask_FullMethodName,
			metadata.MD{authorizationKey: {authorization}, peerKey: {claim}, originKey: {origin}, proofKey: {claim}}, &who)
		if err != nil && !errors.Is(err, proto.ErrUnauthenticated) {
			t.Fatalf("%v is not what callers are told", err)
		}
		if err == nil && (who.token != nil || who.node || who.own || who.shown != "" || who.evidence != "") {
			t.Fatalf("%+v without a secret", who)
		}
		if token := certifiedOrigin(origin); token != nil && len(token.Grants()) > proto.GrantsMax {
			t.Fatalf("%d roles", len(token.Grants()))
		}
	})
}

// A command is authorized for what is done: what the shard would take for another namespace or body is refused before.
func FuzzMayApply(f *testing.F) {
	f.Add(marshal(f, clicksDelete))
	f.Add(append(marshal(f, clicksDelete), "\x0a\x05other"...))
	f.Add(append([]byte("\x0a\x05other"), marshal(f, clicksDelete)...))
	f.Add(marshal(f, restoreCommand("clicks")))
	f.Add(append(marshal(f, clicksDelete), marshal(f, restoreCommand("clicks"))...))
	f.Add(marshal(f, &ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Until: &ebbv1.ExpireKeys_AtUs{AtUs: -1}}}}))
	writer := &caller{token: boxOf().tokens().Named("writer")}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, one := range auditApply(auditRequest{req: &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: 1, Command: raw}}}}) {
			if one.action == "" || one.subject() == "" || len(one.at) != 1 {
				t.Fatalf("%+v is no line of a log", one)
			}
		}
		if writer.mayApply(raw) != nil || proto.CheckCommand(raw) != nil {
			return
		}
		namespace, body, _ := proto.CommandBody(raw)
		first := proto.CommandNamespace(raw)
		if body == proto.FieldCommandRestore {
			t.Fatal("a writer restores")
		}
		if string(first) != string(namespace) || !strings.HasPrefix(string(namespace), "cl") && len(namespace) > 0 {
			t.Fatalf("namespaces %q and %q", first, namespace)
		}
	})
}

// Patterns match as regular expressions do in which a * is anything.
func FuzzMatchNamespace(f *testing.F) {
	f.Add("*", "")
	f.Add("a*b*c", "abbc")
	f.Add("**a", "aaa")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > proto.NamespaceLenMax || len(name) > proto.NamespaceLenMax || !utf8.ValidString(pattern) || !utf8.ValidString(name) {
			return
		}
		want := regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`) + `$`)
		if want.MatchString(name) != proto.MatchNamespace(pattern, name) {
			t.Errorf("%q matches %q: %v", pattern, name, proto.MatchNamespace(pattern, name))
		}
	})
}

// A command with two namespaces would be authorized for one and done in the other.
func TestCommandsHaveOneNamespace(t *testing.T) {
	s, access := guardedServices(boxOf())
	other := append([]byte("\x0a\x06clicks\x0a\x05other"), marshal(t, clicksDelete)[8:]...)
	if err := proto.CheckCommand(other); err == nil || !strings.Contains(err.Error(), "command with 2 namespaces") {
		t.Errorf("%q: %v", other, err)
	}
	if got := try(t, serve(t, s), as(t, access, "writer"), ebbv1grpc.Shards_Apply_FullMethodName); got != "yes" {
		t.Errorf("a command with one: %s", got)
	}
}
