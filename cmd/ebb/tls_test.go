package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/node"
)

// tlsFiles is a directory with the certificates and keys of a fleet. Its nodes share one certificate.
type tlsFiles struct {
	*testing.T
	dir string
	ca  *trust.Authority
}

func newTLSFiles(t *testing.T) *tlsFiles {
	t.Helper()
	f := &tlsFiles{T: t, dir: t.TempDir()}
	f.ca = f.authority("one")
	f.put("ca.crt", f.ca.PEM)
	f.certify()
	f.keys('a')
	return f
}

func (f *tlsFiles) path(name string) string { return filepath.Join(f.dir, name) }

func (f *tlsFiles) put(name string, content []byte) {
	f.Helper()
	if err := replaceFile(f.path(name), content, 0o600); err != nil {
		f.Fatal(err)
	}
}

func (f *tlsFiles) authority(name string) *trust.Authority {
	f.Helper()
	a, err := trust.NewAuthority(name, time.Now(), time.Now().Add(24*time.Hour))
	if err != nil {
		f.Fatal(err)
	}
	return a
}

// certify replaces the certificates of the nodes and of the client by those of the CA as it is now.
func (f *tlsFiles) certify() {
	f.Helper()
	for name, r := range map[string]trust.Request{
		"node": {Name: "ebb", Roles: []string{trust.RoleNode}, Hosts: []string{"127.0.0.1"}}, "client": {Name: "ada", Roles: []string{"admin"}},
	} {
		r.From, r.To = time.Now(), time.Now().Add(time.Hour)
		cert, key, _, err := f.ca.Issue(r)
		if err != nil {
			f.Fatal(err)
		}
		f.put(name+".key", key)
		f.put(name+".crt", cert)
	}
}

func (f *tlsFiles) keys(letters ...byte) {
	var text bytes.Buffer
	for _, l := range letters {
		fmt.Fprintln(&text, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{l}, 32)))
	}
	f.put("gossip.keys", text.Bytes())
}

// serveArgs are the arguments that the nodes get.
func (f *tlsFiles) serveArgs() []string {
	return []string{
		"--tls-cert", f.path("node.crt"), "--tls-key", f.path("node.key"), "--tls-ca", f.path("ca.crt"),
		"--tls-require-client-cert", "--gossip-keys", f.path("gossip.keys"), "--require-secure",
	}
}

func (f *tlsFiles) dial(ctx context.Context, fleet *proc.Fleet) *client.Client {
	f.Helper()
	c, err := f.tryDial(ctx, fleet)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { c.Close() })
	return c
}

func (f *tlsFiles) tryDial(ctx context.Context, fleet *proc.Fleet) (*client.Client, error) {
	cfg, err := client.TLSFiles{CA: f.path("ca.crt"), Cert: f.path("client.crt"), Key: f.path("client.key")}.Config()
	if err != nil {
		return nil, err
	}
	return client.DialOptions(ctx, fleet.Addrs(), client.WithTLS(cfg))
}

