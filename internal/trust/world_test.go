package trust_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/internal/trust"
)

// epoch is the time of all tests here.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// world is a CA, a directory with a node's files, a clock and a log.
type world struct {
	*testing.T
	dir   string
	ca    *trust.Authority
	files trust.Files

	mu  sync.Mutex // guards what follows
	now time.Time
	log bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), now: epoch}
	w.ca = w.authority("cluster")
	w.files = trust.Files{Cert: w.path("node.crt"), Key: w.path("node.key"), CA: w.path("ca.crt")}
	w.put("ca.crt", w.ca.PEM)
	w.node(w.ca, trust.Request{To: epoch.Add(90 * day)})
	return w
}

func (w *world) authority(name string) *trust.Authority {
	w.Helper()
	a, err := trust.NewAuthority(name, epoch.Add(-day), epoch.Add(1000*day))
	if err != nil {
		w.Fatal(err)
	}
	return a
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) put(name string, content []byte) {
	w.Helper()
	if err := os.WriteFile(w.path(name), content, 0o600); err != nil {
		w.Fatal(err)
	}
}

// node puts a node's certificate and key in place: ebb-0 on loopback from an hour ago, where the request does not say
// otherwise.
func (w *world) node(by *trust.Authority, r trust.Request) {
	w.Helper()
	cert, key, _, err := by.Issue(nodeRequest(r))
	if err != nil {
		w.Fatal(err)
	}
	w.put("node.crt", cert)
	w.put("node.key", key)
}

func nodeRequest(r trust.Request) trust.Request {
	if r.Name == "" {
		r.Name = "ebb-0"
	}
	if r.Hosts == nil {
		r.Hosts = []string{r.Name, "127.0.0.1"}
	}
	if r.Roles == nil {
		r.Roles = []string{trust.RoleNode}
	}
	if r.From.IsZero() {
		r.From = epoch.Add(-time.Hour)
	}
	if r.To.IsZero() {
		r.To = epoch.Add(90 * day)
	}
	return r
}

func (w *world) open() (*trust.Store, error) {
	return trust.Open(w.files, w.time, slog.New(slog.NewTextHandler(w, nil)))
}

func (w *world) mustOpen() *trust.Store {
	w.Helper()
	s, err := w.open()
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) time() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// Write takes the log.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

// said returns the log since it was last asked for.
func (w *world) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.log.Reset()
	return w.log.String()
}

// client is the configuration of a client that trusts the CA, takes the node for 127.0.0.1 and shows a certificate of
// the request; none if nil.
func (w *world) client(by *trust.Authority, r *trust.Request) *tls.Config {
	w.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.ca.PEM)
	c := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Time: w.time, MinVersion: tls.VersionTLS12}
	if r != nil {
		if r.From.IsZero() {
			r.From = epoch.Add(-time.Hour)
		}
		if r.To.IsZero() {
			r.To = epoch.Add(day)
		}
		pair, err := by.Pair(*r)
		if err != nil {
			w.Fatal(err)
		}
		// the list of certificates would be searched for one of the server's CAs, and none shown if there is none
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c
}

// meet shakes hands and sends a byte from the server to the client, which is when a client knows that it was accepted.
func meet(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		s := tls.Server(conn, server)
		if err := s.Handshake(); err != nil {
			done <- err
			return
		}
		state = s.ConnectionState()
		_, err = s.Write([]byte("k"))
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := tls.Client(conn, client)
	_, clientErr = c.Read(make([]byte, 1))
	return state, <-done, clientErr
}

func (w *world) read(name string) []byte {
	w.Helper()
	b, err := os.ReadFile(w.path(name))
	if err != nil {
		w.Fatal(err)
	}
	return b
}
