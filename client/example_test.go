package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// exampleTester ends an example that goes wrong.
type exampleTester struct{ cleanup []func() }

func (*exampleTester) Helper()                           {}
func (*exampleTester) Fatal(args ...any)                 { log.Fatal(args...) }
func (*exampleTester) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (*exampleTester) Error(args ...any)                 { log.Fatal(args...) }
func (t *exampleTester) Cleanup(f func())                { t.cleanup = append(t.cleanup, f) }

// serve starts a node on loopback, with a namespace "plain" that does not forget.
func serve() (addr string, stop func()) {
	t := &exampleTester{}
	w := newWorldOn(t, 1, func(string) (net.Listener, string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		addr = l.Addr().String()
		return l, addr
	})
	w.plain()
	return addr, func() {
		for _, f := range t.cleanup {
			f()
		}
	}
}

func connected() (c *ebb.Client, stop func()) {
	addr, stopServer := serve()
	c, err := ebb.Dial(context.Background(), addr)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		_ = c.Close() // an example that closes it itself has looked at the error
		stopServer()
	}
}

func Example() {
	addr, stop := serve()
	defer stop()
	ctx := context.Background()

	c, err := ebb.Dial(ctx, addr) // a few nodes of the cluster; one that answers is enough
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	w := c.Writer(ebb.WriterOptions{Namespace: "plain"})
	for _, country := range []string{"US", "US", "GB", "US"} {
		if err := w.Add(ctx, "clicks/abc", country, 1); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(ctx); err != nil {
		log.Fatal(err)
	}

	top, err := c.Top(ctx, "plain", "clicks/abc", 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, bin := range top.Bins {
		fmt.Printf("%s %.0f p=%.2f (%.2f to %.2f)\n", bin.Name, bin.Count, bin.P.Value, bin.P.Low, bin.P.High)
	}
	// Output:
	// US 3 p=0.75 (0.30 to 0.95)
	// GB 1 p=0.25 (0.05 to 0.70)
}

func ExampleDial() {
	addr, stop := serve()
	defer stop()
	c, err := ebb.Dial(context.Background(), addr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Close())
	// Output: <nil>
}

func ExampleDial_unreachable() {
	_, err := ebb.Dial(context.Background(), "127.0.0.1:1")
	fmt.Println(err)
	fmt.Println(errors.Is(err, ebb.ErrUnreachable))
	// Output:
	// dial: cannot reach 127.0.0.1:1: connection refused (EBB-1001)
	// true
}

func ExampleDialOptions() {
	addr, stop := serve()
	defer stop()
	c, err := ebb.DialOptions(context.Background(), []string{addr},
		ebb.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
		ebb.WithRegisterer(prometheus.NewRegistry()),
		ebb.WithTimeout(5*time.Second),
		ebb.WithBackoff(ebb.Backoff{Min: 5 * time.Millisecond, Max: time.Second}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Close())
	// Output: <nil>
}

func ExampleClient_Increment() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	err := c.Increment(ctx, "plain",
		ebb.One("clicks/abc", "US"),
		ebb.Increment{Key: "clicks/abc", Bin: "GB", Amount: 2, Time: time.Now().Add(-time.Hour)})
	switch {
	case errors.Is(err, ebb.ErrUnknownOutcome):
		fmt.Println("it may have been counted, once")
	case err != nil:
		fmt.Println("it has not been counted:", err)
	default:
		fmt.Println("it has been counted, once")
	}
	// Output: it has been counted, once
}

func ExampleClient_Writer() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	w := c.Writer(ebb.WriterOptions{
		Namespace: "plain",
		Linger:    10 * time.Millisecond,
		OnFull:    ebb.Drop,
		OnError:   func(err error) { log.Print(err) },
		OnRefused: func(in ebb.Increment, err error) {
			fmt.Println("refused:", in.Bin, errors.Is(err, ebb.ErrNegativeAmount))
		},
	})
	for range 1000 {
		if err := w.Add(ctx, "clicks/abc", "US", 1); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.AddAt(ctx, "clicks/abc", "GB", -1, time.Now()); err != nil {
		log.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	s := w.Stats()
	fmt.Println(s.Added, "added,", s.Refused, "refused,", s.Lost, "lost,", s.Dropped, "dropped")
	fmt.Println(w.Close(ctx))
	// Output:
	// refused: GB true
	// 1001 added, 1 refused, 0 lost, 0 dropped
	// <nil>
}

func ExampleClient_Source() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	rows := []string{"US", "GB", "US", "FR"} // row i has offset i+1
	for range 2 {                            // the second import counts nothing twice
		s, err := c.Source(ctx, "clicks.tsv", ebb.SourceOptions{Namespace: "plain"})
		if err != nil {
			log.Fatal(err)
		}
		for i := s.Resume().Offset; i < uint64(len(rows)); i++ {
			if err := s.Add(ctx, i+1, ebb.One("clicks/abc", rows[i])); err != nil {
				log.Fatal(err)
			}
		}
		if err := s.Close(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Println("written:", s.Stats().Applied)
	}
	if err := c.DropSource(ctx, "plain", "clicks.tsv"); err != nil { // when it will never be resumed
		log.Fatal(err)
	}
	// Output:
	// written: 4
	// written: 0
}

// counted is a client of a cluster in which clicks/abc has 3 US and 1 GB.
func counted() (c *ebb.Client, stop func()) {
	c, stop = connected()
	err := c.Increment(context.Background(), "plain",
		ebb.Increment{Key: "clicks/abc", Bin: "US", Amount: 3}, ebb.One("clicks/abc", "GB"), ebb.One("clicks/def", "FR"))
	if err != nil {
		log.Fatal(err)
	}
	return c, stop
}

func ExampleClient_Top() {
	c, stop := counted()
	defer stop()
	top, err := c.Top(context.Background(), "plain", "clicks/abc", 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(top.Bins[0].Name, top.Bins[0].Count, "of", top.Z, "in", top.BinsTotal, "bins")
	// Output: US 3 of 4 in 2 bins
}

func ExampleClient_Distribution() {
	c, stop := counted()
	defer stop()
	later := time.Now().Add(24 * time.Hour)
	d, err := c.Distribution(context.Background(), "plain", "clicks/abc", ebb.AsOf(later), ebb.Bounded(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	gb, ok := d.Bin("GB")
	fmt.Println(len(d.Bins), gb.Count, ok, d.Coverage.Complete())
	// Output: 2 1 true true
}

func ExampleClient_Merged() {
	c, stop := counted()
	defer stop()
	d, err := c.Merged(context.Background(), "plain", []string{"clicks/abc", "clicks/def"}, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Z, len(d.Bins))
	// Output: 5 3
}

func ExampleClient_Bins() {
	c, stop := counted()
	defer stop()
	d, err := c.Bins(context.Background(), "plain", "clicks/abc", []string{"GB", "JP"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Bins[0].Count, d.Bins[1].Count)
	// Output: 1 0
}

func ExampleClient_Probability() {
	c, stop := counted()
	defer stop()
	p, err := c.Probability(context.Background(), "plain", "clicks/abc", "US", ebb.Confidence(0.9))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f, with confidence %.1f from %.2f to %.2f\n", p.Value, p.Confidence, p.Low, p.High)
	// Output: 0.75, with confidence 0.9 from 0.36 to 0.94
}

func ExampleClient_Count() {
	c, stop := counted()
	defer stop()
	n, err := c.Count(context.Background(), "plain", "clicks/abc")
	fmt.Println(n.Value, n.Found, err)
	// Output: 4 true <nil>
}

func ExampleClient_Entropy() {
	c, stop := counted()
	defer stop()
	h, err := c.Entropy(context.Background(), "plain", "clicks/abc")
	fmt.Printf("%.2f bits (%.2f to %.2f) %v\n", h.Value, h.Low, h.High, err)
	// Output: 0.81 bits (0.14 to 1.00) <nil>
}

func ExampleClient_CountKeys() {
	c, stop := counted()
	defer stop()
	n, err := c.CountKeys(context.Background(), "plain", ebb.AllowPartial())
	fmt.Println(n.Value, "keys;", n.Coverage.ShardsAnswered, "of", n.Coverage.ShardsTotal, "shards", err)
	// Output: 2 keys; 8 of 8 shards <nil>
}

func ExampleClient_Summary() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	err := c.Increment(ctx, "plain",
		ebb.Increment{Key: "searches", Bin: "shoes", Amount: 3, Kind: ebb.KindTopK},
		ebb.Increment{Key: "searches", Bin: "hats", Amount: 1, Kind: ebb.KindTopK},
		ebb.Increment{Key: "players", Bin: "bob", Amount: 1, Kind: ebb.KindLinear},
		ebb.Increment{Key: "players", Bin: "ann", Amount: 1, Kind: ebb.KindLinear},
	)
	if err != nil {
		log.Fatal(err)
	}
	searches, err := c.Summary(ctx, "plain", ebb.SummaryQuery{Keys: []string{"searches"}, Top: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(searches.Items[0].Bin, searches.Items[0].Count.Value, "of", searches.Total.Value)
	players, err := c.Summary(ctx, "plain", ebb.SummaryQuery{Keys: []string{"players"}, Members: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(players.Total.Value, players.Members)
	// Output:
	// shoes 3 of 4
	// 2 [ann bob]
}

// What was there in the last minute, and in the last hour.
func ExampleClient_Summary_window() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "visits", Clock: ebb.ClockEvent, Window: new(time.Hour)}); err != nil {
		log.Fatal(err)
	}
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	err := c.Increment(ctx, "visits",
		ebb.Increment{Key: "page", Bin: "ann", Amount: 1, Kind: ebb.KindDistinct, Time: noon.Add(-30 * time.Minute)},
		ebb.Increment{Key: "page", Bin: "bob", Amount: 1, Kind: ebb.KindDistinct, Time: noon},
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, window := range []time.Duration{time.Minute, time.Hour} {
		s, err := c.Summary(ctx, "visits", ebb.SummaryQuery{Keys: []string{"page"}, Window: window})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v: %.0f\n", window, s.Total.Value)
	}
	// Output:
	// 1m0s: 1
	// 1h0m0s: 2
}

func ExampleClient_Overlap() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	var fans []ebb.Increment
	for key, names := range map[string][]string{"fans/go": {"ann", "bob", "cid", "dan"}, "fans/rust": {"cid", "dan", "eve"}} {
		for _, name := range names {
			fans = append(fans, ebb.Increment{Key: key, Bin: name, Amount: 1, Kind: ebb.KindSet})
		}
	}
	if err := c.Increment(ctx, "plain", fans...); err != nil {
		log.Fatal(err)
	}
	o, err := c.Overlap(ctx, "plain", []string{"fans/go", "fans/rust"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(o.Sets[0].Key, o.Sets[0].Size.Value, "and", o.Sets[1].Key, o.Sets[1].Size.Value)
	fmt.Println(o.Union.Value, "in all,", o.Intersection.Value, "in both,", o.Difference.Value, "in the first alone, similarity", o.Jaccard.Value)
	// Output:
	// fans/go 4 and fans/rust 3
	// 5 in all, 2 in both, 2 in the first alone, similarity 0.4
}

func ExampleClient_Graph() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	var fans []ebb.Increment
	for key, names := range map[string][]string{"fans/go": {"ann", "bob", "cid"}, "fans/rust": {"bob", "cid"}, "fans/php": {"eve"}} {
		for _, name := range names {
			fans = append(fans, ebb.Increment{Key: key, Bin: name, Amount: 1, Kind: ebb.KindSet})
		}
	}
	if err := c.Increment(ctx, "plain", fans...); err != nil {
		log.Fatal(err)
	}
	g, err := c.Graph(ctx, "plain", ebb.GraphQuery{Keys: []string{"fans/go", "fans/rust", "fans/php"}, Links: 2})
	if err != nil {
		log.Fatal(err)
	}
	for _, node := range g.Nodes {
		fmt.Print(node.Key, ":")
		for _, l := range node.Links {
			fmt.Printf(" %s %.2f", l.Key, l.Jaccard.Value)
		}
		fmt.Println()
	}
	// Output:
	// fans/go: fans/rust 0.67
	// fans/rust: fans/go 0.67
	// fans/php:
}

func ExampleClient_Contains() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	err := c.Increment(ctx, "plain",
		ebb.Increment{Key: "seen/monday", Bin: "ann", Amount: 1, Kind: ebb.KindBloom},
		ebb.Increment{Key: "hits", Bin: "/a", Amount: 1, Kind: ebb.KindCountMin},
	)
	if err != nil {
		log.Fatal(err)
	}
	there, err := c.Contains(ctx, "plain", []string{"seen/monday", "seen/tuesday"}, []string{"ann", "bob"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(there[0].Contained, there[1].Contained)
	there, err = c.Contains(ctx, "plain", []string{"seen/sunday"}, []string{"ann"}) // no such key
	fmt.Println(there[0].Contained, err)
	_, err = c.Contains(ctx, "plain", []string{"hits"}, []string{"/a"})
	fmt.Println(errors.Is(err, ebb.ErrWrongKind))
	// Output:
	// true false
	// false <nil>
	// true
}

func ExampleClient_Ask() {
	c, stop := counted()
	defer stop()
	var questions []*ebbv1.Question
	for _, key := range []string{"clicks/abc", "clicks/def"} {
		questions = append(questions, &ebbv1.Question{Namespace: "plain", Ask: &ebbv1.Question_Distribution{
			Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: 1}},
		}})
	}
	answers, err := c.Ask(context.Background(), questions, ebb.Any())
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range answers {
		fmt.Println(a.GetDistribution().GetZ(), a.GetError())
	}
	// Output:
	// 4 <nil>
	// 1 <nil>
}

func ExampleClient_CreateNamespace() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	ns, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "trending", HalfLife: 10 * time.Minute})
	fmt.Println(ns.HalfLife, ns.BinsMax, err)
	_, err = c.CreateNamespace(ctx, ebb.Namespace{Name: "trending"})
	fmt.Println(errors.Is(err, ebb.ErrNamespaceExists))
	// Output:
	// 10m0s 100000 <nil>
	// true
}

func ExampleClient_SetNamespace() {
	c, stop := connected()
	defer stop()
	ns, err := c.SetNamespace(context.Background(), ebb.Namespace{Name: "default", HalfLife: 30 * time.Minute})
	fmt.Println(ns.HalfLife, err)
	// Output: 30m0s <nil>
}

func ExampleClient_Namespaces() {
	c, stop := connected()
	defer stop()
	all, err := c.Namespaces(context.Background())
	fmt.Println(len(all), err)
	// Output: 2 <nil>
}

func ExampleClient_Table() {
	c, stop := connected()
	defer stop()
	table, err := c.Table(context.Background())
	fmt.Println(table.GetShards(), "shards on", len(table.GetNodes()), "node", err)
	// Output: 8 shards on 1 node <nil>
}

func ExampleClient_Status() {
	c, stop := connected()
	defer stop()
	status, err := c.Status(context.Background())
	fmt.Println(status.GetNodes()[0].GetNode().GetName(), status.GetNodes()[0].GetPhase(), err)
	// Output: ebb-0 serving <nil>
}

// A tag that did not occur before suddenly comes more often than usual.
func ExampleClient_Trend() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	slow := 6 * time.Hour
	_, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "tags", Clock: ebb.ClockEvent, HalfLife: 10 * time.Minute, SlowHalfLife: &slow})
	start := time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC)
	w := c.Writer(ebb.WriterOptions{Namespace: "tags"})
	for minute := range 24 * 60 {
		at := start.Add(time.Duration(minute) * time.Minute)
		err = errors.Join(err, w.AddAt(ctx, "all", "go", 1, at))
		if minute >= 24*60-30 {
			err = errors.Join(err, w.AddAt(ctx, "all", "gophercon", 2, at))
		}
	}
	err = errors.Join(err, w.Close(ctx))
	trend, askErr := c.Trend(ctx, "tags", ebb.TrendQuery{Keys: []string{"all"}, Top: 1, Bins: []string{"go"}})
	fmt.Println(err, askErr)
	up := trend.Rising[0]
	fmt.Printf("%s: %.1f a minute, more than four times as often as usual: %v, by chance: %v\n", up.Name, 60*up.FastRate, up.Bits > 2, up.PValue > 0.001)
	fmt.Printf("go: %.1f a minute, by chance: %v\n", 60*trend.Bins[0].FastRate, trend.Bins[0].PValue > 0.001)
	// Output:
	// <nil> <nil>
	// gophercon: 1.8 a minute, more than four times as often as usual: true, by chance: false
	// go: 1.0 a minute, by chance: true
}

