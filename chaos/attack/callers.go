package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// sessions are attempts to use a session that another client opened.
func sessions() []Attempt {
	const of = "sessions"
	return []Attempt{
		{
			Group: of, Name: "a writer of another namespace takes a session", Mode: Tokens, Within: 40 * time.Second,
			Run: func(ctx context.Context, a *Arena) error {
				return stealSession(ctx, a, "stranger", foreign, "writer", own)
			},
		},
		{
			Group: of, Name: "anybody takes a session", Mode: Open, Within: 40 * time.Second,
			Run: func(ctx context.Context, a *Arena) error { return stealSession(ctx, a, "", foreign, "", own) },
		},
		{Group: of, Name: "a writer of another namespace closes a session", Mode: Tokens, Run: closeSession},
		{Group: of, Name: "a writer of another namespace drops a source", Mode: Tokens, Run: dropSource},
	}
}

// sdk connects with the SDK.
func (a *Arena) sdk(ctx context.Context, role string) (*client.Client, error) {
	return client.DialOptions(ctx, []string{a.at["grpc"]}, client.WithToken(a.tokens[role]))
}

// apply sends commands for shard 1.
func (a *Arena) apply(ctx context.Context, role string, commands ...*ebbv1.Command) ([]*ebbv1.CommandResult, error) {
	req, resp := &ebbv1.ApplyRequest{}, &ebbv1.ApplyResponse{}
	for _, c := range commands {
		b, err := protobuf.Marshal(c)
		if err != nil {
			return nil, err
		}
		req.Commands = append(req.Commands, &ebbv1.ShardCommand{Shard: 1, Command: b})
	}
	err := a.call(ctx, role, ebbv1grpc.Shards_Apply_FullMethodName, req, resp)
	return resp.GetResults(), err
}

// stealSession opens a session as the victim does, and another one as the thief. The number of the thief's session is
// close to the victim's. The thief then uses the numbers of all sessions that may be the victim's. What the victim
// writes afterwards must be counted.
func stealSession(ctx context.Context, a *Arena, victim, theirs, thief, mine string) error {
	c, err := a.sdk(ctx, victim)
	if err != nil {
		return err
	}
	defer c.Close()
	w := c.Writer(client.WriterOptions{Namespace: theirs})
	keys := []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"}
	write := func() error {
		for _, key := range keys {
			if err := w.Add(ctx, key, "b", 1); err != nil {
				return err
			}
		}
		return w.Flush(ctx)
	}
	before, err := a.counted(ctx, victim, theirs, keys)
	if err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	opened, err := a.apply(ctx, thief, &ebbv1.Command{
		Namespace: mine,
		Body:      &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}},
	})
	if err != nil {
		return err
	}
	if e := opened[0].GetError(); e != nil {
		return proto.FromWire(e)
	}
	taken := 0
	const probes, batch = 60_000, 5_000
	for from := 1; from < probes; from += batch {
		var commands []*ebbv1.Command
		for i := range batch {
			commands = append(commands, &ebbv1.Command{
				Namespace: mine,
				Identity: &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
					Session:  opened[0].GetSession() - uint64(from+i),
					Sequence: 2,
				}},
				Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{{
					Key: []byte("stolen"),
					Bin: []byte("b"),
				}}}},
			})
		}
		results, err := a.apply(ctx, thief, commands...)
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.GetError() == nil {
				taken++
			}
		}
	}
	if err := write(); err != nil {
		return broke("the victim cannot write any more: %v", err)
	}
	if err := w.Close(ctx); err != nil {
		return broke("the victim cannot close its session: %v", err)
	}
	after, err := a.counted(ctx, victim, theirs, keys)
	switch {
	case err != nil:
		return err
	case taken > 0:
		return broke("%d sessions of others were used; of %d acknowledged writes %.0f were counted", taken, 2*len(keys),
			after-before)
	case after-before < float64(2*len(keys))-0.5:
		return broke("of %d acknowledged writes %.2f were counted", 2*len(keys), after-before)
	}
	return nil
}

// counted returns the sum of the counts of some keys.
func (a *Arena) counted(ctx context.Context, role, namespace string, keys []string) (sum float64, err error) {
	for _, key := range keys {
		resp := &ebbv1.AskResponse{}
		q := wideQuestion()
		q.Namespace, q.GetDistribution().Keys = namespace, [][]byte{[]byte(key)}
		if err := a.call(ctx, role, ebbv1grpc.Ebb_Ask_FullMethodName, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}},
			resp); err != nil {
			return 0, err
		}
		sum += resp.GetAnswers()[0].GetDistribution().GetZ()
	}
	return sum, nil
}

