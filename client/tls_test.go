package client_test

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/internal/trust"
)

// A client's certificate is read again for each connection, and kept while its files hold none.
func TestTLSFiles(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	files := ebb.TLSFiles{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "ada.crt"), Key: filepath.Join(dir, "ada.key"), ServerName: "ebb"}
	put := func(path string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, err := trust.NewAuthority("ca", now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) {
		t.Helper()
		cert, key, _, err := ca.Issue(trust.Request{Name: name, From: now, To: now.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		put(files.Cert, cert)
		put(files.Key, key)
	}
	if _, err := files.Config(); err == nil || !strings.Contains(err.Error(), "ca.crt: no such file") || !errors.Is(err, ebb.ErrBadRequest) {
		t.Errorf("no CA: %v", err)
	}
	put(files.CA, []byte("hello"))
	if _, err := files.Config(); err == nil || !strings.Contains(err.Error(), "ca.crt has no certificate in PEM") {
		t.Errorf("a CA that is none: %v", err)
	}
	put(files.CA, ca.PEM)
	if _, err := files.Config(); err == nil || !strings.Contains(err.Error(), "ada.crt") {
		t.Errorf("no certificate: %v", err)
	}
	issue("ada")
	cfg, err := files.Config()
	if err != nil || cfg.ServerName != "ebb" {
		t.Fatalf("%+v, %v", cfg, err)
	}
	shown := func() string {
		t.Helper()
		pair, err := cfg.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.Subject.CommonName
	}
	if got := shown(); got != "ada" {
		t.Errorf("%s", got)
	}
	issue("grace")
	if got := shown(); got != "grace" {
		t.Errorf("after a change: %s", got)
	}
	put(files.Key, nil)
	if got := shown(); got != "grace" {
		t.Errorf("with a key that is none: %s", got)
	}
}
