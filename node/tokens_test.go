package node_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	pb "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

const rootSecret = "ebb_root_of_three_nodes_that_trust_nobody_else"

// dialAs returns a client of one node that shows a token.
func (b *bubble) dialAs(i int, token string) (*ebb.Client, error) {
	me := b.net.Host("10.0.1.9")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := ebb.DialOptions(ctx, []string{b.host(i) + ":7070"}, ebb.WithToken(token), ebb.WithTimeout(30*time.Second),
		ebb.WithDialer(func(ctx context.Context, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }))
	if err == nil {
		b.clients = append(b.clients, c)
	}
	return c, err
}

func (b *bubble) mustDialAs(i int, token string) *ebb.Client {
	b.Helper()
	c, err := b.dialAs(i, token)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// auditLog keeps what the nodes write down.
type auditLog struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *auditLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *auditLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *auditLog) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), part)
}

// done counts the lines of an act that came true.
func (l *auditLog) done(act string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, `"act":"`+act+`"`) && strings.Contains(line, `"outcome":"done"`) {
			n++
		}
	}
	return n
}

// Three nodes with a root token form a cluster. Strangers learn nothing of it. A token made at one node counts at all
// nodes: what it may is done wherever its data lies, and a node that is asked in its name asks again. It survives that
// every node loses power, and ends everywhere when it is revoked.
func TestTokensOfACluster(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		var audit auditLog
		for i := range b.config {
			b.config[i].RootTokens = []string{rootSecret}
			b.config[i].Audit = slog.New(slog.NewJSONHandler(&audit, nil))
		}
		b.openAll()
		if _, err := b.dialAs(0, ""); !errors.Is(err, proto.ErrUnauthenticated) {
			t.Errorf("a client without a token: %v", err)
		}
		root := b.mustDialAs(1, rootSecret)
		b.plain(root)
		text, _, err := root.CreateToken(context.Background(), "collector", time.Time{}, ebb.Grant{Role: ebb.RoleWriter, Namespaces: "pl*"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.nodes {
			c := b.mustDialAs(i, text)
			for key := range 8 {
				b.write(c, string(rune('a'+key)), "x", 1)
			}
			if got := b.count(c, "a", "x"); got != float64(i+1) {
				t.Errorf("node %d counts %g, want %d", i, got, i+1)
			}
			_, err := c.CreateNamespace(context.Background(), ebb.Namespace{Name: "plants"})
			if !errors.Is(err, proto.ErrPermissionDenied) || !strings.Contains(err.Error(), "role admin in no namespace") {
				t.Errorf("a writer makes a namespace: %v", err)
			}
			if err := c.Increment(context.Background(), "default", ebb.Increment{Key: "k", Bin: "b", Amount: 1}); !errors.Is(err, proto.ErrPermissionDenied) {
				t.Errorf("a writer of other namespaces writes: %v", err)
			}
		}
		for i := range b.nodes {
			b.crash(i)
		}
		b.openAll()
		c := b.mustDialAs(2, text)
		b.write(c, "a", "x", 1)
		if err := b.mustDialAs(0, rootSecret).RevokeToken(context.Background(), "collector", false); err != nil {
			t.Fatal(err)
		}
		for i := range b.nodes {
			if _, err := b.dialAs(i, text); !errors.Is(err, proto.ErrUnauthenticated) {
				t.Errorf("node %d takes a token that was revoked: %v", i, err)
			}
		}
		if err := c.Increment(context.Background(), "plain", ebb.Increment{Key: "a", Bin: "x", Amount: 1}); !errors.Is(err, proto.ErrUnauthenticated) {
			t.Errorf("a client goes on with a token that was revoked: %v", err)
		}
		for _, act := range []string{"create token", "revoke token", "create namespace"} {
			if n := audit.count(`"who":"root","from":"10.0.1.9`); n == 0 {
				t.Error("no line says from where")
			}
			if n := audit.done(act); n != 1 { // and none at the node that it was forwarded to
				t.Errorf("%d lines of %s that was done, want 1", n, act)
			}
		}
	})
}