// closeSession opens a session, lets another client try to close it, and then uses it.
func closeSession(ctx context.Context, a *Arena) error {
	const secret = 0x5ec2e7
	opened, err := a.apply(ctx, "stranger", &ebbv1.Command{
		Namespace: foreign,
		Body:      &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: secret}},
	})
	if err != nil {
		return err
	}
	session := opened[0].GetSession()
	for _, namespace := range []string{own, ""} {
		for _, guess := range []uint64{0, 1} {
			_, err := a.apply(ctx, "writer", &ebbv1.Command{
				Namespace: namespace, Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{
					Session: session,
					Secret:  guess,
				}},
			}, &ebbv1.Command{
				Namespace: namespace, Identity: &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
					Session: session,
					Secret:  guess,
				}},
				Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{}},
			})
			if err != nil {
				return err
			}
		}
	}
	used, err := a.apply(ctx, "stranger", &ebbv1.Command{
		Namespace: foreign, Identity: &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
			Session: session, Sequence: 1,
			Secret: secret,
		}},
		Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{{
			Key: []byte("k"),
			Bin: []byte("b"),
		}}}},
	})
	if err != nil {
		return err
	}
	if e := used[0].GetError(); e != nil || used[0].GetApplied() != 1 {
		return broke("after another has closed it, the session cannot be used: %v", proto.FromWire(e))
	}
	return nil
}

func dropSource(ctx context.Context, a *Arena) error {
	opened, err := a.apply(ctx, "stranger", &ebbv1.Command{
		Namespace: foreign,
		Body:      &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "import", Token: 7}},
	})
	if err != nil {
		return err
	}
	if e := opened[0].GetError(); e != nil {
		return proto.FromWire(e)
	}
	results, err := a.apply(ctx, "writer", &ebbv1.Command{
		Namespace: own,
		Body:      &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: "import"}},
	})
	if err != nil || results[0].GetError() != nil {
		return nil //nolint:nilerr // refused
	}
	again, err := a.apply(ctx, "stranger", &ebbv1.Command{
		Namespace: foreign,
		Body:      &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "import", Token: 7}},
	})
	if err != nil {
		return err
	}
	if again[0].GetEpoch() != opened[0].GetEpoch() {
		return broke("the source of another was dropped: its epoch is %d after %d", again[0].GetEpoch(), opened[0].GetEpoch())
	}
	return nil
}

// peers returns attempts of clients that claim to be nodes.
func peers() (out []Attempt) {
	const of = "forged peers"
	claims := map[string][]string{
		"root":          {"ebb-peer", "ebb-1", "ebb-origin", "root"},
		"node":          {"ebb-peer", "ebb-1", "ebb-origin", "node"},
		"operator":      {"ebb-peer", "ebb-0", "ebb-origin", "operator"},
		"a certificate": {"ebb-peer", "ebb-1", "ebb-origin", "cert:x operator"},
		"with a false proof": {
			"ebb-peer", "ebb-1 " + fmt.Sprint(time.Now().UnixMilli()) + " " + strings.Repeat("0", 32),
			"ebb-origin", "root",
		},
	}
	for _, claim := range slices.Sorted(mapKeys(claims)) {
		for _, mode := range []Mode{Tokens, Sealed} {
			out = append(out, Attempt{
				Group: of, Name: "for " + claim, Mode: mode,
				Run: func(ctx context.Context, a *Arena) error {
					role := ""
					if mode == Sealed {
						role = "bare"
					}
					md := metadata.AppendToOutgoingContext(ctx, claims[claim]...)
					var done []string
					if a.call(md, role, ebbv1grpc.Ebb_ListTokens_FullMethodName, &ebbv1.ListTokensRequest{},
						&ebbv1.ListTokensResponse{}) == nil {
						done = append(done, "tokens were listed")
					}
					if a.call(md, role, ebbv1grpc.Ebb_Delete_FullMethodName,
						&ebbv1.DeleteRequest{Namespace: foreign, Keys: [][]byte{[]byte("nothing")}}, &ebbv1.DeleteResponse{}) == nil {
						done = append(done, "a key was deleted")
					}
					manage := &ebbv1.ManageRequest{}
					if err := a.call(md, role, ebbv1grpc.Shards_Manage_FullMethodName, manage, &ebbv1.ManageResponse{}); !codeIs(err,
						codes.Unauthenticated, codes.PermissionDenied) {
						done = append(done, fmt.Sprintf("Manage was called: %v", err))
					}
					if len(done) > 0 {
						return broke("%s", strings.Join(done, ", "))
					}
					return nil
				},
			})
		}
	}
	for _, method := range []string{
		peerv1.Peer_Append_FullMethodName, peerv1.Peer_Control_FullMethodName,
		peerv1.Peer_Snapshot_FullMethodName,
	} {
		out = append(out, Attempt{
			Group: of, Name: method + " with a client's certificate", Mode: Sealed,
			Run: func(ctx context.Context, a *Arena) error {
				return streamRefused(metadata.AppendToOutgoingContext(ctx, "ebb-peer", "ebb-1", "ebb-origin", "node"), a,
					"operator",
					method)
			},
		})
		out = append(out, Attempt{
			Group: of, Name: method + " with an operator's token", Mode: Tokens,
			Run: func(ctx context.Context, a *Arena) error {
				return streamRefused(ctx, a, "operator", method)
			},
		})
	}
	return out
}

