package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The demo promises that with the stream paused the counts halve in one half-life. A user types p, and waits until all
// that was sent is acknowledged. Then the user follows the table, and the HTTP address that the demo prints, for a
// half-life. Each answer says which time it is of, so the test does not depend on how long anything took.
func TestDemoHalvesWhilePaused(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a half-life")
	}
	const halfLife = 4 * time.Second
	p := watchDemo(t, demoFlags{dir: t.TempDir(), halfLife: halfLife, rate: 1000, seed: 1, hosts: []string{"ebb.example"}})
	p.askedAs(map[string]int{"": 200, "localhost": 200, "ebb.example:80": 200, "page.example": 403})
	p.until("enough clicks", func(string) bool { return p.d.acked(p.d.now) >= 3000 && len(p.table().Bins) == demoTop })
	p.press("p")
	p.until("the answer to the key", func(line string) bool { return strings.HasPrefix(line, "the stream is paused") })
	p.until("all acknowledgements", func(string) bool { return p.d.acked(p.d.now) == p.d.sent.Load() })

	// the stream may have been within a step when it was paused: what counts is
	// from the last click on
	var first numbers
	var seen []numbers
	p.until("a half-life without a click", func(string) bool {
		for _, a := range []numbers{p.fetch(0), p.table()} {
			if a.LastEventUS > first.LastEventUS {
				first, seen = a, nil
			}
			if a.LastEventUS == first.LastEventUS {
				seen = append(seen, a)
			}
		}
		return seen[len(seen)-1].AsOfUS-first.AsOfUS >= halfLife.Microseconds()
	})
	for _, a := range seen {
		faded(t, first, a, halfLife)
	}

	// and asked at exactly one half-life later, it is the half
	var now, later numbers
	p.until("an answer as of one half-life later", func(string) bool {
		now = p.fetch(0)
		later = p.fetch(now.AsOfUS + halfLife.Microseconds())
		return later.AsOfUS == now.AsOfUS+halfLife.Microseconds()
	})
	faded(t, now, later, halfLife)
	for i, bin := range now.Bins {
		if half := later.Bins[i].Count / bin.Count; math.Abs(half-0.5) > 0.005 {
			t.Errorf("%s: %g of %g is left after a half-life", bin.Bin, later.Bins[i].Count, bin.Count)
		}
	}

	p.press("q")
	for p.lines.Scan() {
	}
	if err := <-p.ended; err != nil {
		t.Errorf("the ledger: %v", err)
	}
}

// faded fails unless each count of before became 2^-(dt/halfLife) of it, within 1%.
func faded(t *testing.T, before, after numbers, halfLife time.Duration) {
	t.Helper()
	dt := time.Duration(after.AsOfUS-before.AsOfUS) * time.Microsecond
	want := math.Exp2(-dt.Seconds() / halfLife.Seconds())
	if len(before.Bins) != demoTop || len(after.Bins) != demoTop {
		t.Fatalf("%d bins, and %d %v later, not %d", len(before.Bins), len(after.Bins), dt, demoTop)
	}
	counts := map[string]float64{}
	for _, bin := range after.Bins {
		counts[bin.Bin] = bin.Count
	}
	for _, bin := range before.Bins {
		if left := counts[bin.Bin] / bin.Count; math.Abs(left-want) > 0.01*want {
			t.Errorf("%s: after %v of a half-life of %v %g of %g is left: a part of %g, not %g", bin.Bin, dt, halfLife, counts[bin.Bin], bin.Count, left, want)
		}
	}
}

// person sits at a demo that runs in this process, where there is no terminal.
type person struct {
	t     *testing.T
	d     *demo
	keys  io.Writer
	lines *bufio.Scanner
	ended chan error // how the ledger came out
	base  string     // what comes before the path in the printed address
}

var tried = regexp.MustCompile(`^try:  curl '(http://[^/]+)/nmostprobable\?distribution=` + demoKey + `&N=5'$`)

// watchDemo starts a demo at a free port and reads the first line.
func watchDemo(t *testing.T, df demoFlags) *person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	in, keys := io.Pipe()
	shown, out := io.Pipe()
	d, err := startDemo(ctx, &session{term: terminal{in: in, out: out, err: io.Discard}, output: "table"}, df)
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, d: d, keys: keys, lines: bufio.NewScanner(shown), ended: make(chan error, 1)}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		d.run(ctx)
		p.ended <- d.settle()
		out.Close()
	}()
	t.Cleanup(func() {
		cancel()
		keys.Close()
		shown.Close()
		<-gone
	})
	p.until("an address to try", func(line string) bool {
		if m := tried.FindStringSubmatch(line); m != nil {
			p.base = m[1]
		}
		return p.base != ""
	})
	return p
}

func (p *person) press(key string) { fmt.Fprintln(p.keys, key) }

// until reads the lines that the demo prints, at least one a second, until one satisfies.
func (p *person) until(what string, satisfied func(line string) bool) {
	p.t.Helper()
	for p.lines.Scan() {
		if satisfied(p.lines.Text()) {
			return
		}
	}
	p.t.Fatalf("waiting for %s: the demo has ended", what)
}

// table is what the live table shows: counts and times alone.
func (p *person) table() numbers {
	r := p.d.latest.Load()
	if r == nil {
		return numbers{}
	}
	shown := r.answer.GetDistribution()
	out := numbers{AsOfUS: shown.GetAsOfUs(), LastEventUS: shown.GetLastEventUs()}
	for _, bin := range shown.GetBins() {
		out.Bins = append(out.Bins, binNumbers{Bin: string(bin.GetBin()), Count: bin.GetCount()})
	}
	return out
}

// fetch asks at the printed address, as of a time in microseconds, now if 0.
func (p *person) fetch(asOf int64) numbers {
	p.t.Helper()
	var page struct{ Distribution numbers }
	url := fmt.Sprintf("%s/v1/ns/default/distribution/%s?top=%d", p.base, demoKey, demoTop)
	if asOf != 0 {
		url += fmt.Sprintf("&as_of=%d", asOf)
	}
	getJSON(p.t.Context(), p.t, url, &page)
	return page.Distribution
}

// askedAs asks at the printed address under other names: the header Host.
func (p *person) askedAs(names map[string]int) {
	p.t.Helper()
	for name, want := range names {
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.base+"/v1/namespaces", nil)
		if err != nil {
			p.t.Fatal(err)
		}
		req.Host = name
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			p.t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			p.t.Errorf("asked as %q the demo answers %d, want %d", name, resp.StatusCode, want)
		}
	}
}

// The demo whose reader goes away ends, and takes its data with it.
func TestDemoEndsWithItsReader(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real nodes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, binary(t), "demo", "--http", "-")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "try:  ebb --addr 127.0.0.1:") {
		t.Errorf("it begins with %q: %v", line, err)
	}
	out.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("%v is left: %v", left, err)
	}
}
