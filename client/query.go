package client

import (
	"context"
	"iter"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/query"
)

// Result answers a question in the query language. What it holds depends on the question: docs/query.md.
type Result struct {
	Text     string        // the question as it was understood
	Answer   *ebbv1.Answer // in wire format; the methods decode it
	Coverage Coverage
}

// Distribution is the answer to top, p and dist about distributions.
func (r Result) Distribution() Distribution { return distributionOf(r.Answer) }

// Summary is the answer to questions about other kinds: top of a topk, total, distinct, quantile, estimate, contains,
// members and get.
func (r Result) Summary() Summary { return summaryOf(r.Answer) }

// Trend is the answer to trend, and to top by trend. In the answer to `top n keys by trend`, Rising has keys.
func (r Result) Trend() Trend { return trendOf(r.Answer) }

// Surprise is the answer to surprise.
func (r Result) Surprise() Surprise { return surpriseOf(r.Answer) }

// Overlap is the answer to overlap and jaccard.
func (r Result) Overlap() Overlap { return overlapOf(r.Answer) }

// Graph is the answer to graph, and to similar: then the first node is the set that was asked about.
func (r Result) Graph() Graph { return graphOf(r.Answer) }

// Keys is the answer to keys, and to top n keys.
func (r Result) Keys() KeyPage { return keyPageOf(r.Answer) }

// Description is the answer to describe.
func (r Result) Description() Description { return descriptionOf(r.Answer) }

// Matches is the answer to match.
func (r Result) Matches() Matches { return matchesOf(r.Answer) }

// QueryOption changes how a question in the query language is asked.
type QueryOption func(*ebbv1.QueryRequest)

// InNamespace is the namespace of a question that names none.
func InNamespace(name string) QueryOption {
	return func(req *ebbv1.QueryRequest) { req.Namespace = name }
}

// StrictQuery refuses an answer that lacks keys, patterns or ranges that the question names, with ErrMissingKeys.
func StrictQuery() QueryOption {
	return func(req *ebbv1.QueryRequest) { req.Strict = true }
}

// Query asks in the query language:
//
//	r, err := c.Query(ctx, `top 10 clicks/country`)
//
// An error in the text is an ErrBadQuery, which names the column.
func (c *Client) Query(ctx context.Context, text string, opts ...QueryOption) (Result, error) {
	resp, err := c.query(ctx, &ebbv1.QueryRequest{Text: text}, opts)
	if err != nil {
		return Result{}, err
	}
	return Result{Text: resp.GetText(), Answer: resp.GetAnswer(), Coverage: coverageOf(resp.GetAnswer().GetCoverage())}, nil
}

// Explain describes what a question in the query language would do, and does nothing.
func (c *Client) Explain(ctx context.Context, text string, opts ...QueryOption) (*ebbv1.Explanation, error) {
	resp, err := c.query(ctx, &ebbv1.QueryRequest{Text: text, Explain: true}, opts)
	return resp.GetExplanation(), err
}

func (c *Client) query(ctx context.Context, req *ebbv1.QueryRequest, opts []QueryOption) (*ebbv1.QueryResponse, error) {
	for _, o := range opts {
		o(req)
	}
	req.Seen = c.seen.all()
	var resp *ebbv1.QueryResponse
	a, again := attempt{op: "query", whole: true}, changeOnce
	if req.GetExplain() || asksOnly(req.GetText()) {
		a.whole, again = false, question
	}
	err := c.anywhere(ctx, a, again,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).Query(ctx, req)
			return err
		})
	c.seen.note(resp.GetPlan().GetNamespace(), resp.GetAnswer().GetCoverage().GetClock())
	return resp, err
}

// asksOnly reports whether a question may be asked twice: it stores nothing. A text that this version cannot parse may
// store something in a newer version.
func asksOnly(text string) bool {
	plan, err := query.Parse(text)
	return err == nil && plan.GetStore() == nil
}

// WatchQuery watches a question in the query language: see Watch.
func (c *Client) WatchQuery(ctx context.Context, text string, o WatchOptions, opts ...QueryOption) iter.Seq2[Event, error] {
	return watch(ctx, func(ctx context.Context, put func(Event)) error {
		req := &ebbv1.QueryRequest{Text: text}
		for _, o := range opts {
			o(req)
		}
		if plan, err := query.Parse(text); err == nil && plan.GetNamespace() == "" && req.GetNamespace() != "" {
			plan.Namespace = req.GetNamespace()
			text = query.Text(plan)
		}
		w := o.request(nil, asking{})
		w.Query, w.Strict = text, req.GetStrict()
		return c.follow(ctx, w, "", 0, put)
	})
}

// Count is the answer to count. It is exact, like all answers about bitmaps.
func (r Result) Count() BitCount {
	w := r.Answer.GetBitmap()
	return BitCount{Count: w.GetCount(), AsOf: timeOf(w.GetAsOfUs()), Coverage: r.Coverage}
}

// Page is the answer to ids.
func (r Result) Page() BitPage {
	w := r.Answer.GetBitmap()
	return BitPage{IDs: w.GetIds(), More: w.GetMore(), Next: w.GetNext(), AsOf: timeOf(w.GetAsOfUs()), Coverage: r.Coverage}
}

// Groups is the answer to count by.
type Groups struct {
	Count  uint64  // ids of the set that was counted
	Groups []Group // the largest first
	AsOf   time.Time
}

// Group is a bitmap, and how many of the ids it has too.
type Group struct {
	Key   string
	Count uint64
}

// Groups is the answer to count by.
func (r Result) Groups() Groups {
	w := r.Answer.GetGroups()
	g := Groups{Count: w.GetCount(), AsOf: timeOf(w.GetAsOfUs())}
	for _, x := range w.GetGroups() {
		g.Groups = append(g.Groups, Group{string(x.GetKey()), x.GetCount()})
	}
	return g
}

// CohortRow is the ids that came for the first time in a period.
type CohortRow struct {
	Period string   // 2011, 2011-Q4, 2011-11, 2011-W44, 2011-11-01 or 2011-11-01T13
	Count  uint64   // how many there are
	Again  []uint64 // how many of them came in each later period, the next one first
}

// Cohort is the answer to cohort.
func (r Result) Cohort() []CohortRow {
	var rows []CohortRow
	for _, x := range r.Answer.GetCohort().GetRows() {
		rows = append(rows, CohortRow{x.GetPeriod(), x.GetCount(), x.GetAgain()})
	}
	return rows
}
