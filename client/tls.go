package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
)

// TLSFiles names the PEM files with the CA that a client trusts, and with its own certificate.
type TLSFiles struct {
	// CA has the issuer of the nodes' certificates; the CAs of this machine if empty.
	CA string
	// Cert and Key are the client's own certificate; without them it shows none. They are read again for each
	// connection. While their content cannot be used, the content before it is used.
	Cert, Key string
	// ServerName is what the certificates of the nodes must be for, if not the host of the address that is dialled.
	ServerName string
}

// Config reads the files, for WithTLS.
func (f TLSFiles) Config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: f.ServerName}
	if f.CA != "" {
		text, err := trust.ReadFile(f.CA)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, proto.ErrBadRequest.Errorf("%s has no certificate in PEM", f.CA)
		}
	}
	if f.Cert == "" && f.Key == "" {
		return cfg, nil
	}
	own := &ownCertificate{files: f}
	if _, err := own.get(nil); err != nil {
		return nil, err
	}
	cfg.GetClientCertificate = own.get
	return cfg, nil
}

// ownCertificate is the client's own certificate, which is read again for each connection.
type ownCertificate struct {
	files TLSFiles
	last  atomic.Pointer[tls.Certificate]
}

func (o *ownCertificate) get(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	c, err := o.read()
	if err == nil {
		o.last.Store(&c)
	}
	if last := o.last.Load(); last != nil {
		return last, nil
	}
	e := proto.AsError(err)
	return nil, proto.ErrBadRequest.Errorf("certificate %q and key %q: %s", o.files.Cert, o.files.Key, e.Message).WithHint(e.Hint)
}

// read refuses a key that everybody on the machine can read.
func (o *ownCertificate) read() (c tls.Certificate, err error) {
	cert, err := trust.ReadFile(o.files.Cert)
	if err != nil {
		return c, err
	}
	key, _, err := trust.ReadSecret(o.files.Key)
	if err != nil {
		return c, err
	}
	if c, err = tls.X509KeyPair(cert, key); err != nil {
		return c, proto.ErrBadRequest.Errorf("%v", err)
	}
	return c, nil
}

// secured notes why a handshake failed: gRPC keeps only the text of the error.
type secured struct {
	credentials.TransportCredentials
	peer *peer
	now  func() time.Time
}

func (s secured) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := s.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		s.note(err)
		return out, info, err
	}
	return &afterHandshake{Conn: out, note: s.note, ended: make(chan struct{})}, info, nil
}

func (s secured) note(err error) {
	why := trust.Plainly(err, s.now())
	s.peer.dialErr.Store(&why)
}

func (s secured) Clone() credentials.TransportCredentials {
	return secured{s.TransportCredentials.Clone(), s.peer, s.now}
}

// alertGrace is how long a connection that can no longer be written to may take to report why.
const alertGrace = 200 * time.Millisecond

// afterHandshake is a connection of TLS 1.3. A node refuses a client's certificate only after the client has finished
// its handshake; afterHandshake notes that error. A write that fails waits for it, because gRPC would report the error
// of the write.
type afterHandshake struct {
	net.Conn
	note  func(error)
	once  sync.Once
	ended chan struct{} // closed when there is nothing more to read
}

func (a *afterHandshake) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if err != nil {
		a.once.Do(func() {
			if trust.IsAlert(err) {
				a.note(err)
			}
			close(a.ended)
		})
	}
	return n, err
}

func (a *afterHandshake) Write(b []byte) (int, error) {
	n, err := a.Conn.Write(b)
	if err != nil {
		select {
		case <-a.ended:
		case <-time.After(alertGrace):
		}
	}
	return n, err
}
