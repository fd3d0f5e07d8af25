package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebbdb/ebb/internal/spell"
	"github.com/ebbdb/ebb/proto"
)

// noArgs refuses arguments, by name.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, but got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// argsBetween wants low to high arguments (high < 0: any number).
func argsBetween(low, high int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < low || high >= 0 && len(args) > high {
			return usagef("usage: %s %s", cmd.CommandPath(), names)
		}
		return nil
	}
}

// children makes a command that only has subcommands complain about others.
func children(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return cmd.Help()
	}
	cmd.AddCommand(subs...)
	return cmd
}

// choice reads one of a few words into an enum.
func choice[E ~int32](flag, word string, values map[string]E) (E, error) {
	if v, ok := values[word]; ok {
		return v, nil
	}
	return 0, noneOf("--"+flag, word, wordsOf(values))
}

// noneOf refuses a word of what that is none of words, and names the nearest of them or all.
func noneOf(what, word string, words []string) error {
	if near := spell.Nearest(word, words); near != "" {
		return usagef("%s %q: did you mean %s?", what, word, near)
	}
	return usagef("%s %q: one of %s", what, word, strings.Join(words, ", "))
}

// span is the value of a flag that is a duration of at least so much.
type span struct {
	d     *time.Duration
	least time.Duration
}

// durationVar adds a flag whose value is refused below least: a microsecond
// stands for whatever is above zero.
func durationVar(f *pflag.FlagSet, d *time.Duration, name string, value, least time.Duration, usage string) {
	*d = value
	f.Var(span{d, least}, name, usage)
}

// Set implements pflag.Value.
func (s span) Set(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return fmt.Errorf("write it as 500ms, 5s or 2m")
	case d < s.least && s.least == 0:
		return fmt.Errorf("it must not be negative")
	case d < s.least && s.least == time.Microsecond:
		return fmt.Errorf("it must be above zero")
	case d < s.least:
		return fmt.Errorf("it must be at least %v", s.least)
	}
	*s.d = d
	return nil
}

// String implements pflag.Value.
func (s span) String() string {
	if s.d == nil {
		return ""
	}
	return s.d.String()
}

// Type implements pflag.Value.
func (s span) Type() string { return "duration" }

// byteSize is the value of a flag that is a number of bytes.
type byteSize struct{ n *int64 }

// byteSizeVar adds a flag whose value is bytes, written with a unit or without.
func byteSizeVar(f *pflag.FlagSet, n *int64, name string, value int64, usage string) {
	*n = value
	f.Var(byteSize{n}, name, usage)
}

// Set implements pflag.Value.
func (b byteSize) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return err
	}
	if n > math.MaxInt64 {
		return fmt.Errorf("%s are more than can be", text)
	}
	*b.n = int64(n)
	return nil
}

// String implements pflag.Value.
func (b byteSize) String() string {
	if b.n == nil {
		return ""
	}
	return strings.ReplaceAll(humanize.IBytes(uint64(*b.n)), " ", "")
}

// Type implements pflag.Value.
func (b byteSize) Type() string { return "bytes" }

// words is the value of a flag that may be given several times. An empty one takes back those before.
type words []string

func (w *words) String() string { return strings.Join(*w, ",") }
func (w *words) Type() string   { return "text" }

func (w *words) Set(text string) error {
	if text == "" {
		*w = nil
		return nil
	}
	*w = append(*w, text)
	return nil
}

// bins are those of a --bin that may be given several times. Given and empty it is a mistake, such as a variable of the shell that is not set.
func (w words) bins(cmd *cobra.Command) ([][]byte, error) {
	if len(w) == 0 && cmd.Flags().Changed("bin") {
		return nil, usagef("--bin is empty: a bin has 1 to %d bytes", proto.BinLenMax)
	}
	return keysOf(w), nil
}

// floats is the value of a flag with numbers, separated by commas; it may be given several times.
type floats []float64

func (n *floats) String() string {
	text := make([]string, len(*n))
	for i, v := range *n {
		text[i] = exact(v)
	}
	return strings.Join(text, ",")
}

func (n *floats) Type() string { return "numbers" }

func (n *floats) Set(text string) error {
	if text == "" {
		*n = nil
		return nil
	}
	for field := range strings.SplitSeq(text, ",") {
		v, err := proto.ParseNumber(strings.TrimSpace(field))
		switch {
		case errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("%q is too large", field)
		case err != nil:
			return fmt.Errorf("%q: %w", field, err)
		}
		*n = append(*n, v)
	}
	return nil
}
