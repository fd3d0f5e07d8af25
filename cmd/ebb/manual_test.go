package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write generated files instead of comparing them")

const manualFile = "../../docs/cli.md"

// docs/cli.md says what the binary says. `go test ./cmd/ebb -run Manual -update`
// writes it.
func TestManualIsCommitted(t *testing.T) {
	t.Setenv("HOME", "~")
	t.Setenv("XDG_DATA_HOME", "")
	want := manual(quietRoot())
	if *update {
		if err := os.WriteFile(manualFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: make generate writes it", manualFile)
	}
}

// does reports whether a command does anything but have others below it.
func does(cmd *cobra.Command) bool { return !cmd.HasSubCommands() || cmd.Use != cmd.Name() }

// manual renders a tree of commands as a page.
func manual(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString("# The command line\n\n<!-- Generated from the commands themselves by `make generate`. -->\n\n")
	fmt.Fprintf(&b, "%s.\n\n```\n%s\n```\n\n", root.Short, root.Long)
	b.WriteString(`Standard output is data; progress, logs and errors go to standard error. A flag
that is given wins over its variable, and an empty variable is none.

` + "`-o tsv`" + ` prints the columns of a table separated by tabs, one line a row, without a header and with
numbers in full: bin, count and p of ` + "`get`, `top` and `dist`" + `; the nodes (with --shards the shards) of
` + "`status`" + `; the number counted by ` + "`incr`" + `. What prints no table prints the same as without.

`)
	b.WriteString("| command | what it does |\n| --- | --- |\n")
	everyCommand(root, func(cmd *cobra.Command) {
		if cmd != root && does(cmd) && !cmd.Hidden {
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", cmd.CommandPath(), anchor(cmd), cmd.Short)
		}
	})
	b.WriteString("\n## Flags of every command\n\n")
	writeFlags(&b, root.PersistentFlags())
	everyCommand(root, func(cmd *cobra.Command) {
		if cmd != root && does(cmd) && !cmd.Hidden {
			writeCommand(&b, cmd)
		}
	})
	b.WriteString(`## Completion

` + "`ebb completion bash|zsh|fish|powershell`" + ` prints a script for the shell; it completes
commands, flags, the words a flag may have, and namespaces as the cluster has them.
Bash needs the package bash-completion.

` + "```\n" + `source <(ebb completion bash)
ebb completion zsh > "${fpath[1]}/_ebb"
ebb completion fish > ~/.config/fish/completions/ebb.fish
ebb completion powershell | Out-String | Invoke-Expression
` + "```\n\n## Exit codes\n\n| code | meaning |\n| --- | --- |\n")
	for _, e := range exitMeanings {
		fmt.Fprintf(&b, "| %d | %s |\n", e.Code, e.Meaning)
	}
	b.WriteString(`
## Error codes

A message that ends in ` + "`(EBB-2013)`" + ` carries the code of the error, which does not change between
versions and is the same through the SDK, gRPC and HTTP. What to do next is printed after ` + "`try:`" + `.

| code | name | meaning | next step |
| --- | --- | --- | --- |
`)
	for _, c := range codes {
		name := strings.TrimPrefix(c.code.String(), "CODE_")
		fmt.Fprintf(&b, "| EBB-%d | %s | %s | %s |\n", c.code, name, c.meaning, c.next)
	}
	return b.Bytes()
}

// anchor is the name that a heading has in a link.
func anchor(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-")
}

func writeCommand(b *bytes.Buffer, cmd *cobra.Command) {
	fmt.Fprintf(b, "## %s\n\n%s.\n\n", cmd.CommandPath(), cmd.Short)
	fmt.Fprintf(b, "```\n%s\n```\n\n", cmd.UseLine())
	if cmd.Long != "" && cmd.Name() != "exit-codes" {
		fmt.Fprintf(b, "%s\n\n", strings.TrimSpace(cmd.Long))
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "```\n%s\n```\n\n", unindent(cmd.Example))
	}
	writeFlags(b, cmd.NonInheritedFlags())
	if parent := cmd.Parent(); parent.HasParent() && parent.HasPersistentFlags() {
		writeFlags(b, parent.PersistentFlags())
	}
}

func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}

func writeFlags(b *bytes.Buffer, flags *pflag.FlagSet) {
	rows := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if rows++; rows == 1 {
			b.WriteString("| flag | default | |\n| --- | --- | --- |\n")
		}
		placeholder, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if placeholder != "" {
			name += " " + placeholder
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, defaultText(f), strings.ReplaceAll(usage, "|", `\|`))
	})
	if rows > 0 {
		b.WriteString("\n")
	}
}

func defaultText(f *pflag.Flag) string {
	v := strings.Trim(f.DefValue, "[]")
	if v == "" || v == "false" || v == "0" || v == "0s" {
		return ""
	}
	return "`" + v + "`"
}
