package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	ebb "github.com/ebbdb/ebb/client"
)

// comparer keeps sets that no other client touches, in several shards, and asks what they have in common. They are so
// small that every answer is exact. After a command without an answer it takes other keys, as an owner does.
type comparer struct {
	w    *world
	rng  *rand.Rand
	life int
	keys []string
	has  map[string]map[string]bool // key, member
}

// setMembers is how many members there are to draw from.
const setMembers = 30

func newComparer(w *world) *comparer {
	s := &comparer{w: w, rng: w.rng(7300)}
	s.move()
	return s
}

func (s *comparer) move() {
	s.life++
	s.keys, s.has = nil, map[string]map[string]bool{}
	for i := range 5 {
		key := fmt.Sprintf("set-%d-%c", s.life, 'a'+rune(i))
		s.keys = append(s.keys, key)
		s.has[key] = map[string]bool{}
	}
}

func (s *comparer) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(s.rng, 1000, 6000))
	defer cancel()
	switch s.rng.IntN(6) {
	case 0, 1, 2:
		s.write(ctx, c)
	case 3, 4:
		s.w.read(s.overlap(ctx, c) == nil)
	default:
		s.w.read(s.graph(ctx, c) == nil)
	}
}

func (s *comparer) write(ctx context.Context, c *ebb.Client) {
	key := s.keys[s.rng.IntN(len(s.keys))]
	var events []ebb.Increment
	for range 2 + s.rng.IntN(5) {
		member := fmt.Sprintf("m%d", s.rng.IntN(setMembers))
		events = append(events, ebb.Increment{Key: key, Kind: ebb.KindSet, Bin: member, Amount: 1})
		s.has[key][member] = true
	}
	err := c.Increment(ctx, countsNamespace, events...)
	s.w.done(outcomeOf(err))
	if err != nil {
		s.move()
	}
}

// common returns the sizes of the union and of the intersection of two sets.
func common(a, b map[string]bool) (union, both float64) {
	union = float64(len(b))
	for m := range a {
		if b[m] {
			both++
		} else {
			union++
		}
	}
	return union, both
}

func similarity(a, b map[string]bool) float64 {
	union, both := common(a, b)
	if union == 0 {
		return 0
	}
	return both / union
}

// overlap compares two sets, through the SDK or in the query language.
func (s *comparer) overlap(ctx context.Context, c *ebb.Client) error {
	i := s.rng.IntN(len(s.keys))
	a, b := s.keys[i], s.keys[(i+1+s.rng.IntN(len(s.keys)-1))%len(s.keys)]
	var o ebb.Overlap
	var err error
	if s.rng.IntN(2) == 0 {
		o, err = c.Overlap(ctx, countsNamespace, []string{a, b})
	} else {
		var r ebb.Result
		r, err = c.Query(ctx, fmt.Sprintf("overlap(%s, %s)", a, b), ebb.InNamespace(countsNamespace))
		if err == nil {
			o = r.Overlap()
		}
	}
	if err != nil {
		return err
	}
	s.w.complete(o.Coverage, false)
	union, both := common(s.has[a], s.has[b])
	ok := about(o.Union.Value, union) && about(o.Intersection.Value, both) && about(o.Difference.Value, float64(len(s.has[a]))-both) && about(o.Jaccard.Value, similarity(s.has[a], s.has[b]))
	ok = ok && len(o.Sets) == 2 && about(o.Sets[0].Size.Value, float64(len(s.has[a]))) && about(o.Sets[1].Size.Value, float64(len(s.has[b])))
	s.w.hold("sets-compared", ok, "%s and %s: %+v, and they have %v and %v", a, b, o, names(s.has[a]), names(s.has[b]))
	return nil
}

// graph asks which sets are most similar, by name or by a pattern.
func (s *comparer) graph(ctx context.Context, c *ebb.Client) error {
	q := ebb.GraphQuery{Patterns: []string{fmt.Sprintf("set-%d-*", s.life)}, Links: 2}
	var there []string
	for _, key := range s.keys {
		if len(s.has[key]) > 0 {
			there = append(there, key)
		}
	}
	if len(there) < 2 {
		return nil
	}
	if s.rng.IntN(2) == 0 {
		q.Keys, q.Patterns = there, nil
	}
	g, err := c.Graph(ctx, countsNamespace, q)
	if err != nil {
		return err
	}
	s.w.complete(g.Coverage, false)
	ok := len(g.Nodes) == len(there)
	for i := 0; ok && i < len(there); i++ {
		ok = g.Nodes[i].Key == there[i] && about(g.Nodes[i].Size.Value, float64(len(s.has[there[i]]))) && s.linked(there[i], there, g.Nodes[i].Links, q.Links)
	}
	s.w.hold("sets-compared", ok, "the graph of %v, two links each, is %+v, and they have %v", there, g.Nodes, s.has)
	return nil
}

// foundSurely is how many members two sets must have in common so that their link cannot be missed. Sets are first
// compared by their 1,024 registers, and a common member may have to share a register with another one.
const foundSurely = 4

// linked reports whether these are the links from key to the sets that are most similar to it. Each link must have the
// right similarity, the largest first. No set may be left out for a less similar one.
func (s *comparer) linked(key string, there []string, links []ebb.GraphLink, most int) bool {
	if len(links) > most {
		return false
	}
	given, least := map[string]bool{}, 0.0
	for i, l := range links {
		if l.Key == key || given[l.Key] || !(l.Jaccard.Value > 0) || !about(l.Jaccard.Value, similarity(s.has[key], s.has[l.Key])) || i > 0 && l.Jaccard.Value > links[i-1].Jaccard.Value {
			return false
		}
		given[l.Key] = true
		if i == most-1 {
			least = l.Jaccard.Value
		}
	}
	return !slices.ContainsFunc(there, func(other string) bool {
		_, both := common(s.has[key], s.has[other])
		return other != key && !given[other] && both >= foundSurely && similarity(s.has[key], s.has[other]) > least+1e-9
	})
}

// settle compares once more.
func (s *comparer) settle(ctx context.Context, c *ebb.Client) {
	for _, ask := range []func(context.Context, *ebb.Client) error{s.overlap, s.graph} {
		err := ask(ctx, c)
		s.w.hold("healed-reads", err == nil, "compare %v when all was mended: %v", s.keys, err)
	}
}
