package node

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
	"github.com/ebbdb/ebb/rpc"
)

const (
	// trustEvery is how often files of certificates and keys are checked for changes.
	trustEvery = time.Second
	// handshakeMax is how long a new gRPC connection may take to identify its caller.
	handshakeMax = 5 * time.Second
)

// TLS names the certificate files of a node, in PEM. They are read again when they change. The zero value is no TLS.
type TLS struct {
	// Cert, Key and CA go together: this node's certificate and key, and the CA that issues certificates of nodes and
	// clients.
	Cert, Key, CA string
	// ClientCA issues further certificates of clients, but none of nodes.
	ClientCA string
	// RequireClientCert refuses clients without a certificate, on the gRPC and HTTP interfaces.
	RequireClientCert bool
	// Admin turns on TLS for the admin interface too; callers need no certificate there.
	Admin bool
}

// On reports whether TLS is on.
func (t *TLS) On() bool { return t.Cert != "" }

func (t *TLS) check() error {
	given := 0
	for _, f := range []string{t.Cert, t.Key, t.CA} {
		if f != "" {
			given++
		}
	}
	switch {
	case given != 0 && given != 3:
		return proto.ErrBadRequest.Errorf("TLS needs a certificate, its key and the CA: some of --tls-cert, --tls-key and --tls-ca are missing").
			WithHint("`ebb cert` makes all three")
	case given == 0 && (t.ClientCA != "" || t.RequireClientCert || t.Admin):
		return proto.ErrBadRequest.Errorf("--tls-client-ca, --tls-require-client-cert and --tls-admin need TLS: --tls-cert, --tls-key and --tls-ca")
	}
	return nil
}

// Check returns an error if a node would not start with t: for settings that do not fit together, or files that cannot
// be used. now returns the time of day.
func (t *TLS) Check(now func() time.Time) error {
	if err := t.check(); err != nil {
		return err
	}
	_, err := t.open(now, slog.New(slog.DiscardHandler))
	return err
}

// open reads the certificates; nil if TLS is off.
func (t *TLS) open(now func() time.Time, logger *slog.Logger) (*trust.Store, error) {
	if !t.On() {
		return nil, nil
	}
	return trust.Open(trust.Files{Cert: t.Cert, Key: t.Key, CA: t.CA, ClientCA: t.ClientCA}, now, logger)
}

// openTrust reads certificates and gossip keys, if the configuration names any.
func (n *Node) openTrust() (err error) {
	n.handshakes = &handshakes{logger: n.logger, repeats: n.repeats}
	n.checks = transport.NewChecks(n.logger)
	if n.trust, err = n.cfg.TLS.open(n.cfg.Clock.Now, n.logger); err != nil {
		return err
	}
	if n.trust != nil {
		n.cfg.Registry.MustRegister(n.trust, n.handshakes)
	}
	if n.cfg.GossipKeys != "" {
		n.gossipKeys, err = openGossipKeys(n.cfg.GossipKeys, n.logger)
	}
	return err
}

// lookTrust reads certificates and keys again, if they have changed.
func (n *Node) lookTrust() {
	if n.trust != nil {
		n.trust.Look()
	}
	if g := n.directory.gossip.Load(); g != nil && n.gossipKeys != nil {
		n.gossipKeys.look(g.SetKeys)
	}
}

// securedPeers returns the options for connections to other nodes.
func (n *Node) securedPeers() []grpc.DialOption {
	if n.trust == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(n.trust.Peers(n.directory.hosts))}
}

// dial opens a connection to another node, on which changed bits are detected: by TLS, or else by checksums.
func (n *Node) dial(ctx context.Context, address string) (net.Conn, error) {
	if n.trust != nil {
		return n.cfg.Network.Dial(ctx, address)
	}
	return n.checks.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return n.cfg.Network.Dial(ctx, address) })
}

// securedServer returns the options for connections from other nodes and clients.
func (n *Node) securedServer(budget *rpc.Budget) []grpc.ServerOption {
	if n.trust == nil {
		return []grpc.ServerOption{grpc.Creds(rpc.Metered(n.checks.Credentials(), budget))}
	}
	creds := credentials.NewTLS(n.trust.Server(n.cfg.TLS.RequireClientCert, "h2"))
	return []grpc.ServerOption{
		grpc.Creds(rpc.Metered(door{creds, n.handshakes}, budget)), grpc.ConnectionTimeout(handshakeMax),
		grpc.ChainUnaryInterceptor(nodesOnlyUnary), grpc.ChainStreamInterceptor(nodesOnlyStream),
	}
}

