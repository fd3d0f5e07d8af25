package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func tokenCommand(name string, seed byte, grants ...*ebbv1.Grant) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_PutToken{PutToken: &ebbv1.PutToken{Token: &ebbv1.TokenRecord{
		Name: name, Sha256: strings.Repeat(fmt.Sprintf("%02x", seed), 32), Grants: grants, CreatedUs: 1,
	}}}}
}

func dropCommand(name string) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_DropToken{DropToken: &ebbv1.DropToken{Name: name}}}
}

func role(r ebbv1.Role, namespaces string) *ebbv1.Grant {
	return &ebbv1.Grant{Role: r, Namespaces: namespaces}
}

// Tokens are part of the table: they change its epoch, survive other changes, snapshots and restarts, and go when they are revoked.
func TestControlKeepsTokens(t *testing.T) {
	s := bornCluster(t)
	if n := s.c.Table().Tokens().Len(); n != 0 {
		t.Fatalf("a new cluster has %d tokens", n)
	}
	before := s.c.Table().Epoch()
	command := tokenCommand("ops", 1, role(ebbv1.Role_ROLE_OPERATOR, ""))
	for range 2 { // who has not heard that it is made asks again
		if e := s.apply(command).GetError(); e != nil {
			t.Fatal(e)
		}
	}
	if got := s.c.Table().Epoch(); got != before+1 {
		t.Errorf("epoch %d after a token that was made twice, want %d", got, before+1)
	}
	s.apply(tokenCommand("dash", 2, role(ebbv1.Role_ROLE_READER, "cl*"), role(ebbv1.Role_ROLE_WRITER, "own")))
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "own"}))
	again := reborn(t, s.c)
	for _, table := range []*Table{s.c.Table(), again.Table(), s.c.Table().WithVersion(9)} {
		tokens := table.Tokens()
		if tokens.Len() != 2 || tokens.Operators(0) != 1 || !tokens.Named("dash").May(ebbv1.Role_ROLE_READER, "clicks") {
			t.Errorf("%d tokens, %d of operators", tokens.Len(), tokens.Operators(0))
		}
		if got := tokens.Of(TokenHash([]byte(strings.Repeat("\x02", 32)))); got == nil || got.Name != "dash" {
			t.Errorf("the token of hash 0202...: %v", got)
		}
	}
	s.apply(dropCommand("dash"))
	if s.c.Table().Tokens().Named("dash") != nil || s.c.Table().Tokens().Len() != 1 {
		t.Error("a token that was revoked is there")
	}
	if table := s.c.Table(); s.apply(dropCommand("dash")).GetError() != nil || s.c.Table() != table {
		t.Error("revoking what is not there changes something")
	}
}

// What is not a token is refused, and changes nothing.
func TestControlRefusesBadTokens(t *testing.T) {
	s := bornCluster(t)
	s.apply(tokenCommand("ops", 1, role(ebbv1.Role_ROLE_OPERATOR, "")))
	table := s.c.Table()
	reader := role(ebbv1.Role_ROLE_READER, "*")
	for want, command := range map[string]*ebbv1.ControlCommand{
		"token ops exists":                 tokenCommand("ops", 1, reader),
		"token b is the same as token ops": tokenCommand("b", 1, reader),
		"only letters":                     tokenCommand("a b", 2, reader),
		"token name of 0 bytes":            tokenCommand("", 2, reader),
		"stands for somebody else":         tokenCommand("root", 2, reader),
		"with 0 roles":                     tokenCommand("c", 2),
		"a pattern has 1 to 64 bytes":      tokenCommand("c", 2, role(ebbv1.Role_ROLE_ADMIN, "")),
		"'.' and * are allowed":            tokenCommand("c", 2, role(ebbv1.Role_ROLE_ADMIN, "a/b")),
		"it is of the whole cluster":       tokenCommand("c", 2, role(ebbv1.Role_ROLE_OPERATOR, "*")),
		"role 9 is unknown":                tokenCommand("c", 2, role(9, "*")),
		"it is 64 hexadecimal digits":      {Body: &ebbv1.ControlCommand_PutToken{PutToken: &ebbv1.PutToken{Token: &ebbv1.TokenRecord{Name: "c", Grants: []*ebbv1.Grant{reader}}}}},
		"token name of 65 bytes":           tokenCommand(strings.Repeat("n", 65), 2, reader),
	} {
		if e := proto.FromWire(s.apply(command).GetError()); e == nil || !strings.Contains(e.Error(), want) {
			t.Errorf("%v, want %q", e, want)
		}
	}
	for i := range proto.TokensMax {
		e := proto.FromWire(s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_PutToken{PutToken: &ebbv1.PutToken{Token: &ebbv1.TokenRecord{
			Name: fmt.Sprintf("t%d", i), Sha256: fmt.Sprintf("%064x", i), Grants: []*ebbv1.Grant{reader},
		}}}}).GetError())
		if full := i == proto.TokensMax-1; (e != nil) != full || full && !strings.Contains(e.Error(), "which is the limit") {
			t.Fatalf("token %d: %v", i, e)
		}
	}
	if table.Tokens().Len() != 1 {
		t.Error("an old table has changed")
	}
}

