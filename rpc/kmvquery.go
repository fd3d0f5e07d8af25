package rpc

import (
	"context"
	"net/url"
	"strings"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// kmvQuery is a query of gocountme: a method over keys, or over sets that other queries answer with.
//
//	get, union, intersection                        a set
//	cardinality                                     the size of one set
//	jaccard, cardinality_union and _intersection    of two or more sets
//	correlation                                     jaccard of each two sets
type kmvQuery struct {
	method string
	keys   []string
	set    []*kmvQuery
}

// kmvDepthMax bounds how deep queries are nested, and kmvTermsMax how many keys and sets there are.
const (
	kmvDepthMax = 32
	kmvTermsMax = proto.BitTermsMax / 2
)

// Texts of gocountme for a query that it does not answer.
const (
	kmvBoth           = "Both keys and set are specified in query"
	kmvOneCardinality = "Method 'cardinality' can only take in one data source"
	kmvOneGet         = "Method 'get' can only take in one data source"
	kmvNumber         = "Set specified with float output"
	kmvNoMethod       = "Unrecognized method"
	kmvTwo            = "Method requires 2+ sets or keys"
)

// parseKMVQuery reads a query. It ignores members that it does not know.
func parseKMVQuery(text string) (*kmvQuery, *proto.Error) {
	l, err := newLexer([]byte(text))
	if err != nil {
		return nil, err
	}
	terms := 0
	q, err := l.kmvQuery(1, &terms)
	if err == nil {
		err = l.end()
	}
	return q, err
}

func (l *lexer) kmvQuery(depth int, terms *int) (*kmvQuery, *proto.Error) {
	if depth > kmvDepthMax {
		return nil, proto.ErrBadQuery.Errorf("a query stands %d deep in others: the limit is %d", depth, kmvDepthMax)
	}
	q := &kmvQuery{}
	err := l.object(func(name string) *proto.Error {
		switch {
		case name == "method":
			method, err := l.str()
			q.method = method
			return err
		case (name == "keys" || name == "set") && l.peek() == 'n':
			return l.keyword("null")
		case name == "keys":
			return l.array(func() *proto.Error {
				key, err := l.str()
				q.keys = append(q.keys, key)
				return cmpErr(err, oneMore(terms))
			})
		case name == "set":
			return l.array(func() *proto.Error {
				of, err := l.kmvQuery(depth+1, terms)
				q.set = append(q.set, of)
				return cmpErr(err, oneMore(terms))
			})
		}
		return l.skipValue(depth)
	})
	return q, err
}

func oneMore(terms *int) *proto.Error {
	if *terms++; *terms > kmvTermsMax {
		return proto.ErrBadQuery.Errorf("a query of more than %d keys and sets: that is the limit", kmvTermsMax)
	}
	return nil
}

// cmpErr is the first error of two.
func cmpErr(a, b *proto.Error) *proto.Error {
	if a != nil {
		return a
	}
	return b
}

// object consumes an object. member consumes the value of a name.
func (l *lexer) object(member func(name string) *proto.Error) *proto.Error {
	if err := l.expect('{'); err != nil {
		return err
	}
	if l.take('}') {
		return nil
	}
	for {
		name, err := l.str()
		if err == nil {
			err = l.expect(':')
		}
		if err == nil {
			err = member(name)
		}
		if err != nil || l.take('}') {
			return err
		}
		if err := l.expect(','); err != nil {
			return err
		}
	}
}

// array consumes an array. element consumes one of its values.
func (l *lexer) array(element func() *proto.Error) *proto.Error {
	if err := l.expect('['); err != nil {
		return err
	}
	if l.take(']') {
		return nil
	}
	for {
		if err := element(); err != nil || l.take(']') {
			return err
		}
		if err := l.expect(','); err != nil {
			return err
		}
	}
}

// skipValue consumes any value.
func (l *lexer) skipValue(depth int) *proto.Error {
	if depth > kmvDepthMax {
		return proto.ErrBadQuery.Errorf("a value stands %d deep in a query: the limit is %d", depth, kmvDepthMax)
	}
	switch c := l.peek(); c {
	case '{':
		return l.object(func(string) *proto.Error { return l.skipValue(depth + 1) })
	case '[':
		return l.array(func() *proto.Error { return l.skipValue(depth + 1) })
	case '"':
		_, err := l.str()
		return err
	case 't':
		return l.keyword("true")
	case 'f':
		return l.keyword("false")
	case 'n':
		return l.keyword("null")
	}
	_, err := l.number()
	return err
}

// kmvTerm is a set with the name that answers have for it.
type kmvTerm struct {
	name string
	expr *ebbv1.BitmapExpr
}

func keyOf(key string) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
}

// distinctTerms leaves out keys that were named before.
func distinctTerms(terms []kmvTerm) []kmvTerm {
	seen := map[string]bool{}
	var out []kmvTerm
	for _, t := range terms {
		if t.expr.GetKey() == nil {
			out = append(out, t)
		} else if !seen[t.name] {
			seen[t.name] = true
			out = append(out, t)
		}
	}
	return out
}

