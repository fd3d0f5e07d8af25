package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package whose tests are tested.
type pkg struct {
	root, module string // of the module: its directory and its path
	dir          string // of the package, in the module
	commit       string
	exports      map[string]string // export data of the imported packages: file by import path
	fset         *token.FileSet
	files        []*file
	info         *types.Info
	mutants      []*mutant
}

// file is one of a package's Go files.
type file struct {
	name  string // in the module
	text  []byte
	tree  *ast.File
	edits []edit
}

// edit replaces some bytes by a text. Edits of mutants that are left out are not made.
type edit struct {
	at, cut int
	text    string
	mutant  *mutant
}

// mutant is a small change of the source. ID stays while neither the line's text nor the function's name changes.
type mutant struct {
	ID   string `json:"id"`
	File string `json:"file"`
	Line int    `json:"line"`
	Func string `json:"func"`
	Op   string `json:"op"`
	Text string `json:"text"`

	n       int // the number that selects the mutant in the test binary
	dropped bool
}

// load parses the files of a package, without its tests, and finds the types of their expressions.
func load(root, name string) (*pkg, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,DepOnly,Module", name)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	var it struct {
		Dir, ImportPath, Export string
		GoFiles                 []string
		DepOnly                 bool
		Module                  struct{ Path, Dir string }
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		it.GoFiles = nil
		if err := d.Decode(&it); err != nil {
			return nil, err
		}
		exports[it.ImportPath] = it.Export
	} // the package itself comes last
	p := &pkg{root: it.Module.Dir, module: it.Module.Path, exports: exports}
	if p.dir, err = filepath.Rel(p.root, it.Dir); err != nil {
		return nil, err
	}
	for _, name := range it.GoFiles {
		text, err := os.ReadFile(filepath.Join(it.Dir, name))
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, &file{name: filepath.Join(p.dir, name), text: text})
	}
	if head, err := exec.Command("git", "-C", p.root, "rev-parse", "--short", "HEAD").Output(); err == nil {
		p.commit = strings.TrimSpace(string(head))
	}
	return p, p.check(it.ImportPath)
}

// check parses the files, and finds the types of their expressions.
func (p *pkg) check(path string) (err error) {
	p.fset = token.NewFileSet()
	var trees []*ast.File
	for _, f := range p.files {
		name := filepath.Base(f.name)
		f.tree, err = parser.ParseFile(p.fset, name, f.text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		trees = append(trees, f.tree)
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{
		Importer: importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
			return os.Open(p.exports[path])
		}),
		Sizes: types.SizesFor("gc", build.Default.GOARCH),
	}
	_, err = conf.Check(path, p.fset, trees, p.info)
	return err
}

// find finds the mutants of a package, and the edits that make them.
func (p *pkg) find() {
	p.mutants = nil
	for _, f := range p.files {
		f.edits = nil
		if ast.IsGenerated(f.tree) {
			continue
		}
		f.edits = append(f.edits, edit{
			at: p.offset(f.tree.Name.End()), text: fmt.Sprintf("; import %s %q", helper, p.module+"/"+helperDir),
		})
		w := &finder{pkg: p, file: f, wraps: map[ast.Node][]wrap{}, conds: map[ast.Expr]bool{}, seen: map[string]int{}}
		for _, d := range f.tree.Decls {
			w.fn = "-"
			if fd, ok := d.(*ast.FuncDecl); ok {
				w.fn = fd.Name.Name
				if texts[w.fn] {
					continue
				}
			}
			ast.Walk(w, d)
		}
	}
}

// texts are functions and methods whose arguments are texts for people, and those that make such texts.
var texts = map[string]bool{
	"String": true, "Error": true, "GoString": true, "Format": true, "LogValue": true, "Errorf": true, "WithHint": true,
	"Sprintf": true, "Sprint": true, "Printf": true, "Println": true, "Fprintf": true, "Fprintln": true, "panic": true,
	"Debug": true, "Info": true, "Warn": true, "Log": true, "New": false,
}

// kept are calls that are not left out: a lock that is not released stops the tests, whatever they check.
var kept = map[string]bool{
	"panic": true, "Lock": true, "Unlock": true, "RLock": true, "RUnlock": true, "Done": true,
}

// boundary has for a comparison the function of the mutant that differs only where both sides are equal.
var boundary = map[token.Token]string{token.LSS: "Less", token.LEQ: "LessEq", token.GTR: "More", token.GEQ: "MoreEq"}

// arithmetic has for an operator the function that computes its result, or the mutant's result.
var arithmetic = map[token.Token]string{
	token.ADD: "Add", token.SUB: "Sub", token.MUL: "Mul", token.QUO: "Div", token.REM: "Rem",
	token.AND: "And", token.OR: "Or", token.SHL: "Shl", token.SHR: "Shr",
}

// wrap is the text before and after a node, which belongs to one mutant or to none.
type wrap struct {
	before, after string
	mutant        *mutant
}

