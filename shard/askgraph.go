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
	// linksDefault is how many links of each set a graph has when the question gives no number.
	linksDefault = 2
	// GraphBytes is about how many bytes all sets of a graph take together in parts; each takes its signature at least.
	GraphBytes = 3 << 20
	// setBytesMax is the most bytes that one set takes.
	setBytesMax = 16 << 10
	// comparedWhole is for how many named sets all links are computed before the strongest are chosen: above all for
	// the one set of a question for similar sets.
	comparedWhole = 16
	// thingBytes is what a member of a set that forgets takes in a part: its hash and its age.
	thingBytes = 14
)

// askGraph sends what a graph needs of each set. For an exact set these are its hashes, if they take no more than the
// question allows, otherwise its signature. For a set that forgets these are as many members as fit.
func (f *frame) askGraph(q *ebbv1.ShardQuestion, ask *ebbv1.GraphQuestion, at sketch.Tick, within int) *ebbv1.ShardAnswer {
	room := int(cmp.Or(ask.PartBytes, GraphBytes))
	return f.askSets(q, partGraph, ask.AsOfUs, at, within, func(b body, of int) body { return fitting(b, min(room/of, setBytesMax)) })
}

// GraphRooms returns how many bytes the parts of shards should have, so that each set has its share of GraphBytes. It
// is 0 for a shard whose sets were not cut, or that has no more sets than others.
func GraphRooms(answers []*ebbv1.ShardAnswer) []uint32 {
	parts, total := make([][]namedSet, len(answers)), 0
	for i, a := range answers {
		_, sets, ok := decodeSets(partGraph, a.GetPart())
		if !ok {
			return nil // merging them fails, and returns the reason
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

// cut says whether a set may have come without some of its members.
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

// fitting reduces a set to about room bytes.
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

// tooManySets refuses a graph of n sets or more.
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

// linkOf returns a link with its interval. The strongest links are chosen among many, and the intervals hold for all of
// those together (Bonferroni). Otherwise links that are strong by chance would be shown, with wrong intervals.
func linkOf(l sketch.SetLink, confidence float64, among int) *ebbv1.GraphLink {
	e := share(confidence, l.Jaccard)
	if l.Jaccard.StdErr > 0 {
		e.Low, e.High = l.Interval(1 - (1-e.Confidence)/float64(max(1, among)))
	}
	return &ebbv1.GraphLink{To: uint32(l.To), Jaccard: e}
}
