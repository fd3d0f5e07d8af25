package query

import (
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Form is one kind of question: a function, or a statement that begins with a word.
type Form struct {
	Name    string // the first word
	Call    bool   // a ( must follow the name
	Usage   string // an example that can be parsed
	Summary string
	parse   func(*parser, *ebbv1.Plan)
}

// Forms returns all kinds of questions, in the order of the documentation.
func Forms() []Form { return slices.Clone(forms) }

var forms []Form

func init() { // a variable would depend on itself: the statements list the forms in their errors
	forms = []Form{
		{"top", false, "top 10 clicks/country", "the bins counted most: of a distribution or a topk, of several merged", (*parser).top},
		{"p", true, `p(clicks/country, "US")`, "the probability of bins", (*parser).probability},
		{"dist", true, "dist(clicks/country)", "a whole distribution", (*parser).distribution},
		{"trend", true, "trend(clicks/country)", "which bins come more or less often than usual", (*parser).trend},
		{"surprise", true, "surprise(clicks/link/A6qOVH against clicks/country)", "how one distribution differs from another, and whether that may be chance", (*parser).surprise},
		{"total", true, "total(clicks/country)", "the sum of all amounts; of kinds that count members, how many; " +
			"of sets and bitmaps also of what is made of them", (*parser).total},
		{
			"distinct", true, "distinct(visits/a | visits/b)",
			"how many different members; of sets also of what is made of them", (*parser).distinct,
		},
		{"quantile", true, "quantile(latency/api, 0.5, 0.99)", "quantiles of values", (*parser).quantile},
		{"estimate", true, `estimate(hits, "/index.html")`, "the counts of bins of a countmin or a topk", (*parser).estimate},
		{"contains", true, `contains(seen, "x")`, "whether bins are there, or ids in bitmaps: numbers, or strings where the namespace has a dictionary", (*parser).contains},
		{"members", true, "members(set/a) limit 10", "members of a linear, or a sample of those of a set", (*parser).members},
		{
			"overlap", true, "overlap(set/a | set/b, set/c)",
			"what sets have in common: union, intersection, difference, similarity", (*parser).overlap,
		},
		{
			"jaccard", true, "jaccard(set/*, other/a - other/b)", "the similarity of sets, intersection / union",
			(*parser).jaccard,
		},
		{"similar", true, "similar(set/a) top 10", "the sets most like one", (*parser).similar},
		{"graph", true, "graph(set/*, links 2)", "which sets are alike", (*parser).graph},
		{"match", true, `match(phrases/places, "new york in spring")`, "which phrases stand in a text", (*parser).match},
		{"get", true, "get(config/banner)", "the value of a string", (*parser).get},
		{"describe", true, "describe(clicks/country)", "what a key is", (*parser).describe},
		{"keys", false, "keys clicks/** limit 10", "which keys there are", (*parser).keys},
		{
			"count", true, "count((play/2011-11-01 .. play/2011-11-30) & premium/2011-11)",
			"how many ids a bitmap has, or about how many things a set; " +
				"by other bitmaps, how many of the ids each has too",
			(*parser).counted,
		},
		{"ids", true, "ids(play/2011-11-01 - premium/2011-11) limit 10", "the ids of a bitmap, or the strings for which they stand", (*parser).ids},
		{"cohort", true, "cohort(play/2011-11-01 .. 2011-11-30 by week)", "how many come again in later periods, by the first one", (*parser).cohort},
		{"store", false, "store november = play/2011-11-01 .. 2011-11-30", "a bitmap made of others, under a key", (*parser).store},
	}
}

// question parses one question.
func (p *parser) question(plan *ebbv1.Plan) {
	t := p.token
	for i := range forms {
		f := &forms[i]
		if !t.is(f.Name) || f.Call && !p.ahead.is("(") && !(f.Name == "count" && p.ahead.is("by")) {
			continue
		}
		p.advance()
		f.parse(p, plan)
		return
	}
	p.unknown(t)
}

// unknown refuses a token with which no question begins.
func (p *parser) unknown(t token) {
	var names []string
	for i := range forms {
		names = append(names, forms[i].Name)
	}
	switch {
	case t.class == end:
		p.fail(t, "found the end, expected a question", "top 10 clicks/country is one")
	case t.is("atleast") && p.calls():
		p.fail(t, "found atleast(, which makes a bitmap, expected a question", "count(atleast(2, a, b, c)) and ids(atleast(2, a, b, c)) are two")
	case p.calls():
		p.fail(t, fmt.Sprintf("unknown function %s", p.found(t)), nearest(t.value, names, "docs/query.md lists them"))
	case t.class == word && t.namespace == "" && slices.Contains(names, t.value):
		p.advance()
		p.refuse(p.token, `"(" after `+t.value)
	case t.class == word && t.namespace == "":
		p.fail(t, fmt.Sprintf("found %s, expected a question: top, keys, store, or a function", p.found(t)),
			nearest(t.value, names, fmt.Sprintf("top 10 %s and describe(%s) are about a key", p.found(t), p.found(t))))
	default:
		p.unexpected("a question: top, keys, store, or a function")
	}
}

// top parses: top n merged [by trend(...)], or top n keys [name] [by ...].
func (p *parser) top(plan *ebbv1.Plan) {
	at := p.token
	n := p.integer("how many", 1, proto.TopMax)
	if p.accept("keys") {
		if n > proto.KeysListMax {
			p.refuse(at, fmt.Sprintf("how many: a whole number from 1 to %d", proto.KeysListMax))
		}
		p.topKeys(plan, uint32(n))
		return
	}
	top := &ebbv1.PlanTop{N: uint32(n), Of: p.merged()}
	if p.accept("by") {
		top.Trend = p.halfLives("trend(")
	}
	plan.Ask = &ebbv1.Plan_Top{Top: top}
}

func (p *parser) topKeys(plan *ebbv1.Plan, n uint32) {
	keys := &ebbv1.PlanKeys{Limit: n, Order: ebbv1.KeyOrder_KEY_ORDER_TOTAL}
	if p.names() {
		keys.Of = p.name()
	}
	if p.accept("by") {
		if keys.Order = ebbv1.KeyOrder_KEY_ORDER_RECENT; !p.accept("recent") {
			keys.Order, keys.Trend = 0, p.halfLives("recent or trend(")
		}
	}
	plan.Ask = &ebbv1.Plan_Keys{Keys: keys}
}

// names says whether a term comes next.
func (p *parser) names() bool {
	t := p.token
	return t.class == quoted || t.class == word && (t.namespace != "" || !reserved(t.value) || t.value == "like")
}

func (p *parser) halfLives(expected string) *ebbv1.PlanHalfLives {
	if !p.accept("trend") {
		p.unexpected(expected)
	}
	p.expect("(")
	h := &ebbv1.PlanHalfLives{FastUs: p.duration("a half-life", proto.HalfLifeMinUS)}
	p.expect(",")
	h.SlowUs = p.duration("a half-life", proto.HalfLifeMinUS)
	p.expect(")")
	return h
}

// keys parses: keys [name] [from key] [limit n].
func (p *parser) keys(plan *ebbv1.Plan) {
	keys := &ebbv1.PlanKeys{}
	if p.names() {
		keys.Of = p.name()
	}
	if p.accept("from") {
		at := p.token
		if after := p.key(); after.GetNamespace() != "" {
			p.fail(at, "found a namespace, expected a key of the namespace that is listed", "")
		} else {
			keys.After = after.GetKey()
		}
	}
	keys.Limit = p.limit("limit", proto.KeysListMax)
	plan.Ask = &ebbv1.Plan_Keys{Keys: keys}
}

// limit parses the word and a number, if the word comes next; otherwise it returns 0.
func (p *parser) limit(word string, most uint64) uint32 {
	if !p.accept(word) {
		return 0
	}
	return uint32(p.integer("how many", 1, most))
}

// bins parses texts in quotes, each after a comma.
func (p *parser) bins(atLeastOne bool) [][]byte {
	var bins [][]byte
	for p.accept(",") {
		bins = append(bins, p.text("bin", proto.BinLenMax, false))
		p.count(p.token, 1)
	}
	if atLeastOne && len(bins) == 0 {
		p.unexpected(`"," and a bin in quotes`)
	}
	return bins
}

func (p *parser) probability(plan *ebbv1.Plan) {
	p.expect("(")
	d := &ebbv1.PlanDistribution{Of: p.merged(), Bins: p.bins(true)}
	p.expect(")")
	plan.Ask = &ebbv1.Plan_Distribution{Distribution: d}
}

func (p *parser) distribution(plan *ebbv1.Plan) {
	p.expect("(")
	d := &ebbv1.PlanDistribution{Of: p.merged()}
	p.expect(")")
	plan.Ask = &ebbv1.Plan_Distribution{Distribution: d}
}

func (p *parser) trend(plan *ebbv1.Plan) {
	p.expect("(")
	t := &ebbv1.PlanTrend{Of: p.merged(), Bins: p.bins(false)}
	p.expect(")")
	t.Top = p.limit("top", proto.TopMax)
	plan.Ask = &ebbv1.Plan_Trend{Trend: t}
}

func (p *parser) surprise(plan *ebbv1.Plan) {
	p.expect("(")
	s := &ebbv1.PlanSurprise{Of: p.merged()}
	p.expect("against")
	s.Against, s.Bins = p.merged(), p.bins(false)
	p.expect(")")
	s.Top = p.limit("top", proto.TopMax)
	plan.Ask = &ebbv1.Plan_Surprise{Surprise: s}
}

// summary parses a function's parentheses and its keys; rest parses what follows the keys.
func (p *parser) summary(plan *ebbv1.Plan, f ebbv1.PlanFunction, rest func(*ebbv1.PlanSummary)) *ebbv1.PlanSummary {
	p.expect("(")
	s := &ebbv1.PlanSummary{Function: f}
	if f == ebbv1.PlanFunction_PLAN_FUNCTION_TOTAL || f == ebbv1.PlanFunction_PLAN_FUNCTION_DISTINCT {
		set := p.set()
		if s.Of = unionOf(set); s.Of == nil {
			s.Set = set
		}
	} else {
		s.Of = p.merged()
	}
	if rest != nil {
		rest(s)
	}
	p.expect(")")
	plan.Ask = &ebbv1.Plan_Summary{Summary: s}
	return s
}

func (p *parser) total(plan *ebbv1.Plan) {
	p.summary(plan, ebbv1.PlanFunction_PLAN_FUNCTION_TOTAL, nil)
}

func (p *parser) distinct(plan *ebbv1.Plan) {
	p.summary(plan, ebbv1.PlanFunction_PLAN_FUNCTION_DISTINCT, func(s *ebbv1.PlanSummary) {
		at := p.token
		if p.accept(",") {
			if s.Set != nil {
				p.fail(at, "found \",\": a window is of keys that are joined with |", "leave out the window")
			}
			s.WindowUs = p.duration("a window", 1)
		}
	})
}

func (p *parser) quantile(plan *ebbv1.Plan) {
	p.summary(plan, ebbv1.PlanFunction_PLAN_FUNCTION_QUANTILE, func(s *ebbv1.PlanSummary) {
		for p.accept(",") {
			s.Quantiles = append(s.Quantiles, p.fraction("a quantile", 0, 1))
			p.count(p.token, 1)
		}
		if len(s.Quantiles) == 0 {
			p.unexpected(`"," and a quantile: a number from 0 to 1`)
		}
	})
}

func (p *parser) contains(plan *ebbv1.Plan) {
	p.summary(plan, ebbv1.PlanFunction_PLAN_FUNCTION_CONTAINS, func(s *ebbv1.PlanSummary) { s.Bins = p.bins(true) })
}

func (p *parser) estimate(plan *ebbv1.Plan) {
	p.summary(plan, ebbv1.PlanFunction_PLAN_FUNCTION_ESTIMATE, func(s *ebbv1.PlanSummary) { s.Bins = p.bins(true) })
}

func (p *parser) members(plan *ebbv1.Plan) {
	s := p.summary(plan, ebbv1.PlanFunction_PLAN_FUNCTION_MEMBERS, nil)
	s.Limit = p.limit("limit", proto.TopMax)
}

func (p *parser) get(plan *ebbv1.Plan) {
	p.expect("(")
	plan.Ask = &ebbv1.Plan_Summary{Summary: &ebbv1.PlanSummary{Function: ebbv1.PlanFunction_PLAN_FUNCTION_GET, Of: []*ebbv1.PlanTerm{p.key()}}}
	p.expect(")")
}

func (p *parser) overlap(plan *ebbv1.Plan) { p.common(plan, false) }
func (p *parser) jaccard(plan *ebbv1.Plan) { p.common(plan, true) }

func (p *parser) common(plan *ebbv1.Plan, jaccard bool) {
	p.expect("(")
	of := []*ebbv1.PlanExpression{p.set()}
	for p.accept(",") {
		if t := p.token; len(of) == proto.OverlapKeysMax {
			p.fail(t, fmt.Sprintf("more than %d sets, which is the limit", proto.OverlapKeysMax),
				"graph(...) compares more, by estimates")
		}
		of = append(of, p.set())
	}
	if len(of) == 1 {
		p.unexpected(`"," and a set to compare with`)
	}
	p.expect(")")
	o := &ebbv1.PlanOverlap{Jaccard: jaccard}
	for _, e := range of {
		if e.GetTerm().GetKey() == nil { // a set that is not a key
			o.Sets, o.Of = nil, of
			break
		}
		o.Sets = append(o.Sets, e.GetTerm())
	}
	plan.Ask = &ebbv1.Plan_Overlap{Overlap: o}
}

func (p *parser) similar(plan *ebbv1.Plan) {
	p.expect("(")
	s := &ebbv1.PlanSimilar{}
	of := p.set()
	if s.To = of.GetTerm(); s.To.GetKey() == nil { // a set that is not a key
		s.To, s.Of = nil, of
	}
	for p.accept(",") {
		s.Among = append(s.Among, p.name())
	}
	if s.Of != nil && len(s.Among) == 0 {
		p.unexpected(`"," and sets to compare with: only a key has a directory`)
	}
	p.expect(")")
	s.Top = p.limit("top", proto.LinksMax)
	plan.Ask = &ebbv1.Plan_Similar{Similar: s}
}

// graph parses: graph(name, ... [, links n] [, min j]).
func (p *parser) graph(plan *ebbv1.Plan) {
	p.expect("(")
	g := &ebbv1.PlanGraph{Sets: []*ebbv1.PlanTerm{p.name()}}
	for p.accept(",") {
		option := p.ahead.class == word && p.ahead.namespace == ""
		switch {
		case option && p.token.is("links") && g.Links == 0 && g.MinJaccard == 0:
			p.advance()
			g.Links = uint32(p.integer("how many links", 1, proto.LinksMax))
		case option && p.token.is("min") && g.MinJaccard == 0:
			p.advance()
			at := p.token
			if g.MinJaccard = p.fraction("a similarity", 0, 1); g.MinJaccard == 0 {
				p.fail(at, "a least similarity of 0, which leaves nothing out", "")
			}
		case g.Links != 0 || g.MinJaccard != 0:
			p.unexpected("links n, then min j, each once and after the sets")
		default:
			g.Sets = append(g.Sets, p.name())
		}
	}
	p.expect(")")
	plan.Ask = &ebbv1.Plan_Graph{Graph: g}
}

func (p *parser) match(plan *ebbv1.Plan) {
	p.expect("(")
	m := &ebbv1.PlanMatch{Phrases: p.key()}
	p.expect(",")
	m.Text = p.text("text", proto.MatchTextMax, true)
	p.expect(")")
	plan.Ask = &ebbv1.Plan_Match{Match: m}
}

func (p *parser) describe(plan *ebbv1.Plan) {
	p.expect("(")
	plan.Ask = &ebbv1.Plan_Describe{Describe: &ebbv1.PlanDescribe{Key: p.key()}}
	p.expect(")")
}

// counted parses: count(set), or count by merged (set) [top n].
func (p *parser) counted(plan *ebbv1.Plan) {
	c := &ebbv1.PlanCount{}
	if p.accept("by") {
		c.By = []*ebbv1.PlanTerm{p.term(aTerm)}
		for p.accept("|") {
			c.By = append(c.By, p.term(aTerm))
		}
	}
	p.expect("(")
	c.Of = p.set()
	p.expect(")")
	if len(c.By) > 0 {
		c.Top = p.limit("top", proto.TopMax)
	}
	plan.Ask = &ebbv1.Plan_Count{Count: c}
}

// ids parses: ids(set) [from id] [limit n].
func (p *parser) ids(plan *ebbv1.Plan) {
	p.expect("(")
	ids := &ebbv1.PlanIds{Of: p.set()}
	p.expect(")")
	if p.accept("from") {
		ids.From = p.integer("an id", 0, 1<<64-1)
	}
	ids.Limit = p.limit("limit", proto.TopMax)
	plan.Ask = &ebbv1.Plan_Ids{Ids: ids}
}

// cohort parses: cohort(range [by unit] [, set]) [of everyone].
func (p *parser) cohort(plan *ebbv1.Plan) {
	p.expect("(")
	begin := p.token
	c := &ebbv1.PlanCohort{Of: p.term("a range")}
	if c.Of.GetRange() == nil {
		p.fail(begin, fmt.Sprintf("found %s, expected a range", p.found(begin)), "play/2011-11-01 .. 2011-11-30 is one")
	}
	if p.accept("by") {
		c.By = p.unit(c.Of.GetRange())
	}
	if p.accept(",") {
		c.Within = p.set()
	}
	p.expect(")")
	if p.accept("of") {
		p.expect("everyone")
		c.Everyone = true
	}
	plan.Ask = &ebbv1.Plan_Cohort{Cohort: c}
}

// store parses: store key = set.
func (p *parser) store(plan *ebbv1.Plan) {
	s := &ebbv1.PlanStore{To: p.key()}
	p.expect("=")
	s.Of = p.set()
	plan.Ask = &ebbv1.Plan_Store{Store: s}
}
