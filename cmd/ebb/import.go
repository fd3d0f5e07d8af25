package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// importFlags are the flags of ebb import: the columns of the file, and limits.
type importFlags struct {
	opts                    load.Options
	columns                 columnFlags
	format, source          string
	kind                    string
	rate                    float64
	showRefused             int
	timeout                 time.Duration
	quiet, recheck, changed bool
}

func newImport(s *session) *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Count the rows of a TSV, CSV or JSON-lines file, each exactly once", Args: argsBetween(1, 1, "FILE (- for standard input)"),
		Long: `Counts each row of FILE (- for standard input; .gz is understood) as an increment.
Columns are named by the header, or by number from 1. A row with more columns than the header is
refused, unless those are empty. A key may be a template: clicks/{g}; plays/{t:day} has the day of
the time in column t, or its hour, week, month, quarter or year.

Where all columns are given by number, the first lines say whether there is a header: a name above
a number or a time makes one. A word that comes again in its column, or a number in the first line,
makes the line a row. A number may be a name too: a year or a day above something else, 1, 2, 3, or
one next to a name that stands above a number. Then, and where all are words, the import counts
nothing and asks for --header or --no-header.

Times are RFC 3339, dates with or without a time of day, or numbers since 1970, whose unit
follows from their size, unless --time-unit says it. A leap second (23:59:60) is refused. --time-format describes others.
Those without a zone are in UTC, unless --time-zone names another. A local time that a change of
clocks leaves out is taken as the time as much before or after it (02:30 as 03:30 in Europe/Berlin, as 01:30 in America/New_York),
and one that comes twice as one of the two. With an offset (+02:00) times are exact. Eight digits
that form a date are refused, because they may be seconds: --time-format %Y%m%d or --time-unit s
says what they are.

An import is an ordered source: the cluster remembers how far it is, so that one that
was interrupted continues where it was when it is run again, and counts nothing twice.
Of imports of one file that run at the same time one continues: the one that started last. The
others end with SOURCE_FENCED and exit code 3, and no row counts twice.
Rows that a shard refused are refused again then, and make the exit code 3 again; each
shard remembers the last 10,000 it refused, and takes earlier ones for decided.

What identifies a row is its line and a checksum of all lines before it. What identifies
a file is its base name without .gz, the namespace, the columns and other options, the
header and the first row; the source is named after them, or by --source. So a file may
be moved, compressed, or grow by rows at its end: those are counted. A copy of a file is
that file, and a file that begins with all of another of the same name is that one, grown.
Any other file under a name that is taken is refused before a row of it is counted; so is
one whose counted lines were changed, or that has become shorter. Give it another --source,
or, if lines were only repaired in place, go on behind the counted ones with --changed:
lines that were refused before are not counted then, so import them as a file of their own.

Standard input and pipes cannot be read twice. Without --source each is a new source, which
is forgotten when it is done. With --source a difference is found where it is reached.

A last line without a newline is counted, and a note says so. If the file is still being
written, --whole-lines leaves that line, and quotes that are still open, for a later run.

A shard remembers 4,096 sources, for ever: ebb source list shows them, and ebb source drop
forgets those that are done. An import that counted no row leaves none behind, unless
another import has opened it since.

What ebb del deletes stays decided: importing the file again counts nothing, until its
source is dropped. Rows that come late, and weigh less by then than the namespace keeps, are
counted, and the summary says how many. Late is what is dated before the clock of the namespace, as
the shard of its key knows it. Rows in the order of time that span many half-lives are late too, by
what rows of other shards have moved the clock on; they count what they would have counted in time,
but for what depends on the order (docs/kinds.md). Rows that are not late are never among them,
however small their amounts: ebb top counts them in other. A namespace with --clock event lives by the
times of the rows.
There, a row that is dated further ahead of the event clock than the namespace's max_jump is
refused, as a wrong date, unless other rows are as late, no more than max_jump earlier than it.
Of the 1,000 rows before it and the 1,000 after it three must be, and a hundredth; or so many
of those after it alone, or all of them where fewer than three are left. In a file of up to 20
rows one is enough. So a file may be in any order, and a last date that stands alone is refused.
A row is taken too if other rows lead to it in steps of max_jump, or in steps as long as one that
was taken before, up to twice max_jump. A clock that has not begun begins at the earliest of the
first 1,000 rows. Of a stream the first row is taken as it is, and 10 rows after a row are read.
What was refused so is judged again when the import is run again (not with --recheck=false), and
so is, in any namespace, a row of a time that is still to come.
Rows in the order of time that span many times max_jump wait for the clock again and again: some
hundred rows a second if they are a day apart. With --max-jump none, or in any other order, they
do not.

In JSON lines, a row that lacks a field which is named is refused, and so is one in which it is a
list or an object; null is empty.

In CSV, a quote that no later quote closes, within 64 KiB, costs the line it is in.`,
		Example: `  ebb import clicks.tsv.gz --key 'clicks/{g}' --bin country --time t
  ebb import clicks.tsv --key 'visitors/{g}' --bin user --kind distinct
  ebb import plays.csv --key 'plays/{t:day}' --bin song --time t --time-format '%d/%m/%Y %H:%M' --time-zone Europe/Berlin
  ebb import requests.csv --key path --kind quantile --value seconds
  zcat log.gz | ebb import - --format jsonl --key =status --bin code --source access-log`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.opts.Key, "key", "", "`column` of the key, a template like clicks/{g}, or a constant like =all (required)")
	fl.StringVar(&f.opts.Bin, "bin", "", "`column` of the bin (required, but with --value)")
	fl.StringVar(&f.kind, "kind", "",
		"`kind` of the keys: "+importKinds()+
			" (what they are, or their namespace makes, if not given; --value needs --kind quantile)")
	fl.StringVar(&f.opts.Value, "value", "", "of --kind quantile: `column` of what was measured, instead of --bin")
	fl.StringVar(&f.opts.Time, "time", "", "`column` of the time of the event; the shards' own time without")
	fl.StringVar(&f.opts.Amount, "amount", "", "`column` of the amount; 1 without")
	fl.StringVar(&f.format, "format", "auto", "tsv, csv, jsonl or auto")
	f.columns.addTimes(fl)
	f.columns.addHeader(fl)
	fl.BoolVar(&f.opts.SkipEmpty, "skip-empty", false,
		"leave out rows with an empty key, bin, value or amount, or in JSON lines without it, instead of counting an empty "+
			"bin as - and refusing the others")
	fl.Float64Var(&f.rate, "rate", 0, "at most this many rows per second; those that an earlier run has decided are not held back")
	fl.StringVar(&f.source, "source", "", "`name` under which the cluster remembers this import (by default of the file and the options)")
	fl.BoolVar(&f.changed, "changed", false, "go on by line numbers, although lines that an earlier run has decided were changed")
	fl.BoolVar(&f.opts.WholeLines, "whole-lines", false, "leave out a last line that does not end in a newline")
	fl.IntVar(&f.showRefused, "show-refused", 10, "how many refused lines to print with their reasons")
	fl.DurationVar(&f.timeout, "patience", 2*time.Minute, "how long to try a batch before giving up")
	fl.BoolVar(&f.recheck, "recheck", true, "send rows that an earlier run has decided again, to report those refused; without it resuming is faster")
	fl.BoolVar(&f.quiet, "quiet", false, "no progress bar")
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command, s *session, path string) (err error) {
	if err := f.setKind(); err != nil {
		return err
	}
	if f.opts.Key == "" || f.opts.Bin == "" && f.opts.Value == "" {
		return usagef("--key and --bin say which columns to count: ebb import %s --key COLUMN --bin COLUMN", path)
	}
	if f.rate < 0 {
		return usagef("--rate %g: it must be above zero", f.rate)
	}
	if f.opts.Format, err = load.ParseFormat(f.format); err != nil {
		return noneOf("--format", f.format, formats)
	}
	if err := f.columns.settle(&f.opts); err != nil {
		return err
	}
	r, err := f.open(s, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	source, once := f.source, false
	if source == "" {
		source, once = f.name(s, r)
	}
	refusals := &refusedLines{most: f.showRefused, w: s.term.err}
	im := load.Importer{
		Client: c, Namespace: s.namespace, Source: source, Rate: f.rate, Timeout: f.timeout,
		Recheck: f.recheck, Changed: f.changed,
		OnResume: func(line uint64) {
			fmt.Fprintf(s.term.err, "continues source %q, which has come to line %d\n", source, line)
		},
		Progress: f.progress(s, r), OnRefused: refusals.add,
	}
	p, err := im.Run(cmd.Context(), r)
	if errors.Is(err, load.ErrOtherFile) {
		if p.Rows > 0 { // of a stream, the rows before the difference
			err = errors.Join(err, f.report(s, source, once, p, err))
		}
		return fmt.Errorf("%w %q: name another with --source, or if lines were only repaired in place, go on behind them with --changed", err, source)
	}
	err = adviseTooManySources(err)
	err = advisedOf(err, ebbv1.Code_CODE_SOURCE_FENCED,
		"run it again; of imports of one source at the same time the last one continues")
	f.notes(s, r)
	if err == nil && once {
		if e := c.DropSource(cmd.Context(), s.namespace, source); e != nil { // the import is complete: only a note
			fmt.Fprintf(s.term.err, "source %q stays until it is dropped: %v\n", source, e)
		}
	}
	if e := f.report(s, source, once, p, err); e != nil && err == nil {
		err = e
	}
	if n := refusals.old; n > 0 {
		fmt.Fprintf(s.term.err, "%s refused by an earlier run, and not judged again: when the cause is mended, "+
			"import the refused lines as a file of their own (ebb source drop would count all other lines twice)\n",
			plural(n, "row was", "rows were"))
	}
	if !p.Ahead.IsZero() {
		fmt.Fprintf(s.term.err, "of rows that are dated too far ahead: %s\n", s.timeJumpHint(cmd.Context(), c, p.Ahead))
	}
	if !p.Future.IsZero() {
		again := "run the import again, which counts them"
		if once {
			again = "import them as a file of their own"
		}
		fmt.Fprintf(s.term.err, "of rows of a time that is still to come: from %s on %s\n", stampOf(p.Future), again)
		if p.Refused > proto.BatchOpsMax && !once {
			fmt.Fprintf(s.term.err, "each shard remembers the last %d rows that it refused: "+
				"import those before them as a file of their own\n", proto.BatchOpsMax)
		}
	}
	if err == nil && p.Refused > 0 {
		err = fmt.Errorf("%d of %d rows: %w", p.Refused, p.Rows, errRefusedRows)
	}
	return err
}

// importKinds returns the names of the kinds that an import can count into.
func importKinds() string {
	names := slices.DeleteFunc(strings.Split(proto.KindNames(), ", "), func(name string) bool {
		return name == "string" || name == "bitmap"
	})
	return strings.Join(names, ", ")
}

// setKind reads --kind, and checks that it matches the columns.
func (f *importFlags) setKind() error {
	kind, known := proto.KindNamed(f.kind)
	quantile := kind == ebbv1.Kind_KIND_QUANTILE
	switch {
	case f.kind != "" && !known:
		return noneOf("--kind", f.kind, strings.Split(importKinds(), ", "))
	case kind == ebbv1.Kind_KIND_STRING:
		return usagef("--kind string: an import counts; ebb string set writes a value")
	case kind == ebbv1.Kind_KIND_BITMAP:
		return usagef("--kind bitmap: an import counts; ebb bits load 'play/{day}' FILE --column COLUMN puts the ids of rows into bitmaps")
	case quantile && (f.opts.Value == "" || f.opts.Bin != ""):
		return usagef("--kind quantile takes --value COLUMN, and no --bin")
	case f.opts.Value != "" && !quantile:
		return usagef("--value goes with --kind quantile, also where the keys or the namespace are of that kind")
	}
	f.opts.Kind = kind
	return nil
}

func (f *importFlags) open(s *session, path string) (r *load.Reader, err error) {
	if path == "-" {
		r, err = load.NewReader(s.term.in, "stdin", f.opts)
	} else {
		r, err = load.Open(path, f.opts)
	}
	if errors.Is(err, load.ErrColumn) {
		return nil, usageError{err}
	}
	return r, err
}

// name returns the name of the source. A stream cannot be read twice, so its name is used only once.
func (f *importFlags) name(s *session, r *load.Reader) (source string, once bool) {
	if r.Regular() {
		return r.SourceName(s.namespace), false
	}
	return fmt.Sprintf("import/%s/stream/%s", s.namespace, rand.Text()), true
}

// notes prints what the import assumed about the file.
func (f *importFlags) notes(s *session, r *load.Reader) {
	if line := r.Unended(); line > 0 {
		fmt.Fprintln(s.term.err, f.unended(line))
	}
	if r.Header() {
		fmt.Fprintln(s.term.err, "line 1 holds names of columns and was not counted (--no-header counts it)")
	}
	if text := r.Unzoned(); text != "" {
		fmt.Fprintf(s.term.err, "times without a zone, such as %q, were taken as UTC (--time-zone names another)\n", text)
	}
}

func (f *importFlags) unended(line uint64) string {
	if f.opts.WholeLines {
		return fmt.Sprintf("line %d has no end yet: left for a later run", line)
	}
	return fmt.Sprintf("line %d has no newline at its end: taken as it is (--whole-lines leaves it for a later run)", line)
}

// progress draws a progress bar if stderr is a terminal.
func (f *importFlags) progress(s *session, r *load.Reader) func(load.Progress) {
	if f.quiet || !interactive(s.term.err) {
		return nil
	}
	size := r.Size()
	if size == 0 {
		size = -1 // a spinner
	}
	bar := progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(rawTerminal(s.term.err)), progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	return func(p load.Progress) {
		bar.Describe(fmt.Sprintf("%d rows, %.0f rows/s", p.Rows, p.Rate))
		_ = bar.Set64(p.Bytes)
		if p.Done {
			_ = bar.Finish()
		}
	}
}

// refusedLines prints the first few refused lines.
type refusedLines struct {
	mu   sync.Mutex // guards seen; the writer is used under it
	most int
	seen int
	old  int // part of seen: refused by an earlier run
	w    io.Writer
}

func (r *refusedLines) add(line load.Refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen++
	if errors.Is(line.Reason, load.ErrRefusedEarlier) {
		r.old++
	}
	if r.seen <= r.most {
		fmt.Fprintf(r.w, "refused: %v\n", &line)
	}
	if r.seen == r.most+1 {
		fmt.Fprintln(r.w, "refused: and more (--show-refused prints more of them)")
	}
}

// timeJumpHint returns what to do about rows that were refused because they are too far ahead of the event clock.
// latest is the latest of their times. If the clock has passed that time since, it must not be set, because that would
// set it back.
func (s *session) timeJumpHint(ctx context.Context, c *client.Client, latest time.Time) string {
	const again = "run the import again"
	name := cmp.Or(s.namespace, proto.DefaultNamespace)
	ns, err := existing(ctx, c, name)
	if err != nil || ns == nil || ns.MaxJump == nil {
		return again + " when the event clock has come there: ebb namespace clock " + name
	}
	clock, err := c.EventClock(ctx, name)
	switch {
	case err == nil && clock != nil && !latest.After(clock.Now.Add(*ns.MaxJump)):
		return fmt.Sprintf("%s, which counts them: the event clock of namespace %s is at %s now",
			again, name, stampOf(clock.Now))
	case ns.Decay == client.DecayLinear:
		return fmt.Sprintf("if the dates are right: ebb namespace set %s --max-jump none, then %s", name, again)
	}
	return fmt.Sprintf("if the dates are right: ebb namespace clock %s --set %s, then %s", name, stampOf(latest), again)
}

// report prints how many rows were counted, refused or left out, also when the import was interrupted.
func (f *importFlags) report(s *session, source string, once bool, p load.Progress, err error) error {
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{
			"source": source, "rows": p.Rows, "applied": p.Applied, "resumed": p.Resumed, "refused": p.Refused,
			"empty": p.Empty, "faded": p.Faded, "seconds": p.Elapsed.Seconds(), "rows_per_second": p.Rate, "complete": err == nil,
		})
	}
	fmt.Fprintf(s.term.out, "%d rows: %d counted, %d decided by an earlier run, %d refused, %d left out as empty, in %v (%.0f rows/s)\n",
		p.Rows, p.Applied, p.Resumed, p.Refused, p.Empty, p.Elapsed.Round(time.Millisecond), p.Rate)
	if p.Faded > 0 {
		fmt.Fprintln(s.term.out, fadedText(s.namespace, p))
	}
	if !once {
		fmt.Fprintf(s.term.out, "source %s\n", source)
	}
	f.printNextStep(s, source, once, p, err)
	return nil
}

