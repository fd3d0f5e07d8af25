package main

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/query"
)

// FuzzCommandLine: no words after ebb make it panic before a command begins, and those that cannot be right are said to
// be the caller's mistake.
func FuzzCommandLine(f *testing.F) {
	root := newRoot(terminal{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
	for _, c := range commandsOf(root) {
		f.Add(strings.ReplaceAll(c.CommandPath(), " ", "\n"))
		if i := strings.Index(c.Example, "ebb "); i >= 0 {
			line, _, _ := strings.Cut(c.Example[i:], "\n")
			f.Add(strings.Join(strings.Fields(line), "\n"))
		}
	}
	for _, line := range []string{"ebb top --n -9223372036854775808 k", "ebb --timeout 99999999999h status", "ebb top k --n 1e3", "ebb help help", "ebb --addr , status", "ebb -- top"} {
		f.Add(strings.ReplaceAll(line, " ", "\n"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\n")[1:]
		if len(args) > 100 || strings.Contains(line, cobra.ShellCompRequestCmd) {
			t.Skip() // the shell's questions go to a cluster
		}
		var said bytes.Buffer
		root := newRoot(terminal{in: strings.NewReader(""), out: io.Discard, err: &said})
		for _, c := range commandsOf(root) {
			if c != root {
				c.Run, c.RunE = func(*cobra.Command, []string) {}, nil
			}
		}
		root.SetArgs(args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if code := exitCode(&said, root.ExecuteContext(t.Context())); code != 0 && (code != exitUsage || said.Len() == 0) {
			t.Fatalf("%q: exit %d: %s", args, code, said.String())
		}
	})
}

// commandsOf is a command and all below it.
func commandsOf(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, commandsOf(sub)...)
	}
	return all
}

// FuzzValues: what people write for times, durations, ids, ranges, numbers and addresses is refused or means something
// within its limits.
func FuzzValues(f *testing.F) {
	for _, text := range []string{
		"", "now", "none", "2013-05-17T21:04:00Z", "2011-11-01", "1363608000.5", "1e300", "-1", "nan", "inf", "-inf", "1e18", "9223372036854775807",
		"36h", "7d", "2y", "1e9y", "292y", "293y", "-293y", "106751d", "106752d", "0x1p62d", "10..20", "20..10", "18446744073709551615", "18446744073709551616", "..", "0..18446744073709551615",
		"0.5, 0.99", "nan,inf", "1e999", "day,month", "127.0.0.1:7072", "[::]:1", ":", "0.0.0.0:x", "3", "256", "*a", "k",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if us, err := instant(text); err == nil && (us < 0 || us == 0 && text != "" && text != "now" || us > int64(1)<<60) {
			t.Errorf("time %q is %d", text, us)
		}
		us, err := query.ParseDuration(text)
		if err == nil && us != 0 && (us > 0) != (time.Duration(us)*time.Microsecond > 0) {
			t.Errorf("duration %q of %d us is %v", text, us, time.Duration(us)*time.Microsecond)
		}
		if d, err := optional("x", text, readSpan); err == nil && d != nil && *d < 0 {
			t.Errorf("duration %q is %v", text, *d)
		}
		if first, last, is, err := parseRange(text); err == nil && (first > last || is != strings.Contains(text, "..")) {
			t.Errorf("range %q is %d to %d", text, first, last)
		}
		var d time.Duration
		if (durationValue{&d, time.Microsecond}).Set(text) == nil && d < time.Microsecond {
			t.Errorf("a duration of %v", d)
		}
		var list floatsValue
		if list.Set(text) == nil && text != "" {
			for _, v := range list {
				if math.IsInf(v, 0) && !strings.Contains(strings.ToLower(text), "inf") {
					t.Errorf("%q has an infinite number", text)
				}
			}
			_ = list.String()
		}
		if c, err := replicationRequest(text); err == nil && c.GetReplication() == 0 {
			t.Errorf("replication %q", text)
		}
		if url, err := probeURL(text, "/readyz", len(text)%2 == 1); err == nil && !strings.HasPrefix(url, "http") {
			t.Errorf("admin %q is at %s", text, url)
		}
		if units, err := rollupUnits(text); err == nil && len(units) > 0 && strings.Trim(text, " ") == "" {
			t.Errorf("rollups %q", text)
		}
		if keys, patterns := splitPatternBytes([]string{text}); len(keys)+len(patterns) != 1 {
			t.Errorf("%q names %q and %q", text, keys, patterns)
		}
		if _, err := openStore(text); err == nil && strings.Contains(text, "://") && !strings.HasPrefix(text, "s3://") {
			t.Errorf("a store at %q", text)
		}
		_ = proto.CheckPattern([]byte(text))
	})
}
