package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto"
)

func newSource(s *session) *cobra.Command {
	return children(
		&cobra.Command{Use: "source", Short: "List imports, and forget those that are done"},
		newSourceList(s),
		&cobra.Command{
			Use: "drop NAME...", Short: "Forget imports that are done, to make room for others", Args: argsBetween(1, -1, "NAME..."),
			Long: `Makes the cluster forget how far ordered sources are, by the names that ebb import
prints or was given with --source. What they have counted stays. An import of the same
file counts it again then, so drop those that will not be repeated. To count rows that were
refused, import these lines as a file of their own instead.

ebb source list has the names. A source belongs to a namespace: that of -n or, without -n, that which stands in a name
of ebb import (import/NAMESPACE/...).

Each shard remembers 4,096 sources, and for ever: the next one is refused with
TOO_MANY_SOURCES. An import that runs under the name ends with SOURCE_FENCED.`,
			Example: "  ebb source drop import/history/clicks.tsv/e6d4afe7de938463",
			RunE:    func(cmd *cobra.Command, args []string) error { return s.dropSources(cmd, args) },
		},
	)
}

func newSourceList(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the imports that a namespace remembers, and how far each is", Args: noArgs,
		Long: `Lists the ordered sources of the namespace of -n: the name under which each import is remembered, the
last line that a shard has decided, how many refused rows are remembered, and how many shards know it.

An import that is run again under its name counts the lines after that one only. To count all of
them again, drop the source: what they have counted stays, so that it is then counted twice.`,
		Example: "  ebb source list -n history\n  ebb source list -n history -o tsv | cut -f1",
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.listSources(cmd) },
	}
}

// sourceJSON is the progress of an import.
type sourceJSON struct {
	Source  string `json:"source"`
	Line    uint64 `json:"line"`
	Offset  uint64 `json:"offset"`
	Refused uint64 `json:"refused"`
	Shards  int    `json:"shards"`
}

func (s *session) listSources(cmd *cobra.Command) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	list := []sourceJSON{}
	for info, err := range c.Sources(ctx, s.namespace) {
		if err != nil {
			return err
		}
		list = append(list, sourceJSON{info.Name, load.LineOf(info.Newest), info.Newest, info.Refused, info.Shards})
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"namespace": s.namespace, "sources": list})
	}
	if len(list) == 0 && s.output == "table" {
		fmt.Fprintf(s.term.err, "namespace %s remembers no imports\n", s.namespace)
		return nil
	}
	var rows [][]string
	for _, src := range list {
		rows = append(rows, []string{
			printable([]byte(src.Source)), strconv.FormatUint(src.Line, 10),
			strconv.FormatUint(src.Refused, 10), strconv.Itoa(src.Shards),
		})
	}
	return s.printTable("SOURCE\tLINE\tREFUSED\tSHARDS", rows)
}

// sourceArg returns the arguments of `ebb source drop` for a source, with the namespace if the name does not contain
// it.
func (s *session) sourceArg(source string) string {
	if sourceNamespace(source, "") == s.namespace {
		return source
	}
	return source + " -n " + s.namespace
}

// droppedJSON is the result for one name. Known reports whether a row had been decided under the name.
type droppedJSON struct {
	Source string `json:"source"`
	Known  bool   `json:"known"`
}

func (s *session) dropSources(cmd *cobra.Command, names []string) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	dropped := make([]droppedJSON, 0, len(names))
	var unknown []error
	for _, name := range names {
		namespace := s.namespace
		if !cmd.Flags().Changed("namespace") {
			namespace = sourceNamespace(name, namespace)
		}
		known, err := s.dropSource(cmd.Context(), c, namespace, name)
		if err != nil {
			return err
		}
		dropped = append(dropped, droppedJSON{name, known})
		if !known {
			unknown = append(unknown, fmt.Errorf("source %q: no row was counted or refused under that name: `ebb source list` has the names", name))
		} else if s.output != "json" {
			fmt.Fprintf(s.term.out, "dropped %s\n", name)
		}
	}
	if s.output == "json" {
		unknown = append(unknown, printJSON(s.term.out, map[string]any{"sources": dropped}))
	}
	return errors.Join(unknown...)
}

// sourceNamespace returns the namespace that ebb import has put into the name of a source; otherwise if there is none.
func sourceNamespace(name, otherwise string) string {
	parts := strings.Split(name, "/")
	if len(parts) < 4 || parts[0] != "import" || proto.CheckNamespaceName(parts[1]) != nil {
		return otherwise
	}
	return parts[1]
}

// dropSource drops a source. It first opens the source to find out if it was used: otherwise a mistyped name would drop
// nothing without an error.
func (s *session) dropSource(ctx context.Context, c *client.Client, namespace, name string) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	source, err := c.Source(ctx, name, client.SourceOptions{Namespace: namespace})
	switch {
	case errors.Is(err, client.ErrTooManySources): // the source is not in every shard, so it has never counted
	case err != nil:
		return false, err
	default:
		known = source.Resume().Newest > 0
		if err := source.Close(ctx); err != nil {
			return known, err
		}
	}
	return known, c.DropSource(ctx, namespace, name)
}

// adviseTooManySources adds the next step to the error of an import that is one source too many.
func adviseTooManySources(err error) error {
	if !errors.Is(err, client.ErrTooManySources) {
		return err
	}
	return fmt.Errorf("%w; `ebb source list` shows the imports, and `ebb source drop NAME` forgets one that is done", err)
}