// hosts returns the host names that a node's certificate may be for. One is the host of its record. The other is this
// node's advertised host with the other node's name in place of its own ("ebb-0.ebb.svc"); it is needed before there
// are records.
func (d *directory) hosts(node string) []string {
	var hosts []string
	if host, _, err := net.SplitHostPort(d.table().Node(node).GetGrpcAddress()); err == nil {
		hosts = append(hosts, host)
	}
	host, _, _ := net.SplitHostPort(d.advertised)
	if domain, ok := strings.CutPrefix(host, d.self+"."); ok {
		hosts = append(hosts, node+"."+domain)
	}
	return hosts
}

// ofNodes are the methods that only nodes call. Clients call the other methods of service Shards too.
var ofNodes = map[string]bool{
	ebbv1grpc.Shards_NodeUsage_FullMethodName: true, ebbv1grpc.Shards_Acknowledged_FullMethodName: true,
	ebbv1grpc.Shards_Ask_FullMethodName: true, ebbv1grpc.Shards_ReadIndex_FullMethodName: true, ebbv1grpc.Shards_Audited_FullMethodName: true,
	ebbv1grpc.Shards_Repair_FullMethodName: true, ebbv1grpc.Shards_NodeStatus_FullMethodName: true, ebbv1grpc.Shards_Manage_FullMethodName: true,
	peerv1.Peer_Control_FullMethodName: true, peerv1.Peer_Append_FullMethodName: true, peerv1.Peer_Snapshot_FullMethodName: true,
}

func nodesOnlyUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := nodesOnly(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func nodesOnlyStream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := nodesOnly(s.Context(), info.FullMethod); err != nil {
		return ebbv1grpc.Status(err)
	}
	return handler(srv, s)
}

// nodesOnly refuses a method of ofNodes to a caller that is not a node.
func nodesOnly(ctx context.Context, method string) error {
	if !ofNodes[method] {
		return nil
	}
	who, ok := trust.From(ctx)
	switch {
	case !ok:
		return proto.ErrPermissionDenied.Errorf("%s is for nodes of the cluster: there is no certificate", method)
	case !who.Has(trust.RoleNode):
		return proto.ErrPermissionDenied.Errorf("%s is for nodes of the cluster: the certificate of %q is not a node's", method, who.Name)
	}
	return nil
}

// handshakes counts failed TLS handshakes.
type handshakes struct {
	logger  *slog.Logger
	repeats *repeats
	failed  atomic.Uint64
}

var descHandshakes = describe("handshakes_failed_total", "Connections to the doors of gRPC and HTTP that ended before it was known who called.")

// Describe implements prometheus.Collector.
func (h *handshakes) Describe(to chan<- *prometheus.Desc) { to <- descHandshakes }

// Collect implements prometheus.Collector.
func (h *handshakes) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(descHandshakes, prometheus.CounterValue, float64(h.failed.Load()))
}

// note counts a failure. Of many failures, the log shows one now and then.
func (h *handshakes) note(from, why string) {
	h.failed.Add(1)
	const message = "a connection was refused: no TLS handshake"
	if skipped, ok := h.repeats.due(message, time.Now()); ok {
		h.logger.Warn(message, "from", from, "why", why, "times_unsaid", skipped)
	}
}

// Write receives the error log of a net/http server.
func (h *handshakes) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	if rest, ok := strings.CutPrefix(text, "http: TLS handshake error from "); ok {
		from, why, _ := strings.Cut(rest, ": ")
		h.note(from, why)
	} else {
		h.logger.Debug(text)
	}
	return len(line), nil
}

// door counts failed handshakes of gRPC, which gRPC does not report.
type door struct {
	credentials.TransportCredentials
	handshakes *handshakes
}

func (d door) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := d.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		d.handshakes.note(conn.RemoteAddr().String(), err.Error())
	}
	return secured, info, err
}

func (d door) Clone() credentials.TransportCredentials {
	return door{d.TransportCredentials.Clone(), d.handshakes}
}

// http returns the server of the public HTTP interface.
func (n *Node) http(h http.Handler) *http.Server {
	return secured(httpServer(h), n.trust, n.cfg.TLS.RequireClientCert, n.handshakes)
}

// adminHTTP returns the server of the admin interface. It requires no client certificate, since liveness probes have
// none.
func (c *Config) adminHTTP(h http.Handler, store *trust.Store, noted *handshakes) *http.Server {
	if !c.TLS.Admin {
		store = nil
	}
	return secured(httpServer(h), store, false, noted)
}

// secured makes a server use TLS, unless store is nil, and pass the identity of the caller to its handler.
func secured(s *http.Server, store *trust.Store, required bool, noted *handshakes) *http.Server {
	if store == nil {
		return s
	}
	h := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(trust.With(r.Context(), r.TLS)))
	})
	s.TLSConfig = store.Server(required, "http/1.1") // as it is without TLS
	s.ErrorLog = log.New(noted, "", 0)
	return s
}
