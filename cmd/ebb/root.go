package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/internal/spell"
	"github.com/ebbdb/ebb/proto"
)

// session is what every client command shares: how to reach the cluster, and how to print its answers.
type session struct {
	term       terminal
	addrs      []string
	namespace  string
	timeout    time.Duration
	timeoutSet bool // the timeout was set by a flag or in the environment
	output     string
	json       bool
	tls        tlsFlags
	tokenFile  string
	noFormula  bool            // escape formulas in TSV
	cells      *formulaEscaper // the writer of TSV output if noFormula is set; else nil
	given      map[string]bool // flags on the command line; those from the environment are not in it
}

// outputs are the formats of -o.
var outputs = []string{"table", "json", "tsv"}

func newRoot(t terminal) *cobra.Command { return newRootOf(&session{term: t}) }

// newRootOf is newRoot for a session that the caller closes.
func newRootOf(s *session) *cobra.Command {
	root := &cobra.Command{
		Use:   "ebb",
		Short: "A cluster that remembers what is happening now",
		Long: `ebb stores decaying categorical distributions, sharded and replicated.

  ebb demo                          three nodes on this machine, learning and forgetting
  ebb serve                         one node; alone it is a working cluster
  ebb incr clicks/country US        count something
  ebb top clicks/country            what is happening now

Every flag can also be set as EBB_FLAG, with '-' as '_' (EBB_ADDR, EBB_DATA_DIR).`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return s.settle(cmd.Flags()) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			if ask, err := cmd.Flags().GetBool("version"); err == nil && ask {
				return s.printVersion()
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	root.Flags().Bool("version", false, "the same as `ebb version`")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return suggestFlag(cmd, err) })
	f := root.PersistentFlags()
	f.StringSliceVar(&s.addrs, "addr", []string{"127.0.0.1:7070"}, "gRPC `address` of any node; may be repeated")
	f.StringVarP(&s.namespace, "namespace", "n", proto.DefaultNamespace, "`namespace` of the keys")
	durationVar(f, &s.timeout, "timeout", 5*time.Second, time.Microsecond, "how long a question or write may take")
	f.StringVarP(&s.output, "output", "o", "table", "`format` of the answer: table, json or tsv")
	f.BoolVar(&s.json, "json", false, "the same as -o json")
	f.BoolVar(&s.noFormula, "quote-formulas", false, "with -o tsv: put ' before cells that a spreadsheet would take for formulas (those that begin with = + - or @ and are no numbers)")
	s.tls.add(f)
	f.StringVar(&s.tokenFile, "token-file", "", "`file` with the token to show, where the cluster wants one; or EBB_TOKEN holds it")
	root.AddCommand(
		newServe(s), newDemo(s), newNamespace(s), newIncr(s), newPhrases(s), newFeed(s), newString(s), newBits(s), newImport(s), newSource(s),
		newGet(s), newTop(s), newDist(s), newEstimate(s), newSurprise(s), newTrend(s), newAlert(s), newOverlap(s), newGraph(s), newMatch(s), newQuery(s), newKeys(s), newDescribe(s), newDel(s), newExpire(s), newRename(s), newSketch(s), newStatus(s), newCluster(s), newProbe(s), newBackup(s), newRestore(s), newCert(s), newToken(s), newBench(s), newChaos(s),
		newKMV(s), newAccuracy(s), newVersion(s), newExitCodes(s),
	)
	settleDefaults(root)
	s.addCompletion(root)
	return root
}

// settleDefaults makes cobra's own commands refuse unknown arguments, as ours do.
func settleDefaults(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			children(cmd)
		case "help":
			cmd.Run = nil
			cmd.RunE = func(_ *cobra.Command, args []string) error {
				topic, rest, err := root.Find(args)
				if err != nil || len(rest) > 0 {
					return unknownCommand(topic, rest[0])
				}
				return topic.Help()
			}
		}
	}
}

// variableOf returns the environment variable that can set a flag.
func variableOf(flag string) string {
	return "EBB_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// settle sets flags that are not on the command line from the environment, and checks the flags that all commands
// share.
func (s *session) settle(flags *pflag.FlagSet) error {
	var err error
	s.given = map[string]bool{}
	flags.Visit(func(f *pflag.Flag) { s.given[f.Name] = true })
	flags.VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		if value := os.Getenv(name); value != "" && !f.Changed && err == nil {
			if e := flags.Set(f.Name, value); e != nil {
				err = usagef("%s %q: %s", name, value, flagValueError(f, e))
			}
		}
	})
	if err != nil {
		return err
	}
	s.timeoutSet = flags.Changed("timeout")
	if err := s.settleOutput(flags); err != nil {
		return err
	}
	if slices.Contains(outputs, s.output) {
		return s.setFormulaEscaper()
	}
	return noneOf("unknown output format", s.output, outputs)
}

