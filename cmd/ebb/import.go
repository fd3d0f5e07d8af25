package main

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/load"
)

// importFlags are the columns and limits of an import.
type importFlags struct {
	opts                     load.Options
	format, timeUnit, source string
	rate                     float64
	showRefused              int
	patience                 time.Duration
	quiet, recheck           bool
}

func newImport(s *session) *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Count the rows of a TSV, CSV or JSON-lines file, each exactly once", Args: argsBetween(1, 1, "FILE (- for standard input)"),
		Long: `Counts each row of FILE (- for standard input; .gz is understood) as an increment.
Columns are named by the header, or by number from 1. A key may be a template: clicks/{g}.

An import is an ordered source: the cluster remembers how far it is, so that one that
was interrupted goes on where it was when it is run again, and counts nothing twice.
Rows that a shard refused are refused again then, and make the exit code 3 again; each
shard remembers the last 10,000 it refused, and takes earlier ones for decided.`,
		Example: `  ebb import clicks.tsv.gz --key 'clicks/{g}' --bin country --time t
  zcat log.gz | ebb import - --format jsonl --key =status --bin code --source access-log`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.opts.Key, "key", "", "`column` of the key, a template like clicks/{g}, or a constant like =all (required)")
	fl.StringVar(&f.opts.Bin, "bin", "", "`column` of the bin (required)")
	fl.StringVar(&f.opts.Time, "time", "", "`column` of the time of the event; the shards' own time without")
	fl.StringVar(&f.opts.Amount, "amount", "", "`column` of the amount; 1 without")
	fl.StringVar(&f.format, "format", "auto", "tsv, csv, jsonl or auto")
	fl.StringVar(&f.timeUnit, "time-unit", "auto", "of numbers in the time column: s, ms, us or auto")
	fl.BoolVar(&f.opts.NoHeader, "no-header", false, "the first line is a row")
	fl.BoolVar(&f.opts.SkipEmpty, "skip-empty", false, "leave out rows with an empty bin, instead of counting them as -")
	fl.Float64Var(&f.rate, "rate", 0, "at most this many rows per second; those that an earlier run has decided are not held back")
	fl.StringVar(&f.source, "source", "", "`name` under which the cluster remembers this import (by default of the file and the columns)")
	fl.IntVar(&f.showRefused, "show-refused", 10, "how many refused lines to print with their reasons")
	fl.DurationVar(&f.patience, "patience", 2*time.Minute, "how long to try a batch before giving up")
	fl.BoolVar(&f.recheck, "recheck", true, "send rows that an earlier run has decided again, to report those refused; without it resuming is faster")
	fl.BoolVar(&f.quiet, "quiet", false, "no progress bar")
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command, s *session, path string) (err error) {
	if f.opts.Key == "" || f.opts.Bin == "" {
		return usagef("--key and --bin say which columns to count: ebb import %s --key COLUMN --bin COLUMN", path)
	}
	if f.rate < 0 {
		return usagef("--rate %g: it must be above zero", f.rate)
	}
	if f.opts.Format, err = load.ParseFormat(f.format); err != nil {
		return noneOf("--format", f.format, formats)
	}
	if f.opts.TimeUnit, err = load.ParseTimeUnit(f.timeUnit); err != nil {
		return noneOf("--time-unit", f.timeUnit, timeUnits)
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
	source := f.source
	if source == "" {
		source = r.SourceName(s.namespace)
	}
	refusals := &refusals{most: f.showRefused, w: s.term.err}
	im := load.Importer{
		Client: c, Namespace: s.namespace, Source: source, Rate: f.rate, Timeout: f.patience, Recheck: f.recheck,
		Progress: f.progress(s, r), OnRefused: refusals.add,
	}
	p, err := im.Run(cmd.Context(), r)
	if e := f.report(s, source, p, err); e != nil && err == nil {
		err = e
	}
	if err == nil && p.Refused > 0 {
		err = fmt.Errorf("%d of %d rows: %w", p.Refused, p.Rows, errRefusedRows)
	}
	return err
}

func (f *importFlags) open(s *session, path string) (*load.Reader, error) {
	if path == "-" {
		return load.NewReader(s.term.in, "stdin", f.opts)
	}
	return load.Open(path, f.opts)
}

// progress draws a bar on a terminal, and says nothing elsewhere.
func (f *importFlags) progress(s *session, r *load.Reader) func(load.Progress) {
	if f.quiet || !interactive(s.term.err) {
		return nil
	}
	size := r.Size()
	if size == 0 {
		size = -1 // a spinner
	}
	bar := progressbar.NewOptions64(size, progressbar.OptionSetWriter(s.term.err), progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	return func(p load.Progress) {
		bar.Describe(fmt.Sprintf("%d rows, %.0f rows/s", p.Rows, p.Rate))
		_ = bar.Set64(p.Bytes)
		if p.Done {
			_ = bar.Finish()
		}
	}
}

// refusals prints the first few refused lines.
type refusals struct {
	mu   sync.Mutex // guards seen; the writer is used under it
	most int
	seen int
	w    io.Writer
}

func (r *refusals) add(line load.Refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen++
	if r.seen <= r.most {
		fmt.Fprintf(r.w, "refused: %v\n", &line)
	}
	if r.seen == r.most+1 {
		fmt.Fprintln(r.w, "refused: and more (--show-refused prints more of them)")
	}
}

// report says what became of the rows, also when the import was interrupted.
func (f *importFlags) report(s *session, source string, p load.Progress, err error) error {
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{
			"source": source, "rows": p.Rows, "applied": p.Applied, "resumed": p.Resumed, "refused": p.Refused,
			"empty": p.Empty, "seconds": p.Elapsed.Seconds(), "rows_per_second": p.Rate, "complete": err == nil,
		})
	}
	fmt.Fprintf(s.term.out, "%d rows: %d counted, %d decided by an earlier run, %d refused, %d left out as empty, in %v (%.0f rows/s)\n",
		p.Rows, p.Applied, p.Resumed, p.Refused, p.Empty, p.Elapsed.Round(time.Millisecond), p.Rate)
	if err != nil && !errors.Is(err, load.ErrBinary) {
		fmt.Fprintf(s.term.err, "run the same command again to go on: source %q remembers how far it is\n", source)
	}
	return nil
}
