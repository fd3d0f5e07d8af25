package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	demoKey = "country"
	demoTop = 10
	// ledgerNamespace counts the same clicks without decay. At the end its counts are compared with the acknowledged
	// clicks.
	ledgerNamespace = "ledger"
	demoRefresh     = 250 * time.Millisecond
	// demoStale is the age from which an answer is shown with its age.
	demoStale = 3 * demoRefresh
	// demoRateFrames is over how many frames the rate is computed.
	demoRateFrames = 8
)

// demoFlags are the flags of `ebb demo`.
type demoFlags struct {
	halfLife time.Duration
	rate     int
	http     string
	hosts    []string
	dir      string
	until    time.Duration
	seed     uint64
	verbose  bool
}

func newDemo(s *session) *cobra.Command {
	var df demoFlags
	cmd := &cobra.Command{
		Use: "demo", Short: "Three nodes in this process, learning and forgetting", Args: noArgs,
		Long: `Starts three nodes on loopback, sends them a stream of clicks shaped on a real one,
and shows which countries click now. Countries rise (+) and fall (-), and every 20 s one
that is rarely seen bursts (!) for 5 s: it enters the table at once, and a half-life
later half of it is forgotten. Keys (or lines on standard input, where it is no
terminal): k kills a node, c cuts one off, h heals all, p pauses the stream, q quits.
On exit a ledger compares what was acknowledged with what the cluster counted.`,
		Example: "  ebb demo\n  ebb demo --half-life 10s --rate 2000\n  ebb demo --for 20s",
		RunE:    func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), s, df) },
	}
	f := cmd.Flags()
	f.DurationVar(&df.halfLife, "half-life", 30*time.Second, "how long until a click counts for half")
	f.IntVar(&df.rate, "rate", 500, "clicks per second")
	f.StringVar(&df.http, "http", "127.0.0.1:7080", "HTTP `address` of the first node; any free port if this one is taken, - for none")
	f.StringSliceVar(&df.hosts, "http-host", nil, "further `name` by which HTTP may be asked (the header Host), as behind a proxy; repeatable")
	f.StringVar(&df.dir, "dir", "", "data `directory`; a temporary one, removed at the end, if empty")
	durationVar(f, &df.until, "for", 0, 0, "stop after this long")
	f.Uint64Var(&df.seed, "seed", 1, "of the click stream")
	f.BoolVar(&df.verbose, "verbose", false, "log what the nodes say")
	return cmd
}

func runDemo(ctx context.Context, s *session, df demoFlags) (err error) {
	if e := proto.CheckHalfLife(df.halfLife.Microseconds()); e != nil {
		return e
	}
	if df.rate < 1 || df.rate > 100_000 {
		return usagef("--rate %d: from 1 to 100000 clicks per second", df.rate)
	}
	if df.dir == "" {
		if df.dir, err = os.MkdirTemp("", "ebb-demo-"); err != nil {
			return err
		}
		defer removeAll(s, df.dir)
	}
	ctx, shown, stop := withBrokenPipe(ctx, s)
	defer stop()
	d, err := startDemo(ctx, shown, df)
	if err != nil {
		return err
	}
	if df.until > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, df.until)
		defer cancel()
	}
	d.run(ctx)
	if err := d.settle(); !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil // the reader of the output has closed it
}

// demo is a cluster, a stream of clicks into it, and what the user's keys do to both.
type demo struct {
	s       *session
	flags   demoFlags
	cluster *chaos.Cluster
	client  *client.Client
	now     *client.Writer // counts with decay
	ledger  *client.Writer // counts without decay
	paused  atomic.Bool
	sent    atomic.Uint64
	rng     *rand.Rand
	last    string
	latest  atomic.Pointer[reply] // the newest answer; nil before the first
	acks    []ackedAt             // of the last frames
	model   clickModel
	began   time.Time // when the stream began
	shares  shareHistory
}

// reply is the result of the latest questions.
type reply struct {
	answer  *ebbv1.Answer // the newest answer; an error does not replace it
	at      time.Time     // when the question was sent
	problem string        // why there is no newer answer
}

// ackedAt is how many clicks were acknowledged at a time, to compute the rate.
type ackedAt struct {
	at time.Time
	n  uint64
}

