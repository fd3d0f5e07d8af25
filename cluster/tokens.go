package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// TokenHash is what is kept of a token's text. The time of a lookup by hash reveals nothing of it.
type TokenHash [sha256.Size]byte

// HashToken returns the hash of a token's text, and false if it is longer than any token. It allocates nothing.
func HashToken(text string) (TokenHash, bool) {
	var buf [proto.TokenLenMax]byte
	if len(text) > len(buf) {
		return TokenHash{}, false
	}
	return sha256.Sum256(buf[:copy(buf[:], text)]), true
}

// Token is a caller with a name, and what it may do. It is a value that nothing changes.
type Token struct {
	Name    string
	Hash    TokenHash
	Expires int64 // µs since 1970; 0 for never
	grants  []*ebbv1.Grant
}

// NewToken returns a token of a record that proto.CheckToken has accepted.
func NewToken(r *ebbv1.TokenRecord) *Token {
	t := &Token{Name: r.GetName(), Expires: r.GetExpiresUs(), grants: r.GetGrants()}
	_, _ = hex.Decode(t.Hash[:], []byte(r.GetSha256())) // it was checked
	return t
}

// Granted is a token of a caller who is known in another way, and of grants that proto.CheckGrant has accepted.
func Granted(name string, grants []*ebbv1.Grant) *Token { return &Token{Name: name, grants: grants} }

// Operator is a token that may do everything.
func Operator(name string) *Token {
	return Granted(name, []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_OPERATOR}})
}

// Grants are what the token may do. The caller does not change them.
func (t *Token) Grants() []*ebbv1.Grant { return t.grants }

// May reports whether the token has a role in a namespace, "default" for the empty name.
func (t *Token) May(role ebbv1.Role, namespace string) bool {
	if namespace == "" {
		namespace = proto.DefaultNamespace
	}
	for _, g := range t.grants {
		if g.GetRole() == ebbv1.Role_ROLE_OPERATOR || g.GetRole() >= role && proto.MatchNamespace(g.GetNamespaces(), namespace) {
			return true
		}
	}
	return false
}

// Has reports whether the token has a role in any namespace.
func (t *Token) Has(role ebbv1.Role) bool {
	return slices.ContainsFunc(t.grants, func(g *ebbv1.Grant) bool { return g.GetRole() >= role })
}

// Ended reports whether the token's time is over at a time in µs since 1970.
func (t *Token) Ended(nowUS int64) bool { return t.Expires != 0 && t.Expires <= nowUS }

// Tokens are those of a table. They never change.
type Tokens struct {
	byHash map[TokenHash]*Token
	byName map[string]*Token
}

// NewTokens returns the tokens of a table's records.
func NewTokens(records []*ebbv1.TokenRecord) *Tokens {
	ts := &Tokens{byHash: make(map[TokenHash]*Token, len(records)), byName: make(map[string]*Token, len(records))}
	for _, r := range records {
		t := NewToken(r)
		ts.byHash[t.Hash], ts.byName[t.Name] = t, t
	}
	return ts
}

// Len returns how many there are; from the first on callers need one.
func (ts *Tokens) Len() int { return len(ts.byName) }

// Of returns the token with a hash; nil if there is none.
func (ts *Tokens) Of(h TokenHash) *Token { return ts.byHash[h] }

// Named returns the token of a name; nil if there is none.
func (ts *Tokens) Named(name string) *Token { return ts.byName[name] }

// Operators returns how many tokens have the role operator and have not ended.
func (ts *Tokens) Operators(nowUS int64) (n int) {
	for _, t := range ts.byName {
		if t.Has(ebbv1.Role_ROLE_OPERATOR) && !t.Ended(nowUS) {
			n++
		}
	}
	return n
}

// Tokens returns the tokens that the cluster has.
func (t *Table) Tokens() *Tokens { return t.tokens }

func (t *Table) indexTokens() error {
	slices.SortFunc(t.wire.Tokens, func(a, b *ebbv1.TokenRecord) int { return strings.Compare(a.GetName(), b.GetName()) })
	for _, r := range t.wire.GetTokens() {
		if err := proto.CheckToken(r); err != nil {
			return proto.ErrBadRequest.Errorf("table: %s", err.Message)
		}
	}
	t.tokens = NewTokens(t.wire.GetTokens())
	if t.tokens.Len() != len(t.wire.GetTokens()) || len(t.tokens.byHash) != t.tokens.Len() {
		return proto.ErrBadRequest.Errorf("table names a token twice")
	}
	return nil
}