// streamRefused checks that a streaming method denies a role.
func streamRefused(ctx context.Context, a *Arena, role, method string) error {
	conn, err := a.grpc(role)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(a.show(ctx, role), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method,
		grpc.ForceCodec(rawCodec{}))
	if err == nil {
		message, answer := raw("\x0a\x05ebb-1"), raw(nil)
		_ = stream.SendMsg(&message)
		_ = stream.CloseSend()
		err = stream.RecvMsg(&answer)
	}
	if !codeIs(err, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented) {
		return broke("%s ends with %v", method, err)
	}
	return nil
}

// tokens returns attempts with missing, wrong, swapped or revoked tokens.
func tokens() (out []Attempt) {
	const of = "tokens"
	services := map[string][]string{}
	for _, s := range []grpc.ServiceDesc{
		ebbv1grpc.Ebb_ServiceDesc, ebbv1grpc.Shards_ServiceDesc,
		peerv1.Peer_ServiceDesc,
	} {
		for _, m := range s.Methods {
			services[s.ServiceName] = append(services[s.ServiceName], m.MethodName)
		}
		for _, m := range s.Streams {
			services[s.ServiceName] = append(services[s.ServiceName], m.StreamName)
		}
	}
	every := func(show string) func(context.Context, *Arena) error {
		return func(ctx context.Context, a *Arena) error {
			for service, methods := range services {
				for _, method := range methods {
					md := ctx
					if show != "" {
						md = metadata.AppendToOutgoingContext(ctx, "authorization", show)
					}
					if _, err := a.send(md, "", "/"+service+"/"+method, nil); !codeIs(err, codes.Unauthenticated) {
						return broke("%s/%s ends with %v", service, method, err)
					}
				}
			}
			return nil
		}
	}
	for name, show := range map[string]string{
		"none": "", "unknown": "Bearer ebb_" + strings.Repeat("x", 43), "empty": "Bearer ",
		"of another scheme": "Basic cm9vdDpyb290", "of 60,000 bytes": "Bearer " + strings.Repeat("x", 60_000),
		"with control characters": "Bearer \x7f\x01",
	} {
		out = append(out, Attempt{
			Group: of, Name: "all methods, token: " + name, Mode: Tokens, Within: 30 * time.Second,
			Run: func(ctx context.Context, a *Arena) error {
				if strings.Contains(name, "control") {
					_, err := a.send(metadata.AppendToOutgoingContext(ctx, "authorization", show), "",
						ebbv1grpc.Ebb_Ask_FullMethodName,
						nil)
					if err == nil {
						return broke("a token with control characters was taken")
					}
					return nil
				}
				return every(show)(ctx, a)
			},
		})
	}
	return append(out,
		Attempt{Group: of, Name: "swapped on a connection of HTTP", Mode: Tokens, Run: swappedHTTP},
		Attempt{Group: of, Name: "swapped on a connection of HTTP/2", Mode: Tokens, Run: swappedFrames},
		Attempt{Group: of, Name: "changed by trailers in mid-stream", Mode: Tokens, Run: swappedInStream},
		Attempt{Group: of, Name: "two in one request", Mode: Tokens, Run: twoTokens},
		Attempt{Group: of, Name: "revoked under a watch", Mode: Tokens, Within: 30 * time.Second, Run: revokedUnderWatch},
		Attempt{Group: of, Name: "a reader writes, by every method", Mode: Tokens, Run: readerWrites},
		Attempt{Group: of, Name: "a certificate without roles asks", Mode: Sealed, Run: bareAsks},
		Attempt{Group: of, Name: "paths of HTTP without a token", Mode: Tokens, Run: pathsWithout},
		Attempt{Group: of, Name: "profiles without a token", Mode: Tokens, Run: profilesWithout},
	)
}

func swappedHTTP(ctx context.Context, a *Arena) error {
	c, err := a.raw(ctx, "http")
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /v1/tokens HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", a.at["http"],
		a.tokens["operator"])
	fmt.Fprintf(c, "GET /v1/tokens HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", a.at["http"])
	text := string(drainConn(c, mib))
	if !strings.HasPrefix(text, "HTTP/1.1 200") {
		return fmt.Errorf("an operator is answered %.60q", text)
	}
	if strings.Count(text, "HTTP/1.1 401") != 1 {
		return broke("a second request without a token is answered as the first")
	}
	return nil
}

