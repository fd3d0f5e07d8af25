package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// completionPatience is how long a completion waits for the cluster's namespaces. A shell must not hang on a cluster
// that cannot be reached.
const completionPatience = 700 * time.Millisecond

// The words that some flags take. A flag for an enum takes the enum's words instead.
var (
	consistencies = []string{"linearizable", "bounded", "any"}
	formats       = []string{"auto", "tsv", "csv", "jsonl"}
	timeUnits     = []string{"auto", "s", "ms", "us"}
	logFormats    = []string{"text", "json"}
	logLevels     = []string{"debug", "info", "warn", "error"}

	whatWhenRemoved = []string{"exit", "wait"}
)

// flagWords returns the flags that take one of a few words, with the words.
func flagWords() map[string][]string {
	return map[string][]string{
		"output":           outputs,
		"consistency":      consistencies,
		"decay":            wordsOf(decays),
		"floor":            wordsOf(floors),
		"clock":            wordsOf(clocks),
		"precision":        wordsOf(precisions),
		"bitmap-placement": wordsOf(placements),
		"set-hash":         wordsOf(setHashes),
		"rollups":          append(wordsOf(rollups), "none"),
		"format":           formats,
		"time-unit":        timeUnits,
		"log-format":       logFormats,
		"log-level":        logLevels,
		"when-removed":     whatWhenRemoved,
		"kind":             strings.Split(proto.KindNames(), ", "),
		"half-life":        {"30s", "10m", "1h", "1d", "7d", "none"},
	}
}

// flagFiles are the flags whose value is a file or directory.
var flagFiles = map[string]cobra.ShellCompDirective{
	"data-dir":      cobra.ShellCompDirectiveFilterDirs,
	"dir":           cobra.ShellCompDirectiveFilterDirs,
	"out":           cobra.ShellCompDirectiveFilterDirs,
	"profile":       cobra.ShellCompDirectiveDefault,
	"file":          cobra.ShellCompDirectiveDefault,
	"tls-ca":        cobra.ShellCompDirectiveDefault,
	"tls-cert":      cobra.ShellCompDirectiveDefault,
	"tls-key":       cobra.ShellCompDirectiveDefault,
	"tls-client-ca": cobra.ShellCompDirectiveDefault,
	"gossip-keys":   cobra.ShellCompDirectiveDefault,

	"cluster-secret-file": cobra.ShellCompDirectiveDefault,
}

func wordsOf[E any](values map[string]E) []string {
	words := make([]string, 0, len(values))
	for w := range values {
		words = append(words, w)
	}
	return sorted(words)
}

// addCompletion registers completions for cmd and all commands below it.
func (s *session) addCompletion(cmd *cobra.Command) {
	if s.term.completes {
		s.completeFlags(cmd)
	}
	switch {
	case cmd.CommandPath() == "ebb namespace set":
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return s.completeNamespace(c, args, start)
		}
	case cmd.CommandPath() == "ebb bits load":
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault // the argument FILE
			}
			return s.completeKey(c, args, start)
		}
	case slices.Contains(takesKeys, cmd.Name()), cmd.HasParent() && cmd.Parent().CommandPath() == "ebb bits":
		cmd.ValidArgsFunction = s.completeKey
	case cmd.Name() != "import" && cmd.Runnable() && cmd.ValidArgsFunction == nil && !cmd.HasSubCommands():
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range cmd.Commands() {
		s.addCompletion(sub)
	}
}

// takesKeys are the commands that take keys, at least as the first argument.
var takesKeys = []string{"incr", "get", "top", "dist", "estimate", "surprise", "trend", "alert", "overlap", "graph", "describe", "del", "expire", "rename"}

// completeKey completes a key with the keys of the cluster. If a command takes only one key, there are no completions
// after it.
func (s *session) completeKey(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
	one := slices.Contains([]string{"incr", "get", "describe", "expire"}, cmd.Name()) || cmd.HasParent() && cmd.Parent().CommandPath() == "ebb bits"
	if one && len(args) > 0 || isPattern(start) || s.settle(cmd.Flags()) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	c, err := s.dialIn(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	page, err := c.KeysPage(ctx, s.namespace, client.KeysQuery{Pattern: strings.ReplaceAll(start, `\`, `\\`) + "**", Limit: 100}, client.Any(), client.AllowPartial())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, 0, len(page.Keys))
	for _, info := range page.Keys {
		names = append(names, printable([]byte(info.Key)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeFlags registers the completions of flags with cobra.
func (s *session) completeFlags(cmd *cobra.Command) {
	words := flagWords()
	switch cmd.CommandPath() {
	case "ebb bits load":
		words["format"] = bitsFormats
	case "ebb bits export":
		words["format"] = exportFormats
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		complete := cobra.NoFileCompletions
		if w, ok := words[f.Name]; ok {
			complete = cobra.FixedCompletions(w, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)
		} else if f.Name == "namespace" {
			complete = s.completeNamespace
		} else if c := chaosCompletion(cmd.CommandPath(), f.Name); c != nil {
			complete = c
		} else if d, ok := flagFiles[f.Name]; ok {
			complete = cobra.FixedCompletions(nil, d)
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails if the flag does not exist or is registered
	})
}

// completeNamespace completes a namespace with the names that the cluster has. If the cluster does not answer, there
// are no completions.
func (s *session) completeNamespace(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	if s.settle(cmd.Flags()) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	c, err := s.dialIn(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	all, err := c.Namespaces(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, 0, len(all))
	for _, ns := range all {
		names = append(names, ns.Name)
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}
