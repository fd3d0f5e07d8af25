package rpc

import (
	"context"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbdb/ebb/proto"
)

// A web page in the browser of a user can send requests to every address that the browser reaches, loopback included,
// with the user's certificate. Three checks stand between a page and a node:
//
//	Host            the page's own name, made to resolve to the node (DNS rebinding): the browser then takes the node's
//	                answers for the page's own. Only the names in Hosts are served.
//	Sec-Fetch-Site  the browser's word that a page of another origin asks. Browsers send it over https and to loopback,
//	Origin          and this with every request that is no plain GET. Other programs send neither, and pass.
//	Content-Type    application/json, which a page can send to another origin only after a preflight; none is answered.
//
// No answer has an Access-Control-Allow header, so a page of another origin reads nothing.
//
// http.CrossOriginProtection treats GET, HEAD and OPTIONS as safe. Here some of them write, and a read costs work and
// can be timed. So each request is checked as a POST. The only exception is a link that a user follows to something
// readable.
type pages struct {
	hosts   *Hosts
	access  *Access
	door    string
	refused *prometheus.CounterVec
}

// The reasons for which requests are refused, as the metric has them.
const (
	reasonHost        = "host"
	reasonCrossOrigin = "cross_origin"
	reasonContentType = "content_type"
)

// newPages returns the checks of one interface of s: "http" or "admin".
func newPages(door string, s *Services) *pages {
	p := &pages{hosts: s.Hosts, access: s.Access, door: door}
	p.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ebb_rpc_pages_refused_total",
		Help: "Requests over HTTP that were refused because a web page could have sent them, by door and reason: host, cross_origin, content_type.",
	}, []string{"door", "reason"})
	if s.Registerer != nil {
		p.refused = registered(s.Registerer, p.refused)
	}
	return p
}

// pageError is a refusal with its HTTP status.
type pageError struct {
	status int
	err    *proto.Error
}

// effect is what a request may do, as far as its method and path show.
type effect int

const (
	reads  effect = iota // and ends; a user may follow a link to it
	works                // writes, holds a stream open, or profiles
	counts               // writes whatever the method is, also a plain GET
)

// check refuses a request whose Host is not one of this node, or that a page of another origin sends. The pattern names
// the request in the audit log.
func (p *pages) check(r *http.Request, pattern string, e effect) *pageError {
	if !p.hosts.allow(r) {
		return p.refuse(r, pattern, reasonHost, http.StatusForbidden,
			proto.ErrPermissionDenied.Errorf("header Host is %s: this node is asked as %s", quote(r.Host), p.hosts).
				WithHint("use one of these, or start the node with `ebb serve --http-host NAME` for another"))
	}
	header, value := crossOrigin(r, e)
	if header == "" {
		return nil
	}
	err := proto.ErrPermissionDenied.Errorf("header %s is %s: a web page of another origin may not ask this", header, quote(value))
	switch header {
	case "Origin":
		err = err.WithHint("allowed is the origin of Host, " + quote(r.Host) +
			": serve page and node under one name by a proxy that passes Host on, and start the node with `ebb serve --http-host NAME`")
	case "User-Agent":
		err = proto.ErrPermissionDenied.Errorf("header User-Agent is a browser's, and nothing says which page asks: that may not write by %s", clip(r.Method)).
			WithHint("use POST, or a program that is no browser; over https and on loopback browsers say which page asks")
	default:
		err = err.WithHint("allowed are same-origin and none: serve page and node under one name by a proxy, and start the node with " +
			"`ebb serve --http-host NAME`; programs that are no browsers leave the header out")
	}
	return p.refuse(r, pattern, reasonCrossOrigin, http.StatusForbidden, err)
}

// checkJSON refuses a body whose Content-Type is not JSON. A page can send a body without any type, of a Blob, so a
// missing type is refused, too.
func (p *pages) checkJSON(r *http.Request, pattern string) *pageError {
	given := r.Header.Get("Content-Type")
	t, _, _ := mime.ParseMediaType(given) // "" is refused below
	if t == "application/json" || strings.HasPrefix(t, "application/") && strings.HasSuffix(t, "+json") {
		return nil
	}
	if given = quote(given); given == `""` {
		given = "missing"
	}
	return p.refuse(r, pattern, reasonContentType, http.StatusUnsupportedMediaType,
		proto.ErrBadRequest.Errorf("header Content-Type is %s: a body here is application/json", given).
			WithHint("with curl: --json BODY, or -H 'Content-Type: application/json'"))
}

func (p *pages) refuse(r *http.Request, pattern, reason string, status int, err *proto.Error) *pageError {
	p.refused.WithLabelValues(p.door, reason).Inc()
	if p.access != nil {
		ctx := context.WithValue(r.Context(), callerKey{}, &caller{from: r.RemoteAddr, path: pathOf(r)})
		p.access.deny(ctx, httpAction(r, pattern), err)
	}
	return &pageError{status, err}
}

