package cluster

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// similarDefault is how many similar sets are named when nothing is said.
const similarDefault = 10

func (i *inquiry) overlap(o *ebbv1.PlanOverlap) (*errand, *proto.Error) {
	a, err := i.about(o.GetSets()...)
	if err != nil {
		return nil, err
	}
	if len(a.keys) < len(o.GetSets()) {
		return nil, proto.ErrBadQuery.Errorf("a set is named twice, and would be compared with itself")
	}
	return ask("what sets have in common", &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{
		Keys: a.keys, AsOfUs: i.plan.GetAsOfUs(), Confidence: i.plan.GetConfidence(),
	}}}, nil)
}

func (i *inquiry) graphQuestion(a about, q *ebbv1.GraphQuestion) *ebbv1.Question {
	q.Keys, q.Patterns, q.AsOfUs, q.Confidence = a.keys, a.patterns, i.plan.GetAsOfUs(), i.plan.GetConfidence()
	return &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Graph{Graph: q}}
}

func (i *inquiry) graph(g *ebbv1.PlanGraph) (*errand, *proto.Error) {
	a, err := i.about(g.GetSets()...)
	return ask("each set compared with each", i.graphQuestion(a, &ebbv1.GraphQuestion{Links: g.GetLinks(), MinJaccard: g.GetMinJaccard()}), err)
}

// similar asks for a graph, of which it keeps one set with its links.
func (i *inquiry) similar(s *ebbv1.PlanSimilar) (*errand, *proto.Error) {
	key := s.GetTo().GetKey()
	among := s.GetAmong()
	if len(among) == 0 {
		directory := key[:bytes.LastIndexByte(key, '/')+1]
		among = []*ebbv1.PlanTerm{{Namespace: s.GetTo().GetNamespace(), Of: &ebbv1.PlanTerm_Pattern{Pattern: append(literally(directory), '*')}}}
	}
	a, err := i.about(append([]*ebbv1.PlanTerm{s.GetTo()}, among...)...)
	q := i.graphQuestion(a, &ebbv1.GraphQuestion{Links: cmp.Or(s.GetTop(), similarDefault)})
	return askAnd("the set compared with others", q, err, func(a *ebbv1.Answer) (*errand, *ebbv1.Answer, *proto.Error) {
		return nil, &ebbv1.Answer{Coverage: a.GetCoverage(), Value: &ebbv1.Answer_Graph{Graph: neighbours(a.GetGraph(), key)}}, nil
	})
}

// neighbours is the part of a graph that a set and its links are; without the set, nothing.
func neighbours(g *ebbv1.Graph, key []byte) *ebbv1.Graph {
	out := &ebbv1.Graph{AsOfUs: g.GetAsOfUs(), Confidence: g.GetConfidence()}
	at := slices.IndexFunc(g.GetNodes(), func(n *ebbv1.GraphNode) bool { return bytes.Equal(n.GetSet().GetKey(), key) })
	if at < 0 {
		return out
	}
	self := &ebbv1.GraphNode{Set: g.GetNodes()[at].GetSet()}
	out.Nodes = append(out.Nodes, self)
	for _, link := range g.GetNodes()[at].GetLinks() {
		self.Links = append(self.Links, &ebbv1.GraphLink{To: uint32(len(out.Nodes)), Jaccard: link.GetJaccard()})
		out.Nodes = append(out.Nodes, &ebbv1.GraphNode{Set: g.GetNodes()[link.GetTo()].GetSet()})
	}
	return out
}
