package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build (-ldflags "-X main.version=v1.2.3").
var version = "dev"

func newVersion(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Version of this binary",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return s.printVersion() },
	}
}

func (s *session) printVersion() error {
	revision := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, kv := range info.Settings {
			if kv.Key == "vcs.revision" {
				revision = kv.Value
			}
		}
	}
	platform := runtime.GOOS + "/" + runtime.GOARCH
	switch s.output {
	case "json":
		return printJSON(s.term.out, map[string]string{"version": version, "revision": revision, "go": runtime.Version(), "platform": platform})
	case "tsv":
		return s.printTable("", [][]string{{version, revision, runtime.Version(), platform}})
	}
	_, err := fmt.Fprintf(s.term.out, "ebb %s (%s, %s, %s)\n", version, revision, runtime.Version(), platform)
	return err
}
