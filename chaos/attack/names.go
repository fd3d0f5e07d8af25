package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// rawCall makes a call send and receive raw messages.
var rawCall = grpc.ForceCodec(rawCodec{})

// evil is a name that would change a terminal, begin a line, and turn the direction of text.
const evil = "e\x1b[2J\x1b]0;owned\x07\r\nHTTP/1.1 200 OK\u202e\u009b31m"

// names returns attempts with control characters in names and values, which the program prints.
func names() (out []Attempt) {
	const of = "control characters"
	onTerminal := func(name string, prepare func(context.Context, *Arena) error, args ...string) {
		out = append(out, Attempt{
			Group: of, Name: "on a terminal: " + name, Mode: Open,
			Run: func(ctx context.Context, a *Arena) error {
				if prepare != nil {
					if err := prepare(ctx, a); err != nil {
						return err
					}
				}
				screen, err := a.onTerminal(ctx, args...)
				if err != nil {
					return err
				}
				if at := controlIn(screen); at >= 0 {
					return broke("ebb %.60q prints %.40q", strings.Join(args, " "), screen[at:])
				}
				return nil
			},
		})
	}
	increment := func(list ...*ebbv1.Increment) func(context.Context, *Arena) error {
		return func(ctx context.Context, a *Arena) error {
			return a.call(ctx, "", ebbv1grpc.Ebb_Increment_FullMethodName,
				&ebbv1.IncrementRequest{Namespace: own, Increments: list}, &ebbv1.IncrementResponse{})
		}
	}
	e := []byte(evil)
	text := &ebbv1.Increment{Key: []byte("evil-text"), Kind: ebbv1.Kind_KIND_STRING, Text: e}
	onTerminal("a value", increment(text), "string", "get", "evil-text", "-n", own)
	onTerminal("a value as TSV", increment(text), "string", "get", "evil-text", "-n", own, "-o", "tsv")
	onTerminal("a value as JSON", increment(text), "string", "get", "evil-text", "-n", own, "--json")
	onTerminal("a bin", increment(&ebbv1.Increment{Key: []byte("evil-bins"), Bin: e}), "top", "evil-bins", "-n", own)
	onTerminal("a bin as TSV", increment(&ebbv1.Increment{Key: []byte("evil-bins"), Bin: e}), "top", "evil-bins", "-n",
		own, "-o", "tsv")
	onTerminal("keys", increment(&ebbv1.Increment{Key: e, Bin: e}), "keys", "-n", own, "e*")
	onTerminal("a description", increment(&ebbv1.Increment{Key: e, Bin: e}), "describe", evil, "-n", own)
	onTerminal("members", increment(&ebbv1.Increment{Key: []byte("evil-set"), Bin: e, Kind: ebbv1.Kind_KIND_SET}), "query",
		"members(evil-set)", "-n", own)
	onTerminal("phrases", increment(&ebbv1.Increment{
		Key: []byte("evil-phrases"), Bin: []byte("two\x1b[2J words"),
		Kind: ebbv1.Kind_KIND_PHRASES,
	}), "match", "evil-phrases", "two\x1b[2J words", "-n", own)
	onTerminal("an error about a key", nil, "estimate", evil, "-n", "not-there")
	onTerminal("an error about a namespace", nil, "get", "k", "b", "-n", evil)
	onTerminal("an error about a query", nil, "query", "top 10 "+evil, "-n", own)
	onTerminal("an error about a flag", nil, "top", "k", "--"+evil)
	onTerminal("an error about a command", nil, evil)
	return append(out,
		Attempt{Group: of, Name: "in headers of answers", Mode: Open, Run: splitAnswers},
		Attempt{Group: of, Name: "in the log of the node", Mode: Open, Run: forgeLog},
		Attempt{Group: of, Name: "in names of tokens and namespaces", Mode: Tokens, Run: evilNames},
	)
}

// controlIn returns the index of the first character that controls a terminal or turns text; -1 if text has none.
func controlIn(text string) int {
	return strings.IndexFunc(text, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r' || unicode.Is(unicode.Bidi_Control, r)
	})
}