// smallest is a message of gRPC without a field.
var smallest = []byte{0, 0, 0, 0, 0}

func swappedFrames(ctx context.Context, a *Arena) error {
	f, err := dialFrames(ctx, a, "grpc")
	if err != nil {
		return err
	}
	defer f.Close()
	for _, c := range []struct{ token, want string }{{"operator", "0"}, {"", "16"}, {"reader", "7"}, {"operator", "0"}} {
		var more [][2]string
		if text := a.tokens[c.token]; text != "" {
			more = append(more, [2]string{"authorization", "Bearer " + text})
		}
		stream, err := f.request(ebbv1grpc.Ebb_ListTokens_FullMethodName, more...)
		if err != nil {
			return err
		}
		if err := f.data(stream, smallest, true); err != nil {
			return err
		}
		got, err := f.status(ctx, stream)
		if err != nil {
			return err
		}
		if got != c.want {
			return broke("a request with the token of %q ends with grpc-status %s, want %s", c.token, got, c.want)
		}
	}
	return nil
}

// swappedInStream sends further headers with another token after those of the request.
func swappedInStream(ctx context.Context, a *Arena) error {
	f, err := dialFrames(ctx, a, "grpc")
	if err != nil {
		return err
	}
	defer f.Close()
	stream, err := f.request(ebbv1grpc.Ebb_ListTokens_FullMethodName,
		[2]string{"authorization", "Bearer " + a.tokens["reader"]})
	if err != nil {
		return err
	}
	f.next = stream // the same stream again
	if _, err = f.request(ebbv1grpc.Ebb_ListTokens_FullMethodName,
		[2]string{"authorization", "Bearer " + a.tokens["operator"]}); err != nil {
		return nil // it was cut off
	}
	_ = f.data(stream, smallest, true)
	if got, err := f.status(ctx, stream); err == nil && got == "0" {
		return broke("a reader lists tokens with a second block of headers")
	}
	return nil
}

func twoTokens(ctx context.Context, a *Arena) error {
	md := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+a.tokens["reader"], "authorization",
		"Bearer "+a.tokens["operator"])
	if _, err := a.send(md, "", ebbv1grpc.Ebb_ListTokens_FullMethodName, nil); err == nil {
		return broke("the second token counts over gRPC")
	}
	c, err := a.raw(ctx, "http")
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(c,
		"GET /v1/tokens HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n",
		a.at["http"], a.tokens["reader"], a.tokens["operator"])
	if text := drainConn(c, mib); strings.HasPrefix(string(text), "HTTP/1.1 200") {
		return broke("the second token counts over HTTP")
	}
	return nil
}

func revokedUnderWatch(ctx context.Context, a *Arena) error {
	out, err := a.ebb(ctx, "operator", "token", "create", "brief", "--role", "reader="+own, "-o", "tsv")
	if err != nil {
		return err
	}
	words := strings.Fields(string(out))
	if len(words) == 0 {
		return fmt.Errorf("no token was made: %q", out)
	}
	conn, err := a.grpc("")
	if err != nil {
		return err
	}
	defer conn.Close()
	watching := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+words[len(words)-1])
	stream, err := ebbv1grpc.NewEbbClient(conn).Watch(watching,
		&ebbv1.WatchRequest{Question: &ebbv1.Question{
			Namespace: own,
			Ask:       &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}},
		}, Every: true})
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return fmt.Errorf("a watch with a good token: %w", err)
	}
	if _, err := a.ebb(ctx, "operator", "token", "revoke", "brief"); err != nil {
		return err
	}
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		if _, err := stream.Recv(); err != nil {
			if codeIs(err, codes.Unauthenticated) {
				return nil
			}
			return err
		}
	}
	return broke("a watch goes on 10 s after its token was revoked")
}

