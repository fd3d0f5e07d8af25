package cluster

import (
	"errors"
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

// Tokens are part of the table: they change its epoch, survive other changes, snapshots and restarts, and go when they
// are revoked.
func TestControlKeepsTokens(t *testing.T) {
	s := bornCluster(t)
	if n := s.c.Table().Tokens().Len(); n != 0 {
		t.Fatalf("a new cluster has %d tokens", n)
	}
	before := s.c.Table().Epoch()
	command := tokenCommand("ops", 1, role(ebbv1.Role_ROLE_OPERATOR, ""))
	for range 2 { // a caller that has not heard that it is made asks again
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

// Commands are looked at one after the other. So whatever is asked at the same time, callers are not locked out, and
// the cluster is not opened.
func TestLastTokens(t *testing.T) {
	const operator, reader = ebbv1.Role_ROLE_OPERATOR, ebbv1.Role_ROLE_READER
	make := func(name string, seed byte, g *ebbv1.Grant, expires int64, guarded, mayEnd bool) *ebbv1.ControlCommand {
		c := tokenCommand(name, seed, g)
		c.GetPutToken().Guarded, c.GetPutToken().MayEnd, c.GetPutToken().Token.ExpiresUs = guarded, mayEnd, expires
		return c
	}
	drop := func(name string, open, guarded bool) *ebbv1.ControlCommand {
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_DropToken{DropToken: &ebbv1.DropToken{Name: name, Open: open, Guarded: guarded, NowUs: 100}}}
	}
	ops, ops2, dash := make("ops", 1, role(operator, ""), 0, false, false), make("ops2", 2, role(operator, ""), 0, false, false), make("dash", 3, role(reader, "*"), 0, false, false)
	over := make("over", 4, role(operator, ""), 99, false, true)
	short, long := make("short", 5, role(operator, ""), 1_000, false, true), make("long", 6, role(operator, ""), 2_000, false, true)
	for _, c := range []struct {
		name   string
		before []*ebbv1.ControlCommand
		last   *ebbv1.ControlCommand
		want   string // of the error; "" for none
	}{
		{"the first is a reader's", nil, dash, "would be the first"},
		{"the first is a reader's beside another way in", nil, make("dash", 3, role(reader, "*"), 0, true, false), ""},
		{"the first is an operator's", nil, ops, ""},
		{"the first has an end", nil, make("ops", 1, role(operator, ""), 1_000, false, false), "has an end: after it nobody could make another"},
		{"the first has an end, and that is meant", nil, make("ops", 1, role(operator, ""), 1_000, false, true), ""},
		{"the first has an end beside another way in", nil, make("ops", 1, role(operator, ""), 1_000, true, false), ""},
		{"the second has an end", []*ebbv1.ControlCommand{ops}, make("b", 9, role(operator, ""), 1_000, false, false), ""},
		{"the last of all", []*ebbv1.ControlCommand{ops}, drop("ops", false, false), "is the last: without it everybody"},
		{"the last of all, and that is meant", []*ebbv1.ControlCommand{ops}, drop("ops", true, false), ""},
		{"the last two at once", []*ebbv1.ControlCommand{ops, ops2, drop("ops", false, false)}, drop("ops2", false, false), "is the last: without it everybody"},
		{"the last two operators' at once", []*ebbv1.ControlCommand{ops, ops2, dash, drop("ops", false, false)}, drop("ops2", false, false), "is the last of an operator"},
		{"the last operator's", []*ebbv1.ControlCommand{ops, dash}, drop("ops", true, false), "is the last of an operator"},
		{"the last operator's beside one that is over", []*ebbv1.ControlCommand{ops, over}, drop("ops", false, false), "is the last of an operator"},
		{"one that is over", []*ebbv1.ControlCommand{ops, over}, drop("over", false, false), ""},
		{"the last operator's without an end", []*ebbv1.ControlCommand{ops, short}, drop("ops", false, false), "lasts longest: after the end of the others"},
		{"the last operator's without an end, and a reader's", []*ebbv1.ControlCommand{ops, short, dash}, drop("ops", true, false), "lasts longest: after the end of the others"},
		{"the last operator's without an end beside another way in", []*ebbv1.ControlCommand{ops, short}, drop("ops", false, true), ""},
		{"one of two without an end", []*ebbv1.ControlCommand{ops, ops2, short}, drop("ops", false, false), ""},
		{"one with an end beside one without", []*ebbv1.ControlCommand{ops, short}, drop("short", false, false), ""},
		{"of two with an end the longer", []*ebbv1.ControlCommand{short, long}, drop("long", false, false), "lasts longest: after the end of the others"},
		{"of two with an end the shorter", []*ebbv1.ControlCommand{short, long}, drop("short", false, false), ""},
		{"of two with an end the longer, when the other's is over", []*ebbv1.ControlCommand{over, long, dash}, drop("long", false, false), "is the last of an operator"},
		{"one of two with the same end", []*ebbv1.ControlCommand{long, make("b", 9, role(operator, ""), 2_000, false, false)}, drop("long", false, false), ""},
		{"the last operator's beside another way in", []*ebbv1.ControlCommand{ops, dash}, drop("ops", false, true), ""},
		{"the last of all beside another way in", []*ebbv1.ControlCommand{ops}, drop("ops", false, true), ""},
		{"another", []*ebbv1.ControlCommand{ops, dash}, drop("dash", false, false), ""},
		{"opened while one is made", []*ebbv1.ControlCommand{ops, dash}, drop("ops", true, false), "is the last of an operator"},
		{"one made while the cluster is opened", []*ebbv1.ControlCommand{ops, drop("ops", true, false)}, dash, "would be the first"},
	} {
		s := bornCluster(t)
		s.apply(raiseCommand(proto.VersionLastOperator, s.c.Table().Epoch()))
		for _, command := range c.before {
			if e := s.apply(command).GetError(); e != nil {
				t.Fatalf("%s: %v", c.name, e)
			}
		}
		table := s.c.Table()
		e := proto.FromWire(s.apply(c.last).GetError())
		if (e == nil) != (c.want == "") || e != nil && !strings.Contains(e.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, e, c.want)
		}
		if e != nil && s.c.Table() != table {
			t.Errorf("%s: it is refused, and changes the table", c.name)
		}
	}
}

// Until all nodes know better, the operator's token that lasts longest is revoked as it was before. So a node that
// applies that entry later, at a newer version, has the same table.
func TestLastOperatorSinceItsVersion(t *testing.T) {
	ends := tokenCommand("ends", 2, role(ebbv1.Role_ROLE_OPERATOR, ""))
	ends.GetPutToken().Token.ExpiresUs = 1_000
	for version, refused := range map[uint32]bool{proto.VersionLastOperator - 1: false, proto.VersionLastOperator: true} {
		s := bornCluster(t)
		s.apply(raiseCommand(version, s.c.Table().Epoch()))
		for _, command := range []*ebbv1.ControlCommand{tokenCommand("ops", 1, role(ebbv1.Role_ROLE_OPERATOR, "")), ends} {
			if e := s.apply(command).GetError(); e != nil {
				t.Fatal(e)
			}
		}
		if e := s.apply(dropCommand("ops")).GetError(); (e != nil) != refused || (s.c.Table().Tokens().Named("ops") != nil) != refused {
			t.Errorf("version %d: %v, want refused: %v", version, e, refused)
		}
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

// From the storage version of proofs on, the first token needs the word of every present member. A node that proves
// nothing cannot join at the same time, in whatever order the two are proposed.
func TestTokensAndUnprovenNodes(t *testing.T) {
	first := func(epoch uint64) *ebbv1.ControlCommand {
		c := tokenCommand("ops", 1, role(ebbv1.Role_ROLE_OPERATOR, ""))
		c.GetPutToken().ProvenEpoch = epoch
		return c
	}
	join := func(proven bool) *ebbv1.ControlCommand {
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{
			Record: &ebbv1.NodeRecord{Name: "guest", Disk: "d9"}, Proven: proven,
		}}}
	}
	raised := func(version uint32) testControl {
		s := bornCluster(t)
		if e := s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RaiseVersion{RaiseVersion: &ebbv1.RaiseVersion{To: version, Epoch: s.c.Table().Epoch()}}}).GetError(); e != nil {
			t.Fatal(e)
		}
		return s
	}
	code := func(e *ebbv1.Error) error {
		if err := proto.FromWire(e); err != nil {
			return err
		}
		return nil
	}

	s := raised(proto.VersionPeerProofs)
	asked := s.c.Table().Epoch()
	if err := code(s.apply(join(false)).GetError()); err != nil {
		t.Fatalf("a node joins a cluster that is open: %v", err)
	}
	if err := code(s.apply(first(asked)).GetError()); !errors.Is(err, proto.ErrTooStale) {
		t.Errorf("the first token, after a node that was not asked has joined: %v", err)
	}
	if err := code(s.apply(first(0)).GetError()); !errors.Is(err, proto.ErrTooStale) {
		t.Errorf("the first token, of which no member was asked: %v", err)
	}
	guarded := first(0)
	guarded.GetPutToken().Guarded = true
	if err := code(raised(proto.VersionPeerProofs).apply(guarded).GetError()); err != nil {
		t.Errorf("a token where there is another way in, by a build that asked no member there: %v", err)
	}
	if err := code(raised(proto.VersionDeletion).apply(guarded).GetError()); !errors.Is(err, proto.ErrTooStale) {
		t.Errorf("a token where there is another way in, of which no member was asked: %v", err)
	}

	s = raised(proto.VersionPeerProofs)
	if err := code(s.apply(first(s.c.Table().Epoch())).GetError()); err != nil {
		t.Fatalf("the first token: %v", err)
	}
	if err := code(s.apply(join(false)).GetError()); !errors.Is(err, proto.ErrUnauthenticated) ||
		s.c.Table().Node("guest") != nil {
		t.Errorf("a node joins a cluster with tokens, and proves nothing: %v", err)
	}
	if err := code(s.apply(join(true)).GetError()); err != nil {
		t.Errorf("a node joins a cluster with tokens, and proves that it is one: %v", err)
	}
	second := tokenCommand("dash", 2, role(ebbv1.Role_ROLE_READER, "*"))
	if err := code(s.apply(second).GetError()); err != nil {
		t.Errorf("a second token asks no member: %v", err)
	}

	s = raised(proto.VersionPeerProofs - 1) // what older builds wrote is applied as they did
	for _, c := range []*ebbv1.ControlCommand{first(0), join(false)} {
		if err := code(s.apply(c).GetError()); err != nil {
			t.Errorf("before the version: %v", err)
		}
	}
}