func startDemo(ctx context.Context, s *session, df demoFlags) (*demo, error) {
	fmt.Fprintln(s.term.err, "starting three nodes ...")
	logger := slog.New(slog.DiscardHandler)
	if df.verbose {
		logger = slog.New(slog.NewTextHandler(s.term.err, nil))
	}
	start, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	secret, err := demoSecret(df.dir)
	if err != nil {
		return nil, err
	}
	opts := chaos.ClusterOptions{
		Dir: df.dir, Logger: logger, HTTP: df.http, HTTPHosts: df.hosts,
		Secrets: []string{secret}, KeepAddresses: true,
	}
	cluster, err := chaos.StartCluster(start, opts)
	if err != nil && df.http != "" && strings.Contains(err.Error(), "address already in use") {
		fmt.Fprintf(s.term.err, "%s is taken, so HTTP is on another port\n", df.http)
		opts.HTTP = ""
		cluster, err = chaos.StartCluster(start, opts)
	}
	if err != nil {
		return nil, err
	}
	d := &demo{s: s, flags: df, cluster: cluster, rng: rand.New(rand.NewPCG(df.seed, 2))}
	d.model = clickModel{df.halfLife}
	if err := d.prepare(start); err != nil {
		return nil, errors.Join(err, cluster.Close())
	}
	return d, nil
}

// demoSecret is the cluster secret of the demo's nodes, so that `ebb token create` works on them. The file stays in the
// directory of their data, because a demo that is started again there may have tokens.
func demoSecret(dir string) (string, error) {
	path := filepath.Join(dir, "cluster.secret")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		have, _, err := readTokens("--dir", path)
		if err != nil {
			return "", err
		}
		return have[0], nil
	}
	secret := client.NewTokenText()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	return secret, replaceFile(path, []byte(secret+"\n"), 0o600)
}

// prepare creates the two namespaces and their writers.
func (d *demo) prepare(ctx context.Context) error {
	c, err := client.Dial(ctx, d.cluster.Addrs()...)
	if err != nil {
		return err
	}
	d.client = c
	// the default namespace, so that the curl command stays short
	if _, err := c.SetNamespace(ctx, client.Namespace{Name: proto.DefaultNamespace, HalfLife: d.flags.halfLife}); err != nil {
		return err
	}
	if _, err := c.SetNamespace(ctx, client.Namespace{Name: ledgerNamespace, Decay: client.DecayNone}); err != nil {
		return err
	}
	opts := client.WriterOptions{MaxBuffered: 1_000_000, Timeout: 10 * time.Minute}
	d.now = c.Writer(opts)
	opts.Namespace = ledgerNamespace
	d.ledger = c.Writer(opts)
	return nil
}

// run sends clicks and shows frames until ctx ends or the user quits.
func (d *demo) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.began = time.Now()
	streamed := make(chan struct{})
	go func() { defer close(streamed); d.stream(ctx) }()
	asked := make(chan struct{})
	go func() { defer close(asked); d.watch(ctx) }()
	frames, keys := make(chan frame), make(chan string, 1)
	shown := make(chan struct{})
	go func() { defer close(shown); d.show(ctx, cancel, frames, keys) }()
	d.play(ctx, cancel, frames, keys)
	close(frames)
	<-shown
	<-streamed
	<-asked
}

