package node_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

const (
	secretOne = "ebb_cluster_secret_one_of_tests_of_this_package"
	secretTwo = "ebb_cluster_secret_two_of_tests_of_this_package"
)

// forged asks node i to make a token of an operator, and then for its tokens. The caller says that it is a node that
// asks for another caller.
func (b *bubble) forged(i int, origin string) error {
	b.Helper()
	me := b.net.Host("10.0.6.6")
	conn, err := grpc.NewClient("passthrough:///"+b.host(i)+":7070",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "ebb-peer", "x", "ebb-origin", origin)
	client := ebbv1grpc.NewEbbClient(conn)
	_, made := client.CreateToken(ctx, &ebbv1.CreateTokenRequest{
		Name: "mine", Sha256: strings.Repeat("ab", 32), Grants: []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_OPERATOR}},
	})
	_, listed := client.ListTokens(ctx, &ebbv1.ListTokensRequest{})
	_, managed := ebbv1grpc.NewShardsClient(conn).Manage(ctx,
		&ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Order{Order: 0}})
	for _, err := range []error{made, listed, managed} {
		if !errors.Is(ebbv1grpc.FromStatus(err), proto.ErrUnauthenticated) {
			return errors.Join(errors.New("a forged caller gets in"), made, listed, managed)
		}
	}
	return nil
}

// firstToken makes a token of an operator on a cluster that has none, and returns a client of node 0 with it.
func (b *bubble) firstToken() (text string, err error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		text, _, err = b.client().CreateToken(ctx, "ops", time.Time{}, ebb.Grant{Role: ebb.RoleOperator})
		if !errors.Is(err, proto.ErrStarting) {
			return text, err
		}
		time.Sleep(time.Second)
	}
}

// restart ends node i in good order, and starts it with other secrets.
func (b *bubble) restart(i int, secrets ...string) {
	b.Helper()
	if err := b.nodes[i].Close(); err != nil {
		b.Errorf("close node %d: %v", i, err)
	}
	b.config[i].ClusterSecrets = secrets
	b.open(i)
	b.ready(i)
}

// A cluster of one that has made its first token has no peers, and believes none. The audit log names no forged caller.
func TestAClusterOfOneBelievesNoPeers(t *testing.T) {
	inBubble(t, 1, 2, func(b *bubble) {
		var audit auditLog
		b.config[0].Audit, b.config[0].Join = slog.New(slog.NewJSONHandler(&audit, nil)), nil
		b.openAll()
		if _, err := b.firstToken(); err != nil {
			t.Fatal(err)
		}
		for _, origin := range []string{"root", "node", "ops", "cert:eve operator"} {
			if err := b.forged(0, origin); err != nil {
				t.Errorf("for %s: %v", origin, err)
			}
		}
		if n := audit.done("create token"); n != 1 {
			t.Errorf("%d tokens are made, want 1:\n%s", n, audit.String())
		}
		if who := audit.count(`"who":"root"`) + audit.count(`"who":"node"`); who != 0 ||
			audit.count("says without proof that it is node x") == 0 {
			t.Errorf("the audit log believes a forged caller %d times:\n%s", who, audit.String())
		}
	})
}

// Several nodes get a secret one after the other while they count. Until all have it there is no first token, and the
// refusal names those that lack it. From the first token on no forged caller is believed. The secret is replaced node
// by node, and nothing is lost.
func TestSecretsAreIntroducedAndReplacedUnderWrites(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		text := ebb.NewTokenText()
		c := b.mustDialAs(0, text) // a token that is not known is not wrong while none is needed
		b.plain(c)
		stop := b.writing(c, 4)
		for i := range b.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			_, _, err := b.client().CreateToken(ctx, "early", time.Time{}, ebb.Grant{Role: ebb.RoleOperator})
			cancel()
			if !errors.Is(err, proto.ErrBadRequest) {
				t.Errorf("the first token, with %d secrets of 3: %v", i, err)
				stop()
				return
			}
			for j := range b.nodes {
				if lacks := strings.Contains(err.Error(), "node "+b.config[j].Name+" (ebb dev) has no secret"); lacks != (j >= i) {
					t.Errorf("with %d secrets: %v", i, err)
				}
			}
			for _, recipe := range []string{"--cluster-secret-file", "--root-token-file", "--tls-cert"} {
				if !strings.Contains(proto.AsError(err).Hint, recipe) {
					t.Errorf("the refusal lacks the recipe of %s: %s", recipe, proto.AsError(err).Hint)
				}
			}
			b.restart(i, secretOne)
		}
		b.until("the first token", func() bool { return b.create(text) == nil })
		for i := range b.nodes {
			for _, origin := range []string{"root", "node", "ops"} {
				if err := b.forged(i, origin); err != nil {
					t.Errorf("node %d, for %s: %v", i, origin, err)
				}
			}
		}
		for _, secrets := range [][]string{{secretOne, secretTwo}, {secretTwo, secretOne}, {secretTwo}} {
			for i := range b.nodes {
				b.restart(i, secrets...)
			}
		}
		time.Sleep(time.Second)
		b.verify(c, 4, stop())
		for i := range b.nodes {
			if n := b.metric(i, "ebb_rpc_unproven_total"); n != 0 {
				t.Errorf("node %d has not believed %v calls in its last life", i, n)
			}
		}
	})
}