// Who played something on one of two days, and has paid?
func ExampleClient_Bitmap() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	for key, ids := range map[string][]uint64{"play/2011-11-01": {1, 2, 3}, "play/2011-11-02": {3, 4}, "play/2011": {2, 4, 5}} {
		if _, err := c.SetBits(ctx, "default", key, ids...); err != nil {
			fmt.Println(err)
		}
	}
	days := ebb.AnyOf(ebb.Bits("play/2011-11-01"), ebb.Bits("play/2011-11-02"))
	both := c.Bitmap("default", ebb.AllOf(days, ebb.Bits("play/2011")))
	n, err := both.Count(ctx)
	fmt.Println(n.Count, err)
	for id, err := range both.IDs(ctx) {
		fmt.Println(id, err)
	}
	// Output:
	// 2 <nil>
	// 2 <nil>
	// 4 <nil>
}

// A BitWriter takes ids as they come.
func ExampleClient_BitWriter() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	w := c.BitWriter(ebb.BitWriterOptions{})
	var err error
	for id := range uint64(100_000) {
		err = errors.Join(err, w.Set(ctx, "seen", id*id))
	}
	err = errors.Join(err, w.Close(ctx))
	n, askErr := c.Bitmap("default", ebb.Bits("seen")).Between(0, 1_000_000).Count(ctx)
	fmt.Println(n.Count, err, askErr)
	// Output: 1001 <nil> <nil>
}

