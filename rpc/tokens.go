package rpc

import (
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// CreateToken implements service Ebb.
func (s *ebbServer) CreateToken(ctx context.Context, req *ebbv1.CreateTokenRequest) (*ebbv1.CreateTokenResponse, error) {
	record := &ebbv1.TokenRecord{
		Name: req.GetName(), Sha256: req.GetSha256(), Grants: req.GetGrants(), ExpiresUs: req.GetExpiresUs(),
		CreatedUs: s.Access.now().UnixMicro(),
	}
	if t := callerOf(ctx).token; t != nil {
		record.CreatedBy = t.Name
	}
	if err := proto.CheckToken(record); err != nil {
		return nil, err
	}
	if req.GetExpiresUs() != 0 && req.GetExpiresUs() <= record.CreatedUs {
		return nil, proto.ErrBadTime.Errorf("token %s would have ended before it is made", req.GetName())
	}
	if !s.Access.InForce() && !operates(record) {
		return nil, proto.ErrBadRequest.Errorf("token %s would be the first, and is not an operator's: from it on nobody could make another", req.GetName()).
			WithHint("make one first with: ebb token create NAME --role operator")
	}
	return s.Cluster.CreateToken(ctx, req, record)
}

func operates(r *ebbv1.TokenRecord) bool {
	for _, g := range r.GetGrants() {
		if g.GetRole() == operator {
			return true
		}
	}
	return false
}

// ListTokens implements service Ebb.
func (s *ebbServer) ListTokens(context.Context, *ebbv1.ListTokensRequest) (*ebbv1.ListTokensResponse, error) {
	resp := &ebbv1.ListTokensResponse{InForce: s.Access.InForce()}
	for _, r := range s.Cluster.TokenRecords() {
		resp.Tokens = append(resp.Tokens, Shown(r))
	}
	return resp, nil
}

// Shown is what callers are told of a token: everything but its hash.
func Shown(r *ebbv1.TokenRecord) *ebbv1.TokenRecord {
	return &ebbv1.TokenRecord{Name: r.GetName(), Grants: r.GetGrants(), CreatedUs: r.GetCreatedUs(), ExpiresUs: r.GetExpiresUs(), CreatedBy: r.GetCreatedBy()}
}

// RevokeToken implements service Ebb. Nobody is locked out: the last operator stays, unless callers need no token then.
func (s *ebbServer) RevokeToken(ctx context.Context, req *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	if err := proto.CheckTokenName(req.GetName()); err != nil {
		return nil, err
	}
	if err := s.Access.mayEnd(req); err != nil {
		return nil, err
	}
	return s.Cluster.RevokeToken(ctx, req)
}

// mayEnd refuses to revoke a token without which callers would be locked out, or the cluster be open to all.
func (a *Access) mayEnd(req *ebbv1.RevokeTokenRequest) error {
	if a == nil {
		return nil
	}
	tokens := a.cfg.Tokens()
	t := tokens.Named(req.GetName())
	switch {
	case t == nil:
		return proto.ErrBadRequest.Errorf("there is no token %s", req.GetName()).WithHint("`ebb token list` shows those that there are")
	case len(a.root) > 0:
		return nil
	case tokens.Len() == 1 && !req.GetOpen():
		return proto.ErrBadRequest.Errorf("token %s is the last: without it everybody may do everything", t.Name).
			WithHint("ebb token revoke " + t.Name + " --open, if that is meant")
	case tokens.Len() > 1 && t.Has(operator) && !t.Ended(a.now().UnixMicro()) && tokens.Operators(a.now().UnixMicro()) == 1:
		return proto.ErrBadRequest.Errorf("token %s is the last of an operator: without it nobody could make or revoke others", t.Name).
			WithHint("make another first (ebb token create NAME --role operator), or revoke the others first")
	}
	return nil
}
