package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

var (
	bitsFormats   = []string{"auto", "ids", "csv", "roaring"}
	exportFormats = []string{"ids", "roaring"}
)

func newBitsLoad(s *session) *cobra.Command {
	var f bitsLoadFlags
	cmd := &cobra.Command{
		Use: "load KEY FILE", Short: "Put all ids of a file in", Args: argsBetween(2, 2, "KEY FILE (- for standard input)"),
		Long: `Puts the ids of FILE (- for standard input; .gz is understood) into a bitmap. The file has one id a line, a CSV column of them (--column, by the
name in its header or by number from 1), or is a bitmap in the portable format of Roaring, of 32 or 64 bits.

With a KEY as play/{day}, each row of a TSV, CSV or JSON-lines file says which bitmap its id goes into: {day} is replaced
by that column, and {t:day} by the day of the time in column t, or its hour, week, month, quarter or year. Times are read as
ebb import does. A row that cannot be read, as one with a bad time, ends the load with an error that names its line, where
ebb import refuses the row and counts the others: correct or remove the row, and run the load again.

In a namespace with a dictionary the file has strings instead, one a line or a column of them.

Ids that are in already change nothing, so a load that was interrupted is simply run again. It continues where the cluster
remembers it to have come, in steps of --step ids, if the file is the same (name, size, time of change) and is loaded into
the same key; --restart begins anew. Standard input, strings of a dictionary and keys as play/{day} begin anew in any case. Sorted ids are fastest.`,
		Example: "  ebb bits load premium premium.txt\n  ebb bits load play/2011-11-01 plays.csv.gz --column user_id\n  ebb bits load 'play/{day}' plays.csv.gz --column user_id\n  ebb bits load premium premium.roaring --format roaring",
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTemplate(args[0]) {
				return s.loadRows(cmd, args[0], args[1], f)
			}
			if f.column != "" {
				f.format = "csv"
			}
			if err := oneOf("--format", f.format, bitsFormats); err != nil {
				return err
			}
			if f.step < 1 {
				return usagef("--step %d: it is 1 or more", f.step)
			}
			return s.loadBits(cmd, args[0], args[1], f)
		},
	}
	cmd.Flags().StringVar(&f.format, "format", "auto", "ids, csv, roaring or auto; with a KEY as play/{day} tsv, csv, jsonl or auto")
	cmd.Flags().StringVar(&f.column, "column", "", "`column` of a CSV file that holds the ids")
	f.columns.addHeader(cmd.Flags())
	f.columns.addTimes(cmd.Flags())
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "no progress bar")
	cmd.Flags().BoolVar(&f.restart, "restart", false, "begin anew, however far an earlier run has come")
	cmd.Flags().IntVar(&f.step, "step", 4<<20, "after how many `ids` the load records in the cluster how far it has come")
	return cmd
}

// bitsLoadFlags are the flags that say how a file is loaded.
type bitsLoadFlags struct {
	columns        columnFlags
	format, column string
	quiet, restart bool
	step           int
}

func oneOf(what, word string, words []string) error {
	for _, w := range words {
		if w == word {
			return nil
		}
	}
	return noneOf(what, word, words)
}

// countingReader counts the bytes that are read.
type countingReader struct {
	io.Reader
	bytes int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.bytes += int64(n)
	return n, err
}

