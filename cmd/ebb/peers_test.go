package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// secrets are files with cluster secrets, made by the binary itself.
type secrets struct {
	dir  string
	text map[string]string // by name
}

func newSecrets(t *testing.T, names ...string) *secrets {
	t.Helper()
	s := &secrets{dir: t.TempDir(), text: make(map[string]string)}
	for _, name := range names {
		path := filepath.Join(s.dir, name)
		runEbb(t, "token", "secret", "--out", path)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s.text[name] = string(raw)
	}
	return s
}

// runEbb runs a command of this build that speaks to no node.
func runEbb(t *testing.T, args ...string) {
	t.Helper()
	var said strings.Builder
	if code := run(t.Context(), args, terminal{in: strings.NewReader(""), out: &said, err: &said}); code != 0 {
		t.Fatalf("ebb %s: exit %d: %s", strings.Join(args, " "), code, said.String())
	}
}

// file returns the arguments for a file that holds these secrets, in this order; none without any.
func (s *secrets) file(t *testing.T, names ...string) []string {
	t.Helper()
	if len(names) == 0 {
		return nil
	}
	var text string
	for _, name := range names {
		text += s.text[name]
	}
	path := filepath.Join(s.dir, strings.Join(names, "+"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--cluster-secret-file", path}
}

// give ends node i in good order, and starts it as a build with other secrets.
func (u *upgrade) give(i int, binary string, args []string) {
	u.t.Helper()
	u.f.Interrupt(i)
	u.f.Use(i, binary)
	u.f.Give(i, args...)
	u.launch(i)
}

// as returns a context of a call that shows this metadata, and a connection to node i.
func (u *upgrade) as(i int, md ...string) (context.Context, *grpc.ClientConn) {
	u.t.Helper()
	conn, err := grpc.NewClient(u.f.Addrs()[i], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(u.ctx, 10*time.Second)
	u.t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, md...), conn
}

// firstToken makes the token of a text that clients show already, of an operator.
func (u *upgrade) firstToken(text string) error {
	sum := sha256.Sum256([]byte(text))
	ctx, conn := u.as(1)
	_, err := ebbv1grpc.NewEbbClient(conn).CreateToken(ctx, &ebbv1.CreateTokenRequest{
		Name: "ops", Sha256: hex.EncodeToString(sum[:]), Grants: []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_OPERATOR}},
	})
	return ebbv1grpc.FromStatus(err)
}

// forge tries at node i to be an operator by saying that it is a node that asks for one.
func (u *upgrade) forge(i int) error {
	u.t.Helper()
	ctx, conn := u.as(i, "ebb-peer", "x", "ebb-origin", "root")
	_, err := ebbv1grpc.NewEbbClient(conn).ListTokens(ctx, &ebbv1.ListTokensRequest{})
	return ebbv1grpc.FromStatus(err)
}

// secured gives a running cluster without tokens a secret node by node, makes the first token and replaces the secret,
// while w writes with the token of that text. Before all nodes have the secret, the first token is refused.
func (u *upgrade) secured(s *secrets, binary, text string) {
	u.t.Helper()
	for i := range u.f.Nodes() {
		if err := u.firstToken(text); !errors.Is(err, proto.ErrBadRequest) && !errors.Is(err, proto.ErrStarting) {
			u.t.Fatalf("the first token, with %d secrets: %v", i, err)
		}
		u.give(i, binary, s.file(u.t, "a"))
	}
	u.until("the first token", func() bool {
		err := u.firstToken(text)
		if err != nil && !errors.Is(err, proto.ErrStarting) {
			u.t.Fatal(err)
		}
		return err == nil
	})
	u.t.Setenv("EBB_TOKEN", text)
	for _, names := range [][]string{{"a", "b"}, {"b", "a"}, {"b"}} {
		for i := range u.f.Nodes() {
			u.give(i, binary, s.file(u.t, names...))
			if err := u.forge(i); !errors.Is(err, proto.ErrUnauthenticated) {
				u.t.Errorf("a forged caller at %s: %v", u.f.Name(i), err)
			}
		}
	}
	for i := range u.f.Nodes() {
		for reason, want := range map[string]float64{
			"no_proof": 1, "unknown_key": 0, "clock": 0,
			"no_key": 0,
		} { // the forged one sends no proof
			if n := u.sum(`ebb_rpc_unproven_total{reason="`+reason+`"}`, i); n != want {
				u.t.Errorf("%s has not believed %v calls (%s), want %v", u.f.Name(i), n, reason, want)
			}
		}
	}
}

// Three processes that count get a secret one after the other, then their first token, and then another secret: nothing
// is lost, and nothing counts twice.
func TestSecretsNodeByNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	u := &upgrade{t: t, ctx: ctx, newer: binary(t)}
	s := newSecrets(t, "a", "b")
	u.start(u.newer)
	u.inForce(proto.StorageVersion)
	mustEbb(ctx, t, u.f, "namespace", "create", "ledger", "--decay", "none")
	text := client.NewTokenText()
	w := startWriteLoad(ctx, t, u.f, 2, 8, 20*time.Millisecond, client.WithToken(text))
	u.secured(s, u.newer, text)
	w.stop(ctx)
	mustVerify(ctx, t, u.f)
}

// start starts three nodes of a build.
func (u *upgrade) start(binary string) {
	u.t.Helper()
	f, err := proc.Start(u.ctx, proc.Options{Binary: binary, Dir: u.t.TempDir(), Args: []string{"--shards", "8"}})
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(f.Close)
	u.t.Cleanup(func() {
		for i := range f.Nodes() {
			if u.t.Failed() {
				u.t.Logf("end of the log of %s:\n%s", f.Name(i), f.LogTail(i))
			}
		}
	})
	u.f = f
}

