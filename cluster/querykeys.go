package cluster

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// rankedMax is how many keys can be ranked when each needs its own question.
const rankedMax = proto.QuestionsMax

// literally returns the pattern that matches exactly these bytes.
func literally(text []byte) []byte {
	var out []byte
	for _, c := range text {
		if c == '*' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return out
}

func (x *queryExecution) keysQuestion(namespace string, q *ebbv1.KeysQuestion) *ebbv1.Question {
	q.AsOfUs = x.plan.GetAsOfUs()
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Keys{Keys: q}}
}

// keys builds the stage of a list of keys.
func (x *queryExecution) keys(k *ebbv1.PlanKeys) (*queryStage, *proto.Error) {
	a, _ := x.about(cmp.Or(k.GetOf(), &ebbv1.PlanTerm{}))
	var pattern []byte // nil: every key
	switch {
	case len(a.keys) > 0:
		pattern = literally(a.keys[0])
	case len(a.patterns) > 0:
		pattern = a.patterns[0]
	}
	if k.GetTrend() != nil {
		return x.rankedByTrend(k, a.namespace, pattern)
	}
	q := &ebbv1.KeysQuestion{Pattern: pattern, Order: k.GetOrder(), Limit: k.GetLimit(), After: k.GetAfter()}
	return ask("a list of keys", x.keysQuestion(a.namespace, q), nil)
}

func (x *queryExecution) describe(d *ebbv1.PlanDescribe) (*queryStage, *proto.Error) {
	a, err := x.about(d.GetKey())
	return ask("one key", &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: a.keys[0], AsOfUs: x.plan.GetAsOfUs()}}}, err)
}

// listing finds the keys of a kind that patterns match. Together with the named keys, at most most are allowed.
func (x *queryExecution) listing(a about, kind ebbv1.Kind, most int, then func([][]byte, *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error)) *queryStage {
	e := &queryStage{step: "which keys match"}
	for _, pattern := range a.patterns {
		e.questions = append(e.questions, x.keysQuestion(a.namespace, &ebbv1.KeysQuestion{Pattern: pattern, Kind: kind, Limit: uint32(most)}))
	}
	e.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if err := failed(answers); err != nil {
			return nil, nil, err
		}
		keys := slices.Clone(a.keys)
		for at, answer := range answers {
			list := answer.GetKeys()
			if n := list.GetMatched(); n > uint64(most) {
				return nil, nil, proto.ErrQueryTooCostly.Errorf("the pattern %q matches %d keys: the limit is %d", a.patterns[at], n, most)
			}
			x.unmatched[string(a.patterns[at])] = len(list.GetKeys()) == 0
			for _, info := range list.GetKeys() {
				keys = append(keys, info.GetKey())
			}
		}
		if keys = distinct(keys); len(keys) > most {
			return nil, nil, proto.ErrQueryTooCostly.Errorf("%d keys: the limit is %d", len(keys), most)
		}
		return then(keys, answers[0].GetCoverage())
	}
	return e
}

// rankedByTrend ranks distributions by how significantly their rates have risen.
func (x *queryExecution) rankedByTrend(k *ebbv1.PlanKeys, namespace string, pattern []byte) (*queryStage, *proto.Error) {
	if err := x.halfLives(namespace, k.GetTrend()); err != nil {
		return nil, err
	}
	if pattern == nil {
		pattern = []byte("**")
	}
	const step = "the rates of each under both half-lives"
	question := func(key []byte) *ebbv1.Question {
		return x.trendQuestion(namespace, [][]byte{key}, &ebbv1.TrendQuestion{Top: 1})
	}
	a := about{namespace: namespace, patterns: [][]byte{pattern}}
	e := x.listing(a, ebbv1.Kind_KIND_DISTRIBUTION, rankedMax, func(keys [][]byte, c *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if len(keys) == 0 {
			return nil, &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Trend{Trend: &ebbv1.Trend{}}}, nil
		}
		next := &queryStage{step: step}
		for _, key := range keys {
			next.questions = append(next.questions, question(key))
		}
		next.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
			if err := failed(answers); err != nil {
				return nil, nil, err
			}
			return nil, ranked(answers, int(k.GetLimit()), c), nil
		}
		return next, nil, nil
	})
	e.then, e.thenMost = fmt.Sprintf("%s, %d keys at most", step, rankedMax), rankedMax
	return e, checkQuestion(x.table, question([]byte("any")))
}

// ranked merges the trends of keys into one trend whose items are the keys.
func ranked(answers []*ebbv1.Answer, n int, c *ebbv1.Coverage) *ebbv1.Answer {
	out := &ebbv1.Trend{}
	for _, a := range answers {
		t := a.GetTrend()
		if !t.GetFound() {
			continue
		}
		if !out.GetFound() {
			out.Found, out.FastHalfLifeUs, out.SlowHalfLifeUs, out.Confidence = true, t.GetFastHalfLifeUs(), t.GetSlowHalfLifeUs(), t.GetConfidence()
		}
		out.SinceUs, out.AsOfUs = max(out.SinceUs, t.GetSinceUs()), max(out.AsOfUs, t.GetAsOfUs())
		out.Warming = out.Warming || t.GetWarming()
		change := t.GetTotal()
		change.Bin = t.GetKeys()[0]
		out.Rising = append(out.Rising, change)
	}
	slices.SortFunc(out.Rising, func(a, b *ebbv1.Change) int {
		return cmp.Or(cmp.Compare(b.GetZScore(), a.GetZScore()), cmp.Compare(b.GetBits(), a.GetBits()), bytes.Compare(a.GetBin(), b.GetBin()))
	})
	out.Rising = out.Rising[:min(n, len(out.Rising))]
	return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Trend{Trend: out}}
}
