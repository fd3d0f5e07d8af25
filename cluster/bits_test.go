package cluster

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What is said of changes that were refused after something of them had been made.
func TestMergeBits(t *testing.T) {
	refused := func(e *proto.Error, changed uint64) *ebbv1.CommandResult {
		return &ebbv1.CommandResult{Changed: changed, Error: e.Wire()}
	}
	busy := proto.ErrOverloaded.Errorf("shard 3 is full").WithShard(3)
	busy.RetryAfterUS = 5e6
	full := proto.ErrResourceExhausted.Errorf("at its limit").WithHint("free something")
	crowded := &proto.Error{Code: ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS, Message: "no room for another identity", Shard: 3, RetryAfterUS: 5e6}
	several := func(results ...*ebbv1.CommandResult) *ebbv1.CommandResult {
		sum := &ebbv1.CommandResult{}
		for _, result := range results {
			addResult(sum, result)
		}
		return sum
	}
	for _, c := range []struct {
		name    string
		results []*ebbv1.CommandResult
		whole   *proto.Error   // the error of the request
		each    []*proto.Error // of the changes that are listed
	}{
		{"all made", []*ebbv1.CommandResult{{Changed: 3}}, nil, nil},
		{"not made", []*ebbv1.CommandResult{refused(busy, 0)}, proto.ErrOverloaded, nil},
		{"not made, one of two", []*ebbv1.CommandResult{refused(busy, 0), {Changed: 1}}, nil, []*proto.Error{proto.ErrOverloaded}},
		{"in part, and the rest later", []*ebbv1.CommandResult{refused(busy, 2)}, proto.ErrUnknownOutcome, nil},
		{"in part, and room for the rest later", []*ebbv1.CommandResult{refused(crowded, 2)}, proto.ErrUnknownOutcome, nil},
		{"in part, and of the rest some later", []*ebbv1.CommandResult{several(refused(full, 0), refused(busy, 0), &ebbv1.CommandResult{Changed: 2})}, proto.ErrUnknownOutcome, nil},
		{"in part, and of the rest some never", []*ebbv1.CommandResult{several(refused(busy, 0), refused(full, 0), &ebbv1.CommandResult{Changed: 2})}, proto.ErrUnknownOutcome, nil},
		{"in part, and refused for good", []*ebbv1.CommandResult{refused(full, 2)}, nil, []*proto.Error{proto.ErrResourceExhausted}},
		{"refused for good", []*ebbv1.CommandResult{refused(full, 0)}, proto.ErrResourceExhausted, nil},
		{"in part, by one command", []*ebbv1.CommandResult{{Changed: 65_536, Applied: 1, Refused: []*ebbv1.Refusal{{Index: 1, Error: full.Wire()}}}}, nil, []*proto.Error{proto.ErrResourceExhausted}},
		{"unknown", []*ebbv1.CommandResult{refused(busy, 0), refused(proto.ErrUnknownOutcome, 2)}, proto.ErrUnknownOutcome, nil},
	} {
		resp, err := mergeBits(&ebbv1.ApplyResponse{Results: c.results})
		if whole := proto.AsError(err); (whole == nil) != (c.whole == nil) || whole != nil && !whole.Is(c.whole) {
			t.Errorf("%s: %v, want %v", c.name, err, c.whole)
			continue
		} else if whole != nil && whole.Is(proto.ErrUnknownOutcome) && c.name != "unknown" && (whole.Shard != 3 || whole.RetryAfterUS != 5e6) {
			t.Errorf("%s: %+v does not say where, or when to come again", c.name, whole)
		}
		if len(resp.GetRefused()) != len(c.each) {
			t.Errorf("%s: refused %v", c.name, resp.GetRefused())
			continue
		}
		for i, r := range resp.GetRefused() {
			e := proto.FromWire(r.GetError())
			if !e.Is(c.each[i]) {
				t.Errorf("%s: %v, want %v", c.name, e, c.each[i])
			}
			if resp.GetChanged()[r.GetIndex()] > 0 && e.Hint == full.Hint {
				t.Errorf("%s: to do it again is what is advised, though something has been done", c.name)
			}
		}
	}
}

// Changes that go together share a command in each shard, except for flips, and come in their order. Sent again under
// their key they change nothing.
func TestChangesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 4)
		e.people()
		flip := &ebbv1.BitChange{Key: []byte("b"), Op: ebbv1.BitOp_BIT_OP_FLIP, Ids: []uint64{3, 4}}
		clear := &ebbv1.BitChange{Key: []byte("c"), Op: ebbv1.BitOp_BIT_OP_CLEAR, Ids: []uint64{1}}
		req := &ebbv1.BitsRequest{
			Together: true, IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: 1, Lo: 2},
			Changes: []*ebbv1.BitChange{
				setIDs("a", 1, 2), setIDs("b", 3), setIDs("c", 1, 1<<40), clear, flip, setIDs("b", 3), setIDs("a", 2, 9),
			},
		}
		for _, namespace := range []string{"people", "default"} {
			req.Namespace = namespace
			for range 2 {
				resp, err := e.router("ebb-0").Bits(t.Context(), req)
				if err != nil || len(resp.GetRefused()) > 0 || len(resp.GetChanged()) != len(req.Changes) {
					t.Fatalf("%s: %v, %v", namespace, resp, err)
				}
				sum := uint64(0)
				for _, n := range resp.GetChanged() {
					sum += n
				}
				if sum != 10 {
					t.Errorf("%s: changed %d in all (%v), want 10", namespace, sum, resp.GetChanged())
				}
			}
			for key, want := range map[string][]uint64{"a": {1, 2, 9}, "b": {3, 4}, "c": {1 << 40}} {
				a := e.about(e.router("ebb-0").ask, listIDs(namespace, keyTerm(key)))
				if got := a.GetBitmap().GetIds(); !slices.Equal(got, want) {
					t.Errorf("%s: %s has %v, want %v", namespace, key, got, want)
				}
			}
		}
	})
}