// finder walks a file. The wraps of a node are known before the node is entered, outermost first.
type finder struct {
	pkg   *pkg
	file  *file
	fn    string
	wraps map[ast.Node][]wrap
	conds map[ast.Expr]bool
	seen  map[string]int
	open  []ast.Node
}

// Visit finds the mutants of a node, and writes its wraps before and after its children.
func (w *finder) Visit(n ast.Node) ast.Visitor {
	if n == nil { // the children of the last open node are done
		n := w.open[len(w.open)-1]
		w.open = w.open[:len(w.open)-1]
		w.close(n)
		return nil
	}
	skip := w.mutants(n)
	for _, r := range w.wraps[n] {
		w.edit(n.Pos(), 0, r.before, r.mutant)
	}
	if skip {
		w.close(n)
		return nil
	}
	w.open = append(w.open, n)
	return w
}

func (w *finder) close(n ast.Node) {
	for _, r := range slices.Backward(w.wraps[n]) {
		w.edit(n.End(), 0, r.after, r.mutant)
	}
}

func (w *finder) edit(at token.Pos, cut int, text string, m *mutant) {
	w.file.edits = append(w.file.edits, edit{at: w.pkg.offset(at), cut: cut, text: text, mutant: m})
}

func (p *pkg) offset(at token.Pos) int { return p.fset.Position(at).Offset }

// mutants finds the mutants of a node, and reports whether to leave out those of its children.
func (w *finder) mutants(n ast.Node) (skip bool) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		w.early(n)
	case *ast.BlockStmt:
		w.statements(n.List)
	case *ast.CaseClause:
		w.statements(n.Body)
	case *ast.CommClause:
		w.statements(n.Body)
	case *ast.IfStmt:
		w.condition(n.Cond)
	case *ast.ForStmt:
		w.condition(n.Cond)
	case *ast.SwitchStmt:
		for _, c := range n.Body.List {
			for _, e := range c.(*ast.CaseClause).List {
				if n.Tag == nil {
					w.condition(e)
				}
			}
		}
	case *ast.CallExpr:
		return w.call(n)
	case *ast.BinaryExpr:
		w.binary(n)
	case *ast.ParenExpr:
		return false
	}
	if e, ok := n.(ast.Expr); ok && w.conds[e] {
		w.negate(e)
	}
	return false
}

// condition marks an expression to be negated; parentheses around it are not marked.
func (w *finder) condition(e ast.Expr) {
	if e != nil {
		w.conds[ast.Unparen(e)] = true
	}
}

// call reports whether to leave out the arguments of a call: texts for people, and sizes that only say how much to
// allocate.
func (w *finder) call(n *ast.CallExpr) (skip bool) {
	switch fun := n.Fun.(type) {
	case *ast.SelectorExpr:
		skip = texts[fun.Sel.Name]
	case *ast.Ident:
		skip = texts[fun.Name] || fun.Name == "make"
	}
	if w.conds[n] {
		w.negate(n)
	}
	return skip
}

// negate makes a mutant with the opposite of a condition.
func (w *finder) negate(e ast.Expr) {
	if delete(w.conds, e); !w.is(e, types.IsBoolean) {
		return
	}
	m := w.mutant("negate", e.Pos())
	w.wraps[e] = slices.Insert(w.wraps[e], 0, wrap{"(" + on(m) + " != (", "))", m})
}

func (w *finder) binary(n *ast.BinaryExpr) {
	if w.pkg.info.Types[n].Value != nil {
		return
	}
	switch n.Op {
	case token.LAND, token.LOR:
		w.condition(n.X)
		w.condition(n.Y)
		if !w.is(n, types.IsBoolean) || !w.is(n.X, types.IsBoolean) || !w.is(n.Y, types.IsBoolean) {
			return
		}
		// a || b is !(!a && !b): one text computes both, and neither side twice
		m := w.mutant("and-or", n.OpPos)
		w.around(n, wrap{"((", ") != " + on(m) + ")", m})
		w.around(n.X, wrap{"((", ") != " + on(m) + ")", m})
		w.around(n.Y, wrap{"((", ") != " + on(m) + ")", m})
	case token.EQL, token.NEQ:
		w.conds[n] = true
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		if w.is(n.X, types.IsOrdered) && w.is(n.Y, types.IsOrdered) {
			w.function(n, "boundary", boundary[n.Op])
		}
	case token.SHL, token.SHR:
		if w.is(n.X, types.IsInteger) && w.is(n.Y, types.IsInteger) && w.pkg.info.Types[n.X].Value == nil {
			w.function(n, "arithmetic", arithmetic[n.Op])
		}
	case token.ADD, token.SUB, token.MUL, token.QUO:
		if w.is(n, types.IsInteger|types.IsFloat) {
			w.function(n, "arithmetic", arithmetic[n.Op])
		}
	case token.REM, token.AND, token.OR:
		if w.is(n, types.IsInteger) {
			w.function(n, "arithmetic", arithmetic[n.Op])
		}
	}
}

