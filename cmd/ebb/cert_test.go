package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A certificate has roles and hosts that nodes and clients know what to do with.
func TestCertificatesThatCannotBeRight(t *testing.T) {
	dir := t.TempDir()
	if code, said := refused(t, "cert", "ca", "--dir", dir); code != exitOK {
		t.Fatal(said)
	}
	for want, args := range map[string][]string{
		`--role "bogus": one of reader, writer, admin, operator`: {"client", "bob", "--role", "bogus"},
		`--role "wrter": did you mean writer?`:                   {"client", "bob", "--role", "wrter=*"},
		"a pattern has 1 to 64 bytes":                            {"client", "bob", "--role", "writer="},
		"only letters, digits":                                   {"client", "bob", "--role", "reader=a/b"},
		"it is of the whole cluster":                             {"client", "bob", "--role", "reader,operator=x"},
		"a client has no role node":                              {"client", "bob", "--role", "node"},
		"17 roles: a certificate has 16 at most":                 {"client", "bob", "--role", strings.Repeat("reader,", 16) + "writer"},
		`--host "bad host": it is neither a DNS name nor an IP`:  {"node", "x", "--host", "bad host"},
		`--host "10.0.0.1:7070": it is neither`:                  {"node", "x", "--host", "ebb-0.example.org,10.0.0.1:7070"},
		`--host "": it is neither`:                               {"node", "x", "--host", "ebb-0,"},
	} {
		code, said := refused(t, append([]string{"cert", "--dir", dir}, args...)...)
		if code != exitUsage || !strings.Contains(said, want) {
			t.Errorf("%v: exit %d: %s", args, code, said)
		}
	}
	for _, args := range [][]string{
		{"client", "ada", "--role", "reader,writer=web-*,admin=clicks"},
		{"client", "olga", "--role", "operator"},
		{"client", "nobody"},
		{"node", "ebb-0", "--host", "*.ebb-peers.ebb.svc,10.0.0.1,fd00::1,my_node"},
	} {
		if code, said := refused(t, append([]string{"cert", "--dir", dir}, args...)...); code != exitOK {
			t.Errorf("%v: exit %d: %s", args, code, said)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2*5 {
		t.Errorf("%v, %v", left, err)
	}
}
