package shard

import (
	"bytes"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// askMatch finds the phrases of a key in a text. All of a key is in one shard, so there are no parts: the one shard
// that is asked has the answer.
func (f *frame) askMatch(q *ebbv1.ShardQuestion, ask *ebbv1.MatchQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, 0, at)
	if err := f.tooCostly(q); err != nil {
		return f.unanswered(err)
	}
	out := &ebbv1.Matches{Key: ask.GetKey(), AsOfUs: int64(at)}
	set, err := f.phrasesOf(ns, ask.GetKey(), at)
	if err == nil && set != nil {
		out.Found = true
		out.Matches, err = matchesIn(set, ask.GetText())
	}
	if err != nil {
		return f.unanswered(err)
	}
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Match{Match: out}}},
		AsOfUs: int64(at),
	}
}

// phrasesOf is the set that a key holds; nil if there is no such key.
func (f *frame) phrasesOf(ns *namespace, name []byte, at sketch.Tick) (*phrases, *proto.Error) {
	if ns == nil {
		return nil, nil
	}
	key, ok := f.findKey(ns, name)
	if !ok {
		return nil, nil
	}
	sum := f.summary(key)
	if !f.alive(ns, key, at) {
		return nil, nil
	}
	set, ok := sum.body.(*phrases)
	if !ok {
		return nil, otherKind(name, sum.kind(), ebbv1.Kind_KIND_PHRASES)
	}
	return set, nil
}

func matchesIn(set *phrases, text []byte) ([]*ebbv1.Match, *proto.Error) {
	const overhead = 2 + 3 + 2*5 // of a match in a message
	var out []*ebbv1.Match
	size := 0
	set.Find(text, func(m sketch.PhraseMatch) bool {
		size += overhead + len(m.Phrase)
		out = append(out, &ebbv1.Match{Phrase: bytes.Clone(m.Phrase), Begin: uint32(m.Begin), End: uint32(m.End)})
		return size <= answerBytesMax
	})
	if size > answerBytesMax {
		return nil, proto.ErrResponseTooLarge.Errorf("the first %d phrases found in the text take more than %d bytes, which is the limit of an answer", len(out)-1, answerBytesMax).
			WithHint("send the text in several, each to the end of a sentence")
	}
	return out, nil
}
