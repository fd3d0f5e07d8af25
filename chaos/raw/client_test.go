package raw

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// fake is a node that counts in memory, and may be wrong.
type fake struct {
	grpc.ClientConnInterface
	sums    map[string]map[string]float64
	seen    map[uint64]bool // idempotency keys
	rng     *rand.Rand
	silent  float64 // part of calls whose answer is lost
	forgets bool    // idempotency keys
	loses   bool    // a write in ten that it acknowledges
}

func (f *fake) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	switch req := args.(type) {
	case *ebbv1.IncrementRequest:
		if id := req.GetIdempotencyKey().GetLo(); !f.seen[id] && !(f.loses && f.rng.IntN(10) == 0) {
			f.seen[id] = !f.forgets
			for _, in := range req.GetIncrements() {
				bins := f.sums[string(in.GetKey())]
				if bins == nil {
					bins = map[string]float64{}
					f.sums[string(in.GetKey())] = bins
				}
				bins[string(in.GetBin())] += in.GetAmount()
			}
		}
	case *ebbv1.AskRequest:
		resp := new(ebbv1.AskResponse)
		for _, q := range req.GetQuestions() {
			d := new(ebbv1.Distribution)
			for bin, count := range f.sums[string(q.GetDistribution().GetKeys()[0])] {
				d.Bins = append(d.Bins, &ebbv1.Bin{Bin: []byte(bin), Count: count})
			}
			resp.Answers = append(resp.Answers, &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}})
		}
		proto.Merge(reply.(proto.Message), resp)
	}
	if f.rng.Float64() < f.silent {
		return errors.New("the answer is lost")
	}
	return nil
}

// The client believes a node that is right, however many answers are lost, and finds out one that counts a retry again
// or loses a write.
func TestClient(t *testing.T) {
	for _, c := range []struct {
		name  string
		node  fake
		wrong bool
	}{
		{"right", fake{}, false},
		{"right, a third of the answers lost", fake{silent: 0.3}, false},
		{"counts retries again", fake{silent: 0.3, forgets: true}, true},
		{"loses writes", fake{loses: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := c.node
				node.rng, node.sums, node.seen = rand.New(rand.NewPCG(1, 2)), map[string]map[string]float64{}, map[uint64]bool{}
				client := New("counts", "k", rand.New(rand.NewPCG(3, 4)), &node, &node)
				var wrong error
				for range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					if !client.Write(ctx) {
						t.Fatal("no answer in a minute")
					}
					if _, err := client.Read(ctx); err != nil {
						wrong = err
					}
					cancel()
				}
				if (wrong != nil) != c.wrong {
					t.Errorf("found: %v", wrong)
				}
				if client.Writes() != 200 {
					t.Errorf("%d writes", client.Writes())
				}
			})
		})
	}
}