func (s *session) loadBits(cmd *cobra.Command, key, path string, f bitsLoadFlags) (err error) {
	var opts load.Options
	if err := f.columns.settle(&opts); err != nil {
		return err
	}
	file, err := s.open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	m := &countingReader{Reader: file}
	in := bufio.NewReaderSize(m, 1<<20)
	if head, _ := in.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		in = bufio.NewReaderSize(unzipped, 1<<20)
	}
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := load.CheckNamespace(cmd.Context(), c, s.namespace); err != nil {
		return err
	}
	if c.HasDictionary(cmd.Context(), s.namespace) {
		l := &namesLoader{ctx: cmd.Context(), client: c, namespace: s.namespace, key: key, began: time.Now(), show: s.loadProgress(file, m, f.quiet)}
		err = cmp.Or(load.ReadNames(in, f.format, f.column, opts, l.add), l.flush())
		l.show(l.names, l.rate(), true)
		return s.loaded(path, l.names, l.changed, l.rate(), err)
	}
	w := c.BitWriter(client.BitWriterOptions{Namespace: s.namespace, MaxBatch: 64 << 10, Timeout: 2 * time.Minute})
	l := &bitsLoader{ctx: cmd.Context(), writer: w, key: key, began: time.Now(), show: s.loadProgress(file, m, f.quiet)}
	l.step = f.step
	if l.progress, err = s.bitLoad(cmd.Context(), c, key, file, f); err != nil {
		return err
	}
	if l.progress != nil {
		l.skip = int(l.progress.Done())
	}
	if l.skip > 0 {
		say(s, "%s: continues after the first %d ids, which an earlier run has put in", path, l.skip)
	}
	err = load.ReadIDs(in, f.format, f.column, opts, l.add)
	if err == nil {
		err = l.flush()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 2*time.Minute)
	defer cancel()
	if err != nil {
		cancel() // buffered ids need not be written: the load has to be run again in any case
	}
	if err = cmp.Or(err, w.Close(closing)); err == nil && l.progress != nil {
		err = l.progress.Forget(closing)
	}
	l.show(l.ids, l.rate(), true)
	return s.loaded(path, l.ids, int(w.Stats().Changed), l.rate(), err)
}

// bitLoad finds out how far an earlier load of the same file has come. It returns nil for a stream, which cannot be
// loaded again.
func (s *session) bitLoad(ctx context.Context, c *client.Client, key string, file io.Reader, f bitsLoadFlags) (*client.BitLoad, error) {
	of, ok := file.(*os.File)
	if !ok || of == os.Stdin {
		return nil, nil
	}
	info, err := of.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	what := fmt.Sprintf("%q %q %q %d %d %s %q", s.namespace, key, info.Name(), info.Size(), info.ModTime().UnixNano(), f.format, f.column)
	name := fmt.Sprintf("bits/%x", sha256.Sum256([]byte(what)))
	l, err := c.BitLoad(ctx, s.namespace, key, name)
	if err != nil || !f.restart || l.Done() == 0 {
		return l, err
	}
	if err := l.Forget(ctx); err != nil {
		return nil, err
	}
	return c.BitLoad(ctx, s.namespace, key, name)
}

// loaded prints what a load has done, or returns its error.
func (s *session) loaded(path string, ids, changed int, rate float64, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w; run it again when that is mended: ids that are in change nothing", path, err)
		return advisedOf(err, ebbv1.Code_CODE_SOURCE_FENCED,
			"run it again; of loads of one file into one key the last one continues")
	}
	switch s.output {
	case "json":
		return printJSON(s.term.out, map[string]any{"ids": ids, "changed": changed, "ids_per_second": rate})
	case "tsv":
		_, err = fmt.Fprintf(s.term.out, "%d\t%d\n", ids, changed)
	default:
		_, err = fmt.Fprintf(s.term.out, "read %d ids, %d of them new, at %.0f a second\n", ids, changed, rate)
	}
	return err
}

// namesLoader loads strings from a file into a bitmap, with as many in one request as it may carry.
type namesLoader struct {
	ctx            context.Context
	client         *client.Client
	namespace, key string
	began          time.Time
	batch          []string
	bytes          int
	names, changed int
	show           func(names int, rate float64, done bool)
}

func (l *namesLoader) rate() float64 {
	return float64(l.names) / max(time.Since(l.began).Seconds(), 1e-9)
}

func (l *namesLoader) add(_ int, name string) error {
	l.batch = append(l.batch, name)
	l.bytes += len(name)
	if len(l.batch) < proto.NamesMax && l.bytes < proto.BatchBytesMax-proto.NameLenMax {
		return nil
	}
	return l.flush()
}

func (l *namesLoader) flush() error {
	l.names += len(l.batch)
	ctx, cancel := context.WithTimeout(l.ctx, 2*time.Minute)
	defer cancel()
	changed, err := l.client.SetNames(ctx, l.namespace, l.key, l.batch...)
	l.changed += changed
	l.batch, l.bytes = l.batch[:0], 0
	l.show(l.names, l.rate(), false)
	return err
}

