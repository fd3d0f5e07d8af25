package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

const (
	secretA = "ebb_cluster_secret_a_of_this_test_and_no_other"
	secretB = "ebb_cluster_secret_b_of_this_test_and_no_other"
)

// nodeWith is the Access of a node of a cluster that has tokens.
func nodeWith(name string, root, secrets []string) *Access {
	return NewAccess(AccessConfig{Tokens: boxOf().tokens, Root: root, Secrets: secrets, Node: name})
}

// judge identifies a call of a method by its metadata, and says what comes of it.
func judge(t *testing.T, a *Access, method string, md metadata.MD) (who caller, verdictOf string) {
	t.Helper()
	in, _, _ := sample(t, method)
	err := a.identify(context.Background(), method, md, &who)
	if err == nil {
		err = who.mayCall(method, in)
	}
	return who, verdict(err)
}

// Without a proof, what a caller says of nodes counts for nothing: neither on a node without any key, like one that is
// alone and has made its first token, nor on one with keys. It may do what its own token may.
func TestUnprovenPeersAreOrdinaryCallers(t *testing.T) {
	nodes := map[string]*Access{
		"no keys":     nodeWith("ebb-0", nil, nil),
		"a secret":    nodeWith("ebb-0", nil, []string{secretA}),
		"root tokens": nodeWith("ebb-0", []string{rootSecret}, nil),
	}
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	claims := []string{"x", "ebb-0", "ebb-1", "ebb-1 ", "ebb-1 " + now, "ebb-1 " + now + " " + strings.Repeat("0",
		32), "ebb-1 " + now + " ", " "}
	origins := []string{proto.NameRoot, proto.NameNode, "operator", "cert:eve operator", hashed +
		boxOf().records[4].GetSha256(), ""}
	for keys, a := range nodes {
		for _, claim := range claims {
			for _, origin := range origins {
				for _, method := range []string{
					ebbv1grpc.Ebb_CreateToken_FullMethodName, ebbv1grpc.Ebb_Delete_FullMethodName, ebbv1grpc.Shards_Manage_FullMethodName,
					ebbv1grpc.Shards_Repair_FullMethodName, peerv1.Peer_Append_FullMethodName,
				} {
					if who, got := judge(t, a, method, metadata.Pairs(peerKey, claim, originKey, origin)); got != "who?" ||
						who.node || who.own {
						t.Errorf("%s: %s by %q for %q: %s", keys, method, claim, origin, got)
					}
				}
			}
			reader := metadata.Pairs(peerKey, claim, originKey, proto.NameRoot, authorizationKey, "Bearer "+secretOf("reader"))
			if _, got := judge(t, a, ebbv1grpc.Ebb_Delete_FullMethodName, reader); got != "no" {
				t.Errorf("%s: a reader's delete with the claim %q: %s", keys, claim, got)
			}
			if _, got := judge(t, a, ebbv1grpc.Ebb_Ask_FullMethodName, reader); got != "yes" {
				t.Errorf("%s: a reader's question with the claim %q: %s", keys, claim, got)
			}
		}
	}
	if n := testutil.ToFloat64(nodes["no keys"].unproven.WithLabelValues(string(faultNoKey))); n < float64(len(claims)*len(origins)) {
		t.Errorf("%v claims without a key are counted", n)
	}
}

// A node proves itself by the first of its secrets and of its root tokens, and accepts all of both: secrets are
// introduced, replaced and taken out one node after the other, and at each step every node believes every other.
func TestKeysAreReplacedNodeByNode(t *testing.T) {
	root := []string{rootSecret}
	for _, steps := range [][]*Access{
		{
			nodeWith("ebb-0", nil, []string{secretA}), nodeWith("ebb-0", nil, []string{secretA, secretB}),
			nodeWith("ebb-0", nil, []string{secretB, secretA}), nodeWith("ebb-0", nil, []string{secretB}),
		},
		{nodeWith("ebb-0", root, nil), nodeWith("ebb-0", root, []string{secretA}), nodeWith("ebb-0", nil, []string{secretA})},
	} {
		for i, step := range steps {
			for _, next := range steps[i:min(i+2, len(steps))] {
				for _, pair := range [][2]*Access{{step, next}, {next, step}} {
					md := callOf(t, pair[0], "ebb-0", ebbv1grpc.Shards_Repair_FullMethodName)
					if who, got := judge(t, pair[1], ebbv1grpc.Shards_Repair_FullMethodName, md); got != "yes" || !who.own {
						t.Errorf("step %d: %s, %v", i, got, who.unproven)
					}
				}
			}
		}
		first, last := steps[0], steps[len(steps)-1]
		md := callOf(t, first, "ebb-0", ebbv1grpc.Shards_Repair_FullMethodName)
		if who, got := judge(t, last, ebbv1grpc.Shards_Repair_FullMethodName, md); got != "who?" ||
			who.unproven.why != faultUnknownKey {
			t.Errorf("a key that was taken out: %s, %v", got, who.unproven)
		}
	}
}

