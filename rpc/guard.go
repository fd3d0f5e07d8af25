package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// authorizationKey is the key under which callers send a token.
const authorizationKey = "authorization"

// AccessConfig configures Access.
type AccessConfig struct {
	// Tokens returns the tokens that the cluster has now. Required.
	Tokens func() *cluster.Tokens
	// Root are texts of tokens that may do everything on this node, and prove that a caller is another node. All nodes
	// have the same ones. Proofs by each are accepted; this node's own proofs are by the first.
	Root []string
	// Secrets prove that a caller is another node, like Root, but are no tokens.
	Secrets []string
	// Known reports whether this node has received the cluster's tokens; always when nil.
	Known func() bool
	// Certified means that no caller is admitted without a certificate. Then a caller without a token has only the
	// roles of its certificate.
	Certified bool
	// Node is the name of this node.
	Node string
	// Audit takes a line for each administrative action and each denial; none are kept when nil.
	Audit *slog.Logger
	// Now is time.Now when nil.
	Now func() time.Time
	// Registerer registers the counters of denials; none when nil.
	Registerer prometheus.Registerer
}

// Access decides who may do what. Nil allows everybody everything, and so does an Access without tokens (see InForce).
type Access struct {
	cfg    AccessConfig
	root   map[cluster.TokenHash]bool
	keys   peerKeys
	denied *prometheus.CounterVec
	// unproven counts callers that claim to be nodes and are not believed, by reason.
	unproven    *prometheus.CounterVec
	unprovenBy  map[proofFault]prometheus.Counter // those of unproven
	limit       limiter
	auditWriter *auditWriter // nil: nothing is logged
	// auditor merges actions on data where there are many; nil if auditWriter is nil
	auditor *recordMerger
}

// rootToken is the token of a caller that shows a text of AccessConfig.Root.
var rootToken = cluster.Operator(proto.NameRoot)

// NewAccess returns an Access.
func NewAccess(cfg AccessConfig) *Access {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &Access{
		cfg: cfg, root: make(map[cluster.TokenHash]bool, len(cfg.Root)), keys: peerKeys{root: cfg.Root, secrets: cfg.Secrets},
		limit: limiter{now: cfg.Now, max: denialsMax},
	}
	for _, text := range cfg.Root {
		hash, _ := cluster.HashToken(text)
		a.root[hash] = true
	}
	a.denied = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ebb_rpc_denied_total", Help: "Requests that were refused for who asked, by code: no token that is known (EBB-2050), or not the role (EBB-2051).",
	}, []string{"code"})
	a.unproven = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ebb_rpc_unproven_total",
		Help: "Calls whose caller said that it is a node and was not believed, by reason: no_key (this node has " +
			"neither TLS nor a secret), no_proof, " +
			"unknown_key, clock, no_certificate. No node trusts another's word while this grows.",
	}, []string{"reason"})
	if cfg.Registerer != nil {
		a.denied, a.unproven = registered(cfg.Registerer, a.denied), registered(cfg.Registerer, a.unproven)
	}
	a.unprovenBy = make(map[proofFault]prometheus.Counter, len(proofFaults))
	for _, why := range proofFaults {
		a.unprovenBy[why] = a.unproven.WithLabelValues(string(why))
	}
	if cfg.Audit != nil {
		a.auditWriter = newAuditWriter(cfg.Audit, cfg.Registerer)
		a.auditor = newRecordMerger(cfg.Now, func(id mergeID, from, on, outcome string, requests int) {
			line := auditArgs(id.who, id.knownBy, from, id.what, on, outcome, cfg.Node)
			a.auditWriter.put(append(line, "requests", requests))
		})
	}
	return a
}

// InForce reports whether callers need a token, or a certificate with roles.
func (a *Access) InForce() bool {
	return a != nil && (a.Guarded() || a.cfg.Tokens().Len() > 0)
}

// known reports whether InForce describes the cluster as it is, and not as it was when this node last ran.
func (a *Access) known() bool { return a == nil || a.cfg.Known == nil || a.cfg.Known() }