// loadProgress draws a progress bar if stderr is a terminal.
func (s *session) loadProgress(file io.Reader, m *countingReader, quiet bool) func(ids int, rate float64, done bool) {
	if quiet || !interactive(s.term.err) {
		return func(int, float64, bool) {}
	}
	size := int64(-1)
	if f, ok := file.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	bar := progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(rawTerminal(s.term.err)), progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	return func(ids int, rate float64, done bool) {
		bar.Describe(fmt.Sprintf("%d ids, %.0f ids/s", ids, rate))
		_ = bar.Set64(m.bytes)
		if done {
			_ = bar.Finish()
		}
	}
}

// bitsLoader loads ids from a file into a bitmap.
type bitsLoader struct {
	ctx    context.Context
	writer *client.BitWriter
	key    string
	began  time.Time
	batch  []uint64
	ids    int // ids read so far

	progress *client.BitLoad // nil: the shards keep no progress of this load
	skip     int             // how many ids an earlier load has set
	step     int
	show     func(ids int, rate float64, done bool)
}

func (l *bitsLoader) rate() float64 { return float64(l.ids) / max(time.Since(l.began).Seconds(), 1e-9) }

func (l *bitsLoader) add(id uint64) error {
	if l.ids < l.skip {
		l.ids++
		return nil
	}
	l.batch = append(l.batch, id)
	if len(l.batch) < min(16<<10, l.step) {
		return nil
	}
	return l.flush()
}

func (l *bitsLoader) flush() error {
	if len(l.batch) == 0 {
		return nil
	}
	before, last := l.ids, l.batch[len(l.batch)-1]
	l.ids += len(l.batch)
	err := l.writer.Set(l.ctx, l.key, l.batch...)
	l.batch = l.batch[:0]
	l.show(l.ids, l.rate(), false)
	if err == nil && l.progress != nil && before/l.step != l.ids/l.step {
		err = cmp.Or(l.writer.Flush(l.ctx), l.progress.Reached(l.ctx, uint64(l.ids), last))
	}
	return err
}

func newBitsExport(s *session) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "export KEY", Short: "Write all ids to the standard output", Args: argsBetween(1, 1, "KEY"),
		Long: `Writes all ids in ascending order: one a line, or as a bitmap in the portable format of Roaring, of 32 bits if all ids are below 2^32 and of 64 bits
otherwise. In a namespace with a dictionary it writes strings, in the order of their numbers, and with --format roaring their numbers. It asks for a page of ids at a time: what is changed during the export may be in it or not.`,
		Example: "  ebb bits export premium >premium.txt\n  ebb bits export premium --format roaring >premium.roaring",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneOf("--format", format, exportFormats); err != nil {
				return err
			}
			return s.exportBits(cmd, args[0], format)
		},
	}
	cmd.Flags().StringVar(&format, "format", "ids", "ids or roaring")
	return cmd
}

func (s *session) exportBits(cmd *cobra.Command, key, format string) error {
	if format == "roaring" && interactive(s.term.out) {
		return usagef("--format roaring writes bytes that are not for a terminal: redirect it to a file")
	}
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	out := bufio.NewWriterSize(s.term.out, 1<<16)
	ids := c.Bitmap(s.namespace, client.Bits(key)).IDs(cmd.Context())
	if format == "roaring" {
		d := &load.IDs{}
		for id, err := range ids {
			if err != nil {
				return err
			}
			d.Add(id)
		}
		return cmp.Or(d.WriteRoaring(out), out.Flush())
	}
	if ctx := cmd.Context(); c.HasDictionary(ctx, s.namespace) {
		for name, err := range c.Bitmap(s.namespace, client.Bits(key)).Names(ctx) {
			if err != nil {
				return cmp.Or(err, out.Flush())
			}
			if _, err := out.WriteString(name + "\n"); err != nil {
				return err
			}
		}
		return out.Flush()
	}
	var line []byte
	for id, err := range ids {
		if err != nil {
			return cmp.Or(err, out.Flush())
		}
		line = append(strconv.AppendUint(line[:0], id, 10), '\n')
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}