// watch asks for the top countries at every refresh. It has its own goroutine so that the screen and the keys work
// while a shard has no leader.
func (d *demo) watch(ctx context.Context) {
	tick := time.NewTicker(demoRefresh)
	defer tick.Stop()
	for {
		next := reply{at: time.Now()}
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		answers, err := d.client.Ask(asking, []*ebbv1.Question{topCountries("")})
		cancel()
		switch {
		case err != nil:
			next.problem = err.Error()
		case answers[0].GetError() != nil:
			next.problem = answers[0].GetError().GetMessage()
		default:
			next.answer = answers[0]
		}
		if before := d.latest.Load(); next.answer == nil && before != nil {
			next.answer, next.at = before.answer, before.at
		}
		d.latest.Store(&next)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// stream sends clicks at the given rate, each to both namespaces.
func (d *demo) stream(ctx context.Context) {
	clicks, rng := load.NewClicks(d.flags.seed), rand.New(rand.NewPCG(d.flags.seed, 3))
	const step = 20 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	owed := 0.0
	for {
		select {
		case <-ctx.Done():
			return
		case at := <-tick.C:
			if d.paused.Load() {
				owed = 0
				continue
			}
			for owed += float64(d.flags.rate) * step.Seconds(); owed >= 1; owed-- {
				country := d.model.draw(rng, at.Sub(d.began), clicks.Next(at).Country)
				if d.now.Add(ctx, demoKey, country, 1) != nil || d.ledger.Add(ctx, demoKey, country, 1) != nil {
					return
				}
				d.sent.Add(1)
			}
		}
	}
}

// play makes a frame at every refresh, and executes the keys.
func (d *demo) play(ctx context.Context, quit context.CancelFunc, frames chan<- frame, keys <-chan string) {
	tick := time.NewTicker(demoRefresh)
	defer tick.Stop()
	for {
		select {
		case frames <- d.frame():
		case <-ctx.Done():
			return
		}
		select {
		case key := <-keys:
			d.press(ctx, key, quit)
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (d *demo) press(ctx context.Context, key string, quit context.CancelFunc) {
	switch key {
	case "k":
		d.toOne("killed", d.cluster.Kill)
	case "c":
		d.toOne("cut off", d.cluster.Isolate)
	case "h":
		d.last = "healed: every node runs and hears the others"
		if err := d.cluster.Heal(ctx); err != nil {
			d.last = "heal: " + err.Error()
		}
	case "p":
		d.paused.Store(!d.paused.Load())
		d.last = "the stream continues"
		if d.paused.Load() {
			d.last = fmt.Sprintf("the stream is paused: counts halve every %v", d.flags.halfLife)
		}
	case "q":
		quit()
	}
}

// toOne calls do with a random node that is up, if a majority of nodes stays up without it.
func (d *demo) toOne(what string, do func(int)) {
	var up []int
	for i := range d.cluster.Nodes() {
		if d.cluster.State(i) == "up" {
			up = append(up, i)
		}
	}
	if !spare(len(up), d.cluster.Nodes()) {
		d.last = "one node is down already; with another there would be no majority: h heals"
		return
	}
	i := up[d.rng.IntN(len(up))]
	do(i)
	d.last = fmt.Sprintf("%s %s; nothing is lost", what, d.cluster.Name(i))
}

// spare reports whether a majority of nodes stays up when one of them goes down.
func spare(up, nodes int) bool { return (up-1)*2 > nodes }

// frame returns the present state of the demo; it does not wait.
func (d *demo) frame() frame {
	f := frame{
		at: time.Now(), paused: d.paused.Load(), sent: d.sent.Load(), acked: d.acked(d.now),
		halfLife: d.flags.halfLife, http: d.cluster.HTTP(d.living()), last: d.last,
	}
	if addrs := d.cluster.Addrs(); len(addrs) > 0 {
		f.grpc = addrs[0]
	}
	f.rate = d.rate(f.at, f.acked)
	f.surprise = d.model.surprise(f.at.Sub(d.began))
	if r := d.latest.Load(); r != nil {
		f.answer, f.problem = r.answer, r.problem
		if age := f.at.Sub(r.at); age > demoStale {
			f.age = age
		}
	}
	f.marks = d.shares.marks(f.at, f.answer.GetDistribution())
	for i := range d.cluster.Nodes() {
		nf := nodeFrame{name: d.cluster.Name(i), state: d.cluster.State(i)}
		if n := d.cluster.Node(i); n != nil {
			for _, r := range n.Status().GetReplicas() {
				if r.GetRole() == "leader" {
					nf.leads++
				}
			}
		}
		f.nodes = append(f.nodes, nf)
	}
	return f
}

// rate returns how many clicks a second were acknowledged over the last frames.
func (d *demo) rate(at time.Time, acked uint64) float64 {
	d.acks = append(d.acks, ackedAt{at, acked})
	d.acks = d.acks[max(0, len(d.acks)-demoRateFrames):]
	first := d.acks[0]
	if passed := at.Sub(first.at); passed > 0 {
		return float64(acked-min(acked, first.n)) / passed.Seconds()
	}
	return 0
}

func topCountries(namespace string) *ebbv1.Question {
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(demoKey)}, Select: &ebbv1.DistributionQuestion_Top{Top: demoTop},
	}}}
}

func (d *demo) acked(w *client.Writer) uint64 {
	st := w.Stats()
	return uint64(st.Added - st.Buffered - st.Lost - st.Unknown - st.Refused)
}

// living returns the first node that runs; 0 if none does.
func (d *demo) living() int {
	for i := range d.cluster.Nodes() {
		if d.cluster.Node(i) != nil {
			return i
		}
	}
	return 0
}

// show draws frames on a terminal. Without a terminal it prints a line a second, and reads keys as lines.
func (d *demo) show(ctx context.Context, quit context.CancelFunc, frames <-chan frame, keys chan<- string) {
	if d.s.output != "json" && interactive(d.s.term.in) && interactive(d.s.term.out) {
		on := screen{in: d.s.term.in.(*os.File), out: rawTerminal(d.s.term.out).(*os.File), frames: frames, keys: keys}
		if err := on.run(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(d.s.term.err, "terminal:", err)
		}
		quit()
		for range frames { // until play ends
		}
		return
	}
	go readKeys(ctx, d.s.term.in, keys)
	var printed time.Time
	var told, burst string
	out := d.s.term.out
	if d.s.output == "json" {
		out = d.s.term.err // standard output is for the ledger
	}
	for f := range frames {
		if f.last != told {
			told = f.last
			fmt.Fprintln(out, told)
		}
		if f.at.Sub(printed) < time.Second {
			continue
		}
		if printed.IsZero() {
			fmt.Fprintln(out, strings.Join(append(f.doors(), watchFor), "\n"))
		}
		if f.bursting() && f.surprise.code != burst {
			burst = f.surprise.code
			fmt.Fprintln(out, f.news())
		}
		printed = f.at
		fmt.Fprintln(out, f.line())
	}
}

// readKeys passes lines as keys until there are no more. It ends only with the process: a read from standard input
// cannot be interrupted.
func readKeys(ctx context.Context, r io.Reader, keys chan<- string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		select {
		case keys <- strings.TrimSpace(lines.Text()):
		case <-ctx.Done():
			return
		}
	}
}

