package client

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Overlap is what keys of KindSet have in common, at one time. Where the namespace decays, a bin has the weight of its
// count. In the union that is its largest count in any set, in the intersection its smallest. In the difference it is
// how much its count in the first set exceeds that in any other.
type Overlap struct {
	Sets         []SizedSet // in the order of the keys
	Union        Estimate
	Intersection Estimate // of all
	Difference   Estimate // the first without all others
	Jaccard      Estimate // Intersection / Union, 0 to 1
	AsOf         time.Time
	Coverage     Coverage
}

// SizedSet is a set and how many bins it has.
type SizedSet struct {
	Key   string // empty of a set that is made of others
	Of    string // for a set that is made of others: their expression, in the query language
	Found bool   // false: no such key, or all of it has faded
	Size  Estimate
}

// Overlap compares 2 to 256 keys of KindSet, in any shards. Up to 1,024 bins each it
// is exact; beyond, a similarity has a standard error of 1.6% at most.
func (c *Client) Overlap(ctx context.Context, ns string, keys []string, opts ...AskOption) (Overlap, error) {
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: bytesOf(keys...)}}}
	a, err := c.askOne(ctx, "overlap", keyOf(q), q, opts)
	if err != nil {
		return Overlap{}, err
	}
	return overlapOf(a), nil
}

func overlapOf(a *ebbv1.Answer) Overlap {
	w := a.GetOverlap()
	o := Overlap{AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage())}
	o.Union, o.Intersection = estimateOf(w.GetUnion(), o.AsOf), estimateOf(w.GetIntersection(), o.AsOf)
	o.Difference, o.Jaccard = estimateOf(w.GetDifference(), o.AsOf), estimateOf(w.GetJaccard(), o.AsOf)
	for _, s := range w.GetSets() {
		o.Sets = append(o.Sets, sizedSetOf(s, o.AsOf))
	}
	return o
}

func sizedSetOf(w *ebbv1.SizedSet, asOf time.Time) SizedSet {
	return SizedSet{Key: string(w.GetKey()), Of: w.GetOf(), Found: w.GetFound(), Size: estimateOf(w.GetSize(), asOf)}
}

// GraphQuery selects the keys of KindSet to compare, each with each.
type GraphQuery struct {
	Keys []string // up to 3,000, with those that match
	// Patterns name further keys: the sets that match. See KeysQuery.
	Patterns []string
	// Links is how many similar sets to name for each set; 2 if 0.
	Links int
	// MinJaccard leaves out links of a smaller similarity.
	MinJaccard float64
}

// Graph shows which sets are similar, at one time.
type Graph struct {
	Nodes    []GraphNode // in the order of the keys, and then by name; without those of shards that have not answered
	AsOf     time.Time
	Coverage Coverage
}

// GraphNode is a set with its most similar ones.
type GraphNode struct {
	SizedSet
	Links []GraphLink // most similar first
}

// GraphLink leads to a similar set.
type GraphLink struct {
	To      int // its position among the nodes
	Key     string
	Jaccard Estimate
}

// Graph asks which of many keys of KindSet, in any shards, are most similar to each other.
func (c *Client) Graph(ctx context.Context, ns string, query GraphQuery, opts ...AskOption) (Graph, error) {
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{
		Keys: bytesOf(query.Keys...), Patterns: bytesOf(query.Patterns...), Links: clampCount(query.Links), MinJaccard: query.MinJaccard,
	}}}
	a, err := c.askOne(ctx, "graph", keyOf(q), q, opts)
	if err != nil {
		return Graph{}, err
	}
	return graphOf(a), nil
}

func graphOf(a *ebbv1.Answer) Graph {
	w := a.GetGraph()
	g := Graph{AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage())}
	for _, n := range w.GetNodes() {
		g.Nodes = append(g.Nodes, GraphNode{SizedSet: sizedSetOf(n.GetSet(), g.AsOf)})
	}
	for i, n := range w.GetNodes() {
		for _, l := range n.GetLinks() {
			if to := int(l.GetTo()); to < len(g.Nodes) {
				g.Nodes[i].Links = append(g.Nodes[i].Links, GraphLink{To: to, Key: g.Nodes[to].Key, Jaccard: estimateOf(l.GetJaccard(), g.AsOf)})
			}
		}
	}
	return g
}
