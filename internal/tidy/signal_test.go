package tidy

import (
	"go/ast"
	"testing"
)

// SIGPIPE of a socket looks like that of standard output to who handles it. So nothing handles it: the signal may be
// ignored, and a write that finds no reader fails with EPIPE. A handler of all signals, which names none, has it too.
func TestSIGPIPEHasNoHandler(t *testing.T) {
	handlers := 0
	for _, s := range sources(t) {
		allowed := map[ast.Node]bool{} // SIGPIPE as it may be named
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if !isSelector(n.Fun, "signal", "Notify", "NotifyContext") {
					break
				}
				handlers++
				if len(n.Args) < 2 {
					t.Errorf("%s: a handler of signals that names none has SIGPIPE too", s.path)
				}
			case *ast.SelectorExpr:
				if n.Sel.Name == "SIGPIPE" && !allowed[n] {
					t.Errorf("%s: SIGPIPE may only be ignored: sockets have it too", s.path)
				}
			}
			if call, ok := n.(*ast.CallExpr); ok && isSelector(call.Fun, "signal", "Ignore", "Ignored", "Reset") {
				for _, arg := range call.Args {
					allowed[arg] = true
				}
			}
			return true
		})
	}
	if handlers < 3 {
		t.Errorf("%d handlers of signals were found", handlers)
	}
}

// isSelector reports whether an expression is one of some names of a package.
func isSelector(x ast.Expr, of string, names ...string) bool {
	sel, ok := x.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok || id.Name != of {
		return false
	}
	for _, name := range names {
		if sel.Sel.Name == name {
			return true
		}
	}
	return false
}
