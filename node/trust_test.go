package node_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// secureBubble is a bubble whose nodes have certificates, each its own, and keys of gossip, in files.
type secureBubble struct {
	*bubble
	dir string
	ca  *trust.Authority
}

func inSecureBubble(t *testing.T, nodes int, shards uint32, f func(s *secureBubble)) {
	dir := t.TempDir()
	inBubble(t, nodes, shards, func(b *bubble) {
		s := &secureBubble{bubble: b, dir: dir}
		s.ca = s.authority("one")
		s.put("ca.crt", s.ca.PEM)
		s.keys("a")
		for i := range nodes {
			c := &b.config[i]
			s.certify(i)
			c.TLS = node.TLS{Cert: s.file(c.Name + ".crt"), Key: s.file(c.Name + ".key"), CA: s.file("ca.crt")}
			c.GossipKeys = s.file("gossip.keys")
		}
		f(s)
	})
}

func (s *secureBubble) file(name string) string { return filepath.Join(s.dir, name) }

func (s *secureBubble) put(name string, content []byte) {
	s.Helper()
	if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *secureBubble) authority(name string) *trust.Authority {
	s.Helper()
	a, err := trust.NewAuthority(name, time.Now(), time.Now().Add(1000*time.Hour))
	if err != nil {
		s.Fatal(err)
	}
	return a
}

// certify gives a node another certificate, of the CA as it is now, that holds for its name alone.
func (s *secureBubble) certify(i int) {
	s.Helper()
	name := fmt.Sprintf("ebb-%d", i)
	cert, key, _, err := s.ca.Issue(trust.Request{Name: name, Roles: []string{trust.RoleNode}, Hosts: []string{name}, From: time.Now(), To: time.Now().Add(100 * time.Hour)})
	if err != nil {
		s.Fatal(err)
	}
	s.put(name+".key", key)
	s.put(name+".crt", cert)
}

// keys puts keys of gossip in place, each made of a letter.
func (s *secureBubble) keys(letters ...string) {
	var text strings.Builder
	for _, l := range letters {
		fmt.Fprintln(&text, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(l), 32)))
	}
	s.put("gossip.keys", []byte(text.String()))
}

// config is that of a client with a certificate of a role, none if empty.
func (s *secureBubble) clientConfig(role string) *tls.Config {
	s.Helper()
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12, ServerName: "ebb-0"}
	cfg.RootCAs.AppendCertsFromPEM(s.ca.PEM)
	if role != "" {
		pair, err := s.ca.Pair(trust.Request{Name: "ada", Roles: []string{role}, From: time.Now(), To: time.Now().Add(time.Hour)})
		if err != nil {
			s.Fatal(err)
		}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return cfg
}

// dial connects to node 0, or says why not.
func (s *secureBubble) dial(opts ...ebb.Option) (*ebb.Client, error) {
	me := s.net.Host("10.0.1.1")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := ebb.DialOptions(ctx, []string{s.host(0) + ":7070"}, append(opts, ebb.WithDialer(func(ctx context.Context, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }))...)
	if err == nil {
		s.clients = append(s.clients, c)
	}
	return c, err
}

// conn is a bare connection to node 0.
func (s *secureBubble) conn(creds credentials.TransportCredentials) *grpc.ClientConn {
	s.Helper()
	me := s.net.Host("10.0.1.1")
	conn, err := grpc.NewClient("passthrough:///"+s.host(0)+":7070", grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }))
	if err != nil {
		s.Fatal(err)
	}
	return conn
}