// Guarded reports whether callers need a token even if the cluster has none. A caller that is known in another way can
// then make one.
func (a *Access) Guarded() bool { return len(a.root) > 0 || a.cfg.Certified }

func (a *Access) now() time.Time {
	if a == nil {
		return time.Now()
	}
	return a.cfg.Now()
}

// caller is the caller of a request: the holder of a token, a node for itself, or anyone. Another node may have
// forwarded the request.
type caller struct {
	token *cluster.Token
	node  bool   // another node calls, and has proven that it is one: for itself, or for the caller of the other fields
	own   bool   // the node calls for itself
	shown string // what was shown while no tokens are in force, as it is forwarded to others
	from  string // address, over HTTP
	path  string // where the request went, over HTTP, as the audit log shows it

	peer     string       // the node that the caller claims to be, proven or not
	evidence evidence     // for that, if node
	unproven proofFailure // why peer is not believed, if not node
}

type callerKey struct{}

// anyone is a caller that has shown nothing.
var anyone caller

// callerOf returns the caller; it is never nil.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &anyone
}

// name is the caller's name in the audit log.
func (c *caller) name() string {
	switch {
	case c.token != nil:
		return c.token.Name
	case c.own:
		return proto.NameNode
	}
	return proto.NameAnyone
}

// knownBy is how the identity of a caller is known, for the audit log.
func (c *caller) knownBy() string {
	how := "nothing"
	switch {
	case c.own:
		return fmt.Sprintf("%s of node %s", c.evidence, c.peer)
	case c.token == rootToken:
		how = "root token"
	case c.token != nil && strings.HasPrefix(c.token.Name, certified):
		how = "certificate"
	case c.token != nil:
		how = "token"
	}
	switch {
	case c.node:
		return fmt.Sprintf("%s, by word of node %s (%s)", how, c.peer, c.evidence)
	case c.peer != "":
		return fmt.Sprintf("%s; says without proof that it is node %s", how, c.peer)
	}
	return how
}

// noToken is the error of a caller that needs a token and has none.
func (c *caller) noToken() error {
	if c.peer != "" && !c.node {
		return c.unproven.refusal(c.peer)
	}
	return errNoToken()
}

// needs refuses a caller that lacks a role in a namespace.
func (c *caller) needs(role ebbv1.Role, namespace string) error {
	if c.token.May(role, namespace) {
		return nil
	}
	if role == operator {
		return proto.ErrPermissionDenied.Errorf("%s has not the role operator", c.shows()).
			WithHint("use the token of an operator; one makes others with: ebb token create NAME --role operator")
	}
	namespace = orName(namespace, proto.DefaultNamespace)
	return proto.ErrPermissionDenied.Errorf("%s has not the role %s in namespace %s", c.shows(), proto.RoleName(role), namespace).
		WithHint(c.hintOf(proto.RoleName(role) + "=" + namespace))
}

// shows is what a caller has shown, as refusals name it.
func (c *caller) shows() string {
	if name, ok := strings.CutPrefix(c.token.Name, certified); ok {
		return "certificate " + name
	}
	return "token " + c.token.Name
}

// hintOf is a hint on where a caller gets a role that it lacks.
func (c *caller) hintOf(grant string) string {
	hint := "an operator makes a token that has: ebb token create NAME --role " + grant
	if strings.HasPrefix(c.token.Name, certified) {
		hint += "; a certificate that has: ebb cert client NAME --role " + grant
	}
	return hint
}

func (c *caller) needsAnywhere(role ebbv1.Role) error {
	if c.token.Has(role) {
		return nil
	}
	return proto.ErrPermissionDenied.Errorf("%s has the role %s in no namespace", c.shows(), proto.RoleName(role)).
		WithHint(c.hintOf(proto.RoleName(role) + "=NAMESPACE"))
}