func readerWrites(ctx context.Context, a *Arena) error {
	key := [][]byte{[]byte("k")}
	for method, req := range map[string]protobuf.Message{
		ebbv1grpc.Ebb_Increment_FullMethodName: &ebbv1.IncrementRequest{
			Namespace:  own,
			Increments: []*ebbv1.Increment{{Key: key[0], Bin: key[0]}},
		},
		ebbv1grpc.Ebb_Bits_FullMethodName: &ebbv1.BitsRequest{
			Namespace: own,
			Changes:   []*ebbv1.BitChange{{Key: key[0], Op: ebbv1.BitOp_BIT_OP_SET, Ids: []uint64{1}}},
		},
		ebbv1grpc.Ebb_StoreBitmap_FullMethodName: &ebbv1.StoreBitmapRequest{
			Namespace: own, Key: key[0],
			Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: key[0]}},
		},
		ebbv1grpc.Ebb_Delete_FullMethodName: &ebbv1.DeleteRequest{Namespace: own, Keys: key},
		ebbv1grpc.Ebb_Expire_FullMethodName: &ebbv1.ExpireRequest{Namespace: own, Keys: key, TtlUs: 1e9},
		ebbv1grpc.Ebb_Rename_FullMethodName: &ebbv1.RenameRequest{Namespace: own, Key: key[0], To: []byte("l")},
		ebbv1grpc.Ebb_Feed_FullMethodName: &ebbv1.FeedRequest{
			Namespace: own, Phrases: key[0], Into: key[0],
			Texts: key,
		},
		ebbv1grpc.Ebb_SetNamespace_FullMethodName: &ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{
			Name:       own,
			HalfLifeUs: 1e6,
		}},
		ebbv1grpc.Ebb_Query_FullMethodName:         &ebbv1.QueryRequest{Namespace: own, Text: "store bm = k | k"},
		ebbv1grpc.Ebb_ChangeCluster_FullMethodName: &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Drain{Drain: "ebb-0"}},
		ebbv1grpc.Ebb_CreateToken_FullMethodName: &ebbv1.CreateTokenRequest{
			Name:   "mine",
			Sha256: strings.Repeat("a", 64), Grants: []*ebbv1.Grant{{Role: ebbv1.Role_ROLE_OPERATOR}},
		},
		ebbv1grpc.Ebb_RevokeToken_FullMethodName:          &ebbv1.RevokeTokenRequest{Name: "operator"},
		ebbv1grpc.Shards_RestoreNamespaces_FullMethodName: &ebbv1.RestoreNamespacesRequest{Namespaces: []*ebbv1.Namespace{{Name: own}}},
		ebbv1grpc.Shards_Snapshot_FullMethodName:          &ebbv1.SnapshotRequest{Shard: 1},
	} {
		if err := a.invoke(ctx, "reader", method, req); !codeIs(err, codes.PermissionDenied) {
			return broke("%s of a reader ends with %v", method, err)
		}
	}
	results, err := a.apply(ctx, "reader", &ebbv1.Command{
		Namespace: own,
		Body:      &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: key}},
	})
	if err == nil && results[0].GetError() == nil {
		return broke("a command of a reader deletes")
	}
	return nil
}

func bareAsks(ctx context.Context, a *Arena) error {
	err := a.call(ctx, "bare", ebbv1grpc.Ebb_Ask_FullMethodName,
		&ebbv1.AskRequest{Questions: []*ebbv1.Question{wideQuestion()}}, &ebbv1.AskResponse{})
	if !codeIs(err, codes.Unauthenticated, codes.PermissionDenied) {
		return broke("it ends with %v", err)
	}
	return nil
}

func pathsWithout(ctx context.Context, a *Arena) error {
	for _, path := range []string{
		"/v1/status", "/v1/table", "/v1/tokens", "/v1/namespaces", "/v1/ns/clicks/key/k", "/get?distribution=k&field=b",
		"/dist?distribution=k", "/dbsize", "/incr?distribution=k&field=b",
		"/ping", "/py/dist?key=k", "/py/incr?key=k&bin=b", "/add?key=k&value=b", "/addhash?key=k&hash=1",
		"/addmulti?value=k,b", "/delete?key=k", "/get?key=k", "/cardinality?key=k", "/kmv/query?q=%7B%7D",
		"//v1/tokens", "/v1//tokens", "/./v1/tokens", "/v1/../v1/tokens", "/%76%31/tokens", "/forget/dbsize",
		"/ns/clicks/dbsize", "/v1/tokens/", "/V1/tokens", "/v1/tokens%00", "/v1/tokens;x",
	} {
		r, err := a.http(ctx, request{path: path})
		if err == nil && r.status < 300 {
			return broke("GET %s without a token: %d", path, r.status)
		}
	}
	return nil
}

func profilesWithout(ctx context.Context, a *Arena) error {
	for _, path := range []string{
		"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline",
		"/debug/pprof/profile?seconds=100000", "/debug/pprof/trace?seconds=100000", "/debug/../debug/pprof/heap", "/debug//pprof/heap",
	} {
		for _, role := range []string{"", "reader"} {
			r, err := a.http(ctx, request{listener: "admin", path: path, role: role})
			if err == nil && r.status < 300 {
				return broke("GET %s of %q: %d", path, role, r.status)
			}
		}
	}
	return nil
}

