package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/internal/outfile"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// lifeMax bounds how long a certificate may be valid.
const lifeMax = 100 * 365 * 24 * time.Hour

func newCert(s *session) *cobra.Command {
	return children(
		&cobra.Command{
			Use: "cert", Short: "Make certificates and keys for nodes and clients, without a server for it",
			Long: `A CA of its own for a cluster, in files: whoever has its key can make nodes. Where
there is cert-manager or another issuer, let it make the same: a node's certificate is
for servers and clients, and its subject has the organizational unit ebb:node.

Nodes read their files again when they change. A certificate, and the key of it, that is
there already is replaced with --force alone.`,
			Example: `  ebb cert ca
  ebb cert node ebb-0 --host 10.0.0.1
  ebb cert client ada --role reader
  ebb cert gossip-key --out certs/gossip.keys
  ebb serve --tls-cert certs/ebb-0.crt --tls-key certs/ebb-0.key --tls-ca certs/ca.crt --gossip-keys certs/gossip.keys
  ebb status --tls-ca certs/ca.crt --tls-cert certs/ada.crt --tls-key certs/ada.key`,
		},
		newCertCA(s), newCertNode(s), newCertClient(s), newCertGossipKey(s),
	)
}

// certFlags say where certificates are written, and how long they are valid.
type certFlags struct {
	dir   string
	life  time.Duration
	force bool
}

func (c *certFlags) add(cmd *cobra.Command, life time.Duration) {
	cmd.Flags().StringVar(&c.dir, "dir", "certs", "`directory` of the CA and of what it issues")
	durationVar(cmd.Flags(), &c.life, "life", life, time.Minute, "how long the certificate holds")
	cmd.Flags().BoolVar(&c.force, "force", false, "replace a certificate and its key that are there")
}

// checkAbsent returns an error if the files of a name exist, unless --force is given.
func (c *certFlags) checkAbsent(name string) error {
	return checkAbsent(c.force, c.path(name+".key"), c.path(name+".crt"))
}

func (c *certFlags) path(name string) string { return filepath.Join(c.dir, name) }

// certName matches names that are allowed as the name of a file and of a node.
var certName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func checkCertName(name string) error {
	if name == "ca" || !certName.MatchString(name) {
		return usagef("name %q: up to 63 letters, digits, dots, dashes and underscores, and not ca", name)
	}
	return nil
}

// certJSON is a certificate as --json prints it.
type certJSON struct {
	Cert  string    `json:"cert"`
	Key   string    `json:"key"`
	Until time.Time `json:"until"`
}

func newCertCA(s *session) *cobra.Command {
	var c certFlags
	var name string
	cmd := &cobra.Command{
		Use: "ca", Short: "Make a CA: ca.crt, which all may have, and ca.key, which is secret", Args: noArgs, Example: "  ebb cert ca --dir certs",
		RunE: func(*cobra.Command, []string) error {
			if err := outfile.MakeDir("--dir", c.dir); err != nil {
				return err
			}
			if err := c.checkAbsent("ca"); err != nil {
				return fmt.Errorf("%w, and certificates of it do not hold any more then; --dir names another directory", err)
			}
			from := time.Now()
			ca, err := trust.NewAuthority(name, from, from.Add(min(c.life, lifeMax)))
			if err != nil {
				return err
			}
			key, err := ca.Key()
			if err != nil {
				return err
			}
			return s.putCert(&c, "ca", ca.PEM, key, from.Add(min(c.life, lifeMax)))
		},
	}
	c.add(cmd, 10*365*24*time.Hour)
	cmd.Flags().Lookup("force").Usage = "replace a CA that is there: no certificate of it holds any more"
	cmd.Flags().StringVar(&name, "name", "ebb", "`name` of the CA")
	return cmd
}

func newCertNode(s *session) *cobra.Command {
	var c certFlags
	var hosts []string
	cmd := &cobra.Command{
		Use: "node NAME", Short: "Make a certificate for a node: NAME.crt and NAME.key", Args: argsBetween(1, 1, "NAME"),
		Long: `It holds for the node's name, for localhost, and for the hosts given: names and addresses
at which clients and other nodes reach it.`,
		Example: `  ebb cert node ebb-0 --host 10.0.0.1,ebb-0.example.org
  ebb cert node ebb-0 --host 10.0.0.1,ebb-0.example.org --force   # before the one that is there ends`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := checkCertName(args[0]); err != nil {
				return err
			}
			for _, host := range hosts {
				if err := trust.CheckHost(host); err != nil {
					return fmt.Errorf("--host %w", err)
				}
			}
			return s.issue(&c, trust.Request{
				Name: args[0], Roles: []string{trust.RoleNode}, Hosts: append([]string{args[0], "localhost", "127.0.0.1", "::1"}, hosts...),
			})
		},
	}
	c.add(cmd, 365*24*time.Hour)
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "`names` and addresses of the node's machine")
	return cmd
}