// A cluster gets another CA, other certificates and other keys of gossip, and loses a leader, while it counts. Nothing
// is lost, and nothing counts twice. A caller that has only what was taken out is a stranger then.
func TestCertificatesAndKeysAreReplacedUnderWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of a cluster that counts")
	}
	inSecureBubble(t, 3, 4, func(s *secureBubble) {
		s.openAll()
		c, err := s.dial(ebb.WithTLS(s.anyNode()))
		if err != nil {
			t.Fatal(err)
		}
		s.plain(c)
		stop := s.writing(c, 4)
		time.Sleep(time.Second)

		first := s.ca
		s.ca = s.authority("two")
		s.put("ca.crt", append(bytes.Clone(first.PEM), s.ca.PEM...))
		s.keys("a", "b")
		time.Sleep(3 * time.Second)
		for i := range s.nodes {
			s.certify(i)
		}
		s.keys("b", "a")
		time.Sleep(3 * time.Second)
		s.put("ca.crt", s.ca.PEM)
		s.keys("b")
		time.Sleep(3 * time.Second)

		s.crash(1)
		time.Sleep(10 * time.Second)
		s.open(1)
		s.ready(1)
		n := stop()
		c.Close()
		late, err := s.dial(ebb.WithTLS(s.anyNode()))
		if err != nil {
			t.Fatal(err)
		}
		s.verify(late, 4, n)

		s.ca = first
		if _, err := s.dial(ebb.WithTLS(s.anyNode())); !errors.Is(err, ebb.ErrUnreachable) || !strings.Contains(err.Error(), "its certificate is of a CA that is not trusted here") {
			t.Errorf("a client that trusts the first CA: %v", err)
		}
	})
}

// anyNode accepts whichever node answers: certificates here are for names, and clients dial addresses.
func (s *secureBubble) anyNode() *tls.Config {
	cfg := s.clientConfig("")
	roots := cfg.RootCAs
	cfg.InsecureSkipVerify = true
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now()})
		return err
	}
	return cfg
}

// A node whose certificate the others refuse does not become one of them, and they go on.
func TestANodeWithAnothersCertificate(t *testing.T) {
	for name, spoil := range map[string]func(s *secureBubble){
		"another CA": func(s *secureBubble) {
			s.ca = s.authority("other")
			s.put("other.crt", s.ca.PEM)
			s.certify(2)
			s.config[2].TLS.CA = s.file("other.crt")
		},
		"another node's": func(s *secureBubble) {
			s.config[2].TLS.Cert, s.config[2].TLS.Key = s.file("ebb-1.crt"), s.file("ebb-1.key")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inSecureBubble(t, 3, 3, func(s *secureBubble) {
				s.openAll()
				c, err := s.dial(ebb.WithTLS(s.anyNode()))
				if err != nil {
					t.Fatal(err)
				}
				s.plain(c)
				s.crash(2)
				spoil(s)
				s.open(2)
				time.Sleep(20 * time.Second)
				select {
				case <-s.nodes[2].Ready():
					t.Error("it is ready")
				default:
				}
				s.write(c, "k0", "x", 1)
				s.verify(c, 1, 1)
			})
		})
	}
}

// Only nodes may ask what nodes ask of each other. Each method of the services that nodes use is either theirs or, by
// this list, the clients' too.
func TestTheDoorOfNodes(t *testing.T) {
	clients := map[string]bool{
		ebbv1grpc.Shards_Apply_FullMethodName: true, ebbv1grpc.Shards_Snapshot_FullMethodName: true, ebbv1grpc.Shards_RestoreNamespaces_FullMethodName: true,
	}
	inSecureBubble(t, 1, 1, func(s *secureBubble) {
		s.openAll()
		callers := map[string]*grpc.ClientConn{"no certificate": s.conn(credentials.NewTLS(s.clientConfig(""))), "a client's": s.conn(credentials.NewTLS(s.clientConfig("admin")))}
		ofNode := s.conn(credentials.NewTLS(s.clientConfig(trust.RoleNode)))
		for _, service := range []grpc.ServiceDesc{ebbv1grpc.Shards_ServiceDesc, peerv1.Peer_ServiceDesc} {
			for _, method := range methodsOf(service) {
				for name, conn := range callers {
					refused := strings.Contains(attempt(conn, method), "is for nodes of the cluster")
					if refused == clients[method.name] {
						t.Errorf("%s of %s: refused is %v", method.name, name, refused)
					}
				}
				if said := attempt(ofNode, method); strings.Contains(said, "is for nodes") {
					t.Errorf("%s of a node: %s", method.name, said)
				}
			}
		}
		for _, conn := range callers {
			conn.Close()
		}
		ofNode.Close()
	})
}

