package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
)

// mapKeys returns the keys of a map.
func mapKeys[V any](m map[string]V) func(yield func(string) bool) { return maps.Keys(m) }

// webPages returns attempts with requests that a browser sends for a page of another site, or for a page whose name
// leads to this machine.
func webPages() (out []Attempt) {
	const of = "web pages"
	cross := map[string]string{
		"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site",
		"Sec-Fetch-Mode": "no-cors",
	}
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(cross)
		maps.Copy(all, more)
		return all
	}
	form := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	plain := map[string]string{"Content-Type": "text/plain"}
	increment := `{"namespace":"clicks","increments":[{"key":"web","bin":"b"}]}`
	for _, c := range []struct {
		name string
		r    request
	}{
		{"an image writes by GET /incr", request{path: "/ns/clicks/incr?distribution=web&field=b", header: with(nil)}},
		{
			"an image of an old browser writes by GET /incr",
			request{path: "/incr?distribution=web&field=b", header: map[string]string{"Origin": "null"}},
		},
		{"a form writes", request{method: "POST", path: "/incr", body: "distribution=web&field=b", header: with(form)}},
		{"a form of plain text writes", request{method: "POST", path: "/v1/increment", body: increment, header: with(plain)}},
		{"plain text without an origin", request{method: "POST", path: "/v1/increment", body: increment, header: plain}},
		{"a body without a type", request{method: "POST", path: "/v1/increment", body: increment}},
		{"a page revokes a token", request{
			method: "POST", path: "/v1/tokens/revoke", body: `{"name":"nosuch"}`,
			header: with(plain),
		}},
		{"a page deletes", request{
			method: "POST", path: "/v1/delete", body: `{"namespace":"clicks","keys":["web"]}`,
			header: with(plain),
		}},
		{"a page deletes by DELETE", request{method: "DELETE", path: "/v1/ns/clicks/key/web", header: with(nil)}},
		{"a page drains the node", request{
			method: "POST", path: "/v1/cluster", body: `{"drain":"ebb-0","dry_run":true}`,
			header: with(plain),
		}},
		{"a name that was rebound reads", request{
			path: "/v1/ns/clicks/key/k", host: "evil.example:7080",
			header: map[string]string{"Sec-Fetch-Site": "same-origin"},
		}},
		{"a name that was rebound reads as before", request{path: "/dist?distribution=k", host: "evil.example"}},
		{"a name that was rebound writes", request{
			method: "POST", path: "/v1/increment", host: "evil.example",
			body: increment, header: map[string]string{"Content-Type": "application/json", "Origin": "http://evil.example"},
		}},
		{"a name that begins like localhost", request{path: "/v1/ns/clicks/key/k", host: "localhost.evil.example"}},
		{"a name that begins like an address", request{path: "/v1/ns/clicks/key/k", host: "127.0.0.1.evil.example"}},
		{"a rebound name reads metrics", request{listener: "admin", path: "/metrics", host: "evil.example"}},
		{"a rebound name reads profiles", request{listener: "admin", path: "/debug/pprof/heap", host: "evil.example"}},
		{"a page starts a profile", request{listener: "admin", path: "/debug/pprof/profile?seconds=1", header: with(nil)}},
	} {
		out = append(out, Attempt{Group: of, Name: c.name, Mode: Open, Run: func(ctx context.Context, a *Arena) error {
			r, err := a.http(ctx, c.r)
			if err != nil {
				return err
			}
			if r.status < 400 {
				return broke("%s %s: %d %.60s", c.r.method, c.r.path, r.status, r.body)
			}
			return nil
		}})
	}
	return append(out, Attempt{
		Group: of, Name: "no answer allows other origins, and good requests pass", Mode: Open,
		Run: func(ctx context.Context, a *Arena) error {
			for _, good := range []request{
				{path: "/v1/ns/clicks/key/k"},
				{path: "/incr?distribution=web&field=b"},
				{method: "POST", path: "/incr", body: "distribution=web&field=b", header: form},
				{
					method: "POST", path: "/v1/increment", body: increment,
					header: map[string]string{"Content-Type": "application/json"},
				},
				{path: "/v1/ns/clicks/key/k", header: map[string]string{
					"Origin":         "http://" + a.at["http"],
					"Sec-Fetch-Site": "same-origin",
				}},
				{listener: "admin", path: "/metrics"},
			} {
				if r, err := a.http(ctx, good); err != nil || r.status != http.StatusOK {
					return broke("%s is refused: %d %.80s (%v)", good.path, r.status, r.body, err)
				}
			}
			for _, method := range []string{"GET", "OPTIONS", "POST"} {
				for _, path := range []string{
					"/v1/increment", "/v1/ns/clicks/key/k", "/incr?distribution=web&field=b",
					"/openapi.json",
				} {
					r, err := a.http(ctx, request{
						method: method, path: path,
						header: with(map[string]string{"Access-Control-Request-Method": "POST"}),
					})
					if err != nil {
						return err
					}
					for name := range r.header {
						if strings.HasPrefix(name, "Access-Control-Allow") {
							return broke("%s %s answers %s: %s", method, path, name, r.header.Get(name))
						}
					}
				}
			}
			return nil
		},
	}, Attempt{Group: of, Name: "requests within requests", Mode: Open, Run: smuggle})
}

// smuggle sends requests that two servers would read differently.
func smuggle(ctx context.Context, a *Arena) error {
	hidden := "GET /incr?distribution=smuggled&field=b HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, head := range []string{
		"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Content-Length: 0\r\nContent-Length: 60\r\n\r\n",
		"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"Transfer-Encoding: xchunked\r\n\r\n", "Content-Length: +0\r\n\r\n", "Content-Length: -1\r\n\r\n",
		"Content-Length: 0x0\r\n\r\n", "Host: second\r\nContent-Length: 0\r\n\r\n",
		" Content-Length: 0\r\n\r\n", "Content-Length : 0\r\n\r\n", "X: a\x00b\r\n\r\n",
	} {
		c, err := a.raw(ctx, "http")
		if err != nil {
			return err
		}
		fmt.Fprintf(c, "POST /v1/increment HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s%s", a.at["http"],
			head, hidden)
		if w, ok := c.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite()
		}
		text := drainConn(c, mib)
		c.Close()
		if strings.Contains(string(text), "HTTP/1.1 200") {
			return broke("behind %.40q a second request is answered", head)
		}
	}
	return nil
}