// callOf is the metadata of a call by a node for itself to another one in the clear.
func callOf(t *testing.T, from *Access, to, method string) metadata.MD {
	t.Helper()
	var md metadata.MD
	s := NewGRPC(fixture().services(), grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
		md, _ = metadata.FromIncomingContext(ss.Context())
		return nil
	}))
	conn := serveOn(t, s, grpc.WithPerRPCCredentials(from.Credentials()), grpc.WithAuthority(to))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// a method that the server does not know is handed over as it is; the proof is made for the one that is meant
	_ = conn.Invoke(ctx, "/test.Echo/Call", &peerv1.Frame{}, &peerv1.Frame{})
	if len(md.Get(peerKey)) != 1 {
		t.Fatalf("a call shows %v", md)
	}
	proofs := from.keys.sent(statement{
		from: from.cfg.Node, to: to, method: method, origin: proto.NameNode,
		ms: sentAt(t, md),
	})
	words := strings.Split(md.Get(peerKey)[0], " ")
	out := metadata.Pairs(peerKey, words[0]+" "+words[1]+" "+proofs[0], originKey, proto.NameNode)
	if more := md.Get(proofKey); len(more) != len(proofs)-1 {
		t.Fatalf("%d further proofs, want %d", len(more), len(proofs)-1)
	}
	if len(proofs) > 1 {
		out.Set(proofKey, proofs[1])
	}
	return out
}