// create makes the token of a text, of an operator, on a cluster that needs none yet.
func (b *bubble) create(text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	peer, done := b.peer(1)
	defer done()
	_, err := peer.CreateToken(ctx, &ebbv1.CreateTokenRequest{
		Name: "ops", Sha256: sha256Of(text), Grants: []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_OPERATOR}},
	})
	return err
}

// A member that comes back without the secret, or with another one, is not let in. Without one it says why it does not
// start. The others go on, and so does it with the right one.
func TestAMemberWithoutTheSecretDoesNotStart(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		for i := range b.config {
			b.config[i].ClusterSecrets = []string{secretOne}
		}
		b.openAll()
		b.plain(b.client())
		text, err := b.firstToken()
		if err != nil {
			t.Fatal(err)
		}
		c := b.mustDialAs(0, text)
		if err := b.nodes[2].Close(); err != nil {
			t.Error(err)
		}
		b.nodes[2] = nil
		b.config[2].ClusterSecrets = nil
		if n, err := node.Open(context.Background(), b.config[2]); err == nil {
			n.Kill()
			t.Error("a member without the secret starts")
		} else if !errors.Is(err, proto.ErrBadRequest) ||
			!strings.Contains(proto.AsError(err).Hint, "--cluster-secret-file") {
			t.Errorf("without the recipe: %v", err)
		}
		b.config[2].ClusterSecrets = []string{secretTwo}
		b.open(2)
		for range 5 {
			b.write(c, "a", "x", 1)
			time.Sleep(time.Second)
		}
		select {
		case <-b.nodes[2].Ready():
			t.Error("a member with another secret is ready")
		default:
		}
		if err := b.said(2); err != nil {
			t.Errorf("a member with another secret ends: %v", err)
		}
		b.nodes[2].Kill()
		b.config[2].ClusterSecrets = []string{secretOne}
		b.open(2)
		b.ready(2)
		if got := b.count(c, "a", "x"); got != 5 {
			t.Errorf("%v counted, want 5", got)
		}
		// its disk is lost: it has to join, and has to prove itself for that too
		b.crash(2)
		b.config[2].ClusterSecrets = nil
		b.wipe(2)
		b.until("the refusal of a member that has lost its disk", func() bool { return b.said(2) != nil })
		if err := b.said(2); !strings.Contains(err.Error(), "node ebb-2 cannot prove to the others that it is a node") {
			t.Errorf("a member that has lost its disk, and the secret: %v", err)
		}
		b.nodes[2].Kill()
		b.fatals[2].Store(nil)
		b.config[2].ClusterSecrets = []string{secretOne}
		b.open(2)
		b.ready(2)
	})
}

// The first token waits until every member answers, and until their clocks agree well enough for proofs.
func TestTheFirstTokenWaitsForEveryMember(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		for i := range b.config {
			b.config[i].ClusterSecrets = []string{secretOne}
		}
		b.openAll()
		b.plain(b.client())
		b.until("the storage version", func() bool { return b.table(0).Version() >= proto.VersionPeerProofs })
		b.crash(2)
		time.Sleep(10 * time.Second) // it may have led
		if _, err := b.firstToken(); !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(),
			"node ebb-2 does not answer") {
			t.Errorf("the first token while a member is down: %v", err)
		}
		b.open(2)
		b.ready(2)
		b.skews[2].Store(int64(4 * time.Minute))
		if _, err := b.firstToken(); err == nil || !strings.Contains(err.Error(),
			"the clock of node ebb-2 is 4m0s ahead of that of node ebb-0") {
			t.Errorf("the first token while a clock is wrong: %v", err)
		}
		b.skews[2].Store(0)
		if _, err := b.firstToken(); err != nil {
			t.Error(err)
		}
	})
}