func splitAnswers(ctx context.Context, a *Arena) error {
	for _, path := range []string{
		"/dist?distribution=%0d%0aX-Split:%20yes&rate=%0d%0aX-Split:%20yes",
		"/get?distribution=k&field=f&rate=x%0d%0aX-Split:%20yes", "/v1/ns/x%0d%0aX-Split:%20yes/keys",
		"/incr?distribution=k&field=f&N=%0d%0aX-Split:%20yes",
		"/nmostprobable?distribution=k&N=1%0aX-Split:%20yes", "/v1/ns/clicks/key/%0d%0aX-Split:%20yes",
		"/v1/%0d%0aX-Split:%20yes",
	} {
		r, err := a.http(ctx, request{path: path})
		if err != nil {
			return broke("GET %s: %v", path, err)
		}
		if r.header.Get("X-Split") != "" {
			return broke("GET %s has a header of its own", path)
		}
	}
	return nil
}

func forgeLog(ctx context.Context, a *Arena) error {
	_, _ = a.http(ctx, request{path: "/v1/ns/%1b%5b2J%0a/key/%1b%5b2J%0aforged"})
	for _, method := range []string{"/ebb.v1.Ebb/\x1b[2J", "/\x1b[2J\nforged/x"} {
		_, _ = a.send(ctx, "", method, nil)
	}
	_ = a.call(ctx, "", ebbv1grpc.Ebb_SetNamespace_FullMethodName,
		&ebbv1.SetNamespaceRequest{Create: true, Namespace: &ebbv1.Namespace{Name: evil}}, &ebbv1.SetNamespaceResponse{})
	_ = a.call(ctx, "", ebbv1grpc.Ebb_Delete_FullMethodName,
		&ebbv1.DeleteRequest{Namespace: own, Keys: [][]byte{[]byte(evil)}}, &ebbv1.DeleteResponse{})
	c, err := a.raw(ctx, "gossip")
	if err != nil {
		return err
	}
	_, _ = io.WriteString(c, "\x1b[2J"+evil)
	c.Close()
	if text := a.fleet.LogTail(0); strings.Contains(text, "\x1b[2J") || strings.Contains(text, "\u202e") ||
		strings.Contains(text, "\nforged") {
		return broke("the log of the node has it")
	}
	return nil
}

func evilNames(ctx context.Context, a *Arena) error {
	hash := strings.Repeat("b", 64)
	if a.call(ctx, "operator", ebbv1grpc.Ebb_CreateToken_FullMethodName, &ebbv1.CreateTokenRequest{
		Name: "x\x1b[2J", Sha256: hash, Grants: []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_READER, Namespaces: "*"}},
	}, &ebbv1.CreateTokenResponse{}) == nil {
		return broke("there is a token with an escape sequence in its name")
	}
	if a.call(ctx, "operator", ebbv1grpc.Ebb_CreateToken_FullMethodName, &ebbv1.CreateTokenRequest{
		Name: "x", Sha256: hash, Grants: []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_READER, Namespaces: "\x1b[2J"}},
	}, &ebbv1.CreateTokenResponse{}) == nil {
		return broke("there is a role of namespaces with an escape sequence")
	}
	if a.call(ctx, "operator", ebbv1grpc.Ebb_SetNamespace_FullMethodName,
		&ebbv1.SetNamespaceRequest{
			Create:    true,
			Namespace: &ebbv1.Namespace{Name: "x\u202e"},
		}, &ebbv1.SetNamespaceResponse{}) == nil {
		return broke("there is a namespace whose name turns text round")
	}
	return nil
}

