package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// RoleNode is the role of nodes of the cluster.
const RoleNode = "node"

// unitPrefix distinguishes our roles from the organizational units that a company's certificates have anyway.
const unitPrefix = "ebb:"

// Identity is the holder of a verified certificate.
type Identity struct {
	// Name is the common name, or else the first DNS name or URI; "" if the certificate has none of these.
	Name string
	// Roles are the roles that the certificate grants, without the prefix, in the certificate's order.
	Roles []string
}

// Has reports whether the certificate grants a role.
func (i Identity) Has(role string) bool { return slices.Contains(i.Roles, role) }

// IdentityOf reads a certificate. It does not check that the certificate can be trusted; the handshake does.
func IdentityOf(c *x509.Certificate) Identity {
	i := Identity{Name: c.Subject.CommonName}
	switch {
	case i.Name != "":
	case len(c.DNSNames) > 0:
		i.Name = c.DNSNames[0]
	case len(c.URIs) > 0:
		i.Name = c.URIs[0].String()
	}
	for _, unit := range c.Subject.OrganizationalUnit {
		if role, ok := strings.CutPrefix(unit, unitPrefix); ok && role != "" {
			i.Roles = append(i.Roles, role)
		}
	}
	return i
}

// OfConnection returns the identity of the other end of a TLS connection. It returns false if the other end sent no
// certificate, or if the certificate was not verified.
func OfConnection(s *tls.ConnectionState) (Identity, bool) {
	if s == nil || len(s.VerifiedChains) == 0 {
		return Identity{}, false
	}
	return IdentityOf(s.VerifiedChains[0][0]), true
}

type identityKey struct{}

// With returns a context of a request, with the identity of the other end of its connection.
func With(ctx context.Context, s *tls.ConnectionState) context.Context {
	if i, ok := OfConnection(s); ok {
		return context.WithValue(ctx, identityKey{}, i)
	}
	return ctx
}

// From returns the identity of the sender of a request, over gRPC or over an interface that used With. It returns false
// if the sender has no verified certificate.
func From(ctx context.Context) (Identity, bool) {
	if i, ok := ctx.Value(identityKey{}).(Identity); ok {
		return i, true
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			return OfConnection(&info.State)
		}
	}
	return Identity{}, false
}

// Encrypted reports whether a gRPC request came over TLS.
func Encrypted(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.AuthInfo != nil && p.AuthInfo.AuthType() == credentials.TLSInfo{}.AuthType()
}
