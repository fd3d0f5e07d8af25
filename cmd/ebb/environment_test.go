package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// everyCommand visits the commands of ours, below root and with it.
func everyCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		if sub.Name() != "completion" && sub.Name() != "help" {
			everyCommand(sub, visit)
		}
	}
}

func quietRoot() *cobra.Command {
	return newRoot(terminal{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
}

// settled parses args for the command at path as a run would, up to the point
// where the command itself would begin.
func settled(t *testing.T, path string, args ...string) (*cobra.Command, error) {
	t.Helper()
	root := quietRoot()
	cmd, _, err := root.Find(strings.Fields(path)[1:])
	if err != nil || cmd.CommandPath() != path {
		t.Fatalf("%s: found %s, %v", path, cmd.CommandPath(), err)
	}
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return cmd, root.PersistentPreRunE(cmd, nil)
}

// sample is a value that a flag can have and does not have by default; and how
// it prints.
func sample(f *pflag.Flag) (value, printed string) {
	if f.Name == "output" {
		return "tsv", "tsv"
	}
	switch f.Value.Type() {
	case "bool":
		if f.DefValue == "true" {
			return "false", "false"
		}
		return "true", "true"
	case "duration":
		return "17m", "17m0s"
	case "bytes":
		return "17MiB", "17MiB"
	case "string":
		return "some thing", "some thing"
	case "stringSlice":
		return "a:1,b:2", "[a:1,b:2]"
	}
	return "17", "17" // numbers of all kinds
}

// Every flag of every command can be set as EBB_FLAG; a flag that is given wins
// over it; an empty variable is none; and a value that cannot be is refused with
// the name of the variable.
func TestEveryFlagFromTheEnvironment(t *testing.T) {
	seen := 0
	everyCommand(quietRoot(), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		cmd.InheritedFlags() // makes Flags complete
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			seen++
			variable := "EBB_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			t.Run(path+" "+variable, func(t *testing.T) {
				value, printed := sample(f)
				t.Setenv(variable, value)
				got, err := settled(t, path)
				if err != nil || got.Flags().Lookup(f.Name).Value.String() != printed {
					t.Errorf("%s=%q: %s is %q: %v", variable, value, f.Name, got.Flags().Lookup(f.Name).Value, err)
				}
				given := strings.Trim(f.DefValue, "[]")
				got, err = settled(t, path, "--"+f.Name+"="+given)
				if err != nil || got.Flags().Lookup(f.Name).Value.String() != f.DefValue {
					t.Errorf("--%s=%s beside %s=%q is %q: %v", f.Name, given, variable, value, got.Flags().Lookup(f.Name).Value, err)
				}
				t.Setenv(variable, "")
				if got, err := settled(t, path); err != nil || got.Flags().Changed(f.Name) {
					t.Errorf("an empty %s is not ignored: %v", variable, err)
				}
			})
		})
	})
	if seen < 100 {
		t.Errorf("only %d flags were found", seen)
	}
}

func TestBadValueInTheEnvironment(t *testing.T) {
	t.Setenv("EBB_TIMEOUT", "soon")
	var stderr bytes.Buffer
	code := run(t.Context(), []string{"version"}, terminal{in: strings.NewReader(""), out: io.Discard, err: &stderr})
	if code != exitUsage || !strings.Contains(stderr.String(), `EBB_TIMEOUT "soon"`) {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}
