package trust

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// Files are the paths of a node's certificate files, in PEM.
type Files struct {
	Cert string // the node's chain, with its own certificate first
	Key  string // the key of Cert
	CA   string // of the CA that issues certificates of nodes, and of clients
	// ClientCA is another CA that issues certificates of clients; none if empty. A certificate of that CA is never a
	// node's.
	ClientCA string
}

const (
	// fileBytesMax bounds each file.
	fileBytesMax = 1 << 20
	// soonMax is how long before its end a certificate is logged as expiring; a short-lived one is logged in its last
	// fifth.
	soonMax = 7 * 24 * time.Hour
)

// Store holds the certificates from when all files were last valid. Look reads the files again.
type Store struct {
	files Files
	now   func() time.Time
	log   *slog.Logger

	held    atomic.Pointer[held]
	reloads atomic.Uint64
	broken  atomic.Bool // the files as they are now cannot be used

	mu     sync.Mutex // guards what follows
	read   *contents  // by the last Look
	logged *contents  // the contents whose fault was logged
	warned stage      // the stage of held that was logged last
}

// contents is the content of the files.
type contents struct {
	cert, key, ca, clientCA []byte
	warning                 string // about the permissions of the key file
}

func (c *contents) equal(other *contents) bool {
	return bytes.Equal(c.cert, other.cert) && bytes.Equal(c.key, other.key) && bytes.Equal(c.ca, other.ca) && bytes.Equal(c.clientCA, other.clientCA)
}

// held is the certificates that connections use. It does not change.
type held struct {
	cert    tls.Certificate
	nodes   *x509.CertPool // CA
	clients *x509.CertPool // CA and ClientCA
	ends    map[string]time.Time
}

// stage is how near a certificate is to its end.
type stage int

const (
	stageValid stage = iota
	stageEnding
	stageEnded
)

// Open reads the files. Its errors name the file and are BAD_REQUEST. They say that a file is missing or holds
// something else, or that the key belongs to another certificate. They also say that the certificate is not of the CA,
// not valid now, or not of a node. A nil logger is slog.Default().
func Open(files Files, now func() time.Time, log *slog.Logger) (*Store, error) {
	s := &Store{files: files, now: now, log: cmp.Or(log, slog.Default())}
	c, err := files.read()
	if err != nil {
		return nil, err
	}
	h, err := c.parse(files, now())
	if err != nil {
		return nil, err
	}
	s.read = c
	s.held.Store(h)
	if c.warning != "" {
		s.log.Warn("check secret file", "warning", c.warning)
	}
	s.warn(h)
	return s, nil
}

// Look reads the files again, and uses them if they are valid. Otherwise connections still use the certificates from
// before. A fault is logged only when two calls in a row have found the same contents, because files that belong
// together are written one by one.
func (s *Store) Look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.files.read()
	if err != nil {
		s.fault(&contents{cert: []byte(err.Error())}, err)
		return
	}
	if c.equal(s.read) && !s.broken.Load() {
		s.warn(s.held.Load())
		return
	}
	h, err := c.parse(s.files, s.now())
	if err != nil {
		s.fault(c, err)
		return
	}
	news := s.broken.Swap(false) || !c.equal(s.read)
	s.read, s.logged = c, nil
	if news {
		s.held.Store(h)
		s.reloads.Add(1)
		s.warned = stageValid
		s.log.Info("certificates read again", "file", s.files.Cert, "until", h.ends[endOfCert])
	}
	s.warn(h)
}

// fault notes that the files cannot be used. s.mu is held.
func (s *Store) fault(c *contents, err error) {
	again := s.broken.Swap(true) && c.equal(s.read)
	s.read = c
	if again && (s.logged == nil || !s.logged.equal(c)) {
		s.logged = c
		s.log.Error("certificates cannot be used: those from before stay in use", "until", s.held.Load().ends[endOfCert], "err", err)
	}
	s.warn(s.held.Load())
}

// warn logs once that the certificate in use expires soon, and once that it has expired. s.mu is held, except in Open.
func (s *Store) warn(h *held) {
	leaf, now := h.cert.Leaf, s.now()
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	at := stageValid
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		at = stageEnded
	case left < min(soonMax, life/5):
		at = stageEnding
	}
	if at <= s.warned {
		return
	}
	s.warned = at
	if at == stageEnded {
		s.log.Error("the certificate has expired: no client will connect to this node", "file", s.files.Cert, "at", leaf.NotAfter)
		return
	}
	s.log.Warn("the certificate expires soon: put another in its place", "file", s.files.Cert, "at", leaf.NotAfter)
}

