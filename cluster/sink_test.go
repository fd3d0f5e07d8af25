package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// sink answers everything at once and with nothing, so that benchmarks measure its caller.
type sink struct{}

var nothing = &ebbv1.CommandResult{Applied: 1}

func (sink) Apply(_ context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	results := make([]*ebbv1.CommandResult, len(req.Commands))
	for i := range results {
		results[i] = nothing
	}
	return &ebbv1.ApplyResponse{Results: results}, nil
}

var top = &ebbv1.Answer_Distribution{Distribution: &ebbv1.Distribution{Found: true, Bins: make([]*ebbv1.Bin, 10)}}

func (sink) Ask(_ context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	answers := make([]*ebbv1.ShardAnswer, len(req.Questions))
	for i := range answers {
		answers[i] = &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: top}}, AsOfUs: year2026}
	}
	return &ebbv1.ShardAskResponse{Answers: answers}, nil
}

type sinks struct{}

func (sinks) Backend(string) (Backend, error) { return sink{}, nil }

func contextFor(t testing.TB, seconds int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
}