// certificates returns attempts with old, forged or missing certificates.
func certificates() (out []Attempt) {
	const of = "TLS"
	for _, listener := range []string{"grpc", "http"} {
		refused := func(name string, change func(a *Arena, cfg *tls.Config) error) {
			out = append(out, Attempt{
				Group: of, Name: name + " to " + listener, Mode: Sealed,
				Run: func(ctx context.Context, a *Arena) error {
					cfg, err := a.as("reader")
					if err != nil {
						return err
					}
					cfg.NextProtos = []string{"h2", "http/1.1"}
					if err := change(a, cfg); err != nil {
						return err
					}
					return a.handshakeRefused(ctx, listener, cfg)
				},
			})
		}
		refused("TLS 1.2", func(_ *Arena, cfg *tls.Config) error {
			cfg.MaxVersion = tls.VersionTLS12
			return nil
		})
		refused("TLS 1.0", func(_ *Arena, cfg *tls.Config) error {
			cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS10
			return nil
		})
		refused("no certificate", func(_ *Arena, cfg *tls.Config) error {
			cfg.Certificates = nil
			return nil
		})
		for name, unit := range map[string]string{"a node": "ebb:node", "an operator": "ebb:operator"} {
			refused("a certificate of its own as "+name, func(_ *Arena, cfg *tls.Config) error {
				pair, err := selfSigned(unit, time.Now().Add(time.Hour))
				cfg.Certificates = []tls.Certificate{pair}
				return err
			})
		}
		refused("a certificate of 1,000 names", func(_ *Arena, cfg *tls.Config) error {
			pair, err := selfSigned(strings.Repeat("ebb:node,", 1_000), time.Now().Add(time.Hour))
			cfg.Certificates = []tls.Certificate{pair}
			return err
		})
		refused("the node's certificate without its key", func(a *Arena, cfg *tls.Config) error {
			pair, err := selfSigned("ebb:node", time.Now().Add(time.Hour))
			node, err2 := tls.LoadX509KeyPair(a.cert("ebb-0.crt"), a.cert("ebb-0.key"))
			pair.Certificate = node.Certificate
			cfg.Certificates = []tls.Certificate{pair}
			return errors.Join(err, err2)
		})
		out = append(out, Attempt{
			Group: of, Name: "in the clear to " + listener, Mode: Sealed,
			Run: func(ctx context.Context, a *Arena) error {
				for _, text := range []string{
					"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
					"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x16\x03\x01\xff\xff" + strings.Repeat("x",
						70_000), "\x80\x2e\x01\x00\x02",
				} {
					c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.at[listener])
					if err != nil {
						return err
					}
					_ = c.SetDeadline(time.Now().Add(3 * time.Second))
					_, _ = io.WriteString(c, text)
					got := string(drainConn(c, 4096))
					c.Close()
					if strings.HasPrefix(got, "HTTP/1.1 2") || strings.HasPrefix(got, "\x00\x00") {
						return broke("%.20q is answered %.40q", text, got)
					}
				}
				return nil
			},
		})
	}
	return append(out,
		Attempt{
			Group: of, Name: "a reader's certificate changes the cluster", Mode: Sealed,
			Run: func(ctx context.Context, a *Arena) error {
				create := &ebbv1.SetNamespaceRequest{Create: true, Namespace: &ebbv1.Namespace{Name: "mine"}}
				if a.invoke(ctx, "reader", ebbv1grpc.Ebb_SetNamespace_FullMethodName, create) == nil {
					return broke("a namespace was created")
				}
				if _, err := a.send(ctx, "reader", ebbv1grpc.Ebb_ListTokens_FullMethodName, nil); err == nil {
					return broke("tokens were listed")
				}
				return nil
			},
		},
		Attempt{
			Group: of, Name: "gossip without its key", Mode: Sealed, Within: 30 * time.Second,
			Run: func(_ context.Context, a *Arena) error {
				list, err := a.joinGossip("stranger", nil)
				if err != nil {
					return nil // it was not let in
				}
				defer func() { _ = list.Shutdown() }()
				if n := list.NumMembers(); n > 1 {
					return broke("a stranger sees %d members", n)
				}
				return nil
			},
		},
	)
}

