package browsertest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A page in a browser on the node's own machine reads nothing of a default node and writes nothing to it: not from
// another origin, not from another port of localhost, and not under a name that resolves to the page's server first and
// to the node later. The same page under a name that the node was told of (--http-host) reads and writes.
func TestPages(t *testing.T) {
	r, server := newResolver(t), attacker(t)
	browser := browse(t, r)
	port := server[strings.LastIndexByte(server, ':'):]

	t.Run("another origin", func(t *testing.T) {
		n := serve(t)
		p := open(t, browser, "http://page.test"+port+"/")
		nothing(t, n, p, "http://127.0.0.1"+n.port(), "http://localhost"+n.port(), "http://0.0.0.0"+n.port())
		p.leave(t, "http://127.0.0.1"+n.port()+"/incr?distribution=link&field=x")
		if written := n.written(t); len(written) > 0 {
			t.Errorf("a link of the page has written: %v", slices.Sorted(maps.Keys(written)))
		}
		held(t, n, map[string]int{"http cross_origin": 60, "admin cross_origin": 3})
	})
	t.Run("another port", func(t *testing.T) {
		n := serve(t)
		nothing(t, n, open(t, browser, "http://localhost"+port+"/"), "http://localhost"+n.port())
		held(t, n, map[string]int{"http cross_origin": 30, "admin cross_origin": 3})
	})
	t.Run("a name that rebinds", func(t *testing.T) {
		n := serve(t)
		nothing(t, n, rebound(t, browser, r, server, n.http), "http://rebind.test"+n.port())
		held(t, n, map[string]int{"http host": 30})
	})
	t.Run("a name that rebinds to the admin listener", func(t *testing.T) {
		n := serve(t)
		base := "http://rebind.test" + n.admin[strings.LastIndexByte(n.admin, ':'):]
		r.point(server)
		p := open(t, browser, base+"/")
		r.point(n.admin)
		if read := p.try(t, "others", base, ""); !refusedAll(read) {
			t.Errorf("the page reads %v", clipped(read))
		}
		held(t, n, map[string]int{"admin host": 3})
	})
	t.Run("a name that is allowed", func(t *testing.T) {
		n := serve(t, "--http-host", "rebind.test")
		p := rebound(t, browser, r, server, n.http)
		read := p.try(t, "attempts", "http://rebind.test"+n.port(), "")
		for _, name := range []string{"read-key", "read-dist", "read-query", "read-watch"} {
			if !strings.Contains(read[name], "secret") {
				t.Errorf("%s reads %q", name, read[name])
			}
		}
		if !strings.Contains(read["read-front"], "a node of ebb") || !strings.Contains(read["read-keys"], "kept") || !strings.Contains(read["read-status"], "ebb-0") {
			t.Errorf("the page reads %v", clipped(read))
		}
		written := n.written(t)
		for _, name := range []string{
			"get", "get-no-cors", "get-header", "head-no-cors", "xhr", "img", "script", "style", "iframe", "post-json", "post-args", "post-query",
			"beacon-json", "beacon-args", "form-args", "form-multipart", "namespace", "delete",
		} {
			if !written[name] {
				t.Errorf("%s writes nothing", name)
			}
		}
		for _, name := range []string{"post-text", "post-blob", "post-buffer", "beacon-text", "form-text", "form-namespace", "post-null-origin"} {
			if written[name] {
				t.Errorf("%s writes: JSON under another type, or without an origin", name)
			}
		}
	})
}

// rebound opens a page under a name that resolves to its server, and then has the name resolve to a node.
func rebound(t *testing.T, browser context.Context, r *resolver, server, node string) *tab {
	t.Helper()
	r.point(server)
	p := open(t, browser, "http://rebind.test"+node[strings.LastIndexByte(node, ':'):]+"/")
	r.point(node)
	return p
}

// nothing tries it all, and finds nothing read and nothing written.
func nothing(t *testing.T, n *node, p *tab, bases ...string) {
	t.Helper()
	for i, base := range bases {
		if read := p.try(t, "attempts", base, strings.Repeat("z", i)); !refusedAll(read) {
			t.Errorf("the page reads at %s: %v", base, clipped(read))
		}
	}
	for _, at := range []string{n.admin, n.grpc, n.gossip} {
		if read := p.try(t, "others", "http://"+at, "others-"); len(read) > 0 {
			t.Errorf("the page reads at %s: %v", at, clipped(read))
		}
	}
	if written := n.written(t); len(written) > 0 {
		t.Errorf("the page has written: %v", slices.Sorted(maps.Keys(written)))
	}
	if kept := n.get(t, "/dist?distribution=kept"); !strings.Contains(kept, `"bin":"secret"`) {
		t.Errorf("what was there is now %s", kept)
	}
}

// refusedAll reports whether all that a page has read are refusals, which a page of the node's own name may see.
func refusedAll(read map[string]string) bool {
	for _, text := range read {
		if !strings.Contains(text, "header Host is ") && !strings.Contains(text, "FORBIDDEN") {
			return false
		}
	}
	return true
}

// held makes sure that the page's requests came as far as the node.
func held(t *testing.T, n *node, least map[string]int) {
	t.Helper()
	refused := n.refused(t)
	for what, want := range least {
		if refused[what] < want {
			t.Errorf("%d requests were refused for %s, want %d at least: %v", refused[what], what, want, refused)
		}
	}
}

// clipped is what was read, of each the beginning.
func clipped(read map[string]string) map[string]string {
	out := map[string]string{}
	for name, text := range read {
		out[name] = text[:min(len(text), 60)]
	}
	return out
}