// A node joins a cluster of one that has tokens only if both can prove themselves.
func TestJoiningAClusterWithTokens(t *testing.T) {
	inBubble(t, 1, 4, func(b *bubble) {
		b.config[0].Join = nil
		b.openAll()
		text, err := b.firstToken()
		if err != nil {
			t.Fatal(err)
		}
		guest := b.newcomer("guest")
		b.open(guest)
		b.until("the refusal of a guest without a secret", func() bool { return b.said(guest) != nil })
		if err := b.said(guest); !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(proto.AsError(err).Hint,
			"--cluster-secret-file") {
			t.Errorf("a guest without a secret: %v", err)
		}
		b.nodes[guest].Kill()
		b.fatals[guest].Store(nil)
		b.config[guest].ClusterSecrets = []string{secretOne}
		b.open(guest)
		b.until("word from a cluster without a secret", func() bool {
			return strings.Contains(b.nodes[guest].Status().GetDetail(),
				"this node cannot check that, since it has neither TLS nor a cluster secret")
		})
		if n := len(b.table(0).Nodes()); n != 1 {
			t.Fatalf("the cluster has %d nodes, want 1", n)
		}
		b.restart(0, secretOne)
		b.ready(guest)
		b.until("the guest in the table", func() bool { return len(b.table(0).Nodes()) == 2 })
		b.plain(b.mustDialAs(guest, text))
		if err := errors.Join(b.forged(0, "root"), b.forged(guest, "root")); err != nil {
			t.Error(err)
		}
	})
}

// A cluster secret is no token.
func TestAClusterSecretIsNoToken(t *testing.T) {
	inBubble(t, 1, 2, func(b *bubble) {
		b.config[0].ClusterSecrets = []string{secretOne}
		b.openAll()
		if _, err := b.firstToken(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.dialAs(0, secretOne); !errors.Is(err, proto.ErrUnauthenticated) {
			t.Errorf("a client with the cluster secret: %v", err)
		}
	})
}

func sha256Of(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// A member of several with tokens and no proofs, as builds before storage version 8 allowed them, has left its
// directory to this build: that refuses to start, with a recipe, before it listens or writes, so that the others go on
// among themselves.
func TestTokensOfOlderBuildsWithoutProofs(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		disk := b.disks[1]
		if err := disk.MkdirAll("/data"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"node.json", "table.pb"} {
			raw, err := os.ReadFile(filepath.Join("testdata", "tokens-without-proofs", name))
			if err != nil {
				t.Fatal(err)
			}
			if err := fs.WriteFile(disk, "/data/"+name, raw); err != nil {
				t.Fatal(err)
			}
		}
		b.config[1].Registry = prometheus.NewRegistry()
		n, err := node.Open(context.Background(), b.config[1])
		if err == nil {
			n.Kill()
			t.Fatal("it starts")
		}
		hint := proto.AsError(err).Hint
		if !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(),
			"the cluster has tokens and several nodes") ||
			!strings.Contains(hint, "stop all nodes, and start all of this build") || !strings.Contains(hint,
			"--cluster-secret-file") {
			t.Errorf("%v, %s", err, hint)
		}
		b.config[1].ClusterSecrets = []string{secretOne}
		b.config[1].Registry = prometheus.NewRegistry()
		if n, err := node.Open(context.Background(), b.config[1]); err == nil {
			n.Kill()
		} else if strings.Contains(err.Error(), "tokens") {
			t.Errorf("with a secret, as the recipe says: %v", err)
		}
	})
}

// A root token on a majority of the nodes is another way in, and no proof of the other nodes, which the first token
// would cut off for good.
func TestARootTokenOfAMajorityProvesNothingOfTheOthers(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		b.until("the storage version", func() bool { return b.table(0).Version() == proto.StorageVersion })
		for i := range 2 {
			if err := b.nodes[i].Close(); err != nil {
				t.Error(err)
			}
			b.config[i].RootTokens = []string{rootSecret}
		}
		b.open(0)
		b.open(1)
		b.ready(0)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, _, err := b.mustDialAs(0, rootSecret).CreateToken(ctx, "ops", time.Time{}, ebb.Grant{Role: ebb.RoleOperator})
		if !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), "node ebb-2") {
			t.Errorf("a first token that node ebb-2 would not survive: %v", err)
		}
		if n := b.table(0).Tokens().Len(); n != 0 {
			t.Errorf("there are %d tokens", n)
		}
	})
}