// Bitmaps that are written by day are asked for by week, month, quarter or year where the namespace says so.
func ExampleClient_CreateNamespace_rollups() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	_, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "plays", Rollups: []ebb.Period{ebb.PeriodWeek, ebb.PeriodMonth, ebb.PeriodQuarter}})
	fmt.Println(err)
	fmt.Println(c.SetBits(ctx, "plays", "play/2011-10-31", 1, 2))
	fmt.Println(c.SetBits(ctx, "plays", "play/2011-11-01", 2, 3))
	for _, period := range []string{"2011-10", "2011-W44", "2011-Q4"} {
		n, err := c.Bitmap("plays", ebb.Bits("play/"+period)).Count(ctx)
		fmt.Println(period, n.Count, err)
	}
	// Output:
	// <nil>
	// 2 <nil>
	// 2 <nil>
	// 2011-10 2 <nil>
	// 2011-W44 3 <nil>
	// 2011-Q4 3 <nil>
}

// Populations large enough for all shards lie there by slices; a not means all ids that are in the universe of the
// namespace.
func ExampleClient_CreateNamespace_slices() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	all := "all"
	_, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice, Universe: &all})
	fmt.Println(err)
	fmt.Println(c.SetBitRange(ctx, "people", all, 1, 1_000_000))
	fmt.Println(c.SetBits(ctx, "people", "premium", 17, 70_000, 900_000))
	free, err := c.Bitmap("people", ebb.Bits("premium").Not()).Count(ctx)
	fmt.Println(free.Count, err)
	// Output:
	// <nil>
	// 1000000 <nil>
	// 3 <nil>
	// 999997 <nil>
}