// putToken makes a token. The same one again, of a caller that has not heard that it is made, is no change.
func (c *Control) putToken(cmd *ebbv1.PutToken) *proto.Error {
	table := c.Table()
	if table.ClusterID() == "" {
		return errStarting()
	}
	if err := proto.CheckToken(cmd.GetToken()); err != nil {
		return err
	}
	want := pb.CloneOf(cmd.GetToken())
	want.ProtoReflect().SetUnknown(nil)
	made := NewToken(want)
	if have := table.tokens.Named(want.GetName()); have != nil {
		if have.Hash == made.Hash && have.Expires == made.Expires && slices.EqualFunc(have.grants, made.grants, func(a, b *ebbv1.Grant) bool { return pb.Equal(a, b) }) {
			return nil
		}
		return proto.ErrBadRequest.Errorf("token %s exists", want.GetName()).WithHint("choose another name, or revoke it first: ebb token revoke " + want.GetName())
	}
	if other := table.tokens.Of(made.Hash); other != nil {
		return proto.ErrBadRequest.Errorf("token %s is the same as token %s", want.GetName(), other.Name)
	}
	if table.tokens.Len() >= proto.TokensMax {
		return proto.ErrBadRequest.Errorf("token %s: there are %d already, which is the limit", want.GetName(), proto.TokensMax).WithHint("revoke some that nobody uses: ebb token list")
	}
	if err := table.tokens.mayBegin(made, cmd); err != nil {
		return err
	}
	if err := table.provenBy(cmd); err != nil {
		return err
	}
	wire := edit(table)
	wire.Tokens = put(wire.Tokens, want, (*ebbv1.TokenRecord).GetName)
	c.swap(wire)
	return nil
}

// mayBegin refuses a first token after which no caller could make another, now or later. It is called where commands
// have an order: two at a time cannot pass each other by.
func (ts *Tokens) mayBegin(made *Token, cmd *ebbv1.PutToken) *proto.Error {
	switch {
	case cmd.GetGuarded() || ts.Len() > 0:
		return nil
	case !made.Has(ebbv1.Role_ROLE_OPERATOR):
		return proto.ErrBadRequest.Errorf("token %s would be the first, and is not an operator's: from it on nobody could make another", made.Name).
			WithHint("make one first with: ebb token create NAME --role operator")
	case made.Expires != 0 && !cmd.GetMayEnd():
		return proto.ErrBadRequest.Errorf("token %s would be the first, and has an end: after it nobody could make another", made.Name).
			WithHint("make one without --expires first, or say --yes if another operator's is to follow")
	}
	return nil
}

// provenBy refuses the first token of a cluster whose members may have changed since they were asked for proofs: from
// that token on, a member that proves nothing is heard by no other.
func (t *Table) provenBy(cmd *ebbv1.PutToken) *proto.Error {
	// Builds of storage version 8 asked no member where there was another way in.
	unasked := t.Version() < proto.VersionDeletion && cmd.GetGuarded()
	if t.Version() < proto.VersionPeerProofs || t.tokens.Len() > 0 || unasked || cmd.GetProvenEpoch() == t.Epoch() {
		return nil
	}
	return proto.ErrTooStale.Errorf("the table has changed since the members were asked whether they prove that "+
		"they are nodes: its epoch is %d, and was %d",
		t.Epoch(), cmd.GetProvenEpoch()).WithHint("try again")
}

// dropToken revokes a token, if there is one of that name.
func (c *Control) dropToken(cmd *ebbv1.DropToken) *proto.Error {
	table := c.Table()
	t := table.tokens.Named(cmd.GetName())
	if t == nil {
		return nil
	}
	if err := table.tokens.mayEnd(t, cmd, table.Version() >= proto.VersionLastOperator); err != nil {
		return err
	}
	wire := edit(table)
	wire.Tokens = slices.DeleteFunc(wire.Tokens, func(r *ebbv1.TokenRecord) bool { return r.GetName() == t.Name })
	c.swap(wire)
	return nil
}

// mayEnd refuses to revoke a token without which callers would be locked out, now or later, or the cluster be open to
// all, where commands have an order, as mayBegin does. Later is looked at from VersionLastOperator on: an operator's
// token goes only if another's lasts as long.
func (ts *Tokens) mayEnd(t *Token, cmd *ebbv1.DropToken, later bool) *proto.Error {
	now := cmd.GetNowUs()
	operates := t.Has(ebbv1.Role_ROLE_OPERATOR) && !t.Ended(now)
	switch {
	case cmd.GetGuarded():
		return nil
	case ts.Len() == 1 && !cmd.GetOpen():
		return proto.ErrBadRequest.Errorf("token %s is the last: without it everybody may do everything", t.Name).
			WithHint("ebb token revoke " + t.Name + " --open, if that is meant")
	case ts.Len() > 1 && operates && ts.Operators(now) == 1:
		return proto.ErrBadRequest.Errorf("token %s is the last of an operator: without it nobody could make or revoke others", t.Name).
			WithHint("make another first (ebb token create NAME --role operator), or revoke the others first")
	case later && ts.Len() > 1 && operates && !ts.outlasted(t):
		return proto.ErrBadRequest.Errorf("token %s is the operator's that lasts longest: after the end of the others nobody could make or revoke any", t.Name).
			WithHint("make another first (ebb token create NAME --role operator, without --expires), or revoke the others first")
	}
	return nil
}

// outlasted reports whether there is another operator's token that ends no sooner.
func (ts *Tokens) outlasted(t *Token) bool {
	for _, o := range ts.byName {
		if o != t && o.Has(ebbv1.Role_ROLE_OPERATOR) && (o.Expires == 0 || t.Expires != 0 && o.Expires >= t.Expires) {
			return true
		}
	}
	return false
}
