package proto

import (
	"encoding/hex"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Limits of tokens.
const (
	TokensMax    = 1_000
	GrantsMax    = 16 // of a token
	TokenLenMin  = 32 // of the text of a token
	TokenLenMax  = 256
	TokenNameMax = 64
)

// Names that no token may have: the audit log uses them for callers without a named token.
const (
	NameRoot   = "root"   // a token from a file
	NameAnyone = "anyone" // no token
	NameNode   = "node"   // another node, on its own behalf
)

// HintProofs says how the nodes of a cluster can prove to each other that they are nodes.
const HintProofs = "one of: (1) a cluster secret: `ebb token secret --out cluster.secret`, copy the file to all " +
	"nodes, and restart one after the other with " +
	"--cluster-secret-file cluster.secret; (2) a root token: the same with root.token and --root-token-file, but " +
	"stop all nodes before the first starts with it; " +
	"(3) TLS: `ebb cert ca`, `ebb cert node NAME` for each, stop all nodes, and start them with --tls-cert, " +
	"--tls-key and --tls-ca"

// CheckToken checks everything about a token's record that does not depend on other records.
func CheckToken(t *ebbv1.TokenRecord) *Error {
	if err := CheckTokenName(t.GetName()); err != nil {
		return err
	}
	if len(t.GetSha256()) != 64 || strings.ToLower(t.GetSha256()) != t.GetSha256() || !isHex(t.GetSha256()) {
		return ErrBadRequest.Errorf("token %s: sha256 has %d characters: it is 64 hexadecimal digits, in lower case", t.GetName(), len(t.GetSha256()))
	}
	if n := len(t.GetGrants()); n == 0 || n > GrantsMax {
		return ErrBadRequest.Errorf("token %s with %d roles: it has 1 to %d", t.GetName(), n, GrantsMax)
	}
	for _, g := range t.GetGrants() {
		if err := CheckGrant(g); err != nil {
			return err
		}
	}
	if t.GetCreatedUs() < 0 || t.GetExpiresUs() < 0 {
		return ErrBadTime.Errorf("token %s: a time before 1970", t.GetName())
	}
	return nil
}

func isHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil
}

// CheckTokenName refuses a name that is not one word of a log line, and the reserved names of the audit log.
func CheckTokenName(name string) *Error {
	if name == "" || len(name) > TokenNameMax {
		return ErrBadRequest.Errorf("token name of %d bytes: it has 1 to %d", len(name), TokenNameMax)
	}
	for i := range len(name) {
		if !plainByte(name[i]) {
			return ErrBadRequest.Errorf("token name %q: only letters, digits, '_', '-' and '.' are allowed", name)
		}
	}
	switch name {
	case NameRoot, NameAnyone, NameNode:
		return ErrBadRequest.Errorf("token name %s: it stands for somebody else in the audit log", name).WithHint("choose another name")
	}
	return nil
}

func plainByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// CheckGrant refuses unknown roles, and patterns of namespaces that no name can match.
func CheckGrant(g *ebbv1.Grant) *Error {
	pattern := g.GetNamespaces()
	switch g.GetRole() {
	case ebbv1.Role_ROLE_OPERATOR:
		if pattern != "" {
			return ErrBadRequest.Errorf("role operator of namespaces %q: it is of the whole cluster", pattern)
		}
		return nil
	case ebbv1.Role_ROLE_READER, ebbv1.Role_ROLE_WRITER, ebbv1.Role_ROLE_ADMIN:
	default:
		return ErrBadRequest.Errorf("role %d is unknown: reader, writer, admin or operator", g.GetRole())
	}
	if pattern == "" || len(pattern) > NamespaceLenMax {
		return ErrBadRequest.Errorf("role %s of namespaces %q: a pattern has 1 to %d bytes", RoleName(g.GetRole()), pattern, NamespaceLenMax).
			WithHint("name a namespace, or several with a *: clicks, web-*, *")
	}
	for i := range len(pattern) {
		if c := pattern[i]; c != '*' && !plainByte(c) {
			return ErrBadRequest.Errorf("role %s of namespaces %q: only letters, digits, '_', '-', '.' and * are allowed", RoleName(g.GetRole()), pattern)
		}
	}
	return nil
}

// RoleName is the role as users write it.
func RoleName(r ebbv1.Role) string { return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")) }

// RoleNamed is the inverse of RoleName.
func RoleNamed(name string) (ebbv1.Role, bool) {
	r, ok := ebbv1.Role_value["ROLE_"+strings.ToUpper(name)]
	return ebbv1.Role(r), ok && r != 0
}

// MatchNamespace reports whether a name matches a pattern. A * matches any bytes. It takes time in proportion to the
// product of both lengths at most.
func MatchNamespace(pattern, name string) bool {
	star, from := -1, 0 // the last * in the pattern, and the end of what it matches
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p, n = p+1, n+1
		case star >= 0:
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// CommandBody returns the namespace of a serialised Command, "" if none; the field number of its body, 0 if there is no
// body or raw is malformed; and the contents of the body. It allocates nothing.
func CommandBody(raw []byte) (namespace []byte, field int, body []byte) {
	WalkFields(raw, func(num protowire.Number, _ uint64, b []byte) bool {
		switch {
		case num == FieldCommandNamespace:
			namespace = b
		case num >= FieldCommandIncrements:
			field, body = int(num), b
		}
		return true
	})
	return namespace, field, body
}
