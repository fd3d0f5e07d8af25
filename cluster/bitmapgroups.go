package cluster

import (
	"context"
	"maps"
	"slices"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// groupsRoom is how many bytes of a set are sent at a time to one shard that counts the set by its bitmaps.
// groupsRoomAll is the limit for all shards together: one call to a node must be able to carry it.
const (
	groupsRoom    = 1 << 20
	groupsRoomAll = 3 << 20
)

// groupSum is the counts so far.
type groupSum struct {
	whole  bool // count is for the whole set
	count  uint64
	counts map[string]uint64
	asOf   int64
}

// groups counts a set by bitmaps of any shards. A shard that holds the whole set evaluates it locally. Other shards
// receive the containers of the set, some slices at a time, and count them by each of their bitmaps.
func (s *spreadAsk) groups(ask *ebbv1.BitmapGroupsQuestion) (*ebbv1.Answer, error) {
	keys, err := s.c.members(s.ctx, s.plan.req, s.namespace, ask)
	if err != nil {
		return nil, err
	}
	at := map[uint32][][]byte{}
	sum := &groupSum{counts: make(map[string]uint64, len(keys))}
	for _, key := range keys {
		at[s.home(key)] = append(at[s.home(key)], key)
		sum.counts[string(key)] = 0
	}
	if set := proto.ExprKeys(ask.GetExpr()); len(set) > 0 && allOn(s.table, s.namespace, set, s.home(set[0])) && len(at[s.home(set[0])]) > 0 {
		home := s.home(set[0])
		if sum.count, err = s.countAt(sum, ask.GetExpr(), ask.GetRange(), map[uint32][][]byte{home: at[home]}); err != nil {
			return nil, err
		}
		sum.whole = true
		delete(at, home)
	}
	if len(at) > 0 || !sum.whole {
		if err := s.countElsewhere(sum, ask, at); err != nil {
			return nil, err
		}
	}
	out := &ebbv1.BitmapGroups{Count: sum.count, AsOfUs: sum.asOf}
	for _, key := range keys {
		out.Groups = append(out.Groups, &ebbv1.BitmapGroup{Key: key, Count: sum.counts[string(key)]})
	}
	shard.TopGroups(out, ask.GetTop())
	return &ebbv1.Answer{Value: &ebbv1.Answer_Groups{Groups: out}}, nil
}

// members returns the bitmaps to count by: those that are named and those that match, each once. Their number is known,
// and checked against the limit, before any bitmap is read.
func (c *Coordinator) members(ctx context.Context, of *ebbv1.AskRequest, namespace string, ask *ebbv1.BitmapGroupsQuestion) ([][]byte, error) {
	keys := slices.Clone(ask.GetKeys())
	if len(ask.GetPatterns()) > 0 {
		req := &ebbv1.AskRequest{Consistency: of.GetConsistency(), MaxStalenessUs: of.GetMaxStalenessUs()}
		for _, pattern := range ask.GetPatterns() {
			req.Questions = append(req.Questions, &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Keys{
				Keys: &ebbv1.KeysQuestion{Pattern: pattern, Kind: ebbv1.Kind_KIND_BITMAP, Limit: proto.KeysListMax},
			}})
		}
		ctx, _ := budget.Stage(ctx)
		resp, err := c.Ask(ctx, req)
		if err != nil {
			return nil, err
		}
		if err := failed(resp.GetAnswers()); err != nil {
			return nil, err
		}
		for _, a := range resp.GetAnswers() {
			if err := proto.CheckGroups(a.GetKeys().GetMatched()); err != nil {
				return nil, err
			}
			for _, info := range a.GetKeys().GetKeys() {
				keys = append(keys, info.GetKey())
			}
		}
	}
	keys = distinct(keys)
	if err := proto.CheckGroups(uint64(len(keys))); err != nil {
		return nil, err
	}
	return keys, nil
}

// countElsewhere computes the set, some slices at a time, and sends these slices to the shards that hold bitmaps to
// count by.
func (s *spreadAsk) countElsewhere(sum *groupSum, ask *ebbv1.BitmapGroupsQuestion, at map[uint32][][]byte) error {
	g, refused := shard.SpreadBitmaps(&ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: ask}}, s.home)
	if refused != nil {
		return refused
	}
	s.reads(g.Rounds() + 1)
	room := min(groupsRoom, groupsRoomAll/max(1, len(at)))
	for from, more, first := uint64(0), true, true; more; first = false {
		some, ids, next, left, err := g.Containers(s.fetch, from, room)
		if err != nil {
			return err
		}
		sum.asOf = max(sum.asOf, g.AsOf())
		if !sum.whole {
			sum.count += ids
		}
		if ids > 0 || first {
			set := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Containers{Containers: some}}
			if _, err := s.countAt(sum, set, nil, at); err != nil {
				return err
			}
		}
		from, more = next, left
	}
	return nil
}

// countAt counts a set by the bitmaps of some shards, with one question to each shard, and returns the size of the set.
func (s *spreadAsk) countAt(sum *groupSum, set *ebbv1.BitmapExpr, in *ebbv1.BitRange, at map[uint32][][]byte) (ids uint64, err error) {
	var questions []*ebbv1.ShardQuestion
	for _, number := range slices.Sorted(maps.Keys(at)) {
		questions = append(questions, &ebbv1.ShardQuestion{Shard: number, Question: &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_BitmapGroups{
			BitmapGroups: &ebbv1.BitmapGroupsQuestion{Expr: set, Keys: at[number], Range: in},
		}}})
	}
	answers, err := s.ask(questions)
	if err != nil {
		return 0, err
	}
	for _, a := range answers {
		groups := a.GetAnswer().GetGroups()
		ids = groups.GetCount()
		sum.asOf = max(sum.asOf, groups.GetAsOfUs())
		for _, group := range groups.GetGroups() {
			sum.counts[string(group.GetKey())] += group.GetCount()
		}
	}
	return ids, nil
}
