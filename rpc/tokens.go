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
	return s.Cluster.CreateToken(ctx, req, record)
}

// ListTokens implements service Ebb.
func (s *ebbServer) ListTokens(context.Context, *ebbv1.ListTokensRequest) (*ebbv1.ListTokensResponse, error) {
	resp := &ebbv1.ListTokensResponse{InForce: s.Access.InForce()}
	for _, r := range s.Cluster.TokenRecords() {
		resp.Tokens = append(resp.Tokens, Shown(r))
	}
	return resp, nil
}

// Shown returns what callers see of a token: everything but its hash.
func Shown(r *ebbv1.TokenRecord) *ebbv1.TokenRecord {
	return &ebbv1.TokenRecord{Name: r.GetName(), Grants: r.GetGrants(), CreatedUs: r.GetCreatedUs(), ExpiresUs: r.GetExpiresUs(), CreatedBy: r.GetCreatedBy()}
}

// RevokeToken implements service Ebb. The control group makes sure that callers are not locked out.
func (s *ebbServer) RevokeToken(ctx context.Context, req *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	if err := proto.CheckTokenName(req.GetName()); err != nil {
		return nil, err
	}
	return s.Cluster.RevokeToken(ctx, req)
}