func newCertClient(s *session) *cobra.Command {
	var c certFlags
	var roles []string
	cmd := &cobra.Command{
		Use: "client NAME", Short: "Make a certificate for a client: NAME.crt and NAME.key", Args: argsBetween(1, 1, "NAME"),
		Example: `  ebb cert client ada --role reader
  ebb cert client collector --role 'writer=web-*'`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := checkCertName(args[0]); err != nil {
				return err
			}
			if err := checkCertRoles(roles); err != nil {
				return err
			}
			return s.issue(&c, trust.Request{Name: args[0], Roles: roles})
		},
	}
	c.add(cmd, 90*24*time.Hour)
	cmd.Flags().StringSliceVar(&roles, "role", nil, "`ROLE[=NAMESPACES]`, or operator (repeatable): reader, writer=web-*; of all namespaces without any")
	return cmd
}

// checkCertRoles refuses roles that nodes would not accept in a certificate.
func checkCertRoles(words []string) error {
	if len(words) > proto.GrantsMax {
		return usagef("%d roles: a certificate has %d at most", len(words), proto.GrantsMax)
	}
	for _, word := range words {
		if word == trust.RoleNode {
			return usagef("a client has no role %s: `ebb cert node` makes nodes", word)
		}
		if role, known := proto.RoleNamed(word); known && role != ebbv1.Role_ROLE_OPERATOR {
			word += "=*" // of all namespaces
		}
		if _, err := grantOf(word); err != nil {
			return err
		}
	}
	return nil
}

func newCertGossipKey(s *session) *cobra.Command {
	var out secretFile
	cmd := &cobra.Command{
		Use: "gossip-key", Short: "Make a key for --gossip-keys", Args: noArgs, Example: "  ebb cert gossip-key --out gossip.keys",
		RunE: func(*cobra.Command, []string) error {
			f, err := out.open()
			if err != nil {
				return err
			}
			defer f.drop()
			key := make([]byte, 32)
			if _, err := rand.Read(key); err != nil {
				return err
			}
			text := base64.StdEncoding.EncodeToString(key)
			return s.writeSecret(f, text, map[string]string{"key": text})
		},
	}
	out.add(cmd)
	return cmd
}

// issue makes a certificate with the CA of the directory.
func (s *session) issue(c *certFlags, r trust.Request) error {
	if err := c.checkAbsent(r.Name); err != nil {
		return err
	}
	ca, err := trust.ReadAuthority(c.path("ca.crt"), c.path("ca.key"))
	if err != nil {
		if _, missing := os.Stat(c.path("ca.key")); errors.Is(missing, fs.ErrNotExist) {
			return usagef("%s has no CA: `ebb cert ca --dir %s` makes one", c.dir, c.dir)
		}
		return err
	}
	r.From = time.Now()
	r.To = r.From.Add(min(c.life, lifeMax))
	cert, key, until, err := ca.Issue(r)
	if err != nil {
		return err
	}
	return s.putCert(c, r.Name, cert, key, until)
}

// putCert puts both files in place, the key first. A node that reads them in between finds that they do not match, and
// waits.
func (s *session) putCert(c *certFlags, name string, cert, key []byte, until time.Time) error {
	m := certJSON{Cert: c.path(name + ".crt"), Key: c.path(name + ".key"), Until: until.UTC().Truncate(time.Second)}
	if err := replaceFile(m.Key, key, 0o600); err != nil {
		return outfile.CannotWrite("--dir", c.dir, err)
	}
	if err := replaceFile(m.Cert, cert, 0o644); err != nil {
		return outfile.CannotWrite("--dir", c.dir, err)
	}
	if s.output == "json" {
		return printJSON(s.term.out, m)
	}
	if s.output == "tsv" {
		return s.printTable("", [][]string{{m.Cert, m.Key, m.Until.Format(time.RFC3339)}})
	}
	_, err := fmt.Fprintf(s.term.out, "%s and %s, until %s\n", m.Cert, m.Key, endText(m.Until, time.Now()))
	return err
}

// endText returns a date, or a date with hours and minutes if the end is close.
func endText(until, now time.Time) string {
	if until.Sub(now) < 48*time.Hour {
		return until.Format("2006-01-02 15:04 MST")
	}
	return until.Format(time.DateOnly)
}
