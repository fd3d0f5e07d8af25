package client_test

import (
	"context"
	"errors"
	"testing"

	ebb "github.com/ebbdb/ebb/client"
)

// A sum of amounts is not taken for a number of members, nor the other way round.
func TestSummariesOfAnotherKind(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	if err := c.Increment(ctx, ns, ebb.Seen("visitors", "ann"), ebb.Increment{Key: "hits", Bin: "/a", Amount: 7, Kind: ebb.KindCountMin}); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Distinct(ctx, ns, []string{"visitors"}); err != nil || !n.Found || n.Value < 0.99 || n.Value > 1.01 {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := c.Distinct(ctx, ns, []string{"nobody"}); err != nil || n.Found {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := c.Distinct(ctx, ns, []string{"hits"}); !errors.Is(err, ebb.ErrWrongKind) {
		t.Errorf("a countmin has %v distinct bins, %v", n.Value, err)
	}
	if there, err := c.Contains(ctx, ns, []string{"visitors"}, []string{"ann"}); !errors.Is(err, ebb.ErrWrongKind) {
		t.Errorf("a distinct contains %v, %v", there, err)
	}
}
