package rpc

import (
	"net/url"
	"strings"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// certified is the prefix of the names of callers that show a certificate and no token. No token has such a name.
const certified = "cert:"

// certificateToken returns what the holder of a client's certificate may do, by its roles (reader=clicks, operator).
// Roles without namespaces hold in all of them. Words that are no role are ignored.
func certificateToken(who trust.Identity) *cluster.Token {
	var grants []*ebbv1.Grant
	for _, word := range who.Roles {
		if g := parseGrant(word); g != nil {
			grants = append(grants, g)
		}
	}
	return cluster.Granted(certified+url.QueryEscape(who.Name), grants)
}

func parseGrant(word string) *ebbv1.Grant {
	name, namespaces, some := strings.Cut(word, "=")
	role, known := proto.RoleNamed(name)
	if known && !some && role != operator {
		namespaces = "*"
	}
	g := &ebbv1.Grant{Role: role, Namespaces: namespaces}
	if !known || proto.CheckGrant(g) != nil {
		return nil
	}
	return g
}

// originOf is how a node names the caller for which it asks. That is the name of a token, or the name of a certificate
// with its roles, which the other node cannot look up.
func originOf(t *cluster.Token) string {
	if !strings.HasPrefix(t.Name, certified) {
		return t.Name
	}
	words := []string{t.Name}
	for _, g := range t.Grants() {
		words = append(words, strings.TrimSuffix(proto.RoleName(g.GetRole())+"="+g.GetNamespaces(), "="))
	}
	return strings.Join(words, " ")
}

// certifiedOrigin is the inverse of originOf; nil for the name of a token.
func certifiedOrigin(origin string) *cluster.Token {
	if !strings.HasPrefix(origin, certified) {
		return nil
	}
	words := strings.Split(origin, " ")
	var grants []*ebbv1.Grant
	for _, word := range words[1:] {
		if g := parseGrant(word); g != nil && len(grants) < proto.GrantsMax {
			grants = append(grants, g)
		}
	}
	return cluster.Granted(words[0], grants)
}
