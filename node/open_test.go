package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// alone is the configuration of one node in a directory.
func alone(t *testing.T, dir string) node.Config {
	return node.Config{
		DataDir: dir, GRPC: "127.0.0.1:0", HTTP: node.Off, Admin: node.Off, Shards: 2, Logger: testLogger(t),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
}

func open(t *testing.T, c node.Config) *node.Node {
	t.Helper()
	n, err := node.Open(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// founded returns a data directory in which a node has run.
func founded(t *testing.T) string {
	dir := t.TempDir()
	n := open(t, alone(t, dir))
	<-n.Ready()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// refused opens a node that must not open, and checks that the error names the
// thing and, where that does not follow from the limit it names, what to do.
func refused(t *testing.T, c node.Config, want error, words ...string) {
	t.Helper()
	n, err := node.Open(context.Background(), c)
	if err == nil {
		_ = n.Close()
		t.Fatal("the node opened")
	}
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if e := proto.AsError(err); e.Hint == "" && !errors.Is(want, proto.ErrBadRequest) {
		t.Errorf("%q has no hint", err)
	}
}

func TestSettingsThatCannotWork(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *node.Config)
		words  []string
	}{
		{"no ordinal", func(c *node.Config) { c.Name = "ebb" }, []string{`"ebb"`}},
		{"a slash in the name", func(c *node.Config) { c.Name = "a/b-0" }, []string{"a/b-0"}},
		{"ordinal beyond the founders", func(c *node.Config) { c.Name, c.BootstrapExpect = "ebb-3", 3 }, []string{"ebb-3", "0 to 2"}},
		{"no founders", func(c *node.Config) { c.BootstrapExpect = -1 }, []string{"-1"}},
		{"too many shards", func(c *node.Config) { c.Shards = 5000 }, []string{"5000", "1024"}},
		{"fewer shards than nodes", func(c *node.Config) { c.Shards, c.BootstrapExpect = 2, 3 }, []string{"2 shards", "3 nodes"}},
		{"too much replication", func(c *node.Config) { c.Replication = 3 }, []string{"replication 3", "1 nodes"}},
		{"no gRPC", func(c *node.Config) { c.GRPC = node.Off }, []string{"gRPC is off"}},
		{"all addresses advertised", func(c *node.Config) { c.AdvertiseGRPC = "0.0.0.0:7070" }, []string{`advertise-grpc "0.0.0.0:7070"`, "host:port"}},
		{"no port advertised", func(c *node.Config) { c.AdvertiseHTTP = "example.org" }, []string{`advertise-http "example.org"`, "host:port"}},
		{"a scheme in an HTTP host", func(c *node.Config) { c.HTTPHosts = []string{"a.example", "http://b.example"} }, []string{`http-host "http://b.example"`, "one name or address"}},
		{"no gossip among three", func(c *node.Config) { c.Gossip, c.BootstrapExpect, c.Shards = node.Off, 3, 8 }, []string{"gossip"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := alone(t, t.TempDir())
			c.change(&conf)
			refused(t, conf, proto.ErrBadRequest, c.words...)
		})
	}
}

func TestAddressesThatCannotWork(t *testing.T) {
	dir := t.TempDir()
	first := open(t, alone(t, t.TempDir()))
	taken := alone(t, dir)
	taken.GRPC = first.Addresses().GRPC
	refused(t, taken, proto.ErrBadRequest, taken.GRPC, "address already in use")
	taken = alone(t, dir)
	taken.HTTP = first.Addresses().GRPC
	refused(t, taken, proto.ErrBadRequest, "HTTP", taken.HTTP)
	nowhere := alone(t, dir)
	nowhere.GRPC = "host.invalid:7070"
	refused(t, nowhere, proto.ErrBadRequest, "host.invalid")
	nowhere.GRPC = "nonsense"
	refused(t, nowhere, proto.ErrBadRequest, "nonsense")
	open(t, alone(t, dir)) // what was refused left nothing behind
}

// A node that listens on all addresses tells others one at which they can reach it:
// what it advertises, where its gossip is, or one of the machine's.
func TestAllAddressesAreNoneToTell(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *node.Config)
		want   func(host string) bool
	}{
		{"nothing said", func(*node.Config) {}, func(host string) bool { return !netip.MustParseAddr(host).IsUnspecified() }},
		{"gossip advertised", func(c *node.Config) { c.AdvertiseGossip = "192.0.2.7:7071" }, func(host string) bool { return host == "192.0.2.7" }},
		{"advertised", func(c *node.Config) { c.AdvertiseGRPC, c.AdvertiseHTTP = "a.example:1", "a.example:2" }, func(host string) bool { return host == "a.example" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := alone(t, t.TempDir())
			conf.GRPC, conf.HTTP = "0.0.0.0:0", "[::]:0"
			c.change(&conf)
			n := open(t, conf)
			record := n.Status().GetNode() // what it says to the control group, for the table
			for _, told := range []string{record.GetGrpcAddress(), record.GetHttpAddress()} {
				if host, port, err := net.SplitHostPort(told); err != nil || !c.want(host) || port == "0" {
					t.Errorf("others are told %q: %v", told, err)
				}
			}
		})
	}
}

