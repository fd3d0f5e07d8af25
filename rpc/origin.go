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

// Metadata of calls between nodes. A node that asks for a client names the client. The receiver decides by the rights
// of that client, and does not rely on the checks of the other node. A caller that does not prove that it is a node is
// an ordinary caller, whatever it sends here.
//
//	ebb-peer    NAME [MS PROOF]   the node that calls; without TLS also when, and a proof by its root token,
//	                              or else by its cluster secret
//	ebb-proof   PROOF             the proof by its cluster secret, if it has a root token too
//	ebb-origin  node              it asks for itself: raft, moves, status, audits
//	            anyone            for a caller who has shown nothing
//	            NAME | root       for the holder of a token
//	            cert:NAME ROLES   for the holder of a certificate
//	            sha256:HASH       for the holder of a token that the node does not know
const (
	peerKey   = "ebb-peer"
	proofKey  = "ebb-proof"
	originKey = "ebb-origin"
)

// hashed is the prefix of the origin of a token that is named by its hash. No token has such a name.
const hashed = "sha256:"

// ProofLife is how long a proof holds, and how far the clocks of two nodes may differ.
const ProofLife = 5 * time.Minute

// statement is what a proof proves: one call, to one node, for one origin, at one time. A caller that intercepts a
// proof, or is dialled by mistake, can use it for no other node, method or origin, and not for long.
type statement struct {
	from, to, method, origin string
	ms                       int64 // since 1970
}

// proof proves that a node has a key, and does not reveal the key.
func (s statement) proof(key string) string {
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "ebb node\n%s\n%s\n%s\n%s\n%d", s.from, s.to, s.method, s.origin, s.ms) // no header has a line break in it
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// peerKeys are the keys by which nodes without TLS prove to each other that they are nodes.
type peerKeys struct {
	root, secrets []string // this node's own proofs are by the first of each
}

func (k peerKeys) none() bool { return len(k.root)+len(k.secrets) == 0 }

// sent returns the proofs of a statement that this node sends. A build before storage version 8 checks only the first,
// and accepts only root tokens.
func (k peerKeys) sent(s statement) (proofs []string) {
	for _, keys := range [][]string{k.root, k.secrets} {
		if len(keys) > 0 {
			proofs = append(proofs, s.proof(keys[0]))
		}
	}
	return proofs
}

// accepts reports whether one of these proofs is by one of the keys, and names the kind of that key.
func (k peerKeys) accepts(s statement, proofs ...string) (kind evidence, ok bool) {
	for _, of := range []struct {
		keys []string
		kind evidence
	}{{k.root, byRootToken}, {k.secrets, bySecret}} {
		for _, key := range of.keys {
			want := s.proof(key)
			for _, proof := range proofs {
				if subtle.ConstantTimeCompare([]byte(want), []byte(proof)) == 1 {
					return of.kind, true
				}
			}
		}
	}
	return "", false
}

