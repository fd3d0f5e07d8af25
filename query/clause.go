package query

import (
	"fmt"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// consistencies are the names of consistency levels, in the order of the documentation.
var consistencies = []struct {
	name  string
	value ebbv1.Consistency
}{
	{"linearizable", ebbv1.Consistency_CONSISTENCY_LINEARIZABLE},
	{"bounded", ebbv1.Consistency_CONSISTENCY_BOUNDED},
	{"any", ebbv1.Consistency_CONSISTENCY_ANY},
}

// clauses parses the clauses that apply to the whole question, in any order and each once.
func (p *parser) clauses(plan *ebbv1.Plan) {
	once := func(t token, set bool) {
		if set {
			p.fail(t, fmt.Sprintf("%s is said twice", p.found(t)), "")
		}
	}
	for p.err == nil {
		t := p.token
		switch {
		case p.accept("in"):
			once(t, plan.Namespace != "")
			plan.Namespace = p.namespace()
		case p.accept("as"):
			once(t, plan.AsOfUs != 0)
			p.expect("of")
			plan.AsOfUs = p.time()
		case p.accept("with"):
			p.with(plan, func(set bool) { once(p.token, set) })
		case p.accept("allow"):
			once(t, plan.AllowPartial)
			p.expect("partial")
			plan.AllowPartial = true
		default:
			return
		}
	}
}

func (p *parser) with(plan *ebbv1.Plan, once func(bool)) {
	switch {
	case p.token.is("confidence"):
		once(plan.Confidence != 0)
		p.advance()
		plan.Confidence = p.fraction("a confidence", 0.5, 0.9999)
	case p.token.is("consistency"):
		once(plan.Consistency != 0)
		p.advance()
		p.consistency(plan)
	default:
		p.unexpected("consistency or confidence")
	}
}

func (p *parser) consistency(plan *ebbv1.Plan) {
	for _, c := range consistencies {
		if p.accept(c.name) {
			if plan.Consistency = c.value; c.name == "bounded" {
				plan.MaxStalenessUs = p.duration("how old an answer may be", 1)
			}
			return
		}
	}
	t := p.token
	p.refuse(t, "linearizable, bounded 10s, or any")
	if t.is("stale") {
		p.err.Hint = "any takes whatever the asked replica has, and bounded 10s what is no older"
	}
}

func (p *parser) namespace() string {
	t := p.token
	if t.class != word && t.class != quoted || t.namespace != "" {
		p.unexpected("the name of a namespace")
		return ""
	}
	if err := proto.CheckNamespaceName(t.value); err != nil {
		p.fail(t, err.Message, "")
		return ""
	}
	p.advance()
	return t.value
}

// time parses a time after 1970 in the format of RFC 3339, or a date.
func (p *parser) time() int64 {
	t := p.token
	us, err := parseTime(t.value)
	if proto.HasLeapSecond(t.value) {
		p.fail(t, proto.LeapSecond, "")
		return 0
	}
	if t.class != word && t.class != quoted || t.namespace != "" || err != nil || us <= 0 {
		p.unexpected("a time that there is, after 1970: 2013-05-06T12:00:00Z or 2013-05-06")
		return 0
	}
	p.advance()
	return us
}

func parseTime(text string) (us int64, err error) {
	t, err := proto.ParseTime(text)
	if err != nil {
		t, err = time.Parse(time.DateOnly, text)
	}
	return t.UnixMicro(), err
}
