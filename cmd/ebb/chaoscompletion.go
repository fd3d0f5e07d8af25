package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/chaos/swarm"
)

// chaosCompletion completes the value of a flag of `ebb chaos`; nil if the flag has no special values.
func chaosCompletion(command, flag string) cobra.CompletionFunc {
	if !strings.HasPrefix(command, "ebb chaos ") {
		return nil
	}
	switch flag {
	case "families":
		return listOf(swarm.FamilyNames())
	case "faults":
		return listOf(proc.FamilyNames())
	case "report", "resume":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	}
	return nil
}

// listOf completes the last element of a list of names with commas.
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