// function replaces an operator by a call that computes its result, or the mutant's result.
func (w *finder) function(n *ast.BinaryExpr, op, name string) {
	m := w.mutant(op, n.OpPos)
	w.around(n, wrap{fmt.Sprintf("%s.%s(%d, ", helper, name, m.n), ")", m})
	w.around(n.X, wrap{"", ",", m})
	w.edit(n.OpPos, len(n.Op.String()), "", m)
}

// around puts r around a node, inside of the wraps that the node has already.
func (w *finder) around(n ast.Node, r wrap) { w.wraps[n] = append(w.wraps[n], r) }

// statements makes a mutant for each statement, which leaves the statement out. It makes another one for += and -=.
func (w *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok && !w.kept(call) {
				w.leaveOut(s)
			}
		case *ast.IncDecStmt:
			w.leaveOut(s)
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || blank(s.Lhs) {
				continue
			}
			w.leaveOut(s)
			if s.Tok == token.ADD_ASSIGN || s.Tok == token.SUB_ASSIGN {
				w.negative(s)
			}
		}
	}
}

func blank(list []ast.Expr) bool {
	return !slices.ContainsFunc(list, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}

func (w *finder) kept(call *ast.CallExpr) bool {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return kept[fun.Name]
	case *ast.SelectorExpr:
		return kept[fun.Sel.Name] || texts[fun.Sel.Name]
	}
	return false
}

func (w *finder) leaveOut(s ast.Stmt) {
	m := w.mutant("leave-out", s.Pos())
	w.around(s, wrap{"if !" + on(m) + " { ", " }", m})
}

// negative makes a mutant that turns += into -=, and -= into +=.
func (w *finder) negative(s *ast.AssignStmt) {
	y := s.Rhs[0]
	if !w.is(y, types.IsInteger|types.IsFloat) {
		return
	}
	of := ""
	if w.pkg.info.Types[y].Value != nil { // which has no type by itself
		basic, ok := w.pkg.info.Types[y].Type.(*types.Basic)
		if !ok {
			return
		}
		of = "[" + basic.Name() + "]"
	}
	m := w.mutant("arithmetic", s.TokPos)
	w.around(y, wrap{fmt.Sprintf("%s.Neg%s(%d, ", helper, of, m.n), ")", m})
}

// early makes two mutants of a function that returns a bool: one returns true always, the other false.
func (w *finder) early(n *ast.FuncDecl) {
	res := n.Type.Results
	if n.Body == nil || res == nil || res.NumFields() != 1 || !w.is(res.List[0].Type, types.IsBoolean) {
		return
	}
	for _, value := range []string{"true", "false"} {
		m := w.mutant("return-"+value, n.Pos())
		w.edit(n.Body.Lbrace+1, 0, fmt.Sprintf(" if %s { return %s };", on(m), value), m)
	}
}

// is reports whether the type of an expression is one of kind; a boolean expression must have the type bool itself.
func (w *finder) is(e ast.Expr, kind types.BasicInfo) bool {
	t := w.pkg.info.Types[e].Type
	if t == nil {
		return false
	}
	if kind == types.IsBoolean {
		t = types.Default(t)
		return w.pkg.info.Types[e].Value == nil && types.Identical(t, types.Typ[types.Bool])
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&kind != 0
}

func on(m *mutant) string { return fmt.Sprintf("%s.On(%d)", helper, m.n) }

// mutant returns a new mutant at a place.
func (w *finder) mutant(op string, at token.Pos) *mutant {
	pos := w.pkg.fset.Position(at)
	from := bytes.LastIndexByte(w.file.text[:pos.Offset], '\n') + 1
	line, _, _ := bytes.Cut(w.file.text[from:], []byte("\n"))
	m := &mutant{
		File: w.file.name, Line: pos.Line, Func: w.fn, Op: op,
		Text: string(bytes.TrimSpace(line)), n: len(w.pkg.mutants) + 1,
	}
	column := bytes.IndexByte(line, m.Text[0])
	key := fmt.Sprintf("%s\n%s\n%s\n%s\n%d", m.File, m.Func, m.Op, m.Text, pos.Column-column)
	w.seen[key]++
	m.ID = fmt.Sprintf("%08x", hash(fmt.Sprintf("%s\n%d", key, w.seen[key])))
	w.pkg.mutants = append(w.pkg.mutants, m)
	return m
}

func hash(s string) uint32 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s)
	sum := h.Sum64()
	return uint32(sum ^ sum>>32)
}

// mutated returns a file with all its mutants that are not left out.
func (f *file) mutated() []byte {
	edits := slices.Clone(f.edits)
	slices.SortStableFunc(edits, func(a, b edit) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return a.cut - b.cut
	})
	var out bytes.Buffer
	last := 0
	for _, e := range edits {
		if e.mutant != nil && e.mutant.dropped {
			continue
		}
		out.Write(f.text[last:e.at])
		out.WriteString(e.text)
		last = e.at + e.cut
	}
	out.Write(f.text[last:])
	if !bytes.Contains(out.Bytes(), []byte(helper+".")) {
		return f.text // what is imported must be used
	}
	return out.Bytes()
}
