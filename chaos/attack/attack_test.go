package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// planted is a target with a weakness.
type planted struct {
	grew                   int64
	ended, silent, unborn  error
	probes, marks, refresh int
}

func (p *planted) Refresh(context.Context) error { p.refresh++; return p.unborn }
func (p *planted) MarkMemory() error             { p.marks++; return nil }
func (p *planted) Growth() (int64, error)        { return p.grew, p.ended }
func (p *planted) Probe(context.Context) error   { p.probes++; return p.silent }

// An attempt does not hold if it achieved something, could not be made, took too long or too much memory, or left the
// node ended or silent.
func TestJudgeFindsEachWeakness(t *testing.T) {
	nothing := func(context.Context) error { return nil }
	for _, c := range []struct {
		name   string
		target planted
		run    func(context.Context) error
		want   string // in the detail; empty if it holds
	}{
		{"sound", planted{grew: 10 * mib}, nothing, ""},
		{"achieved", planted{}, func(context.Context) error {
			return fmt.Errorf("wrapped: %w",
				broke("a key of another was read"))
		}, "a key of another was read"},
		{
			"not made",
			planted{},
			func(context.Context) error { return io.ErrUnexpectedEOF },
			"cannot be tried: unexpected EOF",
		},
		{
			"slow",
			planted{},
			func(context.Context) error { time.Sleep(withinDefault + time.Second); return nil },
			"took 21s of at most 20s",
		},
		{"without end", planted{}, func(ctx context.Context) error { <-ctx.Done(); return nil }, "took 25s of at most 20s"},
		{"large", planted{grew: growsDefault + 1}, nothing, "memory grew by 160 MiB of at most 160"},
		{"ended", planted{ended: errors.New("ebb-0 has ended")}, nothing, "ebb-0 has ended"},
		{"silent", planted{silent: errors.New("grpc: no answer")}, nothing, "no answer to probes within 2s: grpc: no answer"},
		{"unborn", planted{unborn: errors.New("not ready")}, nothing, "cannot restart the nodes: not ready"},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := judge(t.Context(), &c.target, &Attempt{Group: "test", Name: c.name, Mode: Open, Fresh: true}, c.run)
			if v.Held != (c.want == "") || !strings.Contains(v.Detail, c.want) {
				t.Errorf("%s: held %v, %q; want %q", c.name, v.Held, v.Detail, c.want)
			}
			if c.target.refresh != 1 || c.target.unborn == nil && c.target.probes != 1 {
				t.Errorf("%s: %d restarts, %d probes", c.name, c.target.refresh, c.target.probes)
			}
			var out bytes.Buffer
			if held := report(&out, []Verdict{v}, time.Second); held != v.Held || !strings.Contains(out.String(), word(v.Held)) {
				t.Errorf("%s: the report says %v:\n%s", c.name, held, out.String())
			}
		})
	}
}

// weakServer answers everything to everybody, with the headers and names that it was sent.
func weakServer(t *testing.T) (address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-Split", "yes")
		fmt.Fprintf(w, `{"namespace":"%s","series":%q}`, foreign, r.URL.Path)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// The attempts over HTTP find a server that refuses nothing, every one of them: none is blind.
func TestAttemptsFindAWeakServer(t *testing.T) {
	address := weakServer(t)
	a := &Arena{
		mode: Open, at: map[string]string{"grpc": address, "http": address, "gossip": address, "admin": address},
		tokens: map[string]string{"operator": "o", "reader": "r", "writer": "w"},
	}
	// these only want an answer that is no failure of the server, and get one here
	blind := map[string]bool{"bits at the end of all ids": true, "a time of 2^63-1": true}
	tried := 0
	for _, group := range [][]Attempt{webPages(), lengthsOverHTTP(), documentsOverHTTP(), {
		{Name: "paths without a token", Run: pathsWithout},
		{Name: "profiles without a token", Run: profilesWithout},
		{Name: "paths of others", Run: foreignPaths},
		{Name: "lists of others", Run: foreignLists},
		{Name: "answers split", Run: splitAnswers},
		{Name: "two tokens", Run: twoTokens},
		{Name: "a token swapped", Run: swappedHTTP},
	}} {
		for i := range group {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := group[i].Run(ctx, a)
			cancel()
			tried++
			if achieved := (breach{}); !errors.As(err, &achieved) && !blind[group[i].Name] {
				t.Errorf("%s finds nothing: %v", group[i].Name, err)
			}
		}
	}
	if tried < 35 {
		t.Errorf("%d attempts were tried", tried)
	}
}

// silentServer takes connections and says nothing, without end.
func silentServer(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	return l.Addr().String()
}

// A server that answers no probe while connections are held is found.
func TestHeldConnectionsFindASilentServer(t *testing.T) {
	address := silentServer(t)
	a := &Arena{mode: Open, at: map[string]string{"grpc": address, "http": address, "gossip": address, "admin": address}}
	if err, achieved := hold(t.Context(), a, "http", "GET", 3), (breach{}); !errors.As(err, &achieved) {
		t.Errorf("found %v", err)
	}
}

// The program finds what is planted in text.
func TestControlCharactersAreSeen(t *testing.T) {
	for text, want := range map[string]int{
		"plain\r\n\tgrün": -1, "a\x1b[2J": 1, "a\u202eb": 1, "\u009b": 0, "ab\x7f": 2,
		`\x1b[2J`: -1,
	} {
		if got := controlIn(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// There are at least 51 attempts, each of a group and a mode that there are, under a name of its own, and some of them
// short.
func TestAttemptsAreNamed(t *testing.T) {
	all := attempts()
	seen := map[string]bool{}
	groups := map[string]int{}
	for i := range all {
		a := &all[i]
		if seen[a.title()] || a.Name == "" || a.Group == "" || a.Run == nil || !slices.Contains(Modes, a.Mode) {
			t.Errorf("%s is there twice, or not whole", a.title())
		}
		seen[a.title()] = true
		groups[a.Group]++
	}
	if len(all) < 51 || len(groups) < 15 {
		t.Errorf("%d attempts in %d groups: %v", len(all), len(groups), slices.Sorted(maps.Keys(groups)))
	}
	short, err := chosen(all, "", true)
	if err != nil || len(short) >= len(all) {
		t.Errorf("%d of %d are short (%v)", len(short), len(all), err)
	}
	if one, err := chosen(all, regexp.QuoteMeta(all[0].title()), false); err != nil || len(one) != 1 {
		t.Errorf("%d are called %s (%v)", len(one), all[0].title(), err)
	}
	if _, err := chosen(all, "no such attempt", false); err == nil {
		t.Error("an attempt that there is not was chosen")
	}
}
