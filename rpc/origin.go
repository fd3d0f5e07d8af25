package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
)

// Metadata of calls between nodes. Whoever says that it is a node says of every call whose request it is, and the receiver goes by that:
// what the other node has let pass, and whether it knows that callers need a token, is not taken for granted.
//
//	ebb-peer    NAME [MS PROOF]   which node calls, and where there is no TLS when it did and that it has a root token
//	ebb-origin  node              it asks for itself: raft, moves, status, audits
//	            anyone            for somebody who has shown nothing
//	            NAME | root       for the holder of a token
//	            cert:NAME ROLES   for the holder of a certificate
//	            sha256:HASH       for somebody who has shown a token that the node does not know
const (
	peerKey   = "ebb-peer"
	originKey = "ebb-origin"
)

// hashed begins the origin of a token by its hash. No token has such a name.
const hashed = "sha256:"

// proofLife is how long a proof holds, and how far clocks of nodes may differ for it.
const proofLife = 5 * time.Minute

// statement is what a proof is of: one call, to one node, for one origin, now. Whoever hears it on the way, or is dialled because gossip was
// led astray, can ask no other node by it, nothing of another kind and for nobody else, and not for long.
type statement struct {
	from, to, method, origin string
	ms                       int64 // since 1970
}

// proof shows that a node has a root token: nobody learns the token of it.
func (s statement) proof(root string) string {
	mac := hmac.New(sha256.New, []byte(root))
	fmt.Fprintf(mac, "ebb node\n%s\n%s\n%s\n%s\n%d", s.from, s.to, s.method, s.origin, s.ms) // no header has a line break in it
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// Proven reports whether another node has to prove that it is one.
func (a *Access) Proven() bool { return len(a.cfg.Root) > 0 }

// identify finds out who a gRPC call of a method is of, by its metadata. It refuses what is shown and wrong; who shows nothing is anyone.
func (a *Access) identify(ctx context.Context, method string, md metadata.MD, c *caller) error {
	claim := first(md, peerKey)
	if claim == "" {
		return a.show(ctx, first(md, authorizationKey), c)
	}
	origin := first(md, originKey)
	if err := a.prove(ctx, method, claim, origin); err != nil {
		return err
	}
	c.node = true
	return a.originate(origin, c)
}

// prove refuses whoever says that it is a node and has neither the certificate of one, if there is TLS, nor else a root token, if this node
// has one. Without either, the network between nodes is trusted.
func (a *Access) prove(ctx context.Context, method, claim, origin string) error {
	words := strings.Split(claim, " ")
	if trust.Encrypted(ctx) {
		if who, ok := trust.From(ctx); ok && who.Has(trust.RoleNode) {
			return nil
		}
		return errUnproven(words[0])
	}
	if !a.Proven() {
		return nil
	}
	if len(words) != 3 {
		return errUnproven(words[0])
	}
	s := statement{from: words[0], to: a.cfg.Node, method: method, origin: origin}
	var err error
	if s.ms, err = strconv.ParseInt(words[1], 10, 64); err != nil {
		return errUnproven(s.from)
	}
	for _, root := range a.cfg.Root {
		if subtle.ConstantTimeCompare([]byte(s.proof(root)), []byte(words[2])) == 1 {
			return a.fresh(s)
		}
	}
	return errUnproven(s.from)
}

func errUnproven(name string) error {
	return proto.ErrUnauthenticated.Errorf("a caller says that it is node %q, and does not prove it", name).
		WithHint("start all nodes with certificates of nodes (`ebb cert node`), or with the same --root-token-file")
}

// fresh refuses a proof of another time.
func (a *Access) fresh(s statement) error {
	if off := a.cfg.Now().Sub(time.UnixMilli(s.ms)); off.Abs() > proofLife {
		return proto.ErrUnauthenticated.Errorf("node %q proves that it called %v ago, by the clock of node %s: a proof holds for %v", s.from, off.Round(time.Second), a.cfg.Node, proofLife).
			WithHint("set the clocks of the nodes right")
	}
	return nil
}

// originate finds out for whom another node asks.
func (a *Access) originate(origin string, c *caller) error {
	switch {
	case origin == proto.NameNode:
		c.own = true
		return nil
	case origin == proto.NameAnyone:
		return nil
	case !a.InForce():
		c.shown = origin
		return nil
	case origin == "":
		return proto.ErrUnauthenticated.Errorf("a node asks, and does not say for whom")
	case origin == proto.NameRoot:
		c.token = rootToken
		return nil
	}
	if digits, ok := strings.CutPrefix(origin, hashed); ok {
		var hash cluster.TokenHash
		if _, err := hex.Decode(hash[:], []byte(digits[:min(len(digits), 2*len(hash))])); err != nil || len(digits) != 2*len(hash) {
			return proto.ErrUnauthenticated.Errorf("a node asks for the holder of a token, and does not say of which")
		}
		return a.find(hash, c)
	}
	if c.token = certifiedOrigin(origin); c.token != nil {
		return nil
	}
	t := a.cfg.Tokens().Named(origin)
	if t == nil {
		return proto.ErrUnauthenticated.Errorf("token %s, for which another node asks, is not known to node %s, or was revoked", origin, a.cfg.Node)
	}
	c.token = t
	return a.lasts(t)
}

// shownBy is what others are told of a caller whose token or certificate means nothing here; "" if there is none.
func shownBy(ctx context.Context, authorization string) string {
	if authorization != "" {
		text, ok := bearerOf(authorization)
		hash, short := cluster.HashToken(text)
		if !ok || !short {
			return ""
		}
		return hashed + hex.EncodeToString(hash[:])
	}
	if who, ok := trust.From(ctx); ok && len(who.Roles) > 0 {
		return originOf(certificateToken(who))
	}
	return ""
}

// origin is what other nodes are told of a caller.
func (c *caller) origin() string {
	switch {
	case c.token != nil:
		return originOf(c.token)
	case c.own:
		return proto.NameNode
	case c.shown != "":
		return c.shown
	}
	return proto.NameAnyone
}

// nodeCredentials are what a node shows others: that it is one, and for whom it asks.
type nodeCredentials struct{ a *Access }

// Credentials returns what calls to other nodes carry. The authority of a connection is the name of the node.
func (a *Access) Credentials() credentials.PerRPCCredentials { return nodeCredentials{a} }

// GetRequestMetadata implements credentials.PerRPCCredentials. What is asked on behalf of a request has its context; the rest is the node's own.
func (n nodeCredentials) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	origin := proto.NameNode
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		origin = c.origin()
	}
	claim := n.a.cfg.Node
	if call, ok := credentials.RequestInfoFromContext(ctx); ok && n.a.Proven() && !encrypted(call.AuthInfo) && len(uri) > 0 {
		to, err := url.Parse(uri[0])
		if err != nil {
			return nil, err
		}
		claim = n.a.claim(statement{to: to.Host, method: call.Method, origin: origin})
	}
	return map[string]string{peerKey: claim, originKey: origin}, nil
}

// claim says that this node makes a call, and proves it.
func (a *Access) claim(s statement) string {
	s.from, s.ms = a.cfg.Node, a.cfg.Now().UnixMilli()
	return s.from + " " + strconv.FormatInt(s.ms, 10) + " " + s.proof(a.cfg.Root[0])
}

// encrypted reports whether a connection shows the other end a certificate anyway.
func encrypted(info credentials.AuthInfo) bool {
	return info != nil && info.AuthType() == credentials.TLSInfo{}.AuthType()
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Whoever wants it uses TLS.
func (nodeCredentials) RequireTransportSecurity() bool { return false }