func sentAt(t *testing.T, md metadata.MD) int64 {
	t.Helper()
	words := strings.Split(md.Get(peerKey)[0], " ")
	if len(words) != 3 {
		t.Fatalf("%q is no claim with a proof", words)
	}
	ms, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

// A node that has not heard of tokens takes a caller's word for nothing either: what it passes on under its own proof
// is anyone's, whatever the caller says of nodes.
func TestAProofIsNotLentToOthers(t *testing.T) {
	stale := NewAccess(AccessConfig{Tokens: (&tokenBox{}).tokens, Secrets: []string{secretA}, Node: "ebb-1"})
	for _, origin := range []string{proto.NameNode, proto.NameRoot, "operator", "cert:eve operator"} {
		var who caller
		if err := stale.identify(context.Background(), ebbv1grpc.Ebb_Delete_FullMethodName, metadata.Pairs(peerKey,
			"x", originKey, origin), &who); err != nil {
			t.Fatal(err)
		}
		md, err := stale.Credentials().GetRequestMetadata(context.WithValue(context.Background(), callerKey{}, &who))
		if err != nil || md[originKey] != proto.NameAnyone {
			t.Errorf("origin %s is passed on as %q (%v)", origin, md[originKey], err)
		}
	}
}

// peerStreams counts the frames that it is sent.
type peerStreams struct {
	peerv1.UnimplementedPeerServer
	frames atomic.Int64
}

func (p *peerStreams) Append(s grpc.BidiStreamingServer[peerv1.Frame, peerv1.Frame]) error {
	for {
		f, err := s.Recv()
		if err != nil {
			return err
		}
		p.frames.Add(1)
		if err := s.Send(f); err != nil {
			return err
		}
	}
}

// A stream that a stranger opened to replicate while there were no tokens ends with its next frame once there are. The
// stream of a node continues.
func TestStreamsOfStrangersEndWithTheFirstToken(t *testing.T) {
	var closed atomic.Bool
	all, none := boxOf().tokens(), (&tokenBox{}).tokens()
	access := NewAccess(AccessConfig{Secrets: []string{secretA}, Node: "ebb-0", Tokens: func() *cluster.Tokens {
		if closed.Load() {
			return all
		}
		return none
	}})
	s := fixture().services()
	s.Access = access
	g, peers := NewGRPC(s), new(peerStreams)
	peerv1.RegisterPeerServer(g, peers)
	client := peerv1.NewPeerClient(serveOn(t, g))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	open := func(ctx context.Context) grpc.BidiStreamingClient[peerv1.Frame, peerv1.Frame] {
		stream, err := client.Append(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stranger := open(metadata.AppendToOutgoingContext(ctx, peerKey, "ebb-1", originKey, proto.NameNode))
	node := open(asNode(ctx, nodeWith("ebb-1", nil, []string{secretA})))
	say := func(s grpc.BidiStreamingClient[peerv1.Frame, peerv1.Frame]) error {
		if err := s.Send(&peerv1.Frame{}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err := s.Recv()
		return ebbv1grpc.FromStatus(err)
	}
	for range 3 {
		if err := errors.Join(say(stranger), say(node)); err != nil {
			t.Fatal(err)
		}
	}
	closed.Store(true)
	if err := say(stranger); !errors.Is(err, proto.ErrUnauthenticated) {
		t.Errorf("the stream of a stranger: %v", err)
	}
	if err := say(node); err != nil {
		t.Errorf("the stream of a node: %v", err)
	}
	if n := peers.frames.Load(); n != 7 {
		t.Errorf("%d frames are heard, want 7", n)
	}
}

// The audit log says how it is known who a caller is.
func TestAuditSaysHowCallersAreKnown(t *testing.T) {
	var lines lockedBuffer
	access := NewAccess(AccessConfig{
		Tokens: boxOf().tokens, Root: []string{rootSecret}, Secrets: []string{secretA}, Node: "ebb-0", Audit: slog.New(slog.NewJSONHandler(&lines, nil)),
	})
	bearer := func(text string) metadata.MD { return metadata.Pairs(authorizationKey, "Bearer "+text) }
	denied := proto.ErrPermissionDenied.Errorf("no")
	for i, c := range []struct {
		ctx  context.Context
		md   metadata.MD
		want string
	}{
		{context.Background(), bearer(secretOf("reader")), `"who":"reader"/token`},
		{context.Background(), bearer(rootSecret), `"who":"root"/root token`},
		{overTLS("ada", "reader"), nil, `"who":"cert:ada"/certificate`},
		{context.Background(), nil, `"who":"anyone"/nothing`},
		{
			context.Background(), metadata.Pairs(peerKey, "ebb-1", originKey, "root"),
			`"who":"anyone"/nothing; says without proof that it is node ebb-1`,
		},
		{
			context.Background(), metadata.Join(bearer(secretOf("reader")), metadata.Pairs(peerKey, "ebb-1")),
			`"who":"reader"/token; says without proof that it is node ebb-1`,
		},
		{
			overTLS("ebb-2", "node"), metadata.Pairs(peerKey, "ebb-1", originKey, "node"),
			`"who":"node"/certificate of node ebb-2`,
		},
		{
			overTLS("ebb-2", "node"), metadata.Pairs(peerKey, "ebb-2", originKey, "reader"),
			`"who":"reader"/token, by word of node ebb-2 (certificate)`,
		},
		{context.Background(), callOf(t, nodeWith("ebb-1", nil, []string{secretA}), "ebb-0",
			ebbv1grpc.Ebb_Delete_FullMethodName), `"who":"node"/proof by a cluster secret of node ebb-1`},
		{context.Background(), callOf(t, nodeWith("ebb-1", []string{rootSecret}, nil), "ebb-0",
			ebbv1grpc.Ebb_Delete_FullMethodName), `"who":"node"/proof by a root token of node ebb-1`},
	} {
		var who caller
		if err := access.identify(c.ctx, ebbv1grpc.Ebb_Delete_FullMethodName, c.md, &who); err != nil {
			t.Fatal(err)
		}
		access.deny(context.WithValue(c.ctx, callerKey{}, &who), "delete", denied)
		lines.await(t, i+1)
		name, how, _ := strings.Cut(c.want, "/")
		said := strings.Split(strings.TrimSpace(lines.String()), "\n")
		if last := said[len(said)-1]; !strings.Contains(last, name) || !strings.Contains(last, `"known_by":"`+how+`"`) {
			t.Errorf("want %s: %s", c.want, last)
		}
	}
}