// A cluster whose storage version has no tokens yet, as it was born with nodes that know none, makes none.
func TestFirstTokenNeedsItsVersion(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		for i := range b.config {
			b.config[i].ClusterSecrets = []string{secretOne}
			b.config[i].Storage = proto.Versions{Oldest: proto.StorageOldest, Newest: proto.VersionTokens - 1}
		}
		b.openAll()
		soon, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_, _, err := b.client().CreateToken(soon, "early", time.Time{}, ebb.Grant{Role: ebb.RoleOperator})
		if !errors.Is(err, proto.ErrStarting) || errors.Is(err, proto.ErrUnknownOutcome) {
			t.Errorf("a token: %v", err)
		}
	})
}

// A cluster without root tokens is open until its first token is made, which has to be an operator's.
func TestFirstToken(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		for i := range b.config {
			b.config[i].ClusterSecrets = []string{secretOne}
		}
		b.openAll()
		open := b.client()
		if _, _, err := open.CreateToken(context.Background(), "dash", time.Time{}, ebb.Grant{Role: ebb.RoleReader, Namespaces: "*"}); err == nil {
			t.Error("the first token is a reader's")
		}
		text, made, err := open.CreateToken(context.Background(), "ops", time.Time{}, ebb.Grant{Role: ebb.RoleOperator})
		if err != nil || made.Name != "ops" || made.CreatedBy != "" {
			t.Fatal(made, err)
		}
		if _, err := open.Namespaces(context.Background()); !errors.Is(err, proto.ErrUnauthenticated) {
			t.Errorf("after the first token, without one: %v", err)
		}
		for i := range b.nodes {
			list, inForce, err := b.mustDialAs(i, text).Tokens(context.Background())
			if err != nil || !inForce || len(list) != 1 {
				t.Errorf("node %d: %v, %v, %v", i, list, inForce, err)
			}
		}
	})
}

// A node that was not given the root token of the others does not know that callers need one. It has the certificate of
// a node, and passes on what a stranger asks it: the others refuse that, and go on taking what it asks for itself.
func TestANodeThatKnowsNoTokens(t *testing.T) {
	inSecureBubble(t, 3, 6, func(s *secureBubble) {
		for _, i := range []int{1, 2} {
			s.config[i].RootTokens = []string{rootSecret}
		}
		s.openAll() // all of them serve, so they hear each other
		conn := s.conn(credentials.NewTLS(s.anyNode()))
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		table, err := ebbv1grpc.NewEbbClient(conn).Table(ctx, &ebbv1.TableRequest{})
		if err != nil {
			t.Fatal(err)
		}
		elsewhere := 0
		for shard := uint32(1); shard <= 6; shard++ {
			raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}}}}})
			if err != nil {
				t.Fatal(err)
			}
			resp, err := ebbv1grpc.NewShardsClient(conn).Apply(ctx, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: shard, Command: raw}}})
			if e := proto.FromWire(refusal(resp)); err == nil && e != nil {
				err = e
			}
			leader := table.GetTable().GetPlacement()[shard].GetLeader()
			if leader == "ebb-0" {
				continue // its own are not the others' to guard
			}
			elsewhere++
			if !errors.Is(err, proto.ErrUnauthenticated) {
				t.Errorf("a stranger writes to shard %d, which %s leads: %v", shard, leader, err)
			}
		}
		if elsewhere == 0 {
			t.Error("one node leads all shards")
		}
	})
}

func refusal(resp *ebbv1.ApplyResponse) *ebbv1.Error {
	if len(resp.GetResults()) == 0 {
		return nil
	}
	return resp.GetResults()[0].GetError()
}

// slowLog is an audit log on a disk that takes its time.
type slowLog struct {
	auditLog
	takes time.Duration
}

func (l *slowLog) Write(p []byte) (int, error) {
	time.Sleep(l.takes) // in virtual time
	return l.auditLog.Write(p)
}

// What was done is in the audit log when the node has ended, also if its disk is slower than the callers wait for.
func TestAuditLogIsWholeAtTheEnd(t *testing.T) {
	inBubble(t, 1, 2, func(b *bubble) {
		audit := slowLog{takes: 1500 * time.Millisecond}
		b.config[0].Audit = slog.New(slog.NewJSONHandler(&audit, nil))
		b.openAll()
		b.plain(b.client())
		if n := audit.done("create namespace"); n != 0 {
			t.Fatal("the line is there before the node ends: nothing is tried")
		}
		if err := b.nodes[0].Close(); err != nil {
			t.Error(err)
		}
		if n := audit.done("create namespace"); n != 1 {
			t.Errorf("the audit log has %d lines of one namespace", n)
		}
	})
}
