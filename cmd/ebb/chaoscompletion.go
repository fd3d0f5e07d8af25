package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/mutants"
	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/chaos/swarm"
)

// chaosCompletion tells the shell what a flag of `ebb chaos` takes; nil if nothing special.
func chaosCompletion(command, flag string) cobra.CompletionFunc {
	if !strings.HasPrefix(command, "ebb chaos ") {
		return nil
	}
	switch flag {
	case "families":
		return listOf(swarm.FamilyNames())
	case "faults":
		return listOf(proc.FamilyNames())
	case "only":
		return mutantNames
	case "report", "resume":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	case "source":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	return nil
}

// mutantNames reads them only when they are asked for: there are many.
func mutantNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, err := mutants.All()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, 0, len(all))
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// listOf completes the last of names with commas between them.
func listOf(names []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
		before := start[:strings.LastIndexByte(start, ',')+1]
		var all []string
		for _, name := range names {
			if strings.HasPrefix(before+name, start) {
				all = append(all, before+name)
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder | cobra.ShellCompDirectiveNoSpace
	}
}