// foreigners returns attempts to use a namespace without rights in it, by every field that can name one.
func foreigners() (out []Attempt) {
	const of = "other namespaces"
	key := []byte("k")
	question := func(namespace string) *ebbv1.Question {
		return &ebbv1.Question{
			Namespace: namespace,
			Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
				Keys:   [][]byte{key},
				Select: &ebbv1.DistributionQuestion_All{All: true},
			}},
		}
	}
	term := &ebbv1.PlanTerm{Namespace: foreign, Of: &ebbv1.PlanTerm_Key{Key: key}}
	calls := []struct {
		name, method string
		req          protobuf.Message
	}{
		{
			"Ask", ebbv1grpc.Ebb_Ask_FullMethodName,
			&ebbv1.AskRequest{Questions: []*ebbv1.Question{question(own), question(foreign)}},
		},
		{
			"Ask of a shard", ebbv1grpc.Shards_Ask_FullMethodName,
			&ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{
				{Shard: 1, Question: question(own)},
				{Shard: 1, Question: question(foreign)},
			}},
		},
		{
			"Query, in its field", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Namespace: foreign, Text: "top 10 k"},
		},
		{
			"Query, in its text", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Namespace: own, Text: "top 10 @" + foreign + "/k"},
		},
		{
			"Query, in a place", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Namespace: own, Text: "count(bm | @" + foreign + "/k)"},
		},
		{
			"Query, where it stores", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Namespace: own, Text: "store @" + foreign + "/bm = k | k"},
		},
		{
			"Query, what it stores", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Namespace: own, Text: "store bm = @" + foreign + "/k | k"},
		},
		{
			"Query, explained", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Namespace: own, Text: "top 10 @" + foreign + "/k", Explain: true},
		},
		{
			"Query of a plan", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Plan: &ebbv1.Plan{
				Namespace: own,
				Ask:       &ebbv1.Plan_Top{Top: &ebbv1.PlanTop{N: 1, Of: []*ebbv1.PlanTerm{term}}},
			}},
		},
		{
			"Query of a plan's namespace", ebbv1grpc.Ebb_Query_FullMethodName,
			&ebbv1.QueryRequest{Namespace: own, Plan: &ebbv1.Plan{
				Namespace: foreign,
				Ask:       &ebbv1.Plan_Keys{Keys: &ebbv1.PlanKeys{}},
			}},
		},
		{
			"Increment", ebbv1grpc.Ebb_Increment_FullMethodName,
			&ebbv1.IncrementRequest{Namespace: foreign, Increments: []*ebbv1.Increment{{Key: key, Bin: key}}},
		},
		{
			"Bits", ebbv1grpc.Ebb_Bits_FullMethodName,
			&ebbv1.BitsRequest{Namespace: foreign, Changes: []*ebbv1.BitChange{{
				Key: key, Op: ebbv1.BitOp_BIT_OP_CLEAR,
				Ids: []uint64{1},
			}}},
		},
		{
			"StoreBitmap", ebbv1grpc.Ebb_StoreBitmap_FullMethodName,
			&ebbv1.StoreBitmapRequest{
				Namespace: foreign, Key: key,
				Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: key}},
			},
		},
		{"Delete", ebbv1grpc.Ebb_Delete_FullMethodName, &ebbv1.DeleteRequest{Namespace: foreign, Keys: [][]byte{key}}},
		{
			"Expire", ebbv1grpc.Ebb_Expire_FullMethodName,
			&ebbv1.ExpireRequest{Namespace: foreign, Keys: [][]byte{key}, TtlUs: 1e9},
		},
		{"Rename", ebbv1grpc.Ebb_Rename_FullMethodName, &ebbv1.RenameRequest{Namespace: foreign, Key: key, To: []byte("l")}},
		{
			"Feed", ebbv1grpc.Ebb_Feed_FullMethodName,
			&ebbv1.FeedRequest{Namespace: foreign, Phrases: key, Into: key, Texts: [][]byte{key}},
		},
		{
			"SetNamespace", ebbv1grpc.Ebb_SetNamespace_FullMethodName,
			&ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{Name: foreign, HalfLifeUs: 1e6}},
		},
		{
			"RestoreNamespaces", ebbv1grpc.Shards_RestoreNamespaces_FullMethodName,
			&ebbv1.RestoreNamespacesRequest{Namespaces: []*ebbv1.Namespace{{Name: foreign}}},
		},
	}
	for _, c := range calls {
		for _, mode := range []Mode{Tokens, Sealed} {
			out = append(out, Attempt{Group: of, Name: c.name, Mode: mode, Long: mode == Sealed, Run: func(ctx context.Context, a *Arena) error {
				if err := a.invoke(ctx, "writer", c.method, c.req); !codeIs(err, codes.PermissionDenied) {
					return broke("it ends with %v", err)
				}
				return nil
			}})
		}
	}
	return append(out,
		Attempt{Group: of, Name: "commands", Mode: Tokens, Run: foreignCommands},
		Attempt{Group: of, Name: "watches", Mode: Tokens, Run: foreignWatches},
		Attempt{Group: of, Name: "paths", Mode: Tokens, Run: foreignPaths},
		Attempt{Group: of, Name: "lists and the table", Mode: Tokens, Run: foreignLists},
	)
}

