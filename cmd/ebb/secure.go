package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
)

// tlsFlags say how a client command uses TLS.
type tlsFlags struct {
	on    bool
	files client.TLSFiles
}

func (t *tlsFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&t.on, "tls", false, "encrypt connections, and trust the CAs of this machine; the other --tls flags imply it")
	f.StringVar(&t.files.CA, "tls-ca", "", "`file` with the CA that issued the certificates of the nodes (PEM)")
	f.StringVar(&t.files.Cert, "tls-cert", "", "`file` with the client's certificate (PEM), where nodes want one")
	f.StringVar(&t.files.Key, "tls-key", "", "`file` with the key of --tls-cert (PEM)")
	f.StringVar(&t.files.ServerName, "tls-server-name", "", "`name` that the certificates of the nodes are for, if not the host of the address")
}

// unencrypted returns the first address on another machine that this command uses without TLS; "" if there is none.
func (s *session) unencrypted() string {
	if s.tls.wanted() {
		return ""
	}
	for _, addr := range s.addrs {
		if beyond(addr) {
			return addr
		}
	}
	return ""
}

// wanted reports whether connections are to be encrypted.
func (t *tlsFlags) wanted() bool { return t.on || t.files != (client.TLSFiles{}) }

// options returns the client options of the flags.
func (t *tlsFlags) options() ([]client.Option, error) {
	if !t.wanted() {
		return nil, nil
	}
	if (t.files.Cert == "") != (t.files.Key == "") {
		return nil, usagef("--tls-cert and --tls-key: both or none")
	}
	cfg, err := t.files.Config()
	if err != nil {
		return nil, usageError{err}
	}
	return []client.Option{client.WithTLS(cfg)}, nil
}

// checkTLS refuses certificates with which a node cannot work. A node also reads environment variables that are meant
// for clients, so the error names those that were used.
func (s *session) checkTLS(flags *pflag.FlagSet, t *node.TLS) error {
	err := t.Check(time.Now)
	var refused *proto.Error
	if !errors.As(err, &refused) {
		return err
	}
	var set []string
	for _, name := range []string{"tls-cert", "tls-key", "tls-ca"} {
		if flags.Changed(name) && !s.given[name] {
			set = append(set, variableOf(name))
		}
	}
	if len(set) == 0 {
		return err
	}
	return refused.WithHint(fmt.Sprintf("set for clients, perhaps: %s. `env -u %s ebb serve` starts a node without; %s",
		strings.Join(set, ", "), strings.Join(set, " -u "), refused.Hint))
}

// insecureEndpoint is an endpoint that other machines reach without protection: a description, and the flags that
// protect it.
type insecureEndpoint struct{ what, close string }

// insecureEndpoints returns the unprotected endpoints of a node. callersKnown reports whether reads and writes need a
// certificate or a token.
func insecureEndpoints(cfg *node.Config, callersKnown bool) []insecureEndpoint {
	var open []insecureEndpoint
	public := beyond(cfg.GRPC) || beyond(cfg.HTTP)
	if public && !cfg.TLS.On() {
		open = append(open, insecureEndpoint{
			unencrypted(cfg),
			"--tls-cert, --tls-key and --tls-ca (`ebb cert` makes the files)",
		})
	}
	if public && !callersKnown {
		open = append(open, insecureEndpoint{
			"whoever can connect can read and write",
			"--root-token-file (`ebb token secret` makes a token), or --tls-require-client-cert",
		})
	}
	if beyond(cfg.Gossip) && cfg.GossipKeys == "" {
		what := "gossip is not encrypted, and anybody can join in"
		if cfg.TLS.On() {
			what = "gossip is not encrypted, though connections are: whoever can send packets is heard there as a node"
		}
		open = append(open, insecureEndpoint{what, "--gossip-keys (`ebb cert gossip-key` makes a key)"})
	}
	if beyond(cfg.Admin) && !cfg.TLS.Admin {
		open = append(open, insecureEndpoint{
			"metrics and profiles are not encrypted",
			"--tls-admin, or --admin on loopback",
		})
	}
	return open
}

// unencrypted describes the risk of a node without TLS.
func unencrypted(cfg *node.Config) string {
	if len(cfg.RootTokens)+len(cfg.ClusterSecrets) > 0 {
		return "clients and nodes are not encrypted: any listener on the network hears tokens, and proofs of nodes " +
			"that hold for five minutes"
	}
	return "clients and nodes are not encrypted, and nodes cannot prove to each other that they are nodes"
}

// beyond reports whether an address can be reached from other machines.
func beyond(address string) bool {
	if address == node.Off {
		return false
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "localhost" {
		return false // a wrong address is reported elsewhere
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.IsLoopback()
}

// checkSecure refuses insecure endpoints if strict is true; otherwise it logs a warning for each.
func checkSecure(cfg *node.Config, callersKnown, strict bool) error {
	open := insecureEndpoints(cfg, callersKnown)
	if len(open) == 0 {
		return nil
	}
	if strict {
		var whats, closes []string
		for _, d := range open {
			whats, closes = append(whats, d.what), append(closes, d.close)
		}
		return proto.ErrBadRequest.Errorf("--require-secure: %s", strings.Join(whats, "; ")).WithHint(strings.Join(closes, "; "))
	}
	for _, d := range open {
		cfg.Logger.Warn("this node can be reached from other machines: "+d.what, "close_with", d.close)
	}
	return nil
}

// endpointText returns the address of an endpoint, and how it is encrypted.
func endpointText(addr string, encrypted bool, how string) string {
	switch {
	case addr == "":
		return "off"
	case encrypted:
		return addr + "   " + how
	}
	return addr + "   not encrypted"
}

// firstCommand returns a command that shows the status of the started node.
func firstCommand(cfg *node.Config, addr string) string {
	secured := ""
	if cfg.TLS.On() {
		secured = " --tls-ca " + cfg.TLS.CA
	}
	if cfg.TLS.RequireClientCert {
		secured += " --tls-cert FILE --tls-key FILE"
	}
	if len(cfg.RootTokens) > 0 {
		secured += " --token-file FILE"
	}
	return fmt.Sprintf("ebb --addr %s%s status", addr, secured)
}
