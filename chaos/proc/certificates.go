package proc

import (
	"context"
	"crypto/tls"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ebbdb/ebb/client"
)

// seal is the certificates of a fleet and of who asks it, made by the binary itself.
type seal struct {
	binary, dir string
	hosts       []string
}

func newSeal(ctx context.Context, binary, dir string, g *Ground) (*seal, error) {
	s := &seal{binary: binary, dir: dir, hosts: []string{"127.0.0.1"}}
	if g != nil {
		for _, m := range g.machines {
			s.hosts = append(s.hosts, m.host)
		}
	}
	if err := s.ebb(ctx, "ca"); err != nil {
		return nil, err
	}
	return s, s.issue(ctx)
}

// issue makes new certificates of the same CA, for all nodes and for clients.
func (s *seal) issue(ctx context.Context) error {
	if err := s.ebb(ctx, "node", "node", "--host", strings.Join(s.hosts, ","), "--force"); err != nil {
		return err
	}
	return s.ebb(ctx, "client", "client", "--role", "operator", "--force")
}

func (s *seal) ebb(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, s.binary, append(append([]string{"cert"}, args...), "--dir", s.dir)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ebb cert %s: %w: %s", args[0], err, out)
	}
	return nil
}

func (s *seal) path(name string) string { return filepath.Join(s.dir, name) }

func (s *seal) serveArgs() []string {
	return []string{"--tls-cert", s.path("node.crt"), "--tls-key", s.path("node.key"), "--tls-ca", s.path("ca.crt"), "--tls-require-client-cert"}
}

// config is that of who has the certificate "client" or "node".
func (s *seal) config(name string) (*tls.Config, error) {
	return client.TLSFiles{CA: s.path("ca.crt"), Cert: s.path(name + ".crt"), Key: s.path(name + ".key")}.Config()
}
