package rpc

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/query"
)

// Query understands as a cluster does, and answers the top of one key.
func (f *fake) Query(ctx context.Context, req *ebbv1.QueryRequest) (*ebbv1.QueryResponse, error) {
	plan, err := cluster.Understood(req)
	if err != nil {
		return nil, err
	}
	resp := &ebbv1.QueryResponse{Plan: plan, Text: query.Text(plan)}
	if req.GetExplain() {
		resp.Explanation = &ebbv1.Explanation{Root: &ebbv1.ExplainedStep{Step: "ask distribution", Shards: []uint32{7}, Keys: 1}, Shards: []uint32{7}, Cost: 1, CostMax: 65536}
		return resp, nil
	}
	answers, err := f.Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{{
		Namespace: plan.GetNamespace(), Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: [][]byte{plan.GetTop().GetOf()[0].GetKey()}, Select: &ebbv1.DistributionQuestion_Top{Top: plan.GetTop().GetN()},
		}},
	}}})
	if err != nil {
		return nil, err
	}
	resp.Answer = answers.GetAnswers()[0]
	return resp, nil
}

// An error in a question crosses the wire with its place.
func TestQueryErrorHasAPlace(t *testing.T) {
	c := ebbv1grpc.NewEbbClient(serve(t, new(fake).services()))
	_, err := c.Query(t.Context(), &ebbv1.QueryRequest{Text: "# how many\ncuont(x)"})
	e := proto.AsError(ebbv1grpc.FromStatus(err))
	if !errors.Is(e, proto.ErrBadQuery) || e.Line != 2 || e.Column != 1 || e.Hint != "did you mean count?" {
		t.Errorf("%+v", e)
	}
}

// A question in the language can be watched like any other; what cannot is refused at once.
func TestWatchQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		c := ebbv1grpc.NewEbbClient(serve(t, rising(&asked).services()))
		stream, err := c.Watch(t.Context(), &ebbv1.WatchRequest{Query: "top 10 k"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			e, err := next(stream)
			if err != nil || e.GetAnswer().GetDistribution().GetZ() != float64(uint64(2)<<i) {
				t.Fatalf("event %d: %v, %v", i, e, err)
			}
		}
		for _, c2 := range []struct {
			req  *ebbv1.WatchRequest
			want *proto.Error
		}{
			{&ebbv1.WatchRequest{Query: "tpo 10 k"}, proto.ErrBadQuery},
			{&ebbv1.WatchRequest{Query: "store a = b"}, proto.ErrBadRequest},
			{&ebbv1.WatchRequest{Query: "top 10 k", Question: topQuestion("k", 10).GetQuestions()[0]}, proto.ErrBadRequest},
			{&ebbv1.WatchRequest{Query: "top 10 k", AllowPartial: true}, proto.ErrBadRequest},
			{&ebbv1.WatchRequest{Query: "top 10 k", Alert: &ebbv1.Alert{PValue: 0.01}}, proto.ErrBadRequest},
			{&ebbv1.WatchRequest{Query: "surprise(a against b)", Alert: &ebbv1.Alert{}}, proto.ErrBadRequest},
		} {
			stream, err := c.Watch(t.Context(), c2.req)
			if err != nil {
				t.Fatal(err)
			}
			if e, err := next(stream); !errors.Is(err, c2.want) {
				t.Errorf("%v: %v %v, want %v", c2.req, e, err, c2.want)
			}
		}
	})
}
