package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/internal/spell"
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
