package node

import (
	"context"
	"crypto/rand"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/rpc"
)

// Removed is the error of a node that is no longer a member of its cluster, or whose disk was given up as lost. With
// this data directory it cannot continue, however often it is started.
type Removed struct{ Err *proto.Error }

func (r Removed) Error() string { return r.Err.Error() }

// Unwrap returns the coded error.
func (r Removed) Unwrap() error { return r.Err }

// Idle answers the probes of a node that cannot continue, as a process that is alive and not ready, until ctx ends. It
// is for environments that restart every process that ends. why is the error that the probes report.
func Idle(ctx context.Context, given Config, why error) error {
	cfg := given.withDefaults()
	store, err := cfg.TLS.open(cfg.Clock.Now, cfg.Logger)
	if err != nil {
		return err
	}
	admin, err := listenOn(ctx, cfg.Network, "admin", "--admin", cfg.Admin, func(string) bool { return false })
	if err != nil {
		return err
	}
	s := new(servers)
	// the table's tokens are gone: profiles are only for callers with a root token, if there is one
	access := rpc.NewAccess(rpc.AccessConfig{Tokens: emptyTable.Tokens, Root: append(cfg.RootTokens, rand.Text()), Node: cfg.Name})
	door := rpc.NewAdmin(rpc.Services{
		Access: access, Hosts: cfg.hosts(admin), Node: cfg.Name, Version: cfg.Version, Gatherer: cfg.Registry, Ready: func() error { return why },
	})
	h := s.serveHTTP(admin, cfg.adminHTTP(door, store, &handshakes{logger: cfg.Logger, repeats: newRepeats()}))
	<-ctx.Done()
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainMax)
	defer cancel()
	shutdown(ended, h)
	s.wg.Wait()
	return nil
}