// operands returns the sets that a query is about.
func (q *kmvQuery) operands() ([]kmvTerm, *doorError) {
	if len(q.keys) > 0 && len(q.set) > 0 {
		return nil, said(kmvBoth, proto.ErrBadQuery)
	}
	var terms []kmvTerm
	for _, key := range q.keys {
		terms = append(terms, kmvTerm{key, keyOf(key)})
	}
	for _, of := range q.set {
		inner, err := of.operands()
		if err == nil {
			err = of.check(inner)
		}
		if err != nil {
			return nil, err
		}
		t, ok := of.setOf(inner)
		if !ok {
			return nil, said(kmvNumber, proto.ErrBadQuery)
		}
		terms = append(terms, t)
	}
	return terms, nil
}

// check refuses an unknown method, and a method with a wrong number of sets.
func (q *kmvQuery) check(terms []kmvTerm) *doorError {
	switch q.method {
	case "get":
		if len(terms) != 1 {
			return said(kmvOneGet, proto.ErrBadQuery)
		}
	case "cardinality":
		if len(terms) != 1 {
			return said(kmvOneCardinality, proto.ErrBadQuery)
		}
	case "union", "intersection", "jaccard", "cardinality_union", "cardinality_intersection", "correlation":
		if len(terms) < 2 {
			return said(kmvTwo, proto.ErrBadQuery)
		}
	default:
		return said(kmvNoMethod, proto.ErrBadQuery)
	}
	return nil
}

// setOf returns the set that a query answers with, if its answer is a set.
func (q *kmvQuery) setOf(terms []kmvTerm) (kmvTerm, bool) {
	list := &ebbv1.BitmapExprs{}
	for _, t := range distinctTerms(terms) {
		list.Of = append(list.Of, t.expr)
	}
	switch q.method {
	case "get":
		return terms[0], true
	case "union":
		return kmvTerm{joined(terms, " u "), &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: list}}}, true
	case "intersection":
		return kmvTerm{joined(terms, " n "), &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: list}}}, true
	}
	return kmvTerm{}, false
}

func joined(terms []kmvTerm, with string) string {
	var names []string
	for _, t := range terms {
		names = append(names, t.name)
	}
	return strings.Join(names, with)
}

// kmvResult is the answer of a query.
type kmvResult struct {
	key    string
	set    *kmvSet
	number float64
	multi  []kmvResult
}

func (r kmvResult) append(b []byte) []byte {
	b = append(appendString(append(b, `{"key":`...), r.key), `,"set":`...)
	if r.set != nil {
		b = r.set.appendJSON(b)
	} else {
		b = append(b, "null"...)
	}
	b = appendDouble(append(b, `,"result":`...), r.number)
	for i, one := range r.multi {
		if i == 0 {
			b = append(b, `,"multi_result":[`...)
		} else {
			b = append(b, ',')
		}
		b = one.append(b)
	}
	if len(r.multi) > 0 {
		b = append(b, ']')
	}
	return append(b, '}')
}

func (g *gocountme) query(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	text := args.Get("q")
	if text == "" {
		return doorReply{}, refuse(codeNoQ, proto.ErrBadQuery.Errorf("argument q is missing"))
	}
	q, bad := parseKMVQuery(text)
	if bad != nil {
		return doorReply{}, refuse("", bad)
	}
	terms, refused := q.operands()
	if refused == nil {
		refused = q.check(terms)
	}
	if refused != nil {
		return doorReply{}, refused
	}
	result, err := g.answer(ctx, op, q, terms)
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{data: result.append(nil)}, nil
}

// answer answers a query about sets.
func (g *gocountme) answer(ctx context.Context, op doorOp, q *kmvQuery, terms []kmvTerm) (kmvResult, error) {
	if t, ok := q.setOf(terms); ok {
		set, err := g.hashes(ctx, op, t.expr)
		return kmvResult{key: t.name, set: set}, err
	}
	if q.method == "correlation" {
		terms = distinctTerms(terms)
		pairs, err := g.similar(ctx, op, terms)
		out := kmvResult{key: "Corr(" + joined(terms, ", ") + ")"}
		for _, p := range pairs {
			key := "Jaccard(" + terms[p.a].name + ", " + terms[p.b].name + ")"
			out.multi = append(out.multi, kmvResult{key: key, number: p.jaccard})
		}
		return out, err
	}
	var of []*ebbv1.BitmapExpr
	for _, t := range terms {
		of = append(of, t.expr)
	}
	o, err := g.overlap(ctx, op, of...)
	if err != nil {
		return kmvResult{}, err
	}
	switch q.method {
	case "cardinality":
		return kmvResult{key: "||" + terms[0].name + "||", number: o.GetSets()[0].GetSize().GetValue()}, nil
	case "jaccard":
		return kmvResult{key: "Jaccard(" + joined(terms, ", ") + ")", number: o.GetJaccard().GetValue()}, nil
	case "cardinality_union":
		return kmvResult{key: "||" + joined(terms, " u ") + "||", number: o.GetUnion().GetValue()}, nil
	}
	return kmvResult{key: "||" + joined(terms, " n ") + "||", number: o.GetIntersection().GetValue()}, nil
}
