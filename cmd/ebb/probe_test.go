package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/chaos/proc"
)

// A probe that gets no answer ends as everything does that reaches no node, and one whose answer is no with 1.
func TestProbesWithoutAnAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	nobody, err := proc.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	no := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not ready: it is young", http.StatusServiceUnavailable)
	}))
	defer no.Close()
	for _, c := range []struct {
		addr string
		more []string
		code int
		want []string
	}{
		{nobody[0], nil, exitUnreachable, []string{"cannot reach the admin address " + nobody[0] + ": ", "(EBB-1001)", "\ntry:  --admin"}},
		{silent.Addr().String(), []string{"--timeout", "50ms"}, exitUnreachable, []string{"no answer from the admin address " + silent.Addr().String(), "(EBB-1007)", "\ntry:  "}},
		{no.Listener.Addr().String(), nil, exitFailed, []string{"error: not ready: it is young\n"}},
		{no.Listener.Addr().String(), []string{"--tls-admin"}, exitUnreachable, []string{"cannot reach the admin address ", "\ntry:  the node does not speak TLS there"}},
	} {
		code, said := refused(t, append([]string{"probe", "ready", "--admin", c.addr}, c.more...)...)
		if code != c.code {
			t.Errorf("%v: exit %d, want %d", c, code, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(said, want) {
				t.Errorf("%v: %s", c, said)
			}
		}
	}
}