// Three processes that trust each other by certificates get another CA, other certificates and another key of gossip,
// and lose the leader of most shards to kill -9, while a client counts. Everything that was acknowledged is counted
// once; whoever has only what was replaced is not let in.
func TestFleetOverTLS(t *testing.T) {
	if os.Getenv("EBB_LONG") == "" {
		t.Skip("rotates certificates under real processes: set EBB_LONG=1 (make acceptance)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	files := newTLSFiles(t)
	f := startFleet(t, files.serveArgs()...)
	c := files.dial(ctx, f)
	if _, err := c.CreateNamespace(ctx, client.Namespace{Name: "ledger", Decay: client.DecayNone}); err != nil {
		t.Fatal(err)
	}
	w := c.Writer(client.WriterOptions{Namespace: "ledger", NoAggregate: true, Timeout: time.Minute, OnError: func(err error) { t.Errorf("write: %v", err) }})
	writing, stop := context.WithCancel(ctx)
	counted := make(chan int)
	go func() {
		n := 0
		for ; writing.Err() == nil; n++ {
			if err := w.Add(ctx, "key/"+strconv.Itoa(n%100), "b", 1); err != nil {
				t.Errorf("add: %v", err)
			}
			time.Sleep(time.Millisecond)
		}
		counted <- n
	}()

	// taken waits until all nodes have said something for the n-th time.
	taken := func(words string, n int) {
		t.Helper()
		for i := range f.Nodes() {
			for {
				text, err := os.ReadFile(f.LogFile(i))
				if err == nil && strings.Count(string(text), words) >= n {
					break
				}
				select {
				case <-ctx.Done():
					t.Fatalf("%s has not said %q %d times", f.Name(i), words, n)
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
	}
	const certs, keys = "certificates read again", "keys of gossip read again"
	first := files.ca
	files.ca = files.authority("two")
	files.put("ca.crt", append(bytes.Clone(first.PEM), files.ca.PEM...))
	files.keys('a', 'b')
	taken(certs, 1)
	taken(keys, 1)
	files.certify()
	files.keys('b', 'a')
	taken(certs, 2)
	taken(keys, 2)
	files.put("ca.crt", files.ca.PEM)
	files.keys('b')
	taken(certs, 3)
	taken(keys, 3)

	late := files.dial(ctx, f)
	victim, shards := busiest(ctx, t, f, late)
	f.Kill(victim)
	t.Logf("%s led %d shards", f.Name(victim), len(shards))
	if err := late.Increment(ctx, "ledger", client.Increment{Key: "late", Bin: "b", Amount: 1}); err != nil {
		t.Error(err)
	}
	if err := f.Launch(victim); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	want := <-counted
	if err := w.Close(ctx); err != nil {
		t.Errorf("close writer: %v", err)
	}
	got := 0.0
	for k := range 100 {
		n, err := late.Count(ctx, "ledger", "key/"+strconv.Itoa(k))
		if err != nil {
			t.Fatal(err)
		}
		got += n.Value
	}
	t.Logf("%d acknowledged, %v counted", want, got)
	if got != float64(want) {
		t.Errorf("%d acknowledged, %v counted", want, got)
	}
	files.ca = first
	files.certify()
	if _, err := files.tryDial(ctx, f); err == nil || !strings.Contains(err.Error(), "it does not trust the CA of the client's certificate") {
		t.Errorf("a client of the CA that was taken out: %v", err)
	}
}

// What is open to other machines, by what a node listens on and what protects it.
func TestOpenDoors(t *testing.T) {
	all := node.Config{GRPC: "0.0.0.0:7070", HTTP: ":7080", Gossip: "10.0.0.1:7071", Admin: "[::]:7081"}
	locked := all
	locked.TLS, locked.GossipKeys = node.TLS{Cert: "x", Key: "x", CA: "x", Admin: true}, "x"
	plainGossip := locked
	plainGossip.GossipKeys = ""
	if err := checkSecure(&plainGossip, true, true); err == nil ||
		!strings.Contains(err.Error(), "gossip is not encrypted, though connections are") {
		t.Errorf("TLS, gossip without keys, and --require-secure: %v", err)
	}
	mixed := locked
	mixed.TLS.Admin, mixed.GossipKeys, mixed.Gossip = false, "", node.Off
	for name, c := range map[string]struct {
		cfg   node.Config
		known bool
		want  []string
	}{
		"loopback":                     {node.Config{GRPC: "127.0.0.1:7070", HTTP: "localhost:7080", Gossip: "[::1]:7071", Admin: node.Off}, false, nil},
		"everything":                   {all, false, []string{"clients and nodes", "whoever can connect", "gossip", "metrics"}},
		"everything, with tokens":      {all, true, []string{"clients and nodes", "gossip", "metrics"}},
		"TLS alone":                    {locked, false, []string{"whoever can connect"}},
		"TLS and tokens":               {locked, true, nil},
		"no gossip, plain admin":       {mixed, true, []string{"metrics"}},
		"a name to listen on":          {node.Config{GRPC: "ebb.example.org:7070", HTTP: node.Off, Gossip: node.Off, Admin: node.Off}, true, []string{"clients and nodes"}},
		"TLS, and gossip without keys": {plainGossip, true, []string{"gossip"}},
	} {
		var got []string
		for _, d := range insecureEndpoints(&c.cfg, c.known) {
			for _, want := range []string{"clients and nodes", "whoever can connect", "gossip", "metrics"} {
				if strings.HasPrefix(d.what, want) && d.close != "" {
					got = append(got, want)
				}
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var said bytes.Buffer
	all.Logger = slog.New(slog.NewTextHandler(&said, nil))
	if err := checkSecure(&all, false, false); err != nil ||
		len(regexp.MustCompile(`level=WARN`).FindAllString(said.String(), -1)) != 4 {
		t.Errorf("a warning for each: %v, the log says\n%s", err, said.String())
	}
}