type method struct {
	name   string
	stream *grpc.StreamDesc // nil: unary
}

func methodsOf(d grpc.ServiceDesc) (out []method) {
	for _, m := range d.Methods {
		out = append(out, method{name: "/" + d.ServiceName + "/" + m.MethodName})
	}
	for _, m := range d.Streams {
		out = append(out, method{"/" + d.ServiceName + "/" + m.StreamName, &m})
	}
	return out
}

// attempt calls a method with an empty message and returns what the node says.
func attempt(conn *grpc.ClientConn, m method) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if m.stream == nil {
		return status.Convert(conn.Invoke(ctx, m.name, &ebbv1.StatusRequest{}, &ebbv1.StatusResponse{})).Message()
	}
	s, err := conn.NewStream(ctx, m.stream, m.name)
	if err == nil {
		if err = s.SendMsg(&ebbv1.StatusRequest{}); err == nil && !m.stream.ClientStreams {
			err = s.CloseSend()
		}
	}
	if err == nil || status.Code(err) != codes.Unavailable {
		err = s.RecvMsg(&ebbv1.StatusResponse{})
	}
	return status.Convert(err).Message()
}

// A client that is not let in learns why, and what to do.
func TestClientsThatAreNotLetIn(t *testing.T) {
	inSecureBubble(t, 1, 1, func(s *secureBubble) {
		s.config[0].TLS.RequireClientCert = true
		s.openAll()
		other := s.authority("other")
		ofOther := s.clientConfig("reader")
		ofOther.RootCAs = x509.NewCertPool()
		ofOther.RootCAs.AppendCertsFromPEM(other.PEM)
		strange := s.clientConfig("")
		pair, err := other.Pair(trust.Request{Name: "eve", From: time.Now(), To: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		strange.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		expired := s.clientConfig("")
		old, err := s.ca.Pair(trust.Request{Name: "ada", From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(-time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		expired.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &old, nil }
		elsewhere := s.clientConfig("reader")
		elsewhere.ServerName = "db.example.org"
		oldTLS := s.clientConfig("reader")
		oldTLS.MaxVersion = tls.VersionTLS12
		late := s.clientConfig("reader")
		late.Time = func() time.Time { return time.Now().Add(200 * time.Hour) }
		for name, c := range map[string]struct {
			opts       []ebb.Option
			want, hint string
		}{
			"no TLS":                     {nil, "it hangs up on connections that are not encrypted", "--tls-ca"},
			"a CA that it does not know": {[]ebb.Option{ebb.WithTLS(ofOther)}, "its certificate is of a CA that is not trusted here", "--tls-ca"},
			"another name":               {[]ebb.Option{ebb.WithTLS(elsewhere)}, "its certificate is for ebb-0, not for db.example.org", "--tls-server-name"},
			"a node's that has expired":  {[]ebb.Option{ebb.WithTLS(late), ebb.WithClock(late.Time)}, "the certificate of CN=ebb-0,OU=ebb:node expired at", "clock"},
			"no certificate":             {[]ebb.Option{ebb.WithTLS(s.clientConfig(""))}, "it asks for a certificate of the client", "--tls-cert"},
			"one of another CA":          {[]ebb.Option{ebb.WithTLS(strange)}, "it does not trust the CA of the client's certificate", "--tls-cert"},
			"one that has expired":       {[]ebb.Option{ebb.WithTLS(expired)}, "the client's certificate has expired", "--tls-cert"},
			"TLS 1.2":                    {[]ebb.Option{ebb.WithTLS(oldTLS)}, "protocol version not supported", ""},
		} {
			_, err := s.dial(c.opts...)
			var e *ebb.Error
			if !errors.As(err, &e) || !errors.Is(err, ebb.ErrUnreachable) || !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("%s: %v (hint %v), want %q", name, err, e, c.want)
			}
		}
		if _, err := s.dial(ebb.WithTLS(s.clientConfig("reader"))); err != nil {
			t.Errorf("one who is to be let in: %v", err)
		}
	})
}

// Whoever connects and says nothing is hung up on.
func TestSilentCallersAreHungUpOn(t *testing.T) {
	inSecureBubble(t, 1, 1, func(s *secureBubble) {
		s.openAll()
		conn, err := s.net.Host("10.0.1.1").Dial(context.Background(), s.host(0)+":7070")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("the node speaks first")
		}
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("after %v", took)
		}
		synctest.Wait() // the side that hangs up counts it a moment later
		if got := failedHandshakes(t, s.config[0].Registry); got != 1 {
			t.Errorf("%v failed handshakes are counted, want 1", got)
		}
	})
}

func failedHandshakes(t *testing.T, r *prometheus.Registry) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ebb_node_handshakes_failed_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("they are not counted")
	return 0
}

