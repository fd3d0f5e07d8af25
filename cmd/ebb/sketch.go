package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/internal/outfile"
	"github.com/ebbdb/ebb/proto"
)

func newSketch(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "sketch", Short: "Take what keys hold out of a cluster, and merge it into another",
		Long: `A sketch is what a key holds, of any kind, in bytes that other clusters understand. A file of sketches can have many,
of different namespaces. Files can be put one behind the other.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSketchExport(s), newSketchImport(s), newSketchList(s))
	return cmd
}

// sketchJSON is a sketch in a list of exported, imported or stored ones.
type sketchJSON struct {
	Namespace string `json:"namespace"`
	keyName
	Kind  string    `json:"kind"`
	Bytes int       `json:"bytes"`
	AsOf  time.Time `json:"as_of"`
}

func newSketchExport(s *session) *cobra.Command {
	var file string
	var patterns []string
	cmd := &cobra.Command{
		Use: "export [KEY...]", Short: "Write what keys hold to a file", Args: argsBetween(0, -1, "[KEY...]"),
		Long: `Each key is written as it is at a moment of its own. A key of more than 15.7 MiB is refused, and so is a distribution
of more than 3.9 MiB with more than 258,048 bins: a backup takes them along (ebb backup). What takes more than 3.9 MiB
is read in pieces, again if it is written in between. Bitmaps whose ids stand for strings, and those of namespaces that
place bitmaps by slice, are refused: ebb bits export writes their ids or strings.`,
		Example: "  ebb sketch export clicks/country -f country.ebb\n" +
			"  ebb sketch export --matching 'clicks/*' -f clicks.ebb\n" +
			"  ebb sketch export fans players/all -f - | ebb sketch import - --prefix copy/",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkExport(args, patterns, file); err != nil {
				return err
			}
			return s.exportSketches(cmd, args, patterns, file)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "write to this `file`, - for standard output")
	cmd.Flags().StringSliceVar(&patterns, "matching", nil,
		"also all keys that match this `pattern`, as of ebb keys; may be repeated")
	return cmd
}

// checkExport refuses an export without keys or without a file.
func checkExport(keys, patterns []string, file string) error {
	switch {
	case len(keys)+len(patterns) == 0:
		return usagef("which keys? name some, or say --matching PATTERN")
	case file == "":
		return usagef("where to? -f FILE, or -f - for standard output")
	}
	return nil
}

// withMatching adds to keys the keys of a kind that match patterns; kind 0 is any.
func (s *session) withMatching(
	ctx context.Context, c *client.Client, keys, patterns []string, kind client.Kind,
) ([]string, error) {
	for _, pattern := range patterns {
		for key, err := range c.Keys(ctx, s.namespace, client.KeysQuery{Pattern: pattern, Kind: kind}) {
			if err != nil {
				return nil, err
			}
			keys = append(keys, key.Key)
		}
	}
	return keys, nil
}

func (s *session) exportSketches(cmd *cobra.Command, keys, patterns []string, file string) error {
	c, err := s.dial(cmd) // --timeout applies to each key
	if err != nil {
		return err
	}
	defer c.Close()
	ctx := cmd.Context()
	if keys, err = s.withMatching(ctx, c, keys, patterns, 0); err != nil {
		return err
	}
	bytes := int64(0)
	write := func(to io.Writer) error {
		w := bufio.NewWriter(to)
		bar := s.sketchBar(len(keys))
		for _, key := range keys {
			sketch, err := c.ExportSketch(ctx, s.namespace, key)
			if err != nil {
				return err
			}
			n, err := sketch.WriteTo(w)
			if err != nil {
				return err
			}
			bytes += n
			bar(1)
		}
		return w.Flush()
	}
	if file == "-" {
		err = write(s.term.out)
	} else {
		err = writeSketches(file, write)
	}
	if err == nil {
		fmt.Fprintf(s.term.err, "exported %s, %s\n", plural(len(keys), "key", "keys"), bytesText(uint64(bytes)))
	}
	return err
}

// writeSketches writes a file of sketches. Only its owner can read it, because its data may need a token in the
// cluster.
func writeSketches(file string, write func(io.Writer) error) error {
	f, err := outfile.Open("--file", file, 0o600)
	if err != nil {
		return err
	}
	defer f.Drop()
	return f.Write(write)
}

// sketchBar draws how many keys are done, if stderr is a terminal.
func (s *session) sketchBar(keys int) (done func(int)) {
	if !interactive(s.term.err) {
		return func(int) {}
	}
	bar := progressbar.NewOptions(keys, progressbar.OptionSetWriter(rawTerminal(s.term.err)),
		progressbar.OptionSetDescription("exporting"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	return func(n int) { _ = bar.Add(n) }
}

func newSketchImport(s *session) *cobra.Command {
	var opts client.ImportOptions
	var prefix string
	var skip int
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Merge what a file of sketches holds into keys", Args: argsBetween(1, 1, "FILE"),
		Long: `A key that is there then holds what both hold: counts are added, and sets and bitmaps united. Strings have no union: where
the key is there, they are left out and named, and the exit code is 3; --replace takes them. The keys go into the
namespaces that they came from, or into the one that -n names.

A namespace must have the decay, the half-lives and the window that the sketch's had, and the same hash seed where the kind
hashes (all but distributions, quantiles, Morris counters, bitmaps, phrases and strings). --create-namespace makes
one that has them. In a namespace with an event clock the time of the sketch comes along.

Each key is applied once or not at all. Sketches that have faded by the clock of the
namespace are left out, and counted. If an import fails, it says how many keys are done; continue after them with --skip,
since a second import of a key counts it once more.`,
		Example: "  ebb sketch import country.ebb\n" +
			"  ebb sketch import clicks.ebb -n clicks-copy --create-namespace\n" +
			"  ebb sketch import country.ebb --key clicks/country/eu\n" +
			"  ebb sketch import clicks.ebb --prefix eu/",
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Key != "" && prefix != "" {
				return usagef("--key names one key, and --prefix changes the names of all: not both")
			}
			if cmd.Flags().Changed("namespace") {
				opts.Namespace = s.namespace
			}
			err := s.importSketches(cmd, args[0], opts, prefix, skip)
			if hint, _, ok := strings.Cut(nextStep(err), ", then send it again (ebb import --recheck)"); ok {
				err = advised(err, hint+", then import it again")
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.Key, "key", "", "give the key this `name`; the file has one sketch then")
	f.StringVar(&prefix, "prefix", "", "put this `text` before the name of each key")
	f.BoolVar(&opts.Replace, "replace", false, "put sketches in the place of what keys hold")
	f.BoolVar(&opts.Create, "create-namespace", false,
		"make the namespace with the settings of the sketch's, if it does not exist")
	f.IntVar(&skip, "skip", 0,
		"leave out so many sketches at the beginning of the file: those that an import that failed has done")
	return cmd
}

func (s *session) importSketches(cmd *cobra.Command, file string, opts client.ImportOptions, prefix string, skip int) error {
	c, err := s.dial(cmd) // --timeout applies to each key
	if err != nil {
		return err
	}
	defer c.Close()
	n, done, faded, left := 0, skip, 0, 0
	take := func(sketch *client.Sketch, into client.ImportOptions) error {
		err := c.ImportSketch(cmd.Context(), sketch, into)
		switch {
		case errors.Is(err, proto.ErrKeyNotFound): // all of it has faded
			faded++
		case sketch.Kind() == client.KindString && errors.Is(err, proto.ErrUnmergeable):
			left++
			fmt.Fprintf(s.term.err, "left out: %s is a string, and there is one: strings have no union\n",
				printable([]byte(cmp.Or(into.Key, sketch.Key()))))
		case err != nil:
			return err
		}
		done++
		return nil
	}
	var only *client.Sketch // with --key the file must hold one sketch, so nothing is written before its end
	err = s.eachSketch(file, func(sketch *client.Sketch) error {
		if n++; n <= skip {
			return nil
		}
		into := opts
		switch {
		case only != nil:
			return usagef("--key names one key, and file %s has more than one sketch: use --prefix", file)
		case opts.Key != "":
			only = sketch
			return nil
		case prefix != "":
			into.Key = prefix + sketch.Key()
		}
		return take(sketch, into)
	})
	if err == nil && only != nil {
		err = take(only, opts)
	}
	switch {
	case errors.Is(err, client.ErrUnknownOutcome):
		fmt.Fprintf(s.term.err, "%s done, and the next one may be: look at its key, since a second import counts it "+
			"once more; then continue with --skip %d, or --skip %d if it is done\n", plural(done, "sketch is", "sketches are"), done, done+1)
		return err
	case err != nil:
		if done > 0 {
			fmt.Fprintf(s.term.err, "%s done; continue with --skip %d\n", plural(done, "sketch is", "sketches are"), done)
		}
		return advisedOf(err, proto.ErrNamespaceNotFound.Code,
			"--create-namespace makes it as the first sketch needs it; ebb namespace list shows those that are there")
	}
	imported := max(n-skip, 0) - faded - left
	if left > 0 {
		err = fmt.Errorf("%d of %d: %w", left, max(n-skip, 0), errLeftOut)
	}
	if s.output == "json" {
		counts := map[string]int{"imported": imported, "skipped": min(n, skip), "faded": faded, "left_out": left}
		return cmp.Or(printJSON(s.term.out, counts), err)
	}
	if faded > 0 {
		fmt.Fprintf(s.term.err, "note: %s left out: by the clock of namespace %s nothing is left of what they hold\n",
			plural(faded, "sketch is", "sketches are"), s.namespace)
	}
	_, failed := fmt.Fprintf(s.term.out, "imported %s\n", plural(imported, "key", "keys"))
	return cmp.Or(failed, err)
}

// errLeftOut says that an import is complete except for strings whose keys exist.
var errLeftOut = errors.New("strings were left out, since those keys are there: --replace takes them")

// eachSketch visits the sketches of a file.
func (s *session) eachSketch(file string, visit func(*client.Sketch) error) error {
	in := s.term.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	r := bufio.NewReader(in)
	for n := 0; ; n++ {
		sketch, err := client.ReadSketch(r)
		switch {
		case err == io.EOF && n == 0:
			return proto.ErrCorrupt.Errorf("file %s is empty", file).WithHint("files of sketches come from ebb sketch export")
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := visit(sketch); err != nil {
			return err
		}
	}
}

func newSketchList(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "list FILE", Short: "Say what a file of sketches holds, without a cluster", Args: argsBetween(1, 1, "FILE"),
		Example: "  ebb sketch list clicks.ebb",
		RunE: func(_ *cobra.Command, args []string) error {
			rows := []sketchJSON{}
			err := s.eachSketch(args[0], func(k *client.Sketch) error {
				rows = append(rows, sketchJSON{k.Namespace().Name, keyNameOf([]byte(k.Key())), proto.KindName(k.Kind()), k.Bytes(), k.AsOf().UTC()})
				return nil
			})
			if err != nil {
				return err
			}
			if s.output == "json" {
				return printJSON(s.term.out, rows)
			}
			var table [][]string
			for _, r := range rows {
				table = append(table, []string{r.Namespace, r.shown(), r.Kind, fmt.Sprint(r.Bytes), r.AsOf.Format(time.RFC3339)})
			}
			return s.printTable("NAMESPACE\tKEY\tKIND\tBYTES\tAS OF", table)
		},
	}
}