// crossOriginProtection allows only the node's own origin.
var crossOriginProtection = http.NewCrossOriginProtection()

// crossOrigin returns the header, and its value, that identifies a request of a page of another origin; "" if it is
// none.
func crossOrigin(r *http.Request, e effect) (header, value string) {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	asPost := http.Request{Method: http.MethodPost, Host: r.Host, Header: r.Header}
	if crossOriginProtection.Check(&asPost) != nil {
		switch {
		case safe && e == reads && followed(r):
			return "", ""
		case site != "":
			return "Sec-Fetch-Site", site
		}
		return "Origin", origin
	}
	// In the clear and beyond loopback a browser sends neither header with the GET of an image. It names a page by the
	// Referer then, which a page can leave out, but not forge.
	agent := r.Header.Get("User-Agent")
	if e == counts && safe && site == "" && origin == "" && strings.HasPrefix(agent, "Mozilla/") && !ownReferer(r) {
		return "User-Agent", agent
	}
	return "", ""
}

// ownReferer reports whether the Referer is a page of the origin that is asked.
func ownReferer(r *http.Request) bool {
	page, err := url.Parse(r.Header.Get("Referer"))
	return err == nil && page.Host != "" && page.Host == r.Host
}

// followed reports whether a user follows a link. The answer then becomes a window of its own, which the page cannot
// read.
func followed(r *http.Request) bool {
	return r.Method != http.MethodOptions && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// The headers of all answers. Slices are shared: nothing appends to them.
var (
	noSniff    = []string{"nosniff"}
	sameOrigin = []string{"same-origin"}
	// noFrames lets an answer load nothing, and be shown in no frame. The list of profiles has a style sheet in it.
	noFrames = []string{"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
)

// isolate sets headers by which browsers give pages of other origins nothing of an answer, and trust its Content-Type.
func isolate(h http.Header) {
	h["X-Content-Type-Options"] = noSniff
	h["Cross-Origin-Resource-Policy"] = sameOrigin
	h["Content-Security-Policy"] = noFrames
}

// Hosts are the names that requests to an HTTP listener may have in the header Host, without its port. Nil allows all.
//
// The names of loopback are always among them, and so is the address at which a connection arrived. A page cannot have
// one of these as its own name: its browser would have had to load it from there.
type Hosts struct {
	names []string // in lower case, addresses without brackets
}

// NewHosts returns a list of names and addresses: "ebb.example.org", "10.0.0.7". A port behind one does not matter.
func NewHosts(names ...string) *Hosts {
	h := &Hosts{names: []string{"localhost", "127.0.0.1", "::1"}}
	for _, name := range names {
		if host := hostOf(name); !slices.Contains(h.names, host) {
			h.names = append(h.names, host)
		}
	}
	return h
}

// CheckHost refuses, with code BAD_REQUEST, what no header Host can name.
func CheckHost(name string) error {
	good := isHost(hostOf(name))
	if _, port, err := net.SplitHostPort(name); err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
		good = good && err == nil
	}
	if good {
		return nil
	}
	return proto.ErrBadRequest.Errorf("http-host %s: it must be one name or address", quote(name)).
		WithHint("like ebb.example.org or 10.0.0.7: no scheme, no path, no *; give --http-host once for each")
}

// String is the list as errors show it.
func (h *Hosts) String() string {
	const most = 10
	text := strings.Join(h.names[:min(most, len(h.names))], ", ")
	if len(h.names) > most {
		text += ", ..."
	}
	return text
}

// allow reports whether a request names this listener. A request without a name is of HTTP/1.0, which no browser uses.
func (h *Hosts) allow(r *http.Request) bool {
	if h == nil || r.Host == "" {
		return true
	}
	host := hostOf(r.Host)
	return slices.Contains(h.names, host) || arrivedAt(r, host)
}

// arrivedAt reports whether host is the address of this machine to which the caller has connected.
func arrivedAt(r *http.Request, host string) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	asked, errAsked := netip.ParseAddr(host)
	return err == nil && errAsked == nil && plain(at.Addr()) == plain(asked)
}

// plain returns an address in the form that is the same for all its notations.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// hostOf is the name in "name:port", "name" or "[::1]:port", in lower case and without the dot that ends a full name.
func hostOf(s string) string {
	host := s
	if h, _, err := net.SplitHostPort(s); err == nil {
		host = h
	} else if inner, ok := strings.CutPrefix(s, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// hostLenMax is how long a name of DNS may be.
const hostLenMax = 253

// isHost reports whether s has the form of a DNS name or an IP address.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return len(s) <= hostLenMax && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" && !slices.Contains(strings.Split(s, "."), "")
}
