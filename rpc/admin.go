package rpc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewAdmin returns the handler for operators: /metrics, /debug/pprof/*,
// /healthz (the process answers), /readyz (the node serves), /version. It
// belongs on a listener that the public does not reach.
func NewAdmin(s Services) http.Handler {
	mux := http.NewServeMux()
	g := s.Gatherer
	if g == nil {
		g = prometheus.DefaultGatherer
	}
	mux.Handle("/metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", unhurried(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", unhurried(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", unhurried(pprof.Trace))
	mux.HandleFunc("/healthz", healthz)
	mux.HandleFunc("/readyz", readyz(&s))
	mux.HandleFunc("/version", version(&s))
	return mux
}

// unhurried lifts the server's limit of reading, with which the request ends even when
// there is nothing to read, from profiles and traces: they take as long as the caller
// asks. The limit of writing pprof moves by itself.
func unhurried(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // where there is none, there is nothing to lift
		h(w, r)
	}
}

func healthz(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, "ok")
}

func readyz(s *Services) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "not ready: %v\n", err)
			return
		}
		fmt.Fprintln(w, "ready")
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
