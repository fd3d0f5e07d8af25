package rpc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ebbdb/ebb/proto"
)

// NewAdmin returns the handler for operators: /metrics, /debug/pprof/*, /livez (the process answers, whatever the state
// of the cluster), /startupz (it has read its data from disk), /readyz (the node serves), /version. It belongs on a
// listener that the public does not reach. Profiles show the content of memory: where callers need a token, profiles
// are for operators.
func NewAdmin(s Services) http.Handler {
	mux := http.NewServeMux()
	g := s.Gatherer
	if g == nil {
		g = prometheus.DefaultGatherer
	}
	mux.Handle("/metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", s.operated(unhurried(pprof.Index)))
	mux.HandleFunc("/debug/pprof/cmdline", s.operated(pprof.Cmdline))
	mux.HandleFunc("/debug/pprof/profile", s.operated(unhurried(pprof.Profile)))
	mux.HandleFunc("/debug/pprof/symbol", s.operated(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", s.operated(unhurried(pprof.Trace)))
	mux.HandleFunc("/livez", probe("alive", nil))
	mux.HandleFunc("/startupz", probe("started", s.Started))
	mux.HandleFunc("/readyz", probe("ready", s.Ready))
	mux.HandleFunc("/version", version(&s))
	return s.heldFromPages(mux)
}

// probed are the paths of probes of node health, which may use any host name. They report whether a node is well, and
// change nothing.
var probed = map[string]bool{"/livez": true, "/startupz": true, "/readyz": true}

// heldFromPages refuses requests of web pages to the admin listener: profiles cost time, and show what is in memory.
func (s *Services) heldFromPages(mux *http.ServeMux) http.Handler {
	guard := newPages("admin", s)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isolate(w.Header())
		if !probed[r.URL.Path] {
			does := works
			if r.URL.Path == "/metrics" || r.URL.Path == "/version" {
				does = reads
			}
			_, pattern := mux.Handler(r)
			if refused := guard.check(r, pattern, does); refused != nil {
				writeErrorStatus(w, refused.status, refused.err)
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// operated requires the token of an operator, where callers need tokens. As long as a node does not know whether they
// do, it answers only this machine.
func (s *Services) operated(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, err := s.Access.identifyHTTP(r, r.Pattern)
		if err == nil && s.Access.InForce() {
			c := callerOf(ctx)
			if err = errNoToken(); c.token != nil {
				err = c.needs(operator, "")
			}
			if err != nil {
				s.Access.deny(ctx, httpAction(r, r.Pattern), err)
			}
		}
		if err == nil && !s.Access.InForce() && !s.Access.known() && !fromHere(r) {
			err = proto.ErrStarting.Errorf("node %s does not know yet whether callers need a token", s.Node).WithHint("until it is ready, ask from its own machine")
		}
		if err != nil {
			writeError(w, err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, adminBodyMax)
		h(w, r)
	}
}

// adminBodyMax is how many bytes of a request the profiles read: the addresses whose symbols are asked for.
const adminBodyMax = 64 << 10

// fromHere reports whether a request comes from this machine.
func fromHere(r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// unhurried removes the server's read timeout for profiles and traces, which take as long as the caller asks. That
// timeout ends a request even when there is nothing to read. pprof moves the write timeout by itself.
func unhurried(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // where there is none, there is nothing to lift
		h(w, r)
	}
}

// probe answers 200 with word, or 503 with the error of whyNot. A nil whyNot returns no error.
func probe(word string, whyNot func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if whyNot != nil {
			if err := whyNot(); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprintf(w, "not %s: %v\n", word, err)
				return
			}
		}
		fmt.Fprintln(w, word)
	}
}

func version(s *Services) http.HandlerFunc {
	v := struct {
		Version  string `json:"version"`
		Revision string `json:"revision,omitempty"`
		Go       string `json:"go"`
		Platform string `json:"platform"`
		Node     string `json:"node"`
	}{s.Version, revision(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, s.Node}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the caller went away
	}
}

// revision is the commit that the binary was built from, if the build knew it.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
