package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// click is one row of the real stream: who (country) clicked what (link), when.
type click struct {
	t             int64 // seconds
	link, country string
}

const clicksFile = "../../../shared/data/usagov-clicks/clicks.tsv.gz"

// realRows reads a real stream, compressed and in columns, or skips where it is not there. The first column is a time
// in seconds.
func realRows(t *testing.T, path string, row func(at int64, col []string)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Skipf("the stream is not at %s: %v", path, err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Scan() // the header
	for lines.Scan() {
		col := strings.Split(lines.Text(), "\t")
		at, err := strconv.ParseInt(col[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		row(at, col)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func realClicks(t *testing.T) []click {
	t.Helper()
	var out []click
	realRows(t, clicksFile, func(at int64, col []string) {
		country := col[1]
		if country == "" {
			country = "-"
		}
		out = append(out, click{at, col[5], country})
	})
	return out
}

// windows cuts the stream where it is silent for more than half an hour.
func windows(rows []click) [][]click {
	var out [][]click
	start := 0
	for i := 1; i <= len(rows); i++ {
		if i == len(rows) || rows[i].t-rows[i-1].t > 1800 {
			out = append(out, rows[start:i])
			start = i
		}
	}
	return out
}

// writeTSV writes rows as a file for `ebb import`.
func writeTSV(t *testing.T, path string, rows []click) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("t\tg\tcountry\n")
	for _, r := range rows {
		country := r.country
		if country == "-" {
			country = "" // the importer counts an empty bin as "-"
		}
		fmt.Fprintf(&b, "%d\t%s\t%s\n", r.t, r.link, country)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// oracle is the exact distribution of every link: counts, and weights decayed
// to the last event with a half-life of an hour.
type oracle struct {
	at     int64
	counts map[[2]string]float64
	weight map[[2]string]float64
	bins   map[string][]string
}

func newOracle() *oracle {
	return &oracle{counts: map[[2]string]float64{}, weight: map[[2]string]float64{}, bins: map[string][]string{}}
}

// add replays rows; weights are kept relative to the time of the last row.
func (o *oracle) add(rows []click) {
	last := rows[len(rows)-1].t
	factor := math.Exp2(-float64(last-o.at) / 3600)
	for k := range o.weight {
		o.weight[k] *= factor
	}
	for _, r := range rows {
		k := [2]string{r.link, r.country}
		if o.counts[k] == 0 {
			o.bins[r.link] = append(o.bins[r.link], r.country)
		}
		o.counts[k]++
		o.weight[k] += math.Exp2(-float64(last-r.t) / 3600)
	}
	o.at = last
}

// check asks for every distribution and compares every bin above the floor: the truth lies between the count and what
// the answer says is lost more. Rows of an import come in several requests at a time, so some come late.
func (o *oracle) check(ctx context.Context, t *testing.T, c *client.Client, namespace string, decayed bool, tolerance float64) {
	t.Helper()
	const floor = 1e-9
	var links []string
	for link := range o.bins {
		links = append(links, link)
	}
	wrong, compared := 0, 0
	for chunk := range slicesChunk(links, 500) {
		var questions []*ebbv1.Question
		for _, link := range chunk {
			q := &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(link)}, Select: &ebbv1.DistributionQuestion_All{All: true}}
			if decayed {
				q.AsOfUs = o.at * 1e6
			}
			questions = append(questions, &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Distribution{Distribution: q}})
		}
		answers, err := c.Ask(ctx, questions)
		if err != nil {
			t.Fatalf("ask: %v", err)
		}
		for i, link := range chunk {
			got := map[string]float64{}
			lost := answers[i].GetDistribution().GetLost()
			if lost > 9.0/7*floor*1.001 { // the bound of a key, see docs/kinds.md
				t.Fatalf("%s %s: %.3g is lost", namespace, link, lost)
			}
			for _, b := range answers[i].GetDistribution().GetBins() {
				got[string(b.GetBin())] = b.GetCount()
			}
			for _, country := range o.bins[link] {
				k := [2]string{link, country}
				want := o.counts[k]
				if decayed {
					want = o.weight[k]
				}
				if decayed && want < floor*1.001 {
					continue
				}
				compared++
				if rounding := tolerance * want; got[country] > want+rounding || got[country]+lost < want-rounding {
					if wrong++; wrong <= 5 {
						t.Errorf("%s %s/%s: got %.15g, lost %.3g, want %.15g",
							namespace, link, country, got[country], lost, want)
					}
				}
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%s: %d of %d bins are wrong", namespace, wrong, compared)
	}
	t.Logf("%s: %d bins of %d links equal the oracle", namespace, compared, len(links))
}

func slicesChunk(s []string, n int) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(s) > 0 {
			k := min(n, len(s))
			if !yield(s[:k]) {
				return
			}
			s = s[k:]
		}
	}
}

var buildOnce struct {
	sync.Once
	path string
	err  error
}

// binary builds the command once for all tests of a run.
func binary(t *testing.T) string {
	t.Helper()
	buildOnce.Do(func() {
		dir, err := os.MkdirTemp("", "ebb-test-bin")
		if err != nil {
			buildOnce.err = err
			return
		}
		buildOnce.path = filepath.Join(dir, "ebb")
		out, err := exec.Command("go", "build", "-o", buildOnce.path, ".").CombinedOutput()
		if err != nil {
			buildOnce.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if buildOnce.err != nil {
		t.Fatal(buildOnce.err)
	}
	return buildOnce.path
}

func startFleet(t *testing.T, args ...string) *proc.Fleet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: t.TempDir(), Args: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i := range f.Nodes() {
				t.Logf("end of the log of %s:\n%s", f.Name(i), f.LogTail(i))
			}
		}
		f.Close()
	})
	return f
}

// ebb runs one command of the binary against the fleet.
func ebb(ctx context.Context, t *testing.T, f *proc.Fleet, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(ctx, binary(t), append([]string{"--addr", strings.Join(f.Addrs(), ","), "--timeout", "60s"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("ebb %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.Bytes(), err
}

func mustEbb(ctx context.Context, t *testing.T, f *proc.Fleet, args ...string) []byte {
	t.Helper()
	out, err := ebb(ctx, t, f, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func importArgs(namespace, path string, more ...string) []string {
	return append([]string{"import", path, "-n", namespace, "--key", "g", "--bin", "country", "--time", "t"}, more...)
}

func createNamespaces(ctx context.Context, t *testing.T, f *proc.Fleet) {
	t.Helper()
	mustEbb(ctx, t, f, "namespace", "create", "plain", "--half-life", "none")
	mustEbb(ctx, t, f, "namespace", "create", "history", "--clock", "event", "--half-life", "1h", "--threshold", "1e-9")
	mustEbb(ctx, t, f, "namespace", "create", "compact", "--clock", "event", "--half-life", "1h", "--threshold", "1e-9", "--precision", "compact")
}

func dialFleet(ctx context.Context, t *testing.T, f *proc.Fleet, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.DialOptions(ctx, f.Addrs(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Three processes import the real clicks: every count equals a plain count, and
// every decayed count, at the end of every window, equals the exact value.
func TestImportRealClicks(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real processes over the whole stream")
	}
	rows := realClicks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	f := startFleet(t)
	createNamespaces(ctx, t, f)
	c := dialFleet(ctx, t, f)
	dir := t.TempDir()
	exact := newOracle()
	for i, window := range windows(rows) {
		path := filepath.Join(dir, fmt.Sprintf("window-%02d.tsv", i))
		writeTSV(t, path, window)
		exact.add(window)
		for _, ns := range []string{"history", "compact"} {
			mustEbb(ctx, t, f, importArgs(ns, path)...)
		}
		exact.check(ctx, t, c, "history", true, 1e-9)
		exact.check(ctx, t, c, "compact", true, 1e-5)
	}
	mustEbb(ctx, t, f, importArgs("plain", clicksFile)...)
	exact.check(ctx, t, c, "plain", false, 0)
	// a second import of the same file counts nothing
	mustEbb(ctx, t, f, importArgs("plain", clicksFile)...)
	exact.check(ctx, t, c, "plain", false, 0)
}

// The same while kill -9 hits a random node every 5 s and it comes back, and
// with the importer itself killed and resumed. EBB_KILL_RUNS says how often
// (a run takes about a minute and a half; the acceptance run does 20).
func TestImportUnderKills(t *testing.T) {
	runs, _ := strconv.Atoi(os.Getenv("EBB_KILL_RUNS"))
	if runs == 0 {
		t.Skip("set EBB_KILL_RUNS to the number of runs (make acceptance)")
	}
	rows := realClicks(t)
	for run := range runs {
		t.Run(strconv.Itoa(run), func(t *testing.T) { importUnderKills(t, rows, uint64(run)) })
	}
}

func importUnderKills(t *testing.T, rows []click, seed uint64) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f := startFleet(t)
	createNamespaces(ctx, t, f)
	c := dialFleet(ctx, t, f)
	rng := rand.New(rand.NewPCG(seed, 1))
	stop, stopped := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { killOneEvery(stop, t, f, rng, 5*time.Second) })
	defer func() { stopped(); wg.Wait() }()

	dir := t.TempDir()
	exact := newOracle()
	for i, window := range windows(rows) {
		path := filepath.Join(dir, fmt.Sprintf("window-%02d.tsv", i))
		writeTSV(t, path, window)
		exact.add(window)
		if i == 0 { // the importer, killed and resumed
			dying, cancel := context.WithTimeout(ctx, time.Second)
			_, err := ebb(dying, t, f, importArgs("history", path, "--rate", "1000")...)
			cancel()
			if err == nil {
				t.Fatal("the first import finished before it was killed")
			}
		}
		mustEbb(ctx, t, f, importArgs("history", path, "--rate", "3000")...)
		if i%8 == 7 || i == 0 {
			exact.check(ctx, t, c, "history", true, 1e-9)
		}
	}
	exact.check(ctx, t, c, "history", true, 1e-9)
	mustEbb(ctx, t, f, importArgs("plain", clicksFile)...)
	stopped()
	wg.Wait()
	exact.check(ctx, t, c, "plain", false, 0)
}

// killOneEvery kills a random node at an interval; it comes back a second later.
func killOneEvery(ctx context.Context, t *testing.T, f *proc.Fleet, rng *rand.Rand, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		i := rng.IntN(f.Nodes())
		f.Kill(i)
		time.Sleep(time.Second) // the node is down for this long
		if err := f.Launch(i); err != nil {
			t.Errorf("launch %s again: %v", f.Name(i), err)
			return
		}
	}
}