func (f Files) read() (c *contents, err error) {
	c = new(contents)
	for _, one := range []struct {
		path string
		into *[]byte
	}{{f.Cert, &c.cert}, {f.Key, &c.key}, {f.CA, &c.ca}, {f.ClientCA, &c.clientCA}} {
		if one.path == "" {
			continue
		}
		if one.into == &c.key {
			*one.into, c.warning, err = ReadSecret(one.path)
		} else {
			*one.into, err = ReadFile(one.path)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// ReadFile reads a file of at most 1 MiB.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > fileBytesMax {
		return nil, proto.ErrBadRequest.Errorf("%s is of %d bytes: the limit is %d", path, info.Size(), fileBytesMax)
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if why := (*os.PathError)(nil); errors.As(err, &why) {
		return nil, unreadable(path, err)
	}
	return b, err
}

const (
	endOfCert     = "cert"
	endOfCA       = "ca"
	endOfClientCA = "client-ca"
)

// parse makes certificates and pools from the files, or says which file is wrong.
func (c *contents) parse(f Files, now time.Time) (*held, error) {
	h := &held{nodes: x509.NewCertPool(), clients: x509.NewCertPool(), ends: make(map[string]time.Time)}
	var err error
	if h.cert, err = pair(f.Cert, f.Key, c.cert, c.key); err != nil {
		return nil, err
	}
	if h.ends[endOfCA], err = authorities(f.CA, c.ca, h.nodes, h.clients); err != nil {
		return nil, err
	}
	if f.ClientCA != "" {
		if h.ends[endOfClientCA], err = authorities(f.ClientCA, c.clientCA, h.clients); err != nil {
			return nil, err
		}
	}
	h.ends[endOfCert] = h.cert.Leaf.NotAfter
	return h, h.check(f, now)
}

// check refuses a certificate that other nodes would refuse.
func (h *held) check(f Files, now time.Time) error {
	leaf := h.cert.Leaf
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := verify(leaf, h.intermediates(), h.nodes, usage, now); err != nil {
			return proto.ErrBadRequest.Errorf("%s: %v", f.Cert, Plainly(err, now)).
				WithHint("a node's certificate is issued by the CA of --tls-ca, for servers and clients: `ebb cert node` makes one")
		}
	}
	if !IdentityOf(leaf).Has(RoleNode) {
		return proto.ErrBadRequest.Errorf("%s is no certificate of a node: its subject has no organizational unit %s%s", f.Cert, unitPrefix, RoleNode).
			WithHint("`ebb cert node` makes one; an issuer of your own has to set OU=" + unitPrefix + RoleNode)
	}
	return nil
}

func (h *held) intermediates() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, der := range h.cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil { // X509KeyPair parses only the first
			pool.AddCert(c)
		}
	}
	return pool
}

func verify(leaf *x509.Certificate, intermediates, roots *x509.CertPool, usage x509.ExtKeyUsage, now time.Time) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: now})
	return err
}

// pair reads a certificate and its key.
func pair(certFile, keyFile string, cert, key []byte) (tls.Certificate, error) {
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return c, proto.ErrBadRequest.Errorf("certificate %s and key %s: %v", certFile, keyFile, err).
			WithHint("both are PEM files, and the key is the one that the certificate was issued for")
	}
	return c, nil
}

// authorities adds the certificates of a file to pools, and returns when the first of them expires.
func authorities(path string, text []byte, pools ...*x509.CertPool) (ends time.Time, err error) {
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return ends, proto.ErrBadRequest.Errorf("%s: %v", path, err)
		}
		for _, p := range pools {
			p.AddCert(c)
		}
		if ends.IsZero() || c.NotAfter.Before(ends) {
			ends = c.NotAfter
		}
	}
	if ends.IsZero() {
		return ends, proto.ErrBadRequest.Errorf("%s has no certificate in PEM", path)
	}
	return ends, nil
}

// Server returns the configuration of a listener: TLS 1.3 with the certificate that this node has at each handshake. If
// a client sends a certificate, it is verified; if required is true, the client must send one. protocols are those of
// ALPN.
func (s *Store) Server(required bool, protocols ...string) *tls.Config {
	auth := tls.VerifyClientCertIfGiven
	if required {
		auth = tls.RequireAndVerifyClientCert
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			h := s.held.Load()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: protocols, Certificates: []tls.Certificate{h.cert}, Time: s.now,
				ClientAuth: auth, ClientCAs: h.clients, SessionTicketsDisabled: true, // a ticket would outlive its certificate
				VerifyConnection: func(state tls.ConnectionState) error { return h.onlyNodes(&state, s.now()) },
			}, nil
		},
	}
}

// onlyNodes refuses a certificate that claims the role of nodes and is not of the cluster's CA.
func (h *held) onlyNodes(state *tls.ConnectionState, now time.Time) error {
	i, ok := OfConnection(state)
	if !ok || !i.Has(RoleNode) {
		return nil
	}
	if err := verify(state.PeerCertificates[0], pool(state.PeerCertificates[1:]), h.nodes, x509.ExtKeyUsageClientAuth, now); err != nil {
		return fmt.Errorf("%s says that it is a node, and is not of the CA of nodes: %w", i.Name, err)
	}
	return nil
}

func pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

// Peer returns the configuration of a connection to another node. The connection sends this node's certificate. It
// accepts the certificate of a node if the cluster's CA issued it, and if it is valid for one of names: DNS names or
// IPs.
func (s *Store) Peer(names ...string) *tls.Config {
	h := s.held.Load()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{h.cert}, Time: s.now,
		InsecureSkipVerify: true, // VerifyConnection verifies it, for several names
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			if err := verify(leaf, pool(state.PeerCertificates[1:]), h.nodes, x509.ExtKeyUsageServerAuth, s.now()); err != nil {
				return err
			}
			if !IdentityOf(leaf).Has(RoleNode) {
				return fmt.Errorf("the certificate of %s is not a node's", IdentityOf(leaf).Name)
			}
			var err error
			for _, name := range names {
				if err = leaf.VerifyHostname(name); err == nil {
					return nil
				}
			}
			return err
		},
	}
}
