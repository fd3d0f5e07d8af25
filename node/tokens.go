package node

import (
	"context"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

// newAccess returns the access control of this node.
func (n *Node) newAccess() *rpc.Access {
	return rpc.NewAccess(rpc.AccessConfig{
		Tokens: func() *cluster.Tokens { return n.Table().Tokens() }, Root: n.cfg.RootTokens, Secrets: n.cfg.ClusterSecrets,
		Certified: n.cfg.TLS.RequireClientCert, Node: n.cfg.Name,
		Known: n.phase.hasServed, Audit: n.cfg.Audit, Now: n.cfg.Clock.Now, Registerer: n.cfg.Registry,
	})
}

// asNode adds to the options of calls to other nodes the proof that this is a node, and for whom it asks.
func (n *Node) asNode(options []grpc.DialOption) []grpc.DialOption {
	return append(options, grpc.WithPerRPCCredentials(n.access.Credentials()))
}

// CreateToken makes a token. If another node leads the control group, the request is forwarded to it, once.
func (v clusterView) CreateToken(ctx context.Context, req *ebbv1.CreateTokenRequest, record *ebbv1.TokenRecord) (*ebbv1.CreateTokenResponse, error) {
	var resp *ebbv1.CreateTokenResponse
	err := v.n.asControlLeader(ctx, func(c *control) error {
		if err := v.n.keepsTokens(); err != nil {
			return err
		}
		resp = &ebbv1.CreateTokenResponse{Token: rpc.Shown(record)}
		put := &ebbv1.PutToken{Token: record, Guarded: v.n.access.Guarded(), MayEnd: req.GetMayEnd()}
		return v.n.putToken(ctx, c, put, req.GetIdempotencyKey())
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.CreateToken(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	v.n.awaitTokens(ctx, func(ts *cluster.Tokens) bool { return ts.Named(record.GetName()) != nil })
	return resp, nil
}

// RevokeToken ends a token. If another node leads the control group, the request is forwarded to it, once.
func (v clusterView) RevokeToken(ctx context.Context, req *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	resp := new(ebbv1.RevokeTokenResponse)
	err := v.n.asControlLeader(ctx, func(c *control) error {
		resp.Absent = c.state.control.Table().Tokens().Named(req.GetName()) == nil
		_, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_DropToken{DropToken: &ebbv1.DropToken{
			Name: req.GetName(), Open: req.GetOpen(), Guarded: v.n.access.Guarded(), NowUs: v.n.cfg.Clock.Now().UnixMicro(),
		}}, IdempotencyKey: req.GetIdempotencyKey()})
		return err
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.RevokeToken(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	v.n.awaitTokens(ctx, func(ts *cluster.Tokens) bool { return ts.Named(req.GetName()) == nil })
	return resp, nil
}

// TokenRecords returns the records of all tokens, as this node knows them.
func (v clusterView) TokenRecords() []*ebbv1.TokenRecord { return v.n.Table().Wire().GetTokens() }

func (n *Node) tokens() uint32 { return uint32(n.Table().Tokens().Len()) }

// keepsTokens returns an error until all nodes can keep tokens, which an upgraded cluster cannot for some seconds. It
// does not wait for that: a caller that stops waiting could not know whether a token was made.
func (n *Node) keepsTokens() error {
	if n.Table().Version() >= proto.VersionTokens {
		return nil
	}
	return proto.ErrStarting.Errorf("tokens need storage version %d, and %d is in force", proto.VersionTokens, n.Table().Version()).
		WithHint("try again in a few seconds; `ebb status` says which nodes hold the version back")
}

// awaitTokens waits, localMax at most, until this node's table shows a change.
func (n *Node) awaitTokens(ctx context.Context, shows func(*cluster.Tokens) bool) {
	ctx, cancel := context.WithTimeout(ctx, localMax)
	defer cancel()
	_ = await(ctx, handOverPoll, func() bool { return shows(n.Table().Tokens()) }) // a timeout does no harm: the change is made
}

// checkSecrets refuses root tokens or cluster secrets that could be guessed, and those that no header can carry.
func checkSecrets(what string, texts []string) error {
	for i, text := range texts {
		if len(text) < proto.TokenLenMin || len(text) > proto.TokenLenMax {
			return proto.ErrBadRequest.Errorf("%s %d has %d characters: it has %d to %d", what, i+1, len(text),
				proto.TokenLenMin, proto.TokenLenMax).
				WithHint("make one with: ebb token secret")
		}
		for _, r := range text {
			if r <= ' ' || r > '~' {
				return proto.ErrBadRequest.Errorf("%s %d: only printable ASCII without spaces can be sent", what, i+1)
			}
		}
	}
	return nil
}
