package trust_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
)

func TestIdentity(t *testing.T) {
	uri, err := url.Parse("spiffe://example.org/counter")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cert *x509.Certificate
		want trust.Identity
	}{
		"a common name, and units of which two are roles": {
			&x509.Certificate{Subject: pkix.Name{CommonName: "ada", OrganizationalUnit: []string{"Sales", "ebb:writer", "ebb:", "admin", "ebb:reader"}}},
			trust.Identity{Name: "ada", Roles: []string{"writer", "reader"}},
		},
		"the first DNS name": {&x509.Certificate{DNSNames: []string{"a.example", "b.example"}}, trust.Identity{Name: "a.example"}},
		"the first URI":      {&x509.Certificate{URIs: []*url.URL{uri}}, trust.Identity{Name: "spiffe://example.org/counter"}},
		"nothing":            {&x509.Certificate{}, trust.Identity{}},
	} {
		if diff := cmp.Diff(c.want, trust.IdentityOf(c.cert)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A request has the identity of its connection, and one without TLS, or without a certificate that was verified, has
// none.
func TestIdentityOfARequest(t *testing.T) {
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "ada", OrganizationalUnit: []string{"ebb:reader"}}}
	for name, s := range map[string]*tls.ConnectionState{
		"no TLS": nil, "no certificate": {}, "one that was not verified": {PeerCertificates: []*x509.Certificate{leaf}},
	} {
		if got, ok := trust.From(trust.With(context.Background(), s)); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
	if got, ok := trust.From(trust.With(context.Background(), s)); !ok || !got.Has("reader") || got.Has("admin") {
		t.Errorf("a verified one: %+v, %v", got, ok)
	}
}

// A node whose certificate others would refuse does not start, and says which file is wrong, and why.
func TestFilesThatANodeCannotStartWith(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world)
		want  string
	}{
		"no certificate":     {func(w *world) { w.files.Cert = w.path("none.crt") }, "none.crt: no such file"},
		"an empty key":       {func(w *world) { w.put("node.key", nil) }, "node.key: tls: failed to find any PEM data"},
		"the key of another": {func(w *world) { cert := w.read("node.crt"); w.node(w.ca, trust.Request{}); w.put("node.crt", cert) }, "private key does not match"},
		"a CA that is none":  {func(w *world) { w.put("ca.crt", []byte("hello")) }, "ca.crt has no certificate in PEM"},
		"a CA that is broken": {func(w *world) {
			w.put("ca.crt", []byte("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"))
		}, "ca.crt: x509:"},
		"a file without end": {func(w *world) { w.put("ca.crt", make([]byte, 1<<20+1)) }, "ca.crt is of 1048577 bytes: the limit is 1048576"},
		"another CA":         {func(w *world) { w.node(w.authority("other"), trust.Request{}) }, "of a CA that is not trusted here"},
		"expired":            {func(w *world) { w.node(w.ca, trust.Request{To: epoch.Add(-time.Minute)}) }, "expired at 2026-03-01T11:59:00Z"},
		"not yet valid":      {func(w *world) { w.node(w.ca, trust.Request{From: epoch.Add(time.Hour)}) }, "not valid before 2026-03-01T12:55:00Z, and it is 2026-03-01T12:00:00Z here"},
		"a client's":         {func(w *world) { w.node(w.ca, trust.Request{Roles: []string{"admin"}}) }, "no organizational unit ebb:node"},
		"not for servers":    {func(w *world) { w.node(w.ca, trust.Request{Hosts: []string{}}) }, "is not for this use"},
	} {
		w := newWorld(t)
		c.spoil(w)
		_, err := w.open()
		if !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Any client may speak to a node over TLS 1.3. Of those with a certificate, only holders of a good one may.
func TestWhoIsLetIn(t *testing.T) {
	w := newWorld(t)
	partners, stranger := w.authority("partners"), w.authority("stranger")
	w.put("partners.crt", partners.PEM)
	w.files.ClientCA = w.path("partners.crt")
	s := w.mustOpen()
	good := trust.Request{Name: "ada", Roles: []string{"writer"}}
	for _, c := range []struct {
		name     string
		client   *tls.Config
		required bool
		want     string // "" for let in, or what the server says
		identity trust.Identity
	}{
		{name: "without a certificate", client: w.client(nil, nil)},
		{name: "without one where one is required", client: w.client(nil, nil), required: true, want: "client didn't provide a certificate"},
		{name: "a client", client: w.client(w.ca, &good), identity: trust.Identity{Name: "ada", Roles: []string{"writer"}}},
		{name: "a client of the CA of clients", client: w.client(partners, &good), required: true, identity: trust.Identity{Name: "ada", Roles: []string{"writer"}}},
		{name: "a node", client: w.client(w.ca, &trust.Request{Name: "ebb-1", Roles: []string{"node"}}), identity: trust.Identity{Name: "ebb-1", Roles: []string{"node"}}},
		{
			name: "a node that the CA of clients made", client: w.client(partners, &trust.Request{Name: "ebb-1", Roles: []string{"node"}}),
			want: "ebb-1 says that it is a node, and is not of the CA of nodes",
		},
		{name: "of another CA", client: w.client(stranger, &good), want: "certificate signed by unknown authority"},
		{name: "expired", client: w.client(w.ca, &trust.Request{Name: "ada", From: epoch.Add(-2 * day), To: epoch.Add(-day)}), want: "certificate has expired or is not yet valid"},
		{name: "not yet valid", client: w.client(w.ca, &trust.Request{Name: "ada", From: epoch.Add(time.Hour)}), want: "certificate has expired or is not yet valid"},
		{name: "TLS 1.2", client: func() *tls.Config { c := w.client(nil, nil); c.MaxVersion = tls.VersionTLS12; return c }(), want: "client offered only unsupported versions"},
	} {
		state, serverErr, clientErr := meet(t, s.Server(c.required), c.client)
		if c.want != "" {
			if serverErr == nil || !strings.Contains(serverErr.Error(), c.want) || clientErr == nil {
				t.Errorf("%s: the server says %v, the client %v; want %q", c.name, serverErr, clientErr, c.want)
			}
			continue
		}
		if serverErr != nil || clientErr != nil {
			t.Errorf("%s: the server says %v, the client %v", c.name, serverErr, clientErr)
		}
		if got, _ := trust.OfConnection(&state); !cmp.Equal(got, c.identity) || state.Version != tls.VersionTLS13 {
			t.Errorf("%s: %+v over %x, want %+v", c.name, got, state.Version, c.identity)
		}
	}
}

// Which nodes a node speaks to: those with a node's certificate of the CA, for a name or address that it looks for.
func TestWhoIsANode(t *testing.T) {
	w := newWorld(t)
	s := w.mustOpen()
	for _, c := range []struct {
		name  string
		by    *trust.Authority
		of    trust.Request
		names []string
		want  string // "" for spoken to
	}{
		{name: "its name", by: w.ca, of: trust.Request{Name: "ebb-1"}, names: []string{"10.0.0.9", "ebb-1"}},
		{name: "its address", by: w.ca, of: trust.Request{Name: "ebb-1"}, names: []string{"127.0.0.1"}},
		{name: "a wildcard", by: w.ca, of: trust.Request{Hosts: []string{"*.ebb.svc"}}, names: []string{"ebb-1.ebb.svc", "10.0.0.9"}},
		{name: "another host", by: w.ca, of: trust.Request{Name: "ebb-2"}, names: []string{"ebb-1", "10.0.0.9"}, want: "its certificate is for ebb-2, 127.0.0.1, not for 10.0.0.9"},
		{name: "another CA", by: w.authority("other"), names: []string{"ebb-0"}, want: "its certificate is of a CA that is not trusted here"},
		{name: "no node", by: w.ca, of: trust.Request{Roles: []string{"admin"}}, names: []string{"ebb-0"}, want: "the certificate of ebb-0 is not a node's"},
		{name: "expired", by: w.ca, of: trust.Request{To: epoch.Add(-time.Minute)}, names: []string{"ebb-0"}, want: "the certificate of CN=ebb-0,OU=ebb:node expired at 2026-03-01T11:59:00Z"},
		{name: "not yet valid", by: w.ca, of: trust.Request{From: epoch.Add(time.Hour)}, names: []string{"ebb-0"}, want: "is not valid before 2026-03-01T12:55:00Z"},
	} {
		pair, err := c.by.Pair(nodeRequest(c.of))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = meet(t, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}, s.Peer(c.names...))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(trust.Plainly(err, epoch).Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Files that change are taken at the next look; those that cannot be used leave the old ones in use, and this is said
// once.
func TestReload(t *testing.T) {
	w := newWorld(t)
	s := w.mustOpen()
	serial := func() string {
		state := tls.ConnectionState{}
		client := w.client(nil, nil)
		client.VerifyConnection = func(s tls.ConnectionState) error { state = s; return nil }
		if _, serverErr, clientErr := meet(t, s.Server(false), client); serverErr != nil || clientErr != nil {
			t.Fatalf("shake hands: %v, %v", serverErr, clientErr)
		}
		return state.PeerCertificates[0].SerialNumber.String()
	}
	metrics := func(reloads, broken string) {
		t.Helper()
		want := `
# HELP ebb_node_certificate_files_broken 1 while the files of certificates cannot be used, and those from before stay in use.
# TYPE ebb_node_certificate_files_broken gauge
ebb_node_certificate_files_broken ` + broken + `
# HELP ebb_node_certificate_reloads_total Times that certificates were taken from files that had changed.
# TYPE ebb_node_certificate_reloads_total counter
ebb_node_certificate_reloads_total ` + reloads + "\n"
		if err := testutil.CollectAndCompare(s, strings.NewReader(want), "ebb_node_certificate_files_broken", "ebb_node_certificate_reloads_total"); err != nil {
			t.Error(err)
		}
	}

	first := serial()
	s.Look()
	if got := serial(); got != first || w.said() != "" {
		t.Error("files that have not changed are not as before")
	}
	metrics("0", "0")

	key := w.read("node.key")
	w.node(w.ca, trust.Request{})
	newKey := w.read("node.key")
	w.put("node.key", key) // the certificate is there, its key is not yet
	s.Look()
	if got, said := serial(), w.said(); got != first || said != "" {
		t.Errorf("files in the middle of a change: certificate %s after %s, and the log says %q", got, first, said)
	}
	metrics("0", "1")
	for range 3 {
		s.Look()
	}
	if said := w.said(); strings.Count(said, "certificates cannot be used") != 1 {
		t.Errorf("files that stay broken; the log says:\n%s", said)
	}
	w.put("node.key", newKey)
	s.Look()
	second := serial()
	if said := w.said(); second == first || strings.Count(said, "certificates read again") != 1 {
		t.Errorf("files in order again: certificate %s after %s, and the log says:\n%s", second, first, said)
	}
	metrics("1", "0")

	other := w.authority("other")
	w.put("ca.crt", append(w.read("ca.crt"), other.PEM...))
	s.Look()
	if _, serverErr, _ := meet(t, s.Server(true), w.client(other, &trust.Request{Name: "ada"})); serverErr != nil {
		t.Errorf("a client of a CA that was added: %v", serverErr)
	}
	w.put("ca.crt", w.ca.PEM)
	s.Look()
	if _, serverErr, _ := meet(t, s.Server(true), w.client(other, &trust.Request{Name: "ada"})); serverErr == nil {
		t.Error("a client of a CA that was taken out is let in")
	}
}

// A certificate is complained of once before it ends and once when it has; one of short life in its last fifth.
func TestEndsAreForetold(t *testing.T) {
	w := newWorld(t)
	w.node(w.ca, trust.Request{From: epoch.Add(5 * time.Minute), To: epoch.Add(10 * day)})
	s := w.mustOpen()
	for _, step := range []struct {
		after time.Duration
		want  string // in the log; "" for nothing
	}{{7 * day, ""}, {day + time.Hour, "expires soon"}, {time.Hour, ""}, {2 * day, "has expired"}, {day, ""}} {
		w.pass(step.after)
		s.Look()
		if said := w.said(); !strings.Contains(said, step.want) || step.want == "" && said != "" {
			t.Errorf("after %v: the log says %q, want %q", step.after, said, step.want)
		}
	}
	w.node(w.ca, trust.Request{From: w.time(), To: w.time().Add(90 * day)})
	s.Look()
	if said := w.said(); !strings.Contains(said, "read again") || strings.Contains(said, "expire") {
		t.Errorf("renewed: the log says %q", said)
	}
}
