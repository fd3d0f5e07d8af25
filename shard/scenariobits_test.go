package shard

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cockroachdb/datadriven"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What scenarios say of bitmaps. Among the commands of apply:
//
//	set|clear|flip NAME KEY ID|FIRST..LAST... [session=#i/sequence] [source=name/epoch offset=n] [key=hi/issued]
//	store NAME KEY EXPRESSION [key=hi/issued]
//
// and of their own, with an expression, or one for each period, below:
//
//	bits NAME [count] [ids] [from=n] [limit=n] [contains=(x,y)] [rank=n] [position=n] [ends] [first=n] [last=n] [view]
//	groups NAME KEY... [top=n]
//	cohort NAME [everyone]
//
// An expression is a key, FIRST..LAST, or or(..), and(..), andnot(..), xor(..), not(a,universe) or N-of(..), without
// blanks.
func (sc *scenario) bitEdits(op, namespace, key string, words []string) *ebbv1.Command {
	c := &ebbv1.Command{Namespace: namespace}
	edit := func() *ebbv1.BitEdit {
		return &ebbv1.BitEdit{Key: []byte(key), Op: ebbv1.BitOp(ebbv1.BitOp_value["BIT_OP_"+strings.ToUpper(op)])}
	}
	list, ids, offset := &ebbv1.BitEdits{}, []uint64(nil), uint64(0)
	for _, w := range words {
		if strings.HasPrefix(w, "offset=") {
			offset = sc.id(value(w))
		} else if r := sc.bitRange(w); r != nil {
			e := edit()
			e.Range = r
			list.Edits = append(list.Edits, e)
		} else if !sc.identity(c, w) {
			ids = append(ids, sc.id(w))
		}
	}
	if len(ids) > 0 {
		e := edit()
		e.Ids = proto.AppendBitIDs(nil, ids)
		list.Edits = append(list.Edits, e)
	}
	for i, e := range list.Edits {
		if offset > 0 {
			e.Offset = offset + uint64(i)
		}
	}
	c.Body = &ebbv1.Command_Bits{Bits: list}
	return c
}

// identity takes a word that says who sends a command.
func (sc *scenario) identity(c *ebbv1.Command, w string) bool {
	name, v, _ := strings.Cut(w, "=")
	who, n, _ := strings.Cut(v, "/")
	switch name {
	case "session":
		c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: sc.session(who), Sequence: sc.id(n)}}
	case "source":
		c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: who, Epoch: sc.id(n)}}
	case "key":
		c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{Hi: sc.id(who), IssuedAtUs: beginning + int64(sc.duration(n))}}
	default:
		return false
	}
	return true
}

func (sc *scenario) storing(namespace, key, text string, words []string) *ebbv1.Command {
	c := storing(key, sc.expression(text))
	c.Namespace = namespace
	for _, w := range words {
		if !sc.identity(c, w) {
			sc.t.Fatalf("what is %q?", w)
		}
	}
	return c
}

func (sc *scenario) id(text string) uint64 {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		sc.t.Fatal(err)
	}
	return id
}

func (sc *scenario) bitRange(text string) *ebbv1.BitRange {
	first, last, is := strings.Cut(text, "..")
	if !is {
		return nil
	}
	return &ebbv1.BitRange{First: sc.id(first), Last: sc.id(last)}
}

func (sc *scenario) expression(text string) *ebbv1.BitmapExpr {
	text = strings.TrimSpace(text)
	op, inner, is := strings.Cut(text, "(")
	if !is {
		if r := sc.bitRange(text); r != nil {
			return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: r}}
		}
		return bitmapKey(text)
	}
	var of []*ebbv1.BitmapExpr
	depth, begin := 0, 0
	inner = strings.TrimSuffix(inner, ")")
	for i, r := range inner + "," {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			of = append(of, sc.expression(inner[begin:i]))
			begin = i + 1
		}
	}
	x := &ebbv1.BitmapExpr{}
	switch list := (&ebbv1.BitmapExprs{Of: of}); op {
	case "or":
		x.Expr = &ebbv1.BitmapExpr_Or{Or: list}
	case "and":
		x.Expr = &ebbv1.BitmapExpr_And{And: list}
	case "andnot":
		x.Expr = &ebbv1.BitmapExpr_AndNot{AndNot: list}
	case "xor":
		x.Expr = &ebbv1.BitmapExpr_Xor{Xor: list}
	case "not":
		x.Expr = &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: of[0], Universe: of[1]}}
	default:
		x.Expr = &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: uint32(sc.id(strings.TrimSuffix(op, "-of"))), Of: of}}
	}
	return x
}