func TestDataDirectoryOfAnotherNode(t *testing.T) {
	dir := founded(t)
	c := alone(t, dir)
	c.Name, c.BootstrapExpect, c.Shards = "ebb-1", 2, 8
	refused(t, c, proto.ErrBadRequest, dir, "ebb-0", "ebb-1")
}

func TestDataDirectoryOfAnotherNumberOfShards(t *testing.T) {
	c := alone(t, founded(t))
	c.Shards = 4
	refused(t, c, proto.ErrBadRequest, "2 shards", "4")
	c.Shards = 0 // what it was born with
	open(t, c)
}

func TestDataDirectoryOfANewerVersion(t *testing.T) {
	dir, newer := founded(t), proto.StorageVersion+1
	edit(t, dir, `"layout": 1`, fmt.Sprintf(`"layout": %d`, newer))
	refused(t, alone(t, dir), proto.ErrNewerVersion, dir, fmt.Sprintf("storage version %d", newer), fmt.Sprintf("knows 1 to %d", proto.StorageVersion))
}

func TestDataDirectoryOfAVersionTooOld(t *testing.T) {
	dir := founded(t)
	c := alone(t, dir)
	c.Storage = proto.Versions{Oldest: 7, Newest: 8}
	refused(t, c, proto.ErrNewerVersion, dir, "storage version 1", "knows 7 to 8")
}

func TestDataDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, alone(t, dir))
	refused(t, alone(t, dir), proto.ErrLocked, dir)
}

func TestDataDirectoryDamaged(t *testing.T) {
	dir := founded(t)
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, alone(t, dir), proto.ErrCorrupt, dir, "node.json is damaged")
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, alone(t, dir), proto.ErrCorrupt, dir, "node.json names no layout")
	dir = founded(t)
	if err := os.Remove(filepath.Join(dir, "node.json")); err != nil {
		t.Fatal(err)
	}
	refused(t, alone(t, dir), proto.ErrCorrupt, dir, "node.json")
}

// A node that has run is refused without its log, however often it is started and
// whatever else is there: it has forgotten its votes.
func TestLogDeleted(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dir string)
	}{
		{"the directory", func(*testing.T, string) {}},
		{"all files in it", func(t *testing.T, dir string) { must(t, os.Mkdir(filepath.Join(dir, "wal"), 0o750)) }},
		{"before all replicas had their configuration", func(t *testing.T, dir string) { edit(t, dir, `"founded": true`, `"founded": false`) }},
		{"and the replicas from node.json", func(t *testing.T, dir string) { edit(t, dir, `"founders": [`, `"forgotten": [`) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := founded(t)
			must(t, os.RemoveAll(filepath.Join(dir, "wal")))
			c.change(t, dir)
			for range 2 {
				refused(t, alone(t, dir), proto.ErrCorrupt, dir, filepath.Join(dir, "wal"), "deleted")
			}
		})
	}
}

// A file of the log that was cut off is refused by the node too.
func TestLogCutOff(t *testing.T) {
	dir := founded(t)
	name := filepath.Join(dir, "wal", "0000000001.wal")
	must(t, os.Truncate(name, 16<<20))
	refused(t, alone(t, dir), proto.ErrCorrupt, name, "16777216", "33554432")
}

// A directory that a node has taken, but in which it never got replicas, has no
// log to miss.
func TestTakenWithoutReplicas(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"layout": 1, "node": "ebb-0"}`), 0o600))
	n := open(t, alone(t, dir))
	<-n.Ready()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// edit replaces text in a directory's node.json, whose checksum is right then.
func edit(t *testing.T, dir, from, to string) {
	t.Helper()
	name := filepath.Join(dir, "node.json")
	raw, err := os.ReadFile(name)
	must(t, err)
	if !strings.Contains(string(raw), from) {
		t.Fatalf("no %s in %s", from, raw)
	}
	must(t, os.WriteFile(name, node.WithChecksum([]byte(strings.Replace(string(raw), from, to, 1))), 0o600))
}

func TestDataDirectoryOfSomebodyElse(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, alone(t, dir), proto.ErrBadRequest, dir, "thesis.tex")
}

func TestDataDirectoryReadOnlyOrFull(t *testing.T) {
	disk := fs.NewMem()
	c := alone(t, "/data")
	c.FS = disk
	disk.SetReadOnly(true)
	refused(t, c, proto.ErrDisk, "/data", "read-only")
	disk.SetReadOnly(false)
	disk.SetCapacity(1 << 20)
	refused(t, c, proto.ErrDisk, "/data")
	disk.SetCapacity(0)
	open(t, c)
}

// A node is killed and closed at any time of its start.
func TestCloseWhileStarting(t *testing.T) {
	for range 10 {
		n := open(t, alone(t, t.TempDir()))
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		n = open(t, alone(t, t.TempDir()))
		n.Kill()
		n.Kill()
	}
}