// A node does not start with half of what TLS needs, nor with keys that are none.
func TestTrustThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *secureBubble, c *node.Config)
		want  string
	}{
		"no key":                   {func(_ *secureBubble, c *node.Config) { c.TLS.Key = "" }, "some of --tls-cert, --tls-key and --tls-ca are missing"},
		"clients' CA without TLS":  {func(s *secureBubble, c *node.Config) { c.TLS = node.TLS{ClientCA: s.file("ca.crt")} }, "need TLS"},
		"a CA for a certificate":   {func(s *secureBubble, c *node.Config) { c.TLS.Cert = s.file("ca.crt") }, "private key does not match"},
		"keys that are not there":  {func(s *secureBubble, c *node.Config) { c.GossipKeys = s.file("none") }, "none: no such file"},
		"keys that are no keys":    {func(s *secureBubble, _ *node.Config) { s.put("gossip.keys", []byte("hello\n")) }, "gossip.keys: line 1 is not base64"},
		"a clock that is days off": {func(s *secureBubble, _ *node.Config) { s.skews[0].Store(int64(200 * time.Hour)) }, "expired at"},
	} {
		t.Run(name, func(t *testing.T) {
			inSecureBubble(t, 1, 1, func(s *secureBubble) {
				c.spoil(s, &s.config[0])
				n, err := node.Open(context.Background(), s.config[0])
				if err == nil {
					n.Kill()
				}
				if !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		})
	}
}

// The doors of HTTP and of operators speak TLS, the latter to every caller. A caller without TLS gets an answer that
// says so.
func TestDoorsOfHTTP(t *testing.T) {
	inSecureBubble(t, 1, 1, func(s *secureBubble) {
		c := &s.config[0]
		c.HTTP, c.Admin, c.TLS.RequireClientCert, c.TLS.Admin = s.host(0)+":7080", s.host(0)+":7081", true, true
		s.openAll()
		me := s.net.Host("10.0.1.1")
		get := func(url string, cfg *tls.Config) string {
			dial := func(ctx context.Context, _, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }
			client := &http.Client{Transport: &http.Transport{DialContext: dial, TLSClientConfig: cfg, DisableKeepAlives: true}}
			resp, err := client.Get(url)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			return resp.Proto + " " + resp.Status
		}
		public, admin := s.host(0)+":7080/v1/namespaces", s.host(0)+":7081/livez"
		for _, x := range []struct {
			name, url string
			cfg       *tls.Config
			want      string
		}{
			{"with a certificate", "https://" + public, s.clientConfig("reader"), "HTTP/1.1 200 OK"},
			{"without a certificate", "https://" + public, s.clientConfig(""), "certificate required"},
			{"without TLS", "http://" + public, nil, "400 Bad Request"},
			{"an operator without a certificate", "https://" + admin, s.clientConfig(""), "HTTP/1.1 200 OK"},
			{"an operator without TLS", "http://" + admin, nil, "400 Bad Request"},
		} {
			if got := get(x.url, x.cfg); !strings.Contains(got, x.want) {
				t.Errorf("%s: %s, want %s", x.name, got, x.want)
			}
		}
	})
}