// settle heals the cluster, sends what is buffered, and prints the ledger.
func (d *demo) settle() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() {
		err = errors.Join(err, d.client.Close(), d.cluster.Close())
	}()
	if err := d.cluster.Heal(ctx); err != nil {
		return err
	}
	if err := errors.Join(d.now.Close(ctx), d.ledger.Close(ctx)); err != nil {
		fmt.Fprintln(d.s.term.err, "error:", err)
	}
	answers, err := d.client.Ask(ctx, []*ebbv1.Question{topCountries(ledgerNamespace)})
	if err != nil {
		return err
	}
	if e := proto.FromWire(answers[0].GetError()); e != nil {
		return e
	}
	return d.printLedger(answers[0].GetDistribution().GetZ())
}

func (d *demo) printLedger(counted float64) error {
	acked := d.acked(d.ledger)
	diff := counted - float64(acked)
	if d.s.output == "json" {
		ledger := map[string]any{"sent": d.sent.Load(), "acknowledged": acked, "counted": counted, "balanced": diff == 0}
		if err := printJSON(d.s.term.out, ledger); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(d.s.term.out, "\nledger: %d clicks sent, %d acknowledged, %.0f counted by the cluster\n", d.sent.Load(), acked, counted)
	}
	if diff != 0 {
		return fmt.Errorf("the ledger does not balance: %.0f counted, %d acknowledged (%.0f %s)", counted, acked, math.Abs(diff), lostOrDoubled(diff))
	}
	if d.s.output == "json" {
		return nil
	}
	_, err := fmt.Fprintln(d.s.term.out, "nothing lost, nothing counted twice")
	return err
}

func lostOrDoubled(diff float64) string {
	if diff > 0 {
		return "too many"
	}
	return "lost"
}
