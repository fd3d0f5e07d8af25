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

// certificates are the TLS certificates of a fleet: of its nodes and of their clients. The binary itself issues them.
type certificates struct {
	binary, dir string
	hosts       []string
}

func newCertificates(ctx context.Context, binary, dir string, g *Testbed) (*certificates, error) {
	c := &certificates{binary: binary, dir: dir, hosts: []string{"127.0.0.1"}}
	if g != nil {
		for _, m := range g.machines {
			c.hosts = append(c.hosts, m.host)
		}
	}
	if err := c.ebb(ctx, "ca"); err != nil {
		return nil, err
	}
	return c, c.issue(ctx)
}

// issue makes new certificates of the same CA, for all nodes and for clients.
func (c *certificates) issue(ctx context.Context) error {
	if err := c.ebb(ctx, "node", "node", "--host", strings.Join(c.hosts, ","), "--force"); err != nil {
		return err
	}
	return c.ebb(ctx, "client", "client", "--role", "operator", "--force")
}

func (c *certificates) ebb(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.binary, append(append([]string{"cert"}, args...), "--dir", c.dir)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ebb cert %s: %w: %s", args[0], err, out)
	}
	return nil
}

func (c *certificates) path(name string) string { return filepath.Join(c.dir, name) }

func (c *certificates) serveArgs() []string {
	return []string{"--tls-cert", c.path("node.crt"), "--tls-key", c.path("node.key"), "--tls-ca", c.path("ca.crt"), "--tls-require-client-cert"}
}

// config is the TLS configuration of a process with the certificate "client" or "node".
func (c *certificates) config(name string) (*tls.Config, error) {
	return client.TLSFiles{CA: c.path("ca.crt"), Cert: c.path(name + ".crt"), Key: c.path(name + ".key")}.Config()
}
