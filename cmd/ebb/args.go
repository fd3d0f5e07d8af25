package main

import (
	"strings"

	"github.com/spf13/cobra"
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
	return 0, usagef("--%s %q: one of %s", flag, word, strings.Join(wordsOf(values), ", "))
}
