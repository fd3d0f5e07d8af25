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

// TokenHash is the stored hash of a token's text. A lookup by hash takes a time that reveals nothing about the text.
type TokenHash [sha256.Size]byte

// HashToken returns the hash of a token's text, and false if the text is longer than any token. It does not allocate.
func HashToken(text string) (TokenHash, bool) {
	var buf [proto.TokenLenMax]byte
	if len(text) > len(buf) {
		return TokenHash{}, false
	}
	return sha256.Sum256(buf[:copy(buf[:], text)]), true
}

// Token is a named caller and its grants. It is immutable.
type Token struct {
	Name    string
	Hash    TokenHash
	Expires int64 // µs since 1970; 0 for never
	grants  []*ebbv1.Grant
}

// NewToken returns the token of a record, which proto.CheckToken must have accepted.
func NewToken(r *ebbv1.TokenRecord) *Token {
	t := &Token{Name: r.GetName(), Expires: r.GetExpiresUs(), grants: r.GetGrants()}
	_, _ = hex.Decode(t.Hash[:], []byte(r.GetSha256())) // it was checked
	return t
}

// Granted returns a token for a caller that was authenticated in another way, with grants that proto.CheckGrant must
// have accepted.
func Granted(name string, grants []*ebbv1.Grant) *Token { return &Token{Name: name, grants: grants} }

// Operator returns a token with the role operator, which may do everything.
func Operator(name string) *Token {
	return Granted(name, []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_OPERATOR}})
}

// Grants returns the grants of the token. The caller must not change them.
func (t *Token) Grants() []*ebbv1.Grant { return t.grants }

// May reports whether the token has a role in a namespace; the empty name stands for "default".
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

// Ended reports whether the token has expired at a time in µs since 1970.
func (t *Token) Ended(nowUS int64) bool { return t.Expires != 0 && t.Expires <= nowUS }

// Tokens are the tokens of a table. They are immutable.
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

// Len returns the number of tokens; if it is not 0, callers need a token.
func (ts *Tokens) Len() int { return len(ts.byName) }

// Of returns the token with a hash; nil if there is none.
func (ts *Tokens) Of(h TokenHash) *Token { return ts.byHash[h] }

// Named returns the token of a name; nil if there is none.
func (ts *Tokens) Named(name string) *Token { return ts.byName[name] }

// Operators returns how many tokens have the role operator and have not expired at nowUS.
func (ts *Tokens) Operators(nowUS int64) (n int) {
	for _, t := range ts.byName {
		if t.Has(ebbv1.Role_ROLE_OPERATOR) && !t.Ended(nowUS) {
			n++
		}
	}
	return n
}

// Tokens returns the tokens of the cluster.
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

// putToken creates a token. Repeating the command, for a caller that did not get the answer, changes nothing.
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

// mayBegin refuses a first token after which no caller could create another one, now or later. The check is made in the
// state machine, where commands have an order: two concurrent commands cannot both pass it.
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

// provenBy refuses the first token of a cluster if the members may have changed since they were asked for proofs: from
// that token on, members refuse a node without a proof.
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

// dropToken revokes a token, if it exists.
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

// mayEnd refuses to revoke a token if that would lock callers out, now or later, or open the cluster to all. Like
// mayBegin it checks in the state machine. From VersionLastOperator on it also considers later: an operator's token can
// be revoked only if another operator's lasts as long.
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

// outlasted reports whether another operator's token expires no sooner than t.
func (ts *Tokens) outlasted(t *Token) bool {
	for _, o := range ts.byName {
		if o != t && o.Has(ebbv1.Role_ROLE_OPERATOR) && (o.Expires == 0 || t.Expires != 0 && o.Expires >= t.Expires) {
			return true
		}
	}
	return false
}