// A table whose tokens were damaged is none.
func TestTablesRefuseBadTokens(t *testing.T) {
	good := tokenCommand("a", 1, role(ebbv1.Role_ROLE_READER, "*")).GetPutToken().GetToken()
	twin := tokenCommand("b", 1, role(ebbv1.Role_ROLE_READER, "*")).GetPutToken().GetToken()
	for name, records := range map[string][]*ebbv1.TokenRecord{"twice": {good, good}, "of one hash": {good, twin}, "empty": {{}}} {
		if _, err := NewTable(&ebbv1.Table{Tokens: records}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestTokensMay(t *testing.T) {
	const reader, writer, admin, operator = ebbv1.Role_ROLE_READER, ebbv1.Role_ROLE_WRITER, ebbv1.Role_ROLE_ADMIN, ebbv1.Role_ROLE_OPERATOR
	for _, c := range []struct {
		role    ebbv1.Role
		pattern string
		want    ebbv1.Role
		in      string
		may     bool
	}{
		{reader, "clicks", reader, "clicks", true},
		{reader, "clicks", writer, "clicks", false},
		{reader, "clicks", reader, "click", false},
		{reader, "clicks", reader, "clicks2", false},
		{reader, "Clicks", reader, "clicks", false},
		{writer, "web-*", reader, "web-shop", true},
		{writer, "web-*", writer, "web-", true},
		{writer, "web-*", writer, "web", false},
		{writer, "*-eu", writer, "a-eu-eu", true},
		{writer, "a*b*c", writer, "a-b-b-c", true},
		{writer, "a*b*c", writer, "a-c-b", false},
		{admin, "*", writer, "anything", true},
		{admin, "*", operator, "anything", false},
		{operator, "", admin, "anything", true},
		{operator, "", operator, "", true},
		{reader, "default", reader, "", true},
		{reader, "d", reader, "", false},
		{admin, "**", admin, "x", true},
	} {
		token := &Token{grants: []*ebbv1.Grant{role(c.role, c.pattern)}}
		if token.May(c.want, c.in) != c.may {
			t.Errorf("%s=%s may be %s in %q: %v", proto.RoleName(c.role), c.pattern, proto.RoleName(c.want), c.in, !c.may)
		}
	}
}

// The hash of a text is that of its bytes; what is longer than any token has none.
func TestHashToken(t *testing.T) {
	hash, ok := HashToken("abc")
	if want := "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; !ok || fmt.Sprintf("%x", hash[:]) != want {
		t.Errorf("%x, want %s", hash[:], want)
	}
	if _, ok := HashToken(strings.Repeat("x", proto.TokenLenMax+1)); ok {
		t.Error("a text that is too long has a hash")
	}
}
