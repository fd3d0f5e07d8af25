package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/lmittmann/tint"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
)

const (
	// unionMBMax is 1 TiB.
	unionMBMax = 1 << 20
	// readyEvery is how often the readiness of a node is checked until it is ready.
	readyEvery = 100 * time.Millisecond
)

// whatHTTPHost explains --http-host.
const whatHTTPHost = "`name` by which HTTP and admin may be asked (the header Host), as behind a proxy; repeatable. On loopback " +
	"they answer only to localhost, their address, the host of --advertise-http and these names; on other addresses to every name, " +
	"or with this flag also only to those. Web pages could otherwise reach the node under names of their own"

func newServe(s *session) *cobra.Command {
	var cfg node.Config
	var logFormat, logLevel, dns, whenRemoved, rootTokens, secrets, auditLog string
	var traces tracing
	var unionMB int
	var strict bool
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a node; alone, without flags, it is a working cluster of one", Args: noArgs,
		Long: `Run a node; alone, without flags, it is a working cluster of one.

It takes nine tenths of the memory that its container may have, or of the machine's: GOMEMLIMIT (4GiB, say) sets another limit. Close to
it the node refuses writes that need more memory, and still answers questions and forgets keys.`,
		Example: `  ebb serve
  ebb serve --node ebb-0 --bootstrap-expect 3 --join 10.0.0.1:7071,10.0.0.2:7071,10.0.0.3:7071 --grpc 10.0.0.1:7070 --gossip 10.0.0.1:7071
  ebb serve --node ebb-3 --join 10.0.0.1:7071 --grpc 10.0.0.4:7070 --gossip 10.0.0.4:7071   # joins a running cluster
  ebb serve --tls-cert certs/ebb-0.crt --tls-key certs/ebb-0.key --tls-ca certs/ca.crt       # see ebb cert`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.DataDir == "" {
				return usagef("--data-dir is empty: it names the directory for everything that survives a restart")
			}
			for _, name := range []string{"shards", "replication"} {
				if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "0" {
					return usagef("--%s 0: it is at least 1; leave it out for the default", name)
				}
			}
			logger, err := newLogger(s, logFormat, logLevel)
			if err != nil {
				return err
			}
			if unionMB < 0 || unionMB > unionMBMax {
				return usagef("--bitmap-unions-mb %d: it is from 0 to %d", unionMB, unionMBMax)
			}
			if cfg.UnionBytes = unionMB << 20; unionMB == 0 && cmd.Flags().Changed("bitmap-unions-mb") {
				cfg.UnionBytes = -1
			}
			if cfg.MoveRate == 0 {
				cfg.MoveRate = -1
			}
			if cfg.ScrubEvery == 0 {
				cfg.ScrubEvery = -1
			}
			if dns != "" {
				cfg.Network = node.OSNetwork{Resolver: node.ResolverAt(dns)}
			}
			cfg.Logger, cfg.Version = logger, version
			if cfg.RootTokens, err = secretsOf(logger, "--root-token-file", rootTokens); err != nil {
				return err
			}
			if cfg.ClusterSecrets, err = secretsOf(logger, "--cluster-secret-file", secrets); err != nil {
				return err
			}
			closeAudit, err := openAudit(&cfg, auditLog)
			if err != nil {
				return err
			}
			defer closeAudit()
			if err := s.checkTLS(cmd.Flags(), &cfg.TLS); err != nil {
				return startError{err}
			}
			if err := checkSecure(&cfg, cfg.TLS.RequireClientCert || len(cfg.RootTokens) > 0, strict); err != nil {
				return startError{err}
			}
			removed := make(chan error, 1)
			if whenRemoved != "exit" && whenRemoved != "wait" {
				return noneOf("--when-removed", whenRemoved, whatWhenRemoved)
			}
			cfg.Fatal = func(err error) {
				if gone := new(node.Removed); whenRemoved == "wait" && errors.As(err, gone) {
					removed <- err
					return
				}
				os.Exit(exitCode(s.term.err, err))
			}
			cfg.Registry = prometheus.NewRegistry()
			cfg.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
			provider, flush, err := traces.open(cmd.Context(), cfg.Name)
			if err != nil {
				return err
			}
			defer flush()
			cfg.Traces = provider
			return serve(cmd.Context(), s, cfg, removed)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Name, "node", "ebb-0", "`name` of this node; of one that the cluster is born with: <prefix>-<ordinal>")
	f.StringVar(&cfg.DataDir, "data-dir", node.DefaultDataDir(), "`directory` for everything that survives a restart")
	f.StringVar(&cfg.GRPC, "grpc", node.DefaultGRPC, "listen `address` of gRPC")
	f.StringVar(&cfg.HTTP, "http", node.DefaultHTTP, "listen `address` of HTTP/JSON and the forgettable door; - for none")
	f.StringVar(&cfg.Gossip, "gossip", node.DefaultGossip, "listen `address` of gossip (TCP and UDP); - for none")
	f.StringVar(&cfg.Admin, "admin", node.DefaultAdmin, "listen `address` of metrics, health and profiles; - for none")
	f.StringVar(&cfg.AdvertiseGRPC, "advertise-grpc", "", "gRPC `address` that others are told, if it is not the one listened on; a name stays right when the node comes back elsewhere")
	f.StringVar(&cfg.AdvertiseHTTP, "advertise-http", "", "HTTP `address` that others are told")
	f.StringSliceVar(&cfg.HTTPHosts, "http-host", nil, whatHTTPHost)
	f.StringVar(&cfg.AdvertiseGossip, "advertise-gossip", "", "gossip `address` that others are told")
	f.StringVar(&cfg.TLS.Cert, "tls-cert", "", "`file` with this node's certificate (PEM), for clients and for other nodes; --tls-key and --tls-ca go with it. Files are read again when they change")
	f.StringVar(&cfg.TLS.Key, "tls-key", "", "`file` with the key of --tls-cert (PEM)")
	f.StringVar(&cfg.TLS.CA, "tls-ca", "", "`file` with the CA that issues the certificates of nodes, and of clients (PEM)")
	f.StringVar(&cfg.TLS.ClientCA, "tls-client-ca", "", "`file` with further CAs for certificates of clients, never of nodes (PEM)")
	f.BoolVar(&cfg.TLS.RequireClientCert, "tls-require-client-cert", false, "refuse clients without a certificate; its roles (ebb cert client NAME --role ROLE) are what one may do without a token")
	f.BoolVar(&cfg.TLS.Admin, "tls-admin", false, "encrypt the admin listener too")
	f.StringVar(&cfg.GossipKeys, "gossip-keys", "", "`file` with the keys that encrypt gossip, one a line, the first for what is sent; it is read again when it changes. All nodes have it, or none")
	f.BoolVar(&strict, "require-secure", false, "do not start when others than this machine can reach this node without TLS, without saying who they are, or gossip in the clear")
	f.StringSliceVar(&cfg.Join, "join", nil, "gossip `addresses` of other nodes; one that answers is enough. A name stands for all that it resolves to, now and later")
	f.StringVar(&dns, "dns", "", "`address` of the DNS server for names of other nodes, instead of those of the machine")
	f.IntVar(&cfg.BootstrapExpect, "bootstrap-expect", 0, "how many nodes the cluster is born with (default 1); without it a node with --join joins the cluster that is there")
	f.Uint32Var(&cfg.Shards, "shards", 0, fmt.Sprintf("number of shards, fixed when the cluster is born (default %d)", proto.ShardsDefault))
	f.Uint32Var(&cfg.Replication, "replication", 0, "replicas of each shard (default 3, or the number of nodes if smaller)")
	f.StringVar(&cfg.Zone, "zone", "", "`name` of the place where this node stands: replicas of a shard are kept in different zones")
	durationVar(f, &cfg.ReplaceAfter, "replace-after", node.DefaultReplaceAfter, time.Microsecond, "how long a node is dead before its replicas are made anew on others")
	f.StringVar(&whenRemoved, "when-removed", "exit", "exit with code 6 when this node has been removed from its cluster; or wait, alive and not ready, where whatever ends is started again")
	durationVar(f, &cfg.ScrubEvery, "scrub-every", node.DefaultScrubEvery, 0, "how long after its start, and after each time, this node reads the snapshots and the log on its disk again, at 8 MiB a second, to find damage while "+
		"there is something to replace it with; 0 for never")
	byteSizeVar(f, &cfg.MoveRate, "move-rate", node.DefaultMoveRate, "bytes a second that this node sends to replicas that move, come back or were lost, all together; 0 for as many as possible. "+
		"A voter that its shard cannot do without does not wait")
	f.IntVar(&unionMB, "bitmap-unions-mb", 0, fmt.Sprintf("`MiB` for unions of bitmaps of periods, which answer windows like the last 30 days; 0 for none "+
		"(default %d, or an eighth of the memory limit if that is less)", node.DefaultUnionBytes>>20))
	f.StringVar(&traces.endpoint, "otlp-endpoint", "", "`URL` of an OpenTelemetry collector (gRPC) for traces, like http://127.0.0.1:4317; empty for none")
	f.Float64Var(&traces.share, "trace-share", 0.01, "`share` of requests that are traced, from 0 to 1; a caller that traces decides for its own")
	f.StringVar(&rootTokens, "root-token-file", "", "`file` with tokens that may do everything, one a line (ebb token secret makes one), the same on all nodes: callers need a token from the start")
	f.StringVar(&secrets, "cluster-secret-file", "",
		"`file` with secrets, one a line (ebb token secret makes one), the same on all nodes. By it nodes without TLS "+
			"prove to each other that they are nodes, "+
			"which a cluster of several needs for tokens. It lets no client in. The first line is used, all are accepted: "+
			"to replace a secret, add the new one last on all nodes first")
	f.StringVar(&auditLog, "audit-log", "", "`file` to which acts of administration and denials are appended, as JSON lines; without, they are in the log")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// secretsOf reads the file of a flag, one secret a line; none if the flag names no file. It logs a warning if others