// sees reports whether a caller may know of a namespace.
func (c *caller) sees(namespace string) bool {
	return c.token == nil || c.node || c.token.May(reader, namespace)
}

func first(md metadata.MD, key string) string {
	if v := md[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

const bearer = "bearer "

// bearerOf returns the token in the value of "authorization".
func bearerOf(authorization string) (text string, ok bool) {
	if len(authorization) <= len(bearer) || !strings.EqualFold(authorization[:len(bearer)], bearer) {
		return "", false
	}
	return strings.TrimSpace(authorization[len(bearer):]), true
}

// show finds the token in the value of "authorization". Without a value it takes the roles of the caller's certificate.
// While no tokens are in force here, it refuses none: other nodes may know the token.
func (a *Access) show(ctx context.Context, authorization string, c *caller) error {
	if !a.InForce() {
		c.shown = shownBy(ctx, authorization)
		return nil
	}
	if authorization == "" {
		if who, ok := trust.From(ctx); ok && len(who.Roles) > 0 {
			c.token = certificateToken(who)
		}
		return nil
	}
	text, ok := bearerOf(authorization)
	if !ok {
		return proto.ErrUnauthenticated.Errorf("authorization is not of the form: Bearer TOKEN")
	}
	hash, ok := cluster.HashToken(text)
	if !ok {
		return proto.ErrUnauthenticated.Errorf("a token of more than %d bytes", proto.TokenLenMax)
	}
	return a.find(hash, c)
}

func (a *Access) find(hash cluster.TokenHash, c *caller) error {
	if a.root[hash] {
		c.token = rootToken
		return nil
	}
	t := a.cfg.Tokens().Of(hash)
	if t == nil {
		return proto.ErrUnauthenticated.Errorf("node %s does not know this token: it was revoked, or is of another cluster", a.cfg.Node)
	}
	c.token = t
	return a.lasts(t)
}

func (a *Access) lasts(t *cluster.Token) error {
	if t.Ended(a.cfg.Now().UnixMicro()) {
		return proto.ErrUnauthenticated.Errorf("token %s ended at %s", t.Name, time.UnixMicro(t.Expires).UTC().Format(time.RFC3339)).
			WithHint("an operator makes another: ebb token create")
	}
	return nil
}

// welcome identifies the caller that begins a stream, and refuses a caller that the method is not for.
func (a *Access) welcome(r *receipt, info *tap.Info) error {
	err := a.identify(r, info.FullMethodName, info.Header, &r.caller)
	if err == nil && a.InForce() {
		if err = a.recognise(&r.caller); err == nil {
			err = r.caller.mayBegin(info.FullMethodName)
		}
	}
	if err != nil {
		a.deny(r, shortMethod(info.FullMethodName), err)
	}
	return err
}

// mayBegin refuses a caller that may not call a method at all, regardless of the request.
func (c *caller) mayBegin(method string) error {
	r := rules[method]
	switch {
	case r.who == everyone || c.own:
		return nil
	case c.token == nil:
		return c.noToken()
	case r.least == operator:
		return c.needs(operator, "")
	case r.least != ebbv1.Role_ROLE_UNSPECIFIED:
		return c.needsAnywhere(r.least)
	}
	return nil
}

// begin refuses a caller over HTTP before the body is read, if it may not call the method at all, or not in namespace.
// namespace is empty if the path names none.
func (a *Access) begin(ctx context.Context, method, namespace string) error {
	if !a.InForce() {
		return nil
	}
	c := callerOf(ctx)
	err := a.recognise(c)
	if err == nil {
		err = c.mayBegin(method)
	}
	if least := rules[method].least; err == nil && namespace != "" && least != ebbv1.Role_ROLE_UNSPECIFIED && c.token != nil {
		err = c.needs(least, namespace)
	}
	if err != nil {
		a.deny(ctx, shortMethod(method), err)
	}
	return err
}

// identifyHTTP returns the context of a request, with its caller. It refuses a caller that needs a token and has none,
// so no body is read for an unknown caller. Everything that the HTTP interfaces serve after it has a rule that requires
// a token. pattern is the pattern of the path.
func (a *Access) identifyHTTP(r *http.Request, pattern string) (context.Context, error) {
	if a == nil {
		return r.Context(), nil
	}
	c := &caller{from: r.RemoteAddr, path: pathOf(r)}
	ctx := context.WithValue(r.Context(), callerKey{}, c)
	err := a.show(ctx, r.Header.Get(authorizationKey), c)
	if err == nil && a.InForce() {
		if err = a.recognise(c); err == nil && c.token == nil {
			err = errNoToken()
		}
	}
	if err != nil {
		a.deny(ctx, httpAction(r, pattern), err)
	}
	return ctx, err
}

// httpAction is the name of an HTTP request in the audit log.
func httpAction(r *http.Request, pattern string) string { return clip(r.Method) + " " + pattern }

// admit refuses a request that its caller is not allowed to make.
func (a *Access) admit(ctx context.Context, method string, req any) error {
	if !a.InForce() {
		return nil
	}
	c := callerOf(ctx)
	err := a.recognise(c)
	if err == nil {
		err = c.mayCall(method, req)
	}
	if err != nil {
		a.deny(ctx, shortMethod(method), err)
	}
	return err
}

// recognise identifies a caller by what it showed when its call began, before tokens were in force. It changes c, so
// nothing else may read c yet, such as the calls that a handler makes for the caller.
func (a *Access) recognise(c *caller) error {
	if c.token != nil || c.own || c.shown == "" {
		return nil
	}
	return a.originate(c.shown, c)
}

// mayCall looks a method up in the table of rules.
func (c *caller) mayCall(method string, req any) error {
	r := rules[method]
	switch {
	case r.who == everyone:
		return nil
	case r.who == nobody:
		return proto.ErrPermissionDenied.Errorf("%s is for nobody", method)
	case c.own:
		return nil
	case c.token == nil:
		return c.noToken()
	case r.who == nodes && c.node:
		return nil
	case r.who == nodes:
		return proto.ErrPermissionDenied.Errorf("%s is for the nodes of the cluster among themselves", method)
	case r.who == known:
		return nil
	}
	return r.check(c, req)
}

func errNoToken() error {
	return proto.ErrUnauthenticated.Errorf("callers of this cluster need a token, and none was shown").
		WithHint("with `ebb`: --token-file FILE or EBB_TOKEN; with the SDK: WithToken; over HTTP: the header Authorization: Bearer TOKEN; a certificate with roles stands for one")
}

// commandCheck returns a func that checks whether the caller may apply a command of a request; nil if all are allowed.
func (s *Services) commandCheck(ctx context.Context) func(command []byte) error {
	c := callerOf(ctx)
	if !s.Access.InForce() || c.own {
		return nil
	}
	bad := s.Access.recognise(c)
	return func(command []byte) error {
		err := bad
		switch {
		case err != nil:
		case c.token == nil: // tokens have come into force since the call began
			err = c.noToken()
		default:
			err = c.mayApply(command)
		}
		if err != nil {
			s.Access.deny(ctx, shortMethod(ebbv1grpc.Shards_Apply_FullMethodName), err)
		}
		return err
	}
}

// still refuses a caller whose token has ended since a stream began. It also refuses a caller without a token if
// callers need one by now.
func (s *Services) still(ctx context.Context, method string, req any) error {
	a, c := s.Access, callerOf(ctx)
	if !a.InForce() || c.own {
		return nil
	}
	t := c.token
	if t != nil && t != rootToken && !strings.HasPrefix(t.Name, certified) {
		if t = a.cfg.Tokens().Named(c.token.Name); t == nil || t.Hash != c.token.Hash {
			return proto.ErrUnauthenticated.Errorf("token %s was revoked", c.token.Name)
		}
		if err := a.lasts(t); err != nil {
			return err
		}
	}
	return (&caller{token: t}).mayCall(method, req)
}
