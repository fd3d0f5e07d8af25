package rpc

import (
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// Queries answers questions in the query language.
type Queries interface {
	Query(context.Context, *ebbv1.QueryRequest) (*ebbv1.QueryResponse, error)
}

// Query passes a request on unchecked. The receiver checks it, because only the text shows what is asked.
func (s *ebbServer) Query(ctx context.Context, req *ebbv1.QueryRequest) (*ebbv1.QueryResponse, error) {
	return s.Queries.Query(ctx, req)
}

// checkStanding checks a query that is to be watched. It must only ask, and be about surprise if there is an alert.
func checkStanding(req *ebbv1.WatchRequest) error {
	if req.GetQuery() == "" {
		return nil
	}
	plan, err := query.Parse(req.GetQuery())
	switch {
	case err != nil:
		return err
	case plan.GetStore() != nil:
		return proto.ErrBadRequest.Errorf("store writes, and only what asks is watched")
	case req.GetAlert() != nil && plan.GetSurprise() == nil:
		return proto.ErrBadAlertQuestion()
	}
	return nil
}

// askWatched asks the question of a watch.
func (s *ebbServer) askWatched(ctx context.Context, req *ebbv1.WatchRequest) (*ebbv1.Answer, error) {
	if text := req.GetQuery(); text != "" {
		resp, err := s.Queries.Query(ctx, &ebbv1.QueryRequest{Text: text, Strict: req.GetStrict()})
		return resp.GetAnswer(), err
	}
	resp, err := s.Coordinator.Ask(ctx, &ebbv1.AskRequest{
		Questions: []*ebbv1.Question{req.GetQuestion()}, Consistency: req.GetConsistency(), MaxStalenessUs: req.GetMaxStalenessUs(), AllowPartial: req.GetAllowPartial(),
		Strict: req.GetStrict(),
	})
	switch n := len(resp.GetAnswers()); {
	case err != nil:
		return nil, err
	case n != 1:
		return nil, proto.ErrInternal.Errorf("%d answers to one question", n)
	}
	return resp.GetAnswers()[0], nil
}