// may read the file.
func secretsOf(logger *slog.Logger, flag, path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	texts, warning, err := readTokens(flag, path)
	if warning != "" {
		logger.Warn("check secret file", "warning", warning)
	}
	return texts, err
}

func newLogger(s *session, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, noneOf("--log-level", level, logLevels)
	}
	switch format {
	case "text":
		return slog.New(tint.NewTextHandler(coloured(s.term.err), &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: !colourful(s.term.err)})), nil
	case "json":
		return slog.New(slog.NewJSONHandler(s.term.err, &slog.HandlerOptions{Level: l})), nil
	}
	return nil, noneOf("--log-format", format, logFormats)
}

// openAudit opens the file of the audit log, if there is to be one.
func openAudit(cfg *node.Config, path string) (func(), error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, usagef("--audit-log: %w", err)
	}
	cfg.Audit = slog.New(slog.NewJSONHandler(&auditFile{f, cfg.Logger}, nil))
	return func() { _ = f.Close() }, nil
}

// auditFile is the file of the audit log. It logs lines that it cannot write.
type auditFile struct {
	*os.File
	logger *slog.Logger
}

// Write implements io.Writer.
func (a *auditFile) Write(line []byte) (int, error) {
	n, err := a.File.Write(line)
	if err != nil {
		a.logger.Error("the audit log cannot be written", "err", err, "line", strings.TrimSpace(string(line)))
	}
	return n, err
}

