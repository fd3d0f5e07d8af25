package shard

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

const (
	// linksDefault is how many links of each set a graph has when the question does not say.
	linksDefault = 2
	// GraphBytes is how many bytes all sets of a graph take together on the way, about; each takes its signature at
	// least.
	GraphBytes = 3 << 20
	// setBytesMax is what one set takes at most.
	setBytesMax = 16 << 10
	// comparedWhole is of how many named sets all links are computed before the strongest are chosen: of the one of
	// similar, above all.
	comparedWhole = 16
	// thingBytes is what a thing of a set that forgets takes on the way: its hash and its age.
	thingBytes = 14
)

// askGraph sends of each set what a graph needs: its hashes while it is exact and they take no more than the question
// says, else its signature; of one that forgets as many things as fit.
func (f *frame) askGraph(q *ebbv1.ShardQuestion, ask *ebbv1.GraphQuestion, at sketch.Tick, within int) *ebbv1.ShardAnswer {
	room := int(cmp.Or(ask.PartBytes, GraphBytes))
	return f.askSets(q, partGraph, ask.AsOfUs, at, within, func(b body, of int) body { return fitting(b, min(room/of, setBytesMax)) })
}

// GraphRooms says how many bytes the parts of some shards should have: of those whose sets were cut, and which have
// more sets than others, so that each set has its part of GraphBytes. It is 0 of the others.
func GraphRooms(answers []*ebbv1.ShardAnswer) []uint32 {
	parts, total := make([][]namedSet, len(answers)), 0
	for i, a := range answers {
		_, sets, ok := decodeSets(partGraph, a.GetPart())
		if !ok {
			return nil // to merge them fails, and says why
		}
		parts[i] = sets
		for _, s := range sets {
			if s.body != nil {
				total++
			}
		}
	}
	rooms := make([]uint32, len(answers))
	for i, sets := range parts {
		each := GraphBytes / max(1, total) * len(sets)
		if each > GraphBytes/len(answers) && slices.ContainsFunc(sets, namedSet.cut) {
			rooms[i] = uint32(each)
		}
	}
	return rooms
}

// cut says whether a set may have come without some of its things.
func (s namedSet) cut() bool {
	plain, ok := s.body.(*set)
	return s.body != nil && (!ok || !plain.Exact())
}

// inOrder lists the sets in the order of the keys named, and then by name.
func (g *gathered) inOrder(keys [][]byte) (sets []namedSet) {
	named := map[string]bool{}
	for _, key := range keys {
		if s, told := g.sets[string(key)]; told {
			sets, named[string(key)] = append(sets, s), true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.sets)) {
		if !named[name] {
			sets = append(sets, g.sets[name])
		}
	}
	return sets
}

// fitting is what of a set takes about so many bytes.
func fitting(b body, room int) body {
	s, plain := b.(*set)
	switch {
	case !plain:
		return nameless(b, room/thingBytes)
	case s.Exact() && 8*s.Len() <= room:
		return nameless(b, s.Len())
	}
	return nameless(b, sketch.SetKMin)
}

// tooManySets refuses a graph of at least so many.
func tooManySets(n int) *proto.Error {
	return proto.ErrResponseTooLarge.Errorf("%d keys match, or more: the limit of a graph is %d sets", n, proto.GraphKeysMax).WithHint("use a narrower pattern")
}

// mergeGraphs compares the sets of all parts, each with each.
func mergeGraphs(q *ebbv1.GraphQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	g, err := gather(partGraph, answers)
	if err != nil {
		return nil, err
	}
	out := &ebbv1.Graph{AsOfUs: int64(g.at), Confidence: sureness(&ebbv1.SummaryQuestion{Confidence: q.Confidence})}
	sets := g.inOrder(q.Keys)
	if n := len(sets); n > proto.GraphKeysMax {
		return nil, tooManySets(n)
	}
	for _, s := range sets {
		out.Nodes = append(out.Nodes, &ebbv1.GraphNode{Set: s.sized(q.Confidence)})
	}
	list, err := sameForm(sets)
	if err != nil {
		return nil, err
	}
	links := linksDefault
	if q.Links > 0 {
		links = int(q.Links)
	}
	var graph [][]sketch.SetLink
	var failed error
	if len(list.ebbing) > 0 {
		graph, failed = sketch.SimilarityGraphDecayed(list.ebbing, links)
	} else {
		graph, failed = sketch.SimilarityGraph(list.plain, links)
		for i := 0; failed == nil && i < min(comparedWhole, len(q.Keys), len(list.plain)); i++ {
			if slices.ContainsFunc(q.Keys, func(key []byte) bool { return bytes.Equal(key, sets[i].name) }) {
				graph[i], failed = sketch.SimilarSets(list.plain, i, links)
			}
		}
	}
	if failed != nil {
		return nil, unmerged("a key", failed)
	}
	for i, found := range graph {
		for _, l := range found {
			if l.Jaccard.Value >= q.MinJaccard {
				out.Nodes[i].Links = append(out.Nodes[i].Links, linkOf(l, q.Confidence, len(sets)-1))
			}
		}
	}
	widenGraph(out, sets, g.at)
	if size := pb.Size(out); size > answerBytesMax {
		return nil, proto.ErrResponseTooLarge.Errorf("the graph of %d sets takes %d bytes: the limit of an answer is %d", len(sets), size, answerBytesMax).
			WithHint("ask for fewer links, or name fewer keys")
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Graph{Graph: out}}, nil
}

// linkOf is a link with its interval. The strongest links are chosen among so many, and the intervals hold for all of
// these together (Bonferroni): else those that chance makes strong would be shown, and their intervals be wrong.
func linkOf(l sketch.SetLink, confidence float64, among int) *ebbv1.GraphLink {
	e := share(confidence, l.Jaccard)
	if l.Jaccard.StdErr > 0 {
		e.Low, e.High = l.Interval(1 - (1-e.Confidence)/float64(max(1, among)))
	}
	return &ebbv1.GraphLink{To: uint32(l.To), Jaccard: e}
}