func foreignCommands(ctx context.Context, a *Arena) error {
	del := &ebbv1.Command{
		Namespace: own,
		Body:      &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}}},
	}
	mine, err := protobuf.Marshal(del)
	if err != nil {
		return err
	}
	both := append(slices.Clone(mine), "\x0a\x06"+foreign...)
	before := append([]byte("\x0a\x06"+foreign), mine...)
	del.Namespace = foreign
	theirs, err := protobuf.Marshal(del)
	if err != nil {
		return err
	}
	restore, err := protobuf.Marshal(&ebbv1.Command{
		Namespace: own,
		Body: &ebbv1.Command_Restore{Restore: &ebbv1.RestoreShard{
			Name: "x",
			Step: &ebbv1.RestoreShard_Begin{Begin: &ebbv1.RestoreBegin{Bytes: 1}},
		}},
	})
	if err != nil {
		return err
	}
	for _, forwarded := range []bool{false, true} {
		req, resp := &ebbv1.ApplyRequest{Forwarded: forwarded}, &ebbv1.ApplyResponse{}
		for _, b := range [][]byte{theirs, both, before, restore} {
			req.Commands = append(req.Commands, &ebbv1.ShardCommand{Shard: 1, Command: b})
		}
		if err := a.call(ctx, "writer", ebbv1grpc.Shards_Apply_FullMethodName, req, resp); err != nil {
			return err
		}
		for i, r := range resp.GetResults() {
			if r.GetError() == nil {
				return broke("command %d was applied (forwarded: %v)", i, forwarded)
			}
		}
	}
	return nil
}

func foreignWatches(ctx context.Context, a *Arena) error {
	conn, err := a.grpc("writer")
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, req := range []*ebbv1.WatchRequest{
		{Query: "top 10 @" + foreign + "/k"},
		{Question: &ebbv1.Question{
			Namespace: foreign,
			Ask:       &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}},
		}},
		{
			Question: &ebbv1.Question{Namespace: own, Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}},
			Query:    "top 10 @" + foreign + "/k",
		},
	} {
		stream, err := ebbv1grpc.NewEbbClient(conn).Watch(a.show(ctx, "writer"), req)
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil {
			return broke("%v is watched", req)
		}
	}
	return nil
}

func foreignPaths(ctx context.Context, a *Arena) error {
	for _, path := range []string{
		"/v1/ns/secret/key/k", "/v1/ns/clicks/../secret/key/k", "/v1/ns/clicks%2f..%2fsecret/key/k", "/v1/ns/%73ecret/key/k",
		"/v1/ns/secret%00/key/k", "/v1/ns/secret/keys", "/v1/ns/secret",
		"/ns/secret/dist?distribution=k", "/ns/clicks/../secret/dist?distribution=k", "/ns/%73ecret/dist?distribution=k",
		"/forget/../ns/secret/dist?distribution=k", "/ns/secret/dbsize",
		"/v1/ns/secret/distribution/k", "/v1/ns/secret/summary/k", "/v1/ns/secret/bits/k", "/v1/ns/secret/watch/k",
		"/v1/ns/clicks//secret/key/k",
	} {
		r, err := a.http(ctx, request{path: path, role: "writer"})
		if err == nil && r.status == http.StatusOK {
			return broke("GET %s: %d %.80s", path, r.status, r.body)
		}
	}
	return nil
}

func foreignLists(ctx context.Context, a *Arena) error {
	for _, path := range []string{"/v1/namespaces", "/v1/table", "/v1/status"} {
		r, err := a.http(ctx, request{path: path, role: "writer"})
		if err != nil {
			return err
		}
		if r.status != http.StatusOK || !strings.Contains(r.body, "{") {
			return fmt.Errorf("GET %s: %d", path, r.status)
		}
		if strings.Contains(r.body, `"`+foreign+`"`) {
			return broke("GET %s names the namespace %s", path, foreign)
		}
	}
	return nil
}

// audits returns attempts that destroy data, and then look for their lines in the audit log.
func audits() (out []Attempt) {
	for _, mode := range []Mode{Open, Tokens} {
		out = append(out, Attempt{
			Group: "audit", Name: "what destroys without a line", Mode: mode, Within: 30 * time.Second,
			Run: destroyUnseen,
		})
	}
	return append(out,
		Attempt{
			Group: "audit", Name: "a flood hides another's deletion", Mode: Tokens, Within: 40 * time.Second,
			Grows: 192 * mib, Run: hideInFlood,
		},
		Attempt{Group: "audit", Name: "lines forged by names", Mode: Tokens, Run: forgeLines},
	)
}

