package load_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
)

// start starts a real cluster, and a client that knows all its nodes.
func start(t *testing.T, nodes int) (*chaos.Cluster, *client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cluster, err := chaos.StartCluster(ctx, chaos.ClusterOptions{
		Nodes: nodes, Shards: 8, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.Dial(ctx, cluster.Addrs()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // a test may have closed it
	if _, err := c.CreateNamespace(ctx, client.Namespace{Name: "plain", Decay: client.DecayNone}); err != nil {
		t.Fatal(err)
	}
	return cluster, c
}

// file makes a file of n rows for keys key-0 to key-9, and counts them.
func file(n int) (text string, want map[string]float64) {
	var b strings.Builder
	want = map[string]float64{}
	b.WriteString("k\tb\n")
	for i := range n {
		fmt.Fprintf(&b, "key-%d\tbin-%d\n", i%10, i%3)
		want[fmt.Sprint("key-", i%10)]++
	}
	return b.String(), want
}

func reader(t *testing.T, text string) *load.Reader {
	t.Helper()
	r, err := load.NewReader(strings.NewReader(text), "rows.tsv", load.Options{Key: "k", Bin: "b"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func compare(t *testing.T, c *client.Client, want map[string]float64) {
	t.Helper()
	for key, n := range want {
		got, err := c.Count(context.Background(), "plain", key)
		if err != nil || got.Value != n {
			t.Errorf("%s: %g, not %g (%v)", key, got.Value, n, err)
		}
	}
}

func TestImporter(t *testing.T) {
	_, c := start(t, 1)
	ctx := context.Background()
	text, want := file(5000)
	text += "only one column\n" // refused, at the end
	var mu sync.Mutex
	var refused []load.Refused
	im := load.Importer{Client: c, Namespace: "plain", Source: "rows", MaxBatch: 100, OnRefused: func(r load.Refused) {
		mu.Lock()
		defer mu.Unlock()
		refused = append(refused, r)
	}}

	// Interrupted in the middle: what was read is written, the rest is not.
	interrupted, stop := context.WithCancel(ctx)
	first := im
	first.ProgressEvery = time.Nanosecond
	first.Progress = func(p load.Progress) {
		if p.Rows > 2000 {
			stop()
		}
	}
	p, err := first.Run(interrupted, reader(t, text))
	if !errors.Is(err, context.Canceled) || p.Applied != p.Rows || p.Rows >= 5000 || !p.Done {
		t.Fatalf("%+v, %v", p, err)
	}

	// Again from the beginning: what was written is skipped.
	p2, err := im.Run(ctx, reader(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if p2.Rows != 5001 || p2.Resumed != p.Applied || p2.Applied != 5000-p.Applied || p2.Refused != 1 {
		t.Errorf("%+v", p2)
	}
	if len(refused) != 1 || refused[0].Line != 5002 || !strings.Contains(refused[0].Error(), "not enough columns") {
		t.Errorf("%v", refused)
	}
	p3, err := im.Run(ctx, reader(t, text))
	if err != nil || p3.Applied != 0 || p3.Resumed != 5000 {
		t.Errorf("%+v, %v", p3, err)
	}
	compare(t, c, want)

	other := im
	other.Namespace = "nowhere"
	if _, err := other.Run(ctx, reader(t, text)); !errors.Is(err, client.ErrNamespaceNotFound) {
		t.Errorf("%v", err)
	}
	unnamed := im
	unnamed.Source = ""
	if _, err := unnamed.Run(ctx, reader(t, text)); err == nil {
		t.Error("an import without a name")
	}
}

// What the shards remember of a file is compared with the file that comes next
// under its name. A file is read ahead; of a stream, the difference is found on the way.
func TestOtherFiles(t *testing.T) {
	const five = "k\tb\na\tx\nb\tx\nc\tx\nd\tx\ne\tx\n"
	tests := []struct {
		what, first, second string
		options             load.Options // of the second, besides key and bin
		changed             bool
		applied             int64 // of the second
		err                 string
	}{
		{"the same", five, five, load.Options{}, false, 0, ""},
		{"grown by two rows", five, five + "f\tx\ng\tx\n", load.Options{}, false, 2, ""},
		{"its last line ends now", five[:len(five)-1], five + "f\tx\n", load.Options{}, false, 1, ""},
		{"other line ends", five, strings.ReplaceAll(five, "\n", "\r\n"), load.Options{}, false, 0, ""},
		{"its last line has grown", five[:len(five)-1], five[:len(five)-1] + "yz\nf\tx\n", load.Options{}, false, 0, "lines 1 to 6: "},
		{"its last line was left out", five[:len(five)-1], five, load.Options{WholeLines: true}, false, 0, ""},
		{"the first row alone is the same", five, "k\tb\na\tx\nq\tx\nr\tx\ns\tx\nt\tx\nu\tx\n", load.Options{}, false, 0, "lines 1 to "},
		{"another header", five, strings.Replace(five, "k\tb", "k\tb\tc", 1), load.Options{}, false, 0, "lines 1 to 2: "},
		{"shorter", five, five[:len(five)-8], load.Options{}, false, 0, "it ends before line 6: "},
		{"another amount", five, five, load.Options{Amount: "=2"}, false, 0, "lines 1 to 2: "},
		{"repaired", "k\tb\na\tx\nb\nc\tx\n", "k\tb\na\tx\nb\tx\nc\tx\nd\tx\n", load.Options{}, false, 0, "lines 1 to 4: "},
		{"repaired, and to go on behind", "k\tb\na\tx\nb\nc\tx\n", "k\tb\na\tx\nc\tx\nc\ty\nd\tx\n", load.Options{}, true, 1, ""},
	}
	_, c := start(t, 1)
	for i, test := range tests {
		for _, stream := range []bool{false, true} {
			source := fmt.Sprint("rows", i, stream)
			run := func(text string, opts load.Options, changed bool) (load.Progress, error) {
				opts.Key, opts.Bin = "k", "b"
				path := filepath.Join(t.TempDir(), "rows.tsv")
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				r, err := load.Open(path, opts)
				if stream {
					r, err = load.NewReader(strings.NewReader(text), "rows.tsv", opts)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				im := load.Importer{Client: c, Namespace: "plain", Source: source, Changed: changed}
				return im.Run(context.Background(), r)
			}
			if _, err := run(test.first, load.Options{}, false); err != nil {
				t.Fatal(test.what, err)
			}
			p, err := run(test.second, test.options, test.changed)
			if test.err == "" && err != nil || test.err != "" && (!errors.Is(err, load.ErrOtherFile) || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("%s: %v, not %q", test.what, err, test.err)
			}
			if !stream && int64(p.Applied) != test.applied {
				t.Errorf("%s: %d rows counted, not %d", test.what, p.Applied, test.applied)
			}
		}
	}
}

func TestRefusalsOfShards(t *testing.T) {
	_, c := start(t, 1)
	text := "k\tb\tn\tt\nx\ty\t1\t\nx\ty\t-1\t1\nx\ty\t1\t4102444800\nx\ty\t1\t1331923247\n"
	r, err := load.NewReader(strings.NewReader(text), "rows.tsv", load.Options{Key: "k", Bin: "b", Amount: "n", Time: "t"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var lines []string
	im := load.Importer{Client: c, Namespace: "plain", Source: "rows", OnRefused: func(r load.Refused) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, r.Error())
	}}
	p, err := im.Run(context.Background(), r)
	if err != nil || p.Refused != 3 || p.Applied != 1 {
		t.Fatalf("%+v, %v: %q", p, err, lines)
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"line 2: bad time", "line 3: ", "EBB-2017", "line 4: ", "EBB-2005"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q does not say %q", all, want)
		}
	}
}

func TestRate(t *testing.T) {
	_, c := start(t, 1)
	text, want := file(400)
	im := load.Importer{Client: c, Namespace: "plain", Source: "rows", Rate: 1000}
	began := time.Now()
	p, err := im.Run(context.Background(), reader(t, text))
	if err != nil || p.Applied != 400 {
		t.Fatalf("%+v, %v", p, err)
	}
	if took := time.Since(began); took < 390*time.Millisecond {
		t.Errorf("400 rows at 1000 a second took %s", took)
	}
	compare(t, c, want)
}

// clicksPath is where the real clicks are, from this folder.
func clicksPath(t *testing.T) string {
	path := filepath.Join("..", "..", "shared", "data", "usagov-clicks", "clicks.tsv.gz")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the click data is not here: %v", err)
	}
	return path
}

var clickOptions = load.Options{Key: "clicks/{g}", Bin: "country", Time: "t"}

// countClicks counts the file by itself.
func countClicks(t *testing.T) map[string]map[string]float64 {
	t.Helper()
	r, err := load.Open(clicksPath(t), clickOptions)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	counts := map[string]map[string]float64{}
	for {
		row, err := r.Next()
		if err == io.EOF {
			return counts
		}
		if err != nil {
			t.Fatal(err)
		}
		if counts[row.Key] == nil {
			counts[row.Key] = map[string]float64{}
		}
		counts[row.Key][row.Bin]++
	}
}

func TestReadsTheRealClicks(t *testing.T) {
	counts := countClicks(t)
	countries := map[string]float64{}
	var rows float64
	for _, bins := range counts {
		for country, n := range bins {
			countries[country] += n
			rows += n
		}
	}
	if rows != 194_118 || len(counts) != 24_005 || len(countries) != 172 || countries["US"] != 118_243 || countries["-"] != 27_042 {
		t.Errorf("%g rows, %d links, %d countries, %g from the US, %g from nowhere",
			rows, len(counts), len(countries), countries["US"], countries["-"])
	}
}

// TestImportsTheRealClicks imports the file while nodes are killed and come back,
// interrupting it on the way, and compares every count.
func TestImportsTheRealClicks(t *testing.T) {
	if testing.Short() {
		t.Skip("a long test: 194,118 rows")
	}
	path := clicksPath(t)
	want := countClicks(t)
	cluster, c := start(t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	done := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		for i := 0; ; i = (i + 1) % 3 {
			select {
			case <-done:
				return
			case <-time.After(3 * time.Second):
			}
			cluster.Kill(i)
			time.Sleep(500 * time.Millisecond)
			if err := cluster.Start(ctx, i); err != nil {
				t.Error(err)
				return
			}
			if err := cluster.WaitReady(ctx, i); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for run := 0; ; run++ {
		r, err := load.Open(path, clickOptions)
		if err != nil {
			t.Fatal(err)
		}
		im := load.Importer{Client: c, Namespace: "plain", Source: r.SourceName("plain"), Rate: 20_000}
		limited, stop := context.WithTimeout(ctx, 4*time.Second)
		p, err := im.Run(limited, r)
		stop()
		_ = r.Close() // opened for reading
		t.Logf("run %d: %+v, %v", run, p, err)
		if err == nil {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) || run > 20 {
			t.Fatal(err)
		}
	}
	close(done)
	killing.Wait()
	for key, bins := range want {
		d, err := c.Distribution(ctx, "plain", key)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Bins) != len(bins) {
			t.Errorf("%s: %d countries, not %d", key, len(d.Bins), len(bins))
		}
		for _, b := range d.Bins {
			if bins[b.Name] != b.Count {
				t.Errorf("%s, %s: %g, not %g", key, b.Name, b.Count, bins[b.Name])
			}
		}
	}
}

func ExampleImporter() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "ebb")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cluster, err := chaos.StartCluster(ctx, chaos.ClusterOptions{Nodes: 1, Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	c, err := client.Dial(ctx, cluster.Addrs()...)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	for range 2 { // the second import finds everything written
		r, err := load.NewReader(strings.NewReader("g\tcountry\nabc\tUS\nabc\t\ndef\n"), "clicks.tsv",
			load.Options{Key: "clicks/{g}", Bin: "country"})
		if err != nil {
			log.Fatal(err)
		}
		im := load.Importer{
			Client: c, Source: r.SourceName("default"),
			OnRefused: func(line load.Refused) { fmt.Println("refused", line.Error()) },
		}
		p, err := im.Run(ctx, r)
		fmt.Println(p.Rows, "rows,", p.Applied, "written,", p.Resumed, "written before,", p.Refused, "refused", err)
	}
	// Output:
	// refused line 4: not enough columns: 1, and country is number 2
	// 3 rows, 2 written, 0 written before, 1 refused <nil>
	// refused line 4: not enough columns: 1, and country is number 2
	// 3 rows, 0 written, 2 written before, 1 refused <nil>
}

// An import tries to open its source for as long as it tries a batch, whatever the client's timeout is.
func TestOpeningObeysTheTimeout(t *testing.T) {
	cluster, _ := start(t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const timeout = 200 * time.Millisecond
	c, err := client.DialOptions(ctx, cluster.Addrs(), client.WithTimeout(timeout),
		client.WithDialTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cluster.Kill(1)
	cluster.Kill(2)
	text, _ := file(10)
	im := load.Importer{Client: c, Namespace: "plain", Source: "s", Timeout: 3 * time.Second}
	begun := time.Now()
	_, err = im.Run(context.Background(), reader(t, text)) // no deadline: the client's timeout counts
	if took := time.Since(begun); err == nil || took < im.Timeout || took > im.Timeout+10*time.Second {
		t.Errorf("without a majority: after %v: %v", took, err)
	}
}

// Of imports of one file that start at the same time one goes through, and each row counts once. The others end with
// SOURCE_FENCED, and do not make the cluster forget the source.
func TestSimultaneousImports(t *testing.T) {
	_, c := start(t, 1)
	ctx := context.Background()
	text, want := file(3000)
	for round := range 8 {
		ns := fmt.Sprint("round-", round)
		if _, err := c.CreateNamespace(ctx, client.Namespace{Name: ns, Decay: client.DecayNone}); err != nil {
			t.Fatal(err)
		}
		run := func() error {
			im := load.Importer{Client: c, Namespace: ns, Source: "file", MaxBatch: 20, Recheck: true}
			_, err := im.Run(ctx, reader(t, text))
			return err
		}
		outcomes := make([]error, 3)
		var running sync.WaitGroup
		for i := range outcomes {
			running.Go(func() { outcomes[i] = run() })
		}
		running.Wait()
		went := 0
		for _, err := range outcomes {
			switch {
			case err == nil:
				went++
			case !errors.Is(err, client.ErrSourceFenced):
				t.Errorf("round %d: %v", round, err)
			}
		}
		if went == 0 {
			t.Errorf("round %d: no import went through", round)
		}
		if err := run(); err != nil {
			t.Errorf("round %d, once more: %v", round, err)
		}
		for key, n := range want {
			d, err := c.Distribution(ctx, ns, key)
			if err != nil || d.Z != n {
				t.Errorf("round %d: %s is %g, want %g: %v", round, key, d.Z, n, err)
			}
		}
	}
}
