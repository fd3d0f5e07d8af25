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

// noArgs refuses arguments, and names the first one.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, but got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// argsBetween requires from low to high arguments; with high < 0 there is no upper limit.
func argsBetween(low, high int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < low || high >= 0 && len(args) > high {
			return usagef("usage: %s %s", cmd.CommandPath(), names)
		}
		return nil
	}
}

// children makes a command that only has subcommands refuse any other argument.
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

// choice looks up a word in an enum; the error lists the words.
func choice[E ~int32](flag, word string, values map[string]E) (E, error) {
	if v, ok := values[word]; ok {
		return v, nil
	}
	return 0, noneOf("--"+flag, word, wordsOf(values))
}

// noneOf returns the error of a word that is not in words. It names the nearest word, or else all of them.
func noneOf(what, word string, words []string) error {
	if near := spell.Nearest(word, words); near != "" {
		return usagef("%s %q: did you mean %s?", what, word, near)
	}
	return usagef("%s %q: one of %s", what, word, strings.Join(words, ", "))
}

// durationValue is the value of a flag for a duration that is not below least.
type durationValue struct {
	d     *time.Duration
	least time.Duration
}

// durationVar adds a flag for a duration. Values below least are refused; a least of one microsecond means any value
// above zero.
func durationVar(f *pflag.FlagSet, d *time.Duration, name string, value, least time.Duration, usage string) {
	*d = value
	f.Var(durationValue{d, least}, name, usage)
}

// Set implements pflag.Value.
func (v durationValue) Set(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return fmt.Errorf("write it as 500ms, 5s or 2m")
	case d < v.least && v.least == 0:
		return fmt.Errorf("it must not be negative")
	case d < v.least && v.least == time.Microsecond:
		return fmt.Errorf("it must be above zero")
	case d < v.least:
		return fmt.Errorf("it must be at least %v", v.least)
	}
	*v.d = d
	return nil
}

// String implements pflag.Value.
func (v durationValue) String() string {
	if v.d == nil {
		return ""
	}
	return v.d.String()
}

// Type implements pflag.Value.
func (v durationValue) Type() string { return "duration" }

// byteSizeValue is the value of a flag that is a number of bytes, without or with a unit.
type byteSizeValue struct{ n *int64 }

// byteSizeVar adds a flag for a number of bytes, without or with a unit.
func byteSizeVar(f *pflag.FlagSet, n *int64, name string, value int64, usage string) {
	*n = value
	f.Var(byteSizeValue{n}, name, usage)
}

// Set implements pflag.Value.
func (b byteSizeValue) Set(text string) error {
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
func (b byteSizeValue) String() string {
	if b.n == nil {
		return ""
	}
	return strings.ReplaceAll(humanize.IBytes(uint64(*b.n)), " ", "")
}

// Type implements pflag.Value.
func (b byteSizeValue) Type() string { return "bytes" }

// stringsValue is the value of a flag that may be given several times. An empty value removes the earlier ones.
type stringsValue []string

func (v *stringsValue) String() string { return strings.Join(*v, ",") }
func (v *stringsValue) Type() string   { return "text" }

func (v *stringsValue) Set(text string) error {
	if text == "" {
		*v = nil
		return nil
	}
	*v = append(*v, text)
	return nil
}

// bins returns the bins of --bin, which may be given several times. If --bin is given and empty, that is an error: a
// shell variable may be unset.
func (v stringsValue) bins(cmd *cobra.Command) ([][]byte, error) {
	if len(v) == 0 && cmd.Flags().Changed("bin") {
		return nil, usagef("--bin is empty: a bin has 1 to %d bytes", proto.BinLenMax)
	}
	return keysOf(v), nil
}

// floatsValue is the value of a flag with numbers, separated by commas; it may be given several times.
type floatsValue []float64

func (n *floatsValue) String() string {
	text := make([]string, len(*n))
	for i, v := range *n {
		text[i] = exact(v)
	}
	return strings.Join(text, ",")
}

func (n *floatsValue) Type() string { return "numbers" }

func (n *floatsValue) Set(text string) error {
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