func destroyUnseen(ctx context.Context, a *Arena) error {
	for _, args := range [][]string{
		{"bits", "set", "bm", "1", "2", "3"},
		{"string", "set", "s", "before"},
		{"incr", "x", "b"},
		{"phrases", "add", "p", "one", "two"},
		{"namespace", "create", "passing"},
	} {
		if _, err := a.ebb(ctx, "operator", append(args, "-n", own)...); err != nil &&
			!strings.Contains(err.Error(), "exists") {
			return err
		}
	}
	var unseen []string
	for _, c := range []struct{ args, act string }{
		{"expire x 61s", "expire"},
		{"string set s after", "set string"},
		{"bits clear bm 1", "clear bits"},
		{"bits flip bm 2", "flip bits"},
		{"rename x y", "rename"},
		{"phrases remove p one", "remove phrases"},
		{"del y", "delete"},
	} {
		before := len(a.audit())
		if _, err := a.ebb(ctx, "operator", append(strings.Fields(c.args), "-n", own)...); err != nil {
			return err
		}
		if !a.audited(ctx, before, c.act) {
			unseen = append(unseen, c.args)
		}
	}
	before := len(a.audit())
	if _, err := a.ebb(ctx, "operator", "query", "store bm = nothing | nothing", "-n", own); err != nil {
		return err
	}
	if !a.audited(ctx, before, "store bitmap") {
		unseen = append(unseen, "store bm = nothing")
	}
	before = len(a.audit())
	if r, err := a.http(ctx, request{path: "/ns/clicks/incr?distribution=k&field=b&N=-1", role: "operator"}); err != nil {
		return err
	} else if !a.audited(ctx, before, "subtract") {
		unseen = append(unseen, fmt.Sprintf("GET /incr?N=-1 (%d)", r.status))
	}
	if len(unseen) > 0 {
		return broke("no line of the audit log for: %s", strings.Join(unseen, "; "))
	}
	return nil
}

// audited waits until the audit log has a line about an act behind position from. It waits two seconds at most: lines
// are merged for the first of them.
func (a *Arena) audited(ctx context.Context, from int, act string) bool {
	for until := time.Now().Add(2 * time.Second); ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if strings.Contains(a.audit()[from:], `"act":"`+act) {
			return true
		}
		if time.Now().After(until) {
			return false
		}
	}
	return false
}

func hideInFlood(ctx context.Context, a *Arena) error {
	conn, err := a.grpc("writer")
	if err != nil {
		return err
	}
	defer conn.Close()
	ebb, from := ebbv1grpc.NewEbbClient(conn), len(a.audit())
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	sent := make([]int, 64)
	key := []byte(strings.Repeat("f", 500))
	_ = together(len(sent), func(i int) error {
		for limited.Err() == nil {
			if _, err := ebb.Delete(a.show(limited, "writer"),
				&ebbv1.DeleteRequest{Namespace: own, Keys: [][]byte{key}}); err == nil {
				sent[i]++
			}
			if i == 0 && sent[0] == 20 {
				if err := a.call(ctx, "stranger", ebbv1grpc.Ebb_Delete_FullMethodName,
					&ebbv1.DeleteRequest{Namespace: foreign, Keys: [][]byte{[]byte("hidden")}}, &ebbv1.DeleteResponse{}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	total := 0
	for _, n := range sent {
		total += n
	}
	if total < 500 {
		return fmt.Errorf("a flood of %d deletions is none", total)
	}
	for until := time.Now().Add(3 * time.Second); !strings.Contains(a.audit()[from:],
		`\"hidden\"`); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			return broke("the deletion of another has no line among %d", total)
		}
	}
	if size := len(a.audit()) - from; size > 5*1_000*mib/1_000 {
		return broke("%d deletions make %d bytes of the audit log in 3 s", total, size)
	}
	return nil
}

func forgeLines(ctx context.Context, a *Arena) error {
	from := len(a.audit())
	name := "x\"}\n{\"who\":\"root\",\"act\":\"forged\x1b[2J\u202e"
	_ = a.call(ctx, "writer", ebbv1grpc.Ebb_Delete_FullMethodName,
		&ebbv1.DeleteRequest{Namespace: own, Keys: [][]byte{[]byte(name)}}, &ebbv1.DeleteResponse{})
	_, _ = a.http(ctx, request{path: "/v1/ns/x%0a%7b%22who%22/key/%1b%5b2J"})
	_, _ = a.send(ctx, "", "/ebb.v1.Ebb/\x1b[2J", nil)
	if !a.audited(ctx, from, "delete") {
		return errors.New("the deletion has no line")
	}
	text := a.audit()[from:]
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, `{"time":`) {
			return broke("a line of the audit log begins with %.60q", line)
		}
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
		return broke("the audit log has the byte %#x", text[i])
	}
	return nil
}
