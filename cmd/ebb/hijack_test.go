package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// as makes a token, shown by a context that is returned with its text.
func (v *victim) as(by context.Context, t *testing.T, name string, grant *ebbv1.Grant) (ctx context.Context, token string) {
	t.Helper()
	token = client.NewTokenText()
	hash := sha256.Sum256([]byte(token))
	req := &ebbv1.CreateTokenRequest{Name: name, Sha256: hex.EncodeToString(hash[:]), Grants: []*ebbv1.Grant{grant}}
	if _, err := v.ebb.CreateToken(by, req); err != nil {
		t.Fatal(err)
	}
	return metadata.AppendToOutgoingContext(v.ctx, "authorization", "Bearer "+token), token
}

// probe sends a command of a namespace under each of some sessions, in a shard, and returns those that were taken.
func (v *victim) probe(
	ctx context.Context, t *testing.T, shard uint32, namespace string, from, to uint64,
) (taken []uint64, refused ebbv1.Code) {
	t.Helper()
	const atOnce = 500
	for first := from; first < to; first += atOnce {
		req := &ebbv1.ApplyRequest{}
		for id := first; id < min(to, first+atOnce); id++ {
			req.Commands = append(req.Commands, &ebbv1.ShardCommand{Shard: shard, Command: wire(t, &ebbv1.Command{
				Namespace: namespace, Body: counting("theirs", 1),
				Identity: &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: id, Sequence: 2}},
			})})
		}
		resp, err := v.shards.Apply(ctx, req)
		if err != nil || len(resp.GetResults()) != len(req.GetCommands()) {
			t.Fatalf("%d probes: %v, %v", len(req.GetCommands()), resp, err)
		}
		for i, r := range resp.GetResults() {
			if r.GetError() == nil {
				taken = append(taken, first+uint64(i))
			} else if refused = r.GetError().GetCode(); refused != ebbv1.Code_CODE_SESSION_EXPIRED {
				t.Fatalf("a probe is answered %v", r)
			}
		}
	}
	return taken, refused
}

// A writer of one namespace tries all sessions that a shard can have opened while a writer of another opened one.
// It finds none, and what that one writes is counted.
func TestSessionIsNotFoundByGuessing(t *testing.T) {
	v := newVictim(t)
	deadline := time.Now().Add(time.Minute)
	for v.node.Table().Version() < proto.VersionNamespaces {
		if time.Now().After(deadline) {
			t.Fatalf("storage version %d is in force after a minute", v.node.Table().Version())
		}
		time.Sleep(20 * time.Millisecond)
	}
	ops, _ := v.as(v.ctx, t, "ops", &ebbv1.Grant{Role: ebbv1.Role_ROLE_OPERATOR})
	for _, name := range []string{"a", "b"} {
		set := &ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{Name: name, Decay: ebbv1.Decay_DECAY_NONE}}
		if _, err := v.ebb.SetNamespace(ops, set); err != nil {
			t.Fatal(err)
		}
	}
	attacker, _ := v.as(ops, t, "attacker", &ebbv1.Grant{Role: ebbv1.Role_ROLE_WRITER, Namespaces: "a"})
	owner, token := v.as(ops, t, "owner", &ebbv1.Grant{Role: ebbv1.Role_ROLE_WRITER, Namespaces: "b"})

	shard := proto.ShardOf("b", []byte("k"), victimShards)
	opened := func() uint64 {
		t.Helper()
		open := &ebbv1.Command{Namespace: "a", Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: 1}}}
		resp, err := v.shards.Apply(attacker, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{
			Shard:   shard,
			Command: wire(t, open),
		}}})
		if err != nil || resp.GetResults()[0].GetSession() == 0 {
			t.Fatalf("no session: %v, %v", resp, err)
		}
		return resp.GetResults()[0].GetSession()
	}
	c, err := client.DialOptions(v.ctx, []string{v.node.Addresses().GRPC}, client.WithToken(token))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := c.Writer(client.WriterOptions{Namespace: "b"})
	write := func(i int) {
		t.Helper()
		if err := w.Add(v.ctx, "k", fmt.Sprint("bin", i), 1); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(v.ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := opened()
	write(0)
	after := opened()
	taken, refused := v.probe(attacker, t, shard, "a", before+1, after)
	t.Logf("%d sessions were tried", after-before-1)
	if len(taken) > 0 || refused == 0 {
		t.Errorf("the sessions %v were taken, and a refusal was %v", taken, refused)
	}
	if mine, _ := v.probe(owner, t, shard, "b", before+1, after); len(mine) > 0 {
		t.Errorf("who writes in the namespace, and does not know the secret, used the sessions %v", mine)
	}
	for i := 1; i < 9; i++ {
		write(i)
	}
	if s := w.Stats(); s.Applied != 9 || s.Duplicates != 0 {
		t.Errorf("the writer says %+v, want 9 applied", s)
	}
	ans, err := v.ebb.Ask(owner, &ebbv1.AskRequest{Questions: []*ebbv1.Question{{
		Namespace: "b",
		Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: [][]byte{[]byte("k")}, Select: &ebbv1.DistributionQuestion_All{All: true},
		}},
	}}})
	if err != nil || ans.GetAnswers()[0].GetDistribution().GetZ() != 9 {
		t.Errorf("of 9 acknowledged writes %v are counted: %v", ans.GetAnswers()[0].GetDistribution().GetZ(), err)
	}
	if err := w.Close(v.ctx); err != nil {
		t.Error(err)
	}
}
