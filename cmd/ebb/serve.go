package main

import (
	"context"
	"fmt"
	"log/slog"
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

// unionMBMax is a TiB.
const unionMBMax = 1 << 20

func newServe(s *session) *cobra.Command {
	var cfg node.Config
	var logFormat, logLevel string
	var unionMB int
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a node; alone, without flags, it is a working cluster of one", Args: noArgs,
		Example: `  ebb serve
  ebb serve --node ebb-0 --bootstrap-expect 3 --join 10.0.0.1:7071,10.0.0.2:7071,10.0.0.3:7071 --grpc 10.0.0.1:7070 --gossip 10.0.0.1:7071`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.DataDir == "" {
				return usagef("--data-dir is empty: it names the directory for everything that survives a restart")
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
			cfg.Logger, cfg.Version = logger, version
			cfg.Fatal = func(err error) { os.Exit(exitCode(s.term.err, err)) }
			cfg.Registry = prometheus.NewRegistry()
			cfg.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
			return serve(cmd.Context(), s, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Name, "node", "ebb-0", "`name` of this node: <prefix>-<ordinal>")
	f.StringVar(&cfg.DataDir, "data-dir", node.DefaultDataDir(), "`directory` for everything that survives a restart")
	f.StringVar(&cfg.GRPC, "grpc", node.DefaultGRPC, "listen `address` of gRPC")
	f.StringVar(&cfg.HTTP, "http", node.DefaultHTTP, "listen `address` of HTTP/JSON and the forgettable door; - for none")
	f.StringVar(&cfg.Gossip, "gossip", node.DefaultGossip, "listen `address` of gossip (TCP and UDP); - for none")
	f.StringVar(&cfg.Admin, "admin", node.DefaultAdmin, "listen `address` of metrics, health and profiles; - for none")
	f.StringVar(&cfg.AdvertiseGRPC, "advertise-grpc", "", "gRPC `address` that others are told, if it is not the one listened on")
	f.StringVar(&cfg.AdvertiseHTTP, "advertise-http", "", "HTTP `address` that others are told")
	f.StringVar(&cfg.AdvertiseGossip, "advertise-gossip", "", "gossip `address` that others are told")
	f.StringSliceVar(&cfg.Join, "join", nil, "gossip `addresses` of other nodes; one that answers is enough")
	f.IntVar(&cfg.BootstrapExpect, "bootstrap-expect", 1, "how many nodes the cluster is born with")
	f.Uint32Var(&cfg.Shards, "shards", 0, fmt.Sprintf("number of shards, fixed when the cluster is born (default %d)", proto.ShardsDefault))
	f.Uint32Var(&cfg.Replication, "replication", 0, "replicas of each shard (default 3, or the number of nodes if smaller)")
	f.IntVar(&unionMB, "bitmap-unions-mb", 0, fmt.Sprintf("`MiB` for unions of bitmaps of periods, which answer windows like the last 30 days; 0 for none "+
		"(default %d, or an eighth of the memory limit if that is less)", node.DefaultUnionBytes>>20))
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

func newLogger(s *session, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, noneOf("--log-level", level, logLevels)
	}
	switch format {
	case "text":
		return slog.New(tint.NewTextHandler(s.term.err, &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: !colourful(s.term.err)})), nil
	case "json":
		return slog.New(slog.NewJSONHandler(s.term.err, &slog.HandlerOptions{Level: l})), nil
	}
	return nil, noneOf("--log-format", format, logFormats)
}

// serve runs a node until ctx ends.
func serve(ctx context.Context, s *session, cfg node.Config) error {
	if _, err := memlimit.Set(memlimit.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		cfg.Logger.Debug("no memory limit found", "err", err)
	}
	limit := debug.SetMemoryLimit(-1)
	if cfg.UnionBytes == 0 {
		cfg.UnionBytes = int(min(node.DefaultUnionBytes, limit/8))
	}
	keepLimit(ctx, limit)
	keepHeadroom(ctx)
	n, err := node.Open(ctx, cfg)
	if err != nil {
		return startError{err}
	}
	if err := printBox(s, cfg, n.Addresses()); err != nil {
		cfg.Logger.Warn("print addresses", "err", err)
	}
	select {
	case <-n.Ready():
		cfg.Logger.Info("ready", "node", cfg.Name)
		<-ctx.Done()
	case <-ctx.Done():
	}
	cfg.Logger.Info("stopping", "node", cfg.Name)
	return n.Close()
}

// printBox says in one place where everything is.
func printBox(s *session, cfg node.Config, a node.Addresses) error {
	rows := [][2]string{
		{"node", fmt.Sprintf("%s of %d, ebb %s", cfg.Name, max(cfg.BootstrapExpect, 1), version)},
		{"gRPC", plain(a.GRPC)},
		{"HTTP", plain(a.HTTP)},
		{"gossip", plain(a.Gossip)},
		{"admin", plain(a.Admin)},
		{"data", cfg.DataDir},
		{"try", "ebb --addr " + a.GRPC + " status"},
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

// plain is an address that nothing encrypts.
func plain(addr string) string {
	if addr == "" {
		return "off"
	}
	return addr + "   not encrypted"
}
