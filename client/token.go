package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Roles of tokens. Reader, writer and admin are of namespaces, and each may do what those before it may.
const (
	RoleReader   = ebbv1.Role_ROLE_READER
	RoleWriter   = ebbv1.Role_ROLE_WRITER
	RoleAdmin    = ebbv1.Role_ROLE_ADMIN
	RoleOperator = ebbv1.Role_ROLE_OPERATOR
)

// Grant is a role and the namespaces where it holds. Namespaces is a name, in which * stands for any bytes; it is empty
// for an operator.
type Grant struct {
	Role       ebbv1.Role
	Namespaces string
}

// Token describes a token, without its text.
type Token struct {
	Name      string
	Grants    []Grant
	Created   time.Time
	Expires   time.Time // zero for never
	CreatedBy string    // token that made it; "" if callers needed none
}

// NewTokenText draws a token: 32 random bytes as text.
func NewTokenText() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return "ebb_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// NewToken is a token that is to be made.
type NewToken struct {
	Name    string
	Grants  []Grant
	Expires time.Time // zero for never
	// MayEnd allows an end for the first token too. After that end no caller could make another token.
	MayEnd bool
}

// CreateToken makes a token and returns its text. Only the caller learns the text: the cluster gets its SHA-256. A zero
// expires is never. It retries: a token is made once. If it is unknown whether the token was made (ErrUnknownOutcome),
// CreateToken returns the text, too. Keep it: if the token was the first, there is no other.
func (c *Client) CreateToken(ctx context.Context, name string, expires time.Time, grants ...Grant) (text string, made Token, err error) {
	return c.MakeToken(ctx, NewToken{Name: name, Expires: expires, Grants: grants})
}

// MakeToken is CreateToken with all options of a token.
func (c *Client) MakeToken(ctx context.Context, t NewToken) (text string, made Token, err error) {
	text = NewTokenText()
	hash := sha256.Sum256([]byte(text))
	req := &ebbv1.CreateTokenRequest{
		Name: t.Name, Sha256: hex.EncodeToString(hash[:]), MayEnd: t.MayEnd, IdempotencyKey: c.idempotencyKey(),
	}
	if !t.Expires.IsZero() {
		req.ExpiresUs = t.Expires.UnixMicro()
	}
	for _, g := range t.Grants {
		req.Grants = append(req.Grants, &ebbv1.Grant{Role: g.Role, Namespaces: g.Namespaces})
	}
	var resp *ebbv1.CreateTokenResponse
	err = c.anywhere(ctx, attempt{op: "create token", key: t.Name}, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(cc).CreateToken(ctx, req)
		return err
	})
	switch {
	case err != nil && isUnknown(err):
		return text, Token{}, err
	case err != nil:
		return "", Token{}, err
	}
	return text, tokenOf(resp.GetToken()), nil
}

// Tokens lists the tokens. inForce reports whether callers need one.
func (c *Client) Tokens(ctx context.Context) (list []Token, inForce bool, err error) {
	var resp *ebbv1.ListTokensResponse
	err = c.anywhere(ctx, attempt{op: "list tokens"}, question, func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(cc).ListTokens(ctx, &ebbv1.ListTokensRequest{})
		return err
	})
	for _, r := range resp.GetTokens() {
		list = append(list, tokenOf(r))
	}
	return list, resp.GetInForce(), err
}

// RevokeToken ends a token. It ends the last one only if open is set: from then on everybody may do everything. It
// retries. A token that has disappeared between tries counts as revoked.
func (c *Client) RevokeToken(ctx context.Context, name string, open bool) error {
	tries, req := 0, &ebbv1.RevokeTokenRequest{Name: name, Open: open, IdempotencyKey: c.idempotencyKey()}
	return c.anywhere(ctx, attempt{op: "revoke token", key: name}, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) error {
		tries++
		resp, err := ebbv1grpc.NewEbbClient(cc).RevokeToken(ctx, req)
		if err == nil && resp.GetAbsent() && tries == 1 {
			return proto.ErrBadRequest.Errorf("there is no token %s", name).WithHint("`ebb token list` shows those that there are")
		}
		return err
	})
}

func tokenOf(r *ebbv1.TokenRecord) Token {
	t := Token{Name: r.GetName(), Created: time.UnixMicro(r.GetCreatedUs()), CreatedBy: r.GetCreatedBy()}
	if r.GetExpiresUs() != 0 {
		t.Expires = time.UnixMicro(r.GetExpiresUs())
	}
	for _, g := range r.GetGrants() {
		t.Grants = append(t.Grants, Grant{Role: g.GetRole(), Namespaces: g.GetNamespaces()})
	}
	return t
}

// bearer is a token in the form that calls carry.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. TLS is up to the caller.
func (bearer) RequireTransportSecurity() bool { return false }
