package shard

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// partSources is a part of the answer to a SourcesQuestion: as many sources as it asks for at most, by name.
//
//	sources   'i'  SourceList, serialised
const partSources = 'i'

func sourcesLimit(q *ebbv1.SourcesQuestion) int {
	return int(cmp.Or(q.GetLimit(), proto.KeysListDefault))
}

// askSources lists the ordered sources of a namespace, and the sources without a namespace.
func (f *frame) askSources(q *ebbv1.ShardQuestion, ask *ebbv1.SourcesQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	namespace := cmp.Or(q.GetQuestion().GetNamespace(), proto.DefaultNamespace)
	at = f.evaluation(f.lookup([]byte(namespace)), 0, at)
	out := &ebbv1.SourceList{AsOfUs: int64(at)}
	for _, src := range f.sources.all {
		if src.name == "" || src.namespace != namespace && src.namespace != "" || src.name <= ask.GetAfter() {
			continue
		}
		out.Sources = append(out.Sources, &ebbv1.SourceInfo{
			Name: strings.ToValidUTF8(src.name, "\ufffd"), NewestOffset: src.last, Refused: uint64(len(src.refused)), Shards: 1,
		})
	}
	sortSources(out, 1, sourcesLimit(ask))
	if q.Partial {
		part, err := pb.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{partSources}, out)
		if err != nil {
			return f.unanswered(proto.ErrInternal.Errorf("a list of sources: %v", err))
		}
		return f.answerPart(part, at)
	}
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Sources{Sources: out}}},
		AsOfUs: int64(at),
	}
}

// sortSources sorts a list by name, joins entries of the same name, and cuts the list at limit. shards is the most
// shards that an entry may have.
func sortSources(list *ebbv1.SourceList, shards uint32, limit int) {
	slices.SortFunc(list.Sources, func(a, b *ebbv1.SourceInfo) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.NewestOffset, b.NewestOffset))
	})
	kept := list.Sources[:0]
	for _, src := range list.Sources {
		if n := len(kept); n > 0 && kept[n-1].Name == src.Name {
			last := kept[n-1]
			last.NewestOffset = max(last.NewestOffset, src.NewestOffset)
			last.Refused += src.Refused
			last.Shards = min(last.Shards+src.Shards, shards)
			continue
		}
		kept = append(kept, src)
	}
	list.More = list.More || len(kept) > limit
	list.Sources = kept[:min(len(kept), limit)]
}

// mergeSources returns the first sources of all shards.
func mergeSources(q *ebbv1.SourcesQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	out := &ebbv1.SourceList{}
	for i, a := range answers {
		list := new(ebbv1.SourceList)
		if raw, ok := bytes.CutPrefix(a.GetPart(), []byte{partSources}); !ok || pb.Unmarshal(raw, list) != nil {
			return nil, errPart(i)
		}
		out.Sources = append(out.Sources, list.Sources...)
		out.More = out.More || list.More
		out.AsOfUs = max(out.AsOfUs, list.AsOfUs)
	}
	sortSources(out, uint32(len(answers)), sourcesLimit(q))
	return &ebbv1.Answer{Value: &ebbv1.Answer_Sources{Sources: out}}, nil
}
