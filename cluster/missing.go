package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// missingNamedMax bounds how many missing keys an answer names, and missingShownMax how many an error text names.
const (
	missingNamedMax = 100
	missingShownMax = 5
)

// checkStrict refuses strict answers while a shard may be too old to report missing keys.
func checkStrict(table *Table) error {
	if table.Version() >= proto.VersionMissingKeys {
		return nil
	}
	return proto.ErrBadRequest.Errorf("strict needs storage version %d, and the cluster has %d",
		proto.VersionMissingKeys, table.Version()).
		WithHint("upgrade all nodes: ebb cluster status")
}

// missingIn lists the keys of a shard that it reported as missing. A question with patterns may also name keys of other
// shards; these do not count. If table is nil, all keys count.
func missingIn(table *Table, part *askPart) (names [][]byte) {
	positions := part.answer.GetMissing()
	if len(positions) == 0 {
		return nil
	}
	q := part.question.GetQuestion()
	keys := proto.QuestionKeys(q)
	for _, at := range positions {
		if int(at) >= len(keys) {
			continue
		}
		if table == nil || table.ShardOf(q.GetNamespace(), keys[at]) == part.question.GetShard() {
			names = append(names, keys[at])
		}
	}
	return names
}

// nameMissing puts the missing keys into the coverage of answers, by the names in the original question: a period that
// is rolled up is missing if all its parts are. The universe counts too, though a question need not name it. If strict
// is set, answers with missing keys become errors.
func nameMissing(
	table *Table, asked, expanded []*ebbv1.Question, answers []*ebbv1.Answer, unmatched [][][]byte, strict bool, most int,
) {
	for i, q := range asked {
		c := answers[i].GetCoverage()
		if c == nil || len(c.GetMissingKeys()) == 0 && len(unmatched[i]) == 0 {
			continue
		}
		gone := make(map[string]bool, len(c.MissingKeys))
		for _, key := range c.MissingKeys {
			gone[string(key)] = true
		}
		ns := table.Namespace(q.GetNamespace())
		there := map[string]bool{}
		for _, key := range proto.QuestionKeys(expanded[i]) {
			there[string(key)] = !gone[string(key)]
		}
		var missing [][]byte
		for _, key := range distinct(slices.Clone(proto.QuestionKeys(q))) {
			part := func(key []byte) bool { return there[string(key)] }
			if gone[string(key)] && !slices.ContainsFunc(rollup(ns, key), part) {
				missing = append(missing, key)
			}
		}
		if universe := ns.GetUniverse(); len(universe) > 0 && gone[string(universe)] {
			missing = distinct(append(missing, universe))
		}
		missing = append(missing, unmatched[i]...)
		setMissing(c, missing, most)
		if e := lacking(c); e != nil && strict && answers[i].GetError() == nil {
			answers[i] = &ebbv1.Answer{Coverage: c, Error: e.Wire()}
		}
	}
}

// unmatched returns for each question the patterns that match no key. An answer says how many keys all its patterns
// match together; where that is not enough, the patterns are asked one by one.
func (c *Coordinator) unmatched(
	ctx context.Context, table *Table, req *ebbv1.AskRequest, answers []*ebbv1.Answer,
) ([][][]byte, error) {
	out := make([][][]byte, len(answers))
	var of []int
	keys := withQuestions(req, nil, nil)
	for i, q := range req.GetQuestions() {
		patterns := distinct(slices.Clone(proto.QuestionPatterns(q)))
		switch {
		case len(patterns) == 0 || answers[i].GetError() != nil:
		case matchedNone(answers[i]):
			out[i] = patterns
		case matchesAll(q, patterns) || table.Version() < proto.VersionMissingKeys:
		default:
			for _, pattern := range patterns {
				of = append(of, i)
				keys.Questions = append(keys.Questions, &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_Keys{
					Keys: &ebbv1.KeysQuestion{Pattern: pattern, Limit: 1, AsOfUs: proto.QuestionAsOf(q)},
				}})
			}
		}
	}
	for len(of) > 0 {
		some, n := withQuestions(keys, nil, nil), min(len(of), max(1, PartsMax/int(table.Shards())))
		some.Questions = keys.Questions[:n]
		found, err := c.answer(ctx, table, some)
		if err != nil {
			return nil, err
		}
		for at, a := range found {
			if a.GetError() == nil && a.GetKeys().GetMatched() == 0 {
				out[of[at]] = append(out[of[at]], some.Questions[at].GetKeys().GetPattern())
			}
		}
		of, keys.Questions = of[n:], keys.Questions[n:]
	}
	return out, nil
}

// matchesAll reports whether each pattern of a question matches a key, given that the answer has matches.
func matchesAll(q *ebbv1.Question, patterns [][]byte) bool {
	switch {
	case len(patterns) > 1 || q.GetSurprise() != nil:
		return false
	case q.GetGraph() != nil: // its answer does not say which keys match which pattern
		return len(q.GetGraph().GetKeys()) == 0
	}
	return true
}

func allGone(gone map[string]bool, keys [][]byte) bool {
	for _, key := range keys {
		if !gone[string(key)] {
			return false
		}
	}
	return true
}

func setMissing(c *ebbv1.Coverage, missing [][]byte, most int) {
	c.MissingTotal = uint32(len(missing))
	c.MissingKeys = missing[:min(len(missing), most)]
}

// lacking returns the error of a strict answer with missing keys; nil if no key is missing.
func lacking(c *ebbv1.Coverage) *proto.Error {
	n := c.GetMissingTotal()
	if n == 0 {
		return nil
	}
	var names []string
	for _, key := range c.GetMissingKeys()[:min(len(c.GetMissingKeys()), missingShownMax)] {
		names = append(names, query.Quote(key))
	}
	more := ""
	if int(n) > len(names) {
		more = fmt.Sprintf(" and %d more", int(n)-len(names))
	}
	return proto.ErrMissingKeys.Errorf("the question is strict, and nothing is there under %s%s",
		strings.Join(names, ", "), more).
		WithHint("ebb keys lists what is there; without strict they count as empty")
}

// missingTerms returns the keys, patterns and ranges of a plan without any existing key, given the missing keys and the
// patterns that match none.
func missingTerms(terms []*ebbv1.PlanTerm, gone, unmatched map[string]bool) (missing [][]byte) {
	for _, t := range terms {
		switch of := t.GetOf().(type) {
		case *ebbv1.PlanTerm_Key:
			if gone[string(of.Key)] {
				missing = append(missing, of.Key)
			}
		case *ebbv1.PlanTerm_Pattern:
			if unmatched[string(of.Pattern)] || gone[string(of.Pattern)] {
				missing = append(missing, []byte(query.TermText(t)))
			}
		case *ebbv1.PlanTerm_Range:
			if allGone(gone, query.Keys(of.Range)) {
				missing = append(missing, []byte(query.TermText(t)))
			}
		}
	}
	return distinct(missing)
}