// fingerprint identifies a key of at least proto.TokenLenMin random characters, and does not reveal it.
func fingerprint(key string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte("ebb fingerprint"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// ProofKeys returns fingerprints of the keys by which this node proves that it is a node, and of those whose proofs it
// accepts.
func (a *Access) ProofKeys() (shown, accepted []string) {
	for _, keys := range [][]string{a.keys.root, a.keys.secrets} {
		for i, key := range keys {
			if i == 0 {
				shown = append(shown, fingerprint(key))
			}
			accepted = append(accepted, fingerprint(key))
		}
	}
	return shown, accepted
}

// evidence is how a caller has proven that it is a node, as the audit log names it.
type evidence string

const (
	byCertificate evidence = "certificate"
	byRootToken   evidence = "proof by a root token"
	bySecret      evidence = "proof by a cluster secret"
)

// proofFailure is why a caller that claims to be a node is not believed. The text of the refusal is made only when
// there is a refusal: in a cluster without tokens and proofs all nodes call like this.
type proofFailure struct {
	why proofFault
	off time.Duration // of faultClock: how far the clock of the caller is behind this node's
}

type proofFault string

const (
	faultNoKey         proofFault = "no_key"         // this node has no key to check a proof by
	faultNoProof       proofFault = "no_proof"       // the caller sends none
	faultUnknownKey    proofFault = "unknown_key"    // its proof is by a key that this node does not accept
	faultClock         proofFault = "clock"          // its proof is of another time
	faultNoCertificate proofFault = "no_certificate" // there is TLS, and its certificate is not a node's
)

var proofFaults = []proofFault{faultNoKey, faultNoProof, faultUnknownKey, faultClock, faultNoCertificate}

// refusal is the error of a caller without a token that claims to be a node. The caller has chosen the name.
func (d proofFailure) refusal(name string) error {
	e := proto.ErrUnauthenticated.Errorf("a caller says that it is node %q, and does not prove it", name)
	switch d.why {
	case faultNoKey:
		e = proto.ErrUnauthenticated.Errorf("a caller says that it is node %q: this node cannot check that, since it "+
			"has neither TLS nor a cluster secret", name)
	case faultUnknownKey:
		e = proto.ErrUnauthenticated.Errorf("a caller says that it is node %q, and proves it by a secret that this "+
			"node does not accept", name)
		return e.WithHint("give all nodes the same --cluster-secret-file, or the same --root-token-file; " +
			"to replace a secret, add the new one as the last line on all nodes first")
	case faultClock:
		e = proto.ErrUnauthenticated.Errorf("node %q proves that it called %v ago by this node's clock: a proof holds "+
			"for %v", name, d.off.Round(time.Second), ProofLife)
		return e.WithHint("set the clocks of the nodes right")
	case faultNoCertificate:
		return e.WithHint("start all nodes with certificates of nodes: ebb cert node")
	}
	return e.WithHint(proto.HintProofs)
}

// identify identifies the caller by the metadata of a gRPC call. It refuses wrong credentials. A caller without
// credentials is anyone. A caller that claims without proof to be a node is judged by its other credentials.
func (a *Access) identify(ctx context.Context, method string, md metadata.MD, c *caller) error {
	claim := first(md, peerKey)
	if claim == "" {
		return a.show(ctx, first(md, authorizationKey), c)
	}
	origin := first(md, originKey)
	name, rest, _ := strings.Cut(claim, " ")
	c.peer = clipTo(name, shownMax)
	if c.unproven = a.prove(ctx, statement{from: name, to: a.cfg.Node, method: method, origin: origin}, rest,
		first(md, proofKey), c); c.unproven.why != "" {
		a.unprovenBy[c.unproven.why].Inc()
		return a.show(ctx, first(md, authorizationKey), c)
	}
	c.node = true
	return a.originate(origin, c)
}

// ProvenNode reports whether the caller of a request is another node that has proven that it is one, and asks for
// itself.
func ProvenNode(ctx context.Context) bool { return callerOf(ctx).own }

// prove returns why a caller is not believed to be a node. Over TLS the caller needs the certificate of a node,
// otherwise a proof by a key of this node. A node without TLS and without keys believes no caller, even while no tokens
// are in force. Then its callers may do everything, but under no other name.
func (a *Access) prove(ctx context.Context, s statement, rest, more string, c *caller) proofFailure {
	if trust.Encrypted(ctx) {
		who, ok := trust.From(ctx)
		if !ok || !who.Has(trust.RoleNode) {
			return proofFailure{why: faultNoCertificate}
		}
		c.peer, c.evidence = clipTo(who.Name, shownMax), byCertificate
		return proofFailure{}
	}
	if a.keys.none() {
		return proofFailure{why: faultNoKey}
	}
	at, proof, ok := strings.Cut(rest, " ")
	ms, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return proofFailure{why: faultNoProof}
	}
	s.ms = ms
	if c.evidence, ok = a.keys.accepts(s, proof, more); !ok {
		return proofFailure{why: faultUnknownKey}
	}
	if off := a.cfg.Now().Sub(time.UnixMilli(ms)); off.Abs() > ProofLife {
		c.evidence = ""
		return proofFailure{why: faultClock, off: off}
	}
	return proofFailure{}
}

// originate identifies the caller for which another node asks.
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

// shownBy is what is forwarded about a caller whose token or certificate is not checked here; "" if there is none.
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

// origin is the caller's name in calls to other nodes.
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

// nodeCredentials are what a node sends to other nodes: that it is a node, and for whom it asks.
type nodeCredentials struct{ a *Access }

// Credentials returns the credentials of calls to other nodes. The authority of a connection is the name of the node.
func (a *Access) Credentials() credentials.PerRPCCredentials { return nodeCredentials{a} }

// GetRequestMetadata implements credentials.PerRPCCredentials. A call for a request has the context of the request; the
// other calls are the node's own.
func (n nodeCredentials) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	origin := proto.NameNode
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		origin = c.origin()
	}
	md := map[string]string{peerKey: n.a.cfg.Node, originKey: origin}
	if call, ok := credentials.RequestInfoFromContext(ctx); ok && !n.a.keys.none() && !encrypted(call.AuthInfo) &&
		len(uri) > 0 {
		to, err := url.Parse(uri[0])
		if err != nil {
			return nil, err
		}
		s := statement{from: n.a.cfg.Node, to: to.Host, method: call.Method, origin: origin, ms: n.a.cfg.Now().UnixMilli()}
		proofs := n.a.keys.sent(s)
		md[peerKey] = s.from + " " + strconv.FormatInt(s.ms, 10) + " " + proofs[0]
		if len(proofs) > 1 {
			md[proofKey] = proofs[1]
		}
	}
	return md, nil
}

// encrypted reports whether a connection shows the other end a certificate anyway.
func encrypted(info credentials.AuthInfo) bool {
	return info != nil && info.AuthType() == credentials.TLSInfo{}.AuthType()
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. TLS is optional.
func (nodeCredentials) RequireTransportSecurity() bool { return false }