// answered asks about bitmaps, of the view if that is wanted.
func (sc *scenario) answered(d *datadriven.TestData, q *ebbv1.Question, view bool) (a *ebbv1.Answer, refused string) {
	q.Namespace = d.CmdArgs[0].Key
	if err := proto.CheckQuestion(q); err != nil {
		return nil, says1(err.Wire()) + "\n"
	}
	f := &sc.s.frame
	if view {
		f = &sc.view.frame
	}
	out := f.Ask(&ebbv1.ShardQuestion{Question: q}, 0)
	if out.Error != nil {
		return nil, says1(out.Error) + "\n"
	}
	return out.GetAnswer(), ""
}

func (sc *scenario) bits(d *datadriven.TestData) string {
	q := &ebbv1.BitmapQuestion{Expr: sc.expression(d.Input), Select: &ebbv1.BitmapQuestion_Count{Count: true}}
	page, view := &ebbv1.BitmapPage{}, false
	within := func() *ebbv1.BitRange {
		if q.Range == nil {
			q.Range = &ebbv1.BitRange{Last: 1<<64 - 1}
		}
		return q.Range
	}
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "count":
		case "ids":
			q.Select = &ebbv1.BitmapQuestion_Ids{Ids: page}
		case "from":
			page.From = sc.id(arg.Vals[0])
		case "limit":
			page.Limit = uint32(sc.id(arg.Vals[0]))
		case "contains":
			list := &ebbv1.BitmapIds{}
			for _, v := range arg.Vals {
				list.Ids = append(list.Ids, sc.id(v))
			}
			q.Select = &ebbv1.BitmapQuestion_Contains{Contains: list}
		case "rank":
			q.Select = &ebbv1.BitmapQuestion_Rank{Rank: sc.id(arg.Vals[0])}
		case "position":
			q.Select = &ebbv1.BitmapQuestion_Position{Position: sc.id(arg.Vals[0])}
		case "ends":
			q.Select = &ebbv1.BitmapQuestion_Ends{Ends: true}
		case "first":
			within().First = sc.id(arg.Vals[0])
		case "last":
			within().Last = sc.id(arg.Vals[0])
		case "view":
			view = true
		default:
			sc.t.Fatalf("%s: option %q", d.Pos, arg.Key)
		}
	}
	a, refused := sc.answered(d, &ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: q}}, view)
	if a == nil {
		return refused
	}
	b := a.GetBitmap()
	var out strings.Builder
	switch q.GetSelect().(type) {
	case *ebbv1.BitmapQuestion_Contains:
		fmt.Fprintln(&out, b.GetContains())
	case *ebbv1.BitmapQuestion_Ids, *ebbv1.BitmapQuestion_Position:
		fmt.Fprintln(&out, b.GetIds())
	case *ebbv1.BitmapQuestion_Ends:
		fmt.Fprintln(&out, b.GetCount(), b.GetIds())
	default:
		fmt.Fprintln(&out, b.GetCount())
	}
	if b.GetMore() {
		fmt.Fprintf(&out, "more from %d\n", b.GetNext())
	}
	return out.String()
}

func (sc *scenario) groups(d *datadriven.TestData) string {
	q := &ebbv1.BitmapGroupsQuestion{Expr: sc.expression(d.Input)}
	for _, arg := range d.CmdArgs[1:] {
		if arg.Key == "top" {
			q.Top = uint32(sc.id(arg.Vals[0]))
		} else {
			q.Keys = append(q.Keys, []byte(arg.Key))
		}
	}
	a, refused := sc.answered(d, &ebbv1.Question{Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: q}}, false)
	if a == nil {
		return refused
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d in all\n", a.GetGroups().GetCount())
	for _, g := range a.GetGroups().GetGroups() {
		fmt.Fprintf(&out, "  %s %d\n", g.GetKey(), g.GetCount())
	}
	return out.String()
}

func (sc *scenario) cohort(d *datadriven.TestData) string {
	q := &ebbv1.BitmapCohortQuestion{Everyone: len(d.CmdArgs) > 1}
	for line := range strings.Lines(d.Input) {
		q.Periods = append(q.Periods, &ebbv1.BitmapCohortPeriod{Period: strings.TrimSpace(line), Expr: sc.expression(line)})
	}
	a, refused := sc.answered(d, &ebbv1.Question{Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: q}}, false)
	if a == nil {
		return refused
	}
	var out strings.Builder
	for _, r := range a.GetCohort().GetRows() {
		fmt.Fprintln(&out, r.GetPeriod(), r.GetCount(), r.GetAgain())
	}
	return out.String()
}
