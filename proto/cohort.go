package proto

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Limits of questions that group bitmaps by others.
const (
	// BitGroupsMax is the most bitmaps that a set is counted by.
	BitGroupsMax = 10_000
	// BitCohortMax is the most periods of a table; the number of counts is half their square.
	BitCohortMax = 400
)

// BitmapExprs are the expressions of a question about bitmaps; none for other questions. The keys that a question
// counts by are not included.
func BitmapExprs(q *ebbv1.Question) []*ebbv1.BitmapExpr {
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_Bitmap:
		return []*ebbv1.BitmapExpr{ask.Bitmap.GetExpr()}
	case *ebbv1.Question_BitmapGroups:
		return []*ebbv1.BitmapExpr{ask.BitmapGroups.GetExpr()}
	case *ebbv1.Question_BitmapCohort:
		var out []*ebbv1.BitmapExpr
		for _, p := range ask.BitmapCohort.GetPeriods() {
			out = append(out, p.GetExpr())
		}
		if within := ask.BitmapCohort.GetWithin(); within != nil {
			out = append(out, within)
		}
		return out
	}
	return nil
}

// BitmapRange is the range of ids that a question about bitmaps is limited to; nil for all ids.
func BitmapRange(q *ebbv1.Question) *ebbv1.BitRange {
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_Bitmap:
		return ask.Bitmap.GetRange()
	case *ebbv1.Question_BitmapGroups:
		return ask.BitmapGroups.GetRange()
	}
	return q.GetBitmapCohort().GetRange()
}

func checkBitmapGroupsQuestion(q *ebbv1.BitmapGroupsQuestion) *Error {
	terms := 0
	if err := checkBitmapExpr(q.GetExpr(), 1, &terms); err != nil {
		return err
	}
	if n := len(q.GetPatterns()); n > PatternsPerAskMax {
		return ErrBadCount.Errorf("%d patterns: a question names %d at most", n, PatternsPerAskMax)
	}
	for _, pattern := range q.GetPatterns() {
		if err := CheckPattern(pattern); err != nil {
			return err
		}
	}
	switch n := len(q.GetKeys()); {
	case n > BitGroupsMax:
		return errTooManyGroups(uint64(n))
	case n == 0 && len(q.GetPatterns()) == 0 && !q.GetPlain():
		return ErrBadRequest.Errorf("counts by what? keys or patterns name the bitmaps").WithHint(`as in "patterns": ["country/*"]`)
	}
	for _, key := range q.GetKeys() {
		if err := CheckKey(key); err != nil {
			return err
		}
	}
	return checkIDRange(q.GetRange())
}

// errTooManyGroups refuses to count by n bitmaps.
func errTooManyGroups(n uint64) *Error {
	return ErrQueryTooCostly.Errorf("%d bitmaps to count by: the limit is %d", n, BitGroupsMax).WithHint("a narrower pattern, or fewer keys at a time")
}

// CheckGroups refuses to count by too many bitmaps.
func CheckGroups(n uint64) *Error {
	if n > BitGroupsMax {
		return errTooManyGroups(n)
	}
	return nil
}

func checkBitmapCohortQuestion(q *ebbv1.BitmapCohortQuestion) *Error {
	switch n := len(q.GetPeriods()); {
	case n == 0:
		return ErrBadRequest.Errorf("a table without periods: it has 1 to %d", BitCohortMax)
	case n > BitCohortMax:
		return ErrQueryTooCostly.Errorf("a table of %d periods: the limit is %d", n, BitCohortMax).WithHint("take longer periods: weeks, months, quarters")
	}
	terms := 0
	for i, p := range q.GetPeriods() {
		if n := len(p.GetPeriod()); n > KeyLenMax {
			return ErrBadRequest.Errorf("period %d has a name of %d bytes: the limit is %d", i, n, KeyLenMax)
		}
		if err := checkBitmapExpr(p.GetExpr(), 1, &terms); err != nil {
			if terms > BitTermsMax { // a cohort is of one range, and ranges stored in periods are rolled up, too
				return err.WithHint("take shorter ranges; or bring each period into a namespace without roll-ups, and " +
					"ask there: ebb bits export KEY, ebb bits load KEY FILE")
			}
			return err
		}
	}
	if within := q.GetWithin(); within != nil {
		if err := checkBitmapExpr(within, 1, &terms); err != nil {
			return err
		}
	}
	return checkIDRange(q.GetRange())
}

// checkIDRange refuses a range of ids whose first is above its last.
func checkIDRange(r *ebbv1.BitRange) *Error {
	if r != nil && r.GetFirst() > r.GetLast() {
		return checkRange(r.GetFirst(), r.GetLast(), 0)
	}
	return nil
}

// CheckStoreBitmap checks everything about the request that does not depend on state.
func CheckStoreBitmap(req *ebbv1.StoreBitmapRequest) *Error {
	if req.GetNamespace() != "" {
		if err := CheckNamespaceName(req.GetNamespace()); err != nil {
			return err
		}
	}
	if id := req.GetIdempotencyKey(); id != nil && id.GetIssuedAtUs() <= 0 {
		return ErrBadTime.Errorf("idempotency key issued at %d µs: it must be after 1970-01-01", id.GetIssuedAtUs())
	}
	return CheckStored(req.GetKey(), req.GetExpr())
}

// CheckStored checks a key and the expression that it is to store.
func CheckStored(key []byte, x *ebbv1.BitmapExpr) *Error {
	if err := CheckKey(key); err != nil {
		return err
	}
	terms := 0
	return checkBitmapExpr(x, 1, &terms)
}

func checkStoreCommand(raw []byte) *Error {
	var c ebbv1.StoreBitmap
	if err := Decode(raw, &c); err != nil {
		return err
	}
	return CheckStored(c.GetKey(), c.GetExpr())
}
