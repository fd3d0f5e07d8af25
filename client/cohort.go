package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Store stores the bitmap under a key, and returns how many ids it has. It replaces the bitmap that the key held, and
// its time to live. If the bitmap has no ids, the key is removed. Store is atomic, and is applied once even if it is
// sent several times. If all keys are in the shard of the new key, as periods of one family are, the bitmap may have
// any size. Otherwise its containers must fit into 252 KiB.
func (b Bitmap) Store(ctx context.Context, key string) (ids uint64, err error) {
	x := b.expr
	if b.within != nil {
		x = AllOf(x, BitRange(b.within.GetFirst(), b.within.GetLast()))
	}
	req := &ebbv1.StoreBitmapRequest{Namespace: b.ns, Key: []byte(key), Expr: x.wire, IdempotencyKey: b.client.idempotencyKey()}
	err = b.client.anywhere(ctx, attempt{op: "store", key: key}, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) error {
		resp, err := ebbv1grpc.NewEbbClient(cc).StoreBitmap(ctx, req)
		ids = resp.GetCount()
		return err
	})
	return ids, err
}

// CountBy asks how many ids the bitmap has in common with each bitmap whose key matches a pattern. The largest comes
// first; equal ones are ordered by name. If top is above 0, only so many are returned.
func (b Bitmap) CountBy(ctx context.Context, pattern string, top int) (Groups, error) {
	q := &ebbv1.Question{Namespace: b.ns, Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: &ebbv1.BitmapGroupsQuestion{
		Expr: b.expr.wire, Range: b.within, Patterns: [][]byte{[]byte(pattern)}, Top: clampCount(top),
	}}}
	a, err := b.client.askOne(ctx, "count by", "", q, b.opts)
	return Result{Answer: a}.Groups(), err
}

// CohortPeriod is a period with the ids that came in it.
type CohortPeriod struct {
	Name string
	IDs  BitmapExpr
}

// CohortQuery asks for a table of the ids that come again.
type CohortQuery struct {
	Periods  []CohortPeriod // one after the other, up to 400
	Within   *BitmapExpr    // only these ids
	Everyone bool           // a row has all ids of its period, not only those that were in none before
}

// Cohort asks for a table: the ids of each period, and how many of them come again in each later period. It is exact.
func (c *Client) Cohort(ctx context.Context, ns string, of CohortQuery, opts ...AskOption) ([]CohortRow, error) {
	table := &ebbv1.BitmapCohortQuestion{Everyone: of.Everyone}
	for _, p := range of.Periods {
		table.Periods = append(table.Periods, &ebbv1.BitmapCohortPeriod{Period: p.Name, Expr: p.IDs.wire})
	}
	if of.Within != nil {
		table.Within = of.Within.wire
	}
	a, err := c.askOne(ctx, "cohort", "", &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: table}}, opts)
	return Result{Answer: a}.Cohort(), err
}