// serve runs a node until ctx ends. A node that was removed from its cluster stops its work, and waits for the end of
// ctx.
func serve(ctx context.Context, s *session, cfg node.Config, removed <-chan error) error {
	provider := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)
	if _, err := memlimit.Set(memlimit.WithProvider(provider), memlimit.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		cfg.Logger.Debug("no memory limit found", "err", err)
	}
	limit := debug.SetMemoryLimit(-1)
	if cfg.UnionBytes == 0 {
		cfg.UnionBytes = int(min(node.DefaultUnionBytes, limit/8))
	}
	if limit != math.MaxInt64 {
		cfg.MemoryLimit = limit
	}
	cfg.GiveBack = debug.FreeOSMemory
	keepLimit(ctx, limit)
	keepHeadroom(ctx)
	n, err := node.Open(ctx, cfg)
	if err != nil {
		return startError{err}
	}
	if err := printBox(s, cfg, n.Addresses()); err != nil {
		cfg.Logger.Warn("print addresses", "err", err)
	}
	serves, looks := n.Ready(), time.NewTicker(readyEvery)
	defer looks.Stop()
	for ctx.Err() == nil {
		select {
		case <-serves:
			serves = nil
		case <-looks.C:
			if serves == nil && n.Readiness() == nil { // from now on the readiness probe succeeds too
				cfg.Logger.Info("ready", "node", cfg.Name)
				looks.Stop()
			}
		case why := <-removed:
			n.Kill() // a removed node has no leaderships to hand over
			cfg.Logger.Warn("removed: this process does nothing any more, and waits to be stopped", "node", cfg.Name, "why", why)
			cfg.Registry = nil
			return node.Idle(ctx, cfg, why)
		case <-ctx.Done():
		}
	}
	cfg.Logger.Info("stopping", "node", cfg.Name)
	return n.Close()
}

// printBox prints the addresses and the data directory of a node.
func printBox(s *session, cfg node.Config, a node.Addresses) error {
	rows := [][2]string{
		{"node", fmt.Sprintf("%s, ebb %s", ofHowMany(cfg), version)},
		{"gRPC", endpointText(a.GRPC, cfg.TLS.On(), "TLS")},
		{"HTTP", endpointText(a.HTTP, cfg.TLS.On(), "TLS")},
		{"gossip", endpointText(a.Gossip, cfg.GossipKeys != "", "AES-256")},
		{"admin", endpointText(a.Admin, cfg.TLS.Admin, "TLS")},
		{"data", cfg.DataDir},
		{"try", firstCommand(&cfg, a.GRPC)},
	}
	width := 0
	for _, r := range rows {
		width = max(width, len(r[1]))
	}
	var b strings.Builder
	edge := strings.Repeat("─", width+11)
	fmt.Fprintf(&b, "┌%s┐\n", edge)
	for _, r := range rows {
		fmt.Fprintf(&b, "│ %-7s %-*s │\n", r[0], width+1, r[1])
	}
	fmt.Fprintf(&b, "└%s┘\n", edge)
	_, err := fmt.Fprint(s.term.err, b.String())
	return err
}

// ofHowMany returns the node's name, and the size of its cluster as far as the flags say it.
func ofHowMany(cfg node.Config) string {
	if cfg.BootstrapExpect == 0 && len(cfg.Join) > 0 {
		return cfg.Name + " among others"
	}
	return fmt.Sprintf("%s of %d", cfg.Name, max(cfg.BootstrapExpect, 1))
}