// beforeProofs are a build from before nodes proved themselves, and the present one.
func beforeProofs(t *testing.T, limit time.Duration) *upgrade {
	t.Helper()
	commit := os.Getenv("EBB_UPGRADE")
	if commit == "" {
		t.Skip("builds an older commit: make upgrade, or set EBB_UPGRADE to a commit, such as HEAD~1")
	}
	u := &upgrade{t: t, older: olderBinary(t, commit), newer: binary(t)} // which takes minutes on a busy machine
	if storageOf(t, u.older).Newest >= proto.VersionPeerProofs {
		t.Skipf("nodes of %s prove themselves already", commit)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	u.ctx = ctx
	return u
}

// TestRollingUpgradeToProofs rolls three processes without tokens under load from the build of the commit in
// EBB_UPGRADE to the present one, each with a secret from then on; makes the first token, which waits for the last of
// them; and replaces the secret.
func TestRollingUpgradeToProofs(t *testing.T) {
	u := beforeProofs(t, 8*time.Minute)
	s := newSecrets(t, "a", "b")
	u.start(u.older)
	mustEbb(u.ctx, t, u.f, "namespace", "create", "ledger", "--decay", "none")
	text := client.NewTokenText()
	w := startWriteLoad(u.ctx, t, u.f, 2, 8, 20*time.Millisecond, client.WithToken(text))
	for i := range u.f.Nodes() { // first the build, then the secret
		u.to(i, u.newer)
	}
	u.secured(s, u.newer, text)
	w.stop(u.ctx)
	mustVerify(u.ctx, t, u.f)
}

// TestUpgradeOfTokensWithoutProofs meets three processes of the build of the commit in EBB_UPGRADE that have tokens,
// and nothing by which nodes could prove themselves. The present build does not start among them, without a secret and
// with one, also with an empty disk, and says why and what to do; the others go on, and take the node back as it was.
// When all are stopped and start with the same secret, all is there, tokens too.
func TestUpgradeOfTokensWithoutProofs(t *testing.T) {
	u := beforeProofs(t, 8*time.Minute)
	s := newSecrets(t, "a")
	u.start(u.older)
	mustEbb(u.ctx, t, u.f, "namespace", "create", "ledger", "--decay", "none")
	u.inForce(storageOf(t, u.older).Newest)
	text := client.NewTokenText()
	if err := u.firstToken(text); err != nil {
		t.Fatal(err)
	}
	if err := u.forge(0); err != nil {
		t.Errorf("the older build refuses a forged caller, so that this test proves less than it should: %v", err)
	}
	t.Setenv("EBB_TOKEN", text)
	w := startWriteLoad(u.ctx, t, u.f, 2, 8, 20*time.Millisecond, client.WithToken(text))
	for _, args := range [][]string{nil, s.file(t, "a")} {
		u.f.Interrupt(2)
		u.f.Use(2, u.newer)
		u.f.Give(2, args...)
		w.lap()
		if err := u.f.Launch(2); err != nil {
			t.Fatal(err)
		}
		ended(u.ctx, t, u.f, 2)
		says(t, u.f.LogTail(2), "tokens", "--cluster-secret-file", "stop all")
		written := 0
		u.until("100 batches to the older nodes, without the newer one", func() bool {
			n, _ := w.lap()
			written += n
			return written > 100
		})
		u.f.Use(2, u.older)
		u.f.Give(2)
		u.launch(2)
	}
	u.f.Kill(2)
	if err := u.f.Wipe(2); err != nil {
		t.Fatal(err)
	}
	u.f.Use(2, u.newer)
	u.f.Give(2, s.file(t, "a")...)
	if err := u.f.Launch(2); err != nil {
		t.Fatal(err)
	}
	u.until("why a new node with a secret waits", func() bool {
		return strings.Contains(strings.Join(strings.Fields(u.f.LogTail(2)), " "),
			"does not prove to node ebb-2 that it is a node")
	})
	u.f.Kill(2)
	if err := u.f.Wipe(2); err != nil {
		t.Fatal(err)
	}
	u.f.Use(2, u.older)
	u.f.Give(2)
	if err := u.f.Launch(2); err != nil { // it takes its own place, with an empty disk
		t.Fatal(err)
	}
	if err := u.f.WaitReady(u.ctx); err != nil {
		t.Fatal(err)
	}
	w.stop(u.ctx)
	for i := range u.f.Nodes() {
		u.f.Interrupt(i)
		u.f.Use(i, u.newer)
		u.f.Give(i, s.file(t, "a")...)
	}
	for i := range u.f.Nodes() {
		if err := u.f.Launch(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := u.f.WaitReady(u.ctx); err != nil {
		t.Fatal(err)
	}
	u.inForce(proto.StorageVersion)
	var listed struct{ Tokens []tokenJSON }
	if err := json.Unmarshal(mustEbb(u.ctx, t, u.f, "token", "list", "--json"), &listed); err != nil ||
		len(listed.Tokens) != 1 || listed.Tokens[0].Name != "ops" {
		t.Errorf("the tokens are %v (%v)", listed, err)
	}
	for i := range u.f.Nodes() {
		if err := u.forge(i); !errors.Is(err, proto.ErrUnauthenticated) {
			t.Errorf("a forged caller at %s: %v", u.f.Name(i), err)
		}
	}
	for i := range w.acked {
		got, err := w.client.Count(u.ctx, "ledger", writeLoadKey(i))
		if err != nil || got.Value != float64(w.acked[i].Load()) {
			t.Errorf("key %d: %v was counted, %d was acknowledged (%v)", i, got.Value, w.acked[i].Load(), err)
		}
	}
	mustVerify(u.ctx, t, u.f)
}
