package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
)

// version is set by the release build (-ldflags "-X main.version=v1.2.3").
var version = "dev"

// versionJSON is what `ebb version --json` prints.
type versionJSON struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Wire     uint32 `json:"wire_version"`
	Storage  uint32 `json:"storage_version"`
	Oldest   uint32 `json:"storage_oldest"`
}

func newVersion(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Version of this binary",
		Long: `Which build this is; which wire version it speaks with other nodes; and which storage
versions it can run with. The cluster's own storage version, as ebb status shows it, is raised when
every node knows a newer one. Until then each node can go back to the build it had.`,
		Example: "  ebb version --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return s.printVersion() },
	}
}

// builtFrom returns the commit from which this binary was built, and whether the source had changes.
func builtFrom() (revision string, modified bool) {
	revision = "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, kv := range info.Settings {
			switch kv.Key {
			case "vcs.revision":
				revision = kv.Value
			case "vcs.modified":
				modified = kv.Value == "true"
			}
		}
	}
	return revision, modified
}

func (s *session) printVersion() error {
	revision, _ := builtFrom()
	platform := runtime.GOOS + "/" + runtime.GOARCH
	switch s.output {
	case "json":
		return printJSON(s.term.out, versionJSON{version, revision, runtime.Version(), platform, proto.WireVersion, proto.StorageVersion, proto.StorageOldest})
	case "tsv":
		return s.printTable("", [][]string{{version, revision, runtime.Version(), platform}})
	}
	_, err := fmt.Fprintf(s.term.out, "ebb %s (%s, %s, %s), wire version %d, storage versions %d to %d\n",
		version, revision, runtime.Version(), platform, proto.WireVersion, proto.StorageOldest, proto.StorageVersion)
	return err
}