// fadedText describes the rows whose weight is almost nothing. A floor may keep their bins.
func fadedText(namespace string, p load.Progress) string {
	const why = "they are too old for it, or their amounts too small"
	switch p.Floor {
	case client.FloorClamp:
		return fmt.Sprintf("%d of those counted add nothing to a count in namespace %s: %s; its floor clamp keeps their "+
			"bins, at 1 or more", p.Faded, namespace, why)
	case client.FloorPrior:
		return fmt.Sprintf("%d of those counted add next to nothing to a count in namespace %s: %s; its floor prior "+
			"keeps their bins", p.Faded, namespace, why)
	}
	return fmt.Sprintf("%d of those counted weigh less than namespace %s keeps: %s", p.Faded, namespace, why)
}

// printNextStep prints what to do about an import that ended early, that counted nothing, or whose rows have faded.
func (f *importFlags) printNextStep(s *session, source string, once bool, p load.Progress, err error) {
	if err == nil && p.Applied == 0 && p.Resumed > 0 {
		fmt.Fprintf(s.term.err, "nothing was new: to count these rows again, as after ebb del, "+
			"first run ebb source drop %s; what still counts is then counted twice\n", s.sourceArg(source))
	}
	if p.Faded > 0 && !p.EventClock {
		fmt.Fprintln(s.term.err, "history is replayed in a namespace that lives by the times of its rows: "+
			"ebb namespace create NAME --clock event")
	}
	refused := codeOfError(err)/1000 == 2 // the same request would be refused again
	if err != nil && !refused && !errors.Is(err, load.ErrBinary) && !errors.Is(err, load.ErrOtherFile) {
		again := "the same command again"
		if once {
			again = "it again on the same stream with --source " + source
		}
		fmt.Fprintf(s.term.err, "run %s to go on: source %q remembers how far it is\n", again, source)
	}
}