// handshakeRefused checks that a client with this configuration gets no answer. With TLS 1.3 the client learns of a
// refusal only from the first answer.
func (a *Arena) handshakeRefused(ctx context.Context, listener string, cfg *tls.Config) error {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if listener == "grpc" {
		conn, err := grpc.NewClient("passthrough:///"+a.at["grpc"], grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
		if err != nil {
			return err
		}
		defer conn.Close()
		in, out := raw(nil), raw(nil)
		if conn.Invoke(limited, ebbv1grpc.Ebb_Status_FullMethodName, &in, &out, rawCall) == nil {
			return broke("it was answered")
		}
		return nil
	}
	cfg.NextProtos = nil
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(limited, http.MethodGet, "https://"+a.at["http"]+"/v1/status", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil // refused
	}
	defer resp.Body.Close()
	if resp.StatusCode < 400 {
		return broke("it was answered: %s", resp.Status)
	}
	return nil
}

// selfSigned returns a certificate that no CA has issued.
func selfSigned(unit string, until time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	units := strings.Split(strings.TrimSuffix(unit, ","), ",")
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ebb-0", OrganizationalUnit: units},
		DNSNames:  []string{"ebb-0"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if len(units) > 1 {
		for i := range units {
			template.DNSNames = append(template.DNSNames, fmt.Sprintf("name-%d.example", i))
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// files returns attempts on files that the program reads and prints, not on the cluster.
func files() []Attempt {
	const of = "files"
	return []Attempt{
		{Group: of, Name: "a root token that everybody reads", Mode: Open, Run: func(ctx context.Context, a *Arena) error {
			return a.openSecret(ctx, "ebb_"+strings.Repeat("r", 43)+"\n", "serve", "--data-dir", filepath.Join(a.dir, "refused"),
				"--grpc", "127.0.0.1:0", "--http", "-", "--gossip", "-", "--admin", "-", "--root-token-file")
		}},
		{Group: of, Name: "keys of gossip that everybody reads", Mode: Open, Run: func(ctx context.Context, a *Arena) error {
			return a.openSecret(ctx, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n", "serve", "--data-dir",
				filepath.Join(a.dir,
					"refused"), "--grpc", "127.0.0.1:0", "--http", "-", "--gossip", "127.0.0.1:0", "--admin", "-", "--gossip-keys")
		}},
		{
			Group: of, Name: "a client's token that everybody reads", Mode: Open,
			Run: func(ctx context.Context, a *Arena) error {
				return a.openSecret(ctx, "ebb_"+strings.Repeat("c", 43)+"\n", "--addr", a.at["grpc"], "get", "k", "b", "-n", own,
					"--token-file")
			},
		},
		{Group: of, Name: "a key of TLS that everybody reads", Mode: Sealed, Run: func(ctx context.Context, a *Arena) error {
			key, err := os.ReadFile(a.cert("reader.key"))
			if err != nil {
				return err
			}
			return a.openSecret(ctx, string(key), "--addr", a.at["grpc"], "get", "k", "b", "-n", own, "--tls-ca",
				a.cert("ca.crt"), "--tls-cert", a.cert("reader.crt"), "--tls-server-name", "ebb-0", "--tls-key")
		}},
		{
			Group: of, Name: "a cell of TSV that a spreadsheet runs", Mode: Open,
			Run: func(ctx context.Context, a *Arena) error {
				if _, err := a.ebb(ctx, "", "incr", "-n", own, "cells", "--", "=cmd|'/C calc'!A0", "+1+1", "@SUM(A1)"); err != nil {
					return err
				}
				out, err := a.ebb(ctx, "", "dist", "cells", "-n", own, "-o", "tsv", "--quote-formulas")
				if err != nil {
					return broke("no option quotes formulas: %v", err)
				}
				if len(out) == 0 {
					return errors.New("nothing is printed")
				}
				for line := range bytes.Lines(out) {
					if bytes.IndexByte([]byte("=+-@"), line[0]) >= 0 {
						return broke("a line begins with %.20q", line)
					}
				}
				return nil
			},
		},
		{
			Group: of, Name: "licences of what is linked are missing", Mode: Open,
			Run: func(ctx context.Context, a *Arena) error {
				out, err := exec.CommandContext(ctx, "go", "version", "-m", a.binary).Output()
				if err != nil {
					return err
				}
				root, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
				if err != nil {
					return err
				}
				notice, err := os.ReadFile(filepath.Join(filepath.Dir(strings.TrimSpace(string(root))), "NOTICE"))
				if err != nil {
					return broke("%v", err)
				}
				var missing []string
				for line := range strings.Lines(string(out)) {
					if words := strings.Fields(line); len(words) > 2 && words[0] == "dep" &&
						!bytes.Contains(notice, []byte(words[1]+" "+words[2]+" (")) {
						missing = append(missing, words[1])
					}
				}
				if len(missing) > 0 {
					return broke("NOTICE has not %s", strings.Join(slices.Compact(missing), ", "))
				}
				return nil
			},
		},
	}
}

// openSecret checks that a program refuses a file that all users can read, with an error that names chmod 600.
func (a *Arena) openSecret(ctx context.Context, content string, args ...string) error {
	path := filepath.Join(a.dir, "open-secret")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // that is the attempt
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	cmd := exec.CommandContext(limited, a.binary, append(args, path)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil && limited.Err() == nil && strings.Contains(out.String(), "chmod 600") {
		return nil
	}
	return broke("it was taken: %v, %.80q", err, out.String())
}