// setFormulaEscaper sends TSV output through a formulaEscaper, if --quote-formulas is given.
func (s *session) setFormulaEscaper() error {
	if !s.noFormula || s.output != "tsv" {
		return nil // spreadsheets do not read other outputs
	}
	s.cells = &formulaEscaper{to: s.term.out}
	s.term.out = s.cells
	return nil
}

// settleOutput combines --json and --output. A flag on the command line wins over the environment variable of the
// other. If both were set in the same way and differ, they are refused.
func (s *session) settleOutput(flags *pflag.FlagSet) error {
	if !s.json || s.given["output"] && !s.given["json"] {
		return nil
	}
	differ := flags.Changed("output") && s.output != "json"
	if differ && s.given["json"] == s.given["output"] {
		return usagef("--json and --output %s: one of them", s.output)
	}
	s.output = "json"
	return nil
}

// dial connects to the cluster. If the user sets --timeout, dial waits at least as long for the first answer of a slow
// node.
func (s *session) dial(cmd *cobra.Command, opts ...client.Option) (*client.Client, error) {
	own := []client.Option{client.WithTimeout(s.timeout)}
	if s.timeoutSet {
		own = append(own, client.WithDialTimeout(max(s.timeout, client.DialTimeoutDefault)))
	}
	return s.dialIn(cmd.Context(), append(own, opts...)...)
}

// dialIn connects to the cluster for as long as ctx lasts.
func (s *session) dialIn(ctx context.Context, opts ...client.Option) (*client.Client, error) {
	secured, err := s.tls.options()
	if err != nil {
		return nil, err
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	return client.DialOptions(ctx, s.addrs, append(append(secured, client.WithToken(token)), opts...)...)
}

// connect dials for one call. ctx ends after --timeout; done ends ctx and closes the client.
func (s *session) connect(cmd *cobra.Command) (ctx context.Context, c *client.Client, done func(), err error) {
	if c, err = s.dial(cmd); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	return ctx, c, func() {
		cancel()
		c.Close()
	}, nil
}

// open opens a file for reading; "-" is the standard input.
func (s *session) open(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(s.term.in), nil
	}
	return os.Open(path)
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if near := spell.Nearest(name, names); near != "" {
		return usagef("unknown command %q: did you mean %s?", name, near)
	}
	return usagef("unknown command %q: `%s --help` lists them", name, cmd.CommandPath())
}

// suggestFlag makes an error of pflag readable. It adds the nearest flag to an unknown one, and to a bad value what the
// flag takes.
func suggestFlag(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		f := invalid.GetFlag()
		return usagef("--%s %q: %s", f.Name, invalid.GetValue(), flagValueError(f, invalid))
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && isNumber(unknown.GetSpecifiedShortnames()) {
		word := "-" + unknown.GetSpecifiedShortnames()
		if p := cmd.Parent(); p != nil && p.Name() == "bits" {
			return badID(word)
		}
		return usagef("%s looks like a flag: behind -- it is an argument like others", word)
	}
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return usagef("%w: see `%s --help`", err, cmd.CommandPath())
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := spell.Nearest(name, names); near != "" {
		return usagef("unknown flag --%s: did you mean --%s?", name, near)
	}
	return usagef("unknown flag --%s: see `%s --help`", name, cmd.CommandPath())
}

func isNumber(word string) bool { return word != "" && word[0] >= '0' && word[0] <= '9' }

// flagValueError describes a bad value of a flag: the error of one of our own flag types, or else what the flag takes.
func flagValueError(f *pflag.Flag, err error) string {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		switch f.Value.(type) {
		case durationValue:
			return invalid.Unwrap().Error()
		case *floatsValue:
			return "it must be " + expectedValue(f) + "; " + invalid.Unwrap().Error()
		}
	}
	return "it must be " + expectedValue(f)
}

// expectedValue describes in words which values a flag takes.
func expectedValue(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "bool":
		return "true or false"
	case "duration":
		return "a duration such as 500ms, 90s or 2h"
	case "bytes":
		return "a number of bytes such as 64MiB or 500kB"
	case "float64":
		return "a number"
	case "numbers":
		return "numbers, separated by commas"
	case "int", "int64":
		return "a whole number"
	case "uint32":
		return "a whole number from 0 to 4294967295"
	case "uint64":
		return "a whole number from 0 to 18446744073709551615"
	case "stringSlice":
		return "a list with commas between"
	}
	return "a " + f.Value.Type()
}
