package main

import (
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
)

func newNamespaceCopy(s *session) *cobra.Command {
	var opts client.CopyOptions
	var quiet bool
	cmd := &cobra.Command{
		Use: "copy FROM TO", Short: "Make a namespace with the settings and the keys of another", Args: argsBetween(2,
			2, "FROM TO"),
		Long: `Makes namespace TO with the settings of FROM, its hash seed included, and copies all keys with what they hold
and their times to live. TO must not exist. It takes the role reader in FROM and admin in TO.

The copy is not atomic: each key is copied as it is at a moment of its own, and what is written to FROM during
the copy may be in TO or not. The event clock of TO has come as far as the keys that were copied: compare with --as-of.
Rates of ebb trend are the same under an event clock. Under a wall clock they begin with the shard of a key, and may
differ.

Before anything is made, all keys are looked at. Bitmaps may be of any size. Other keys of more than 15.7 MiB, and
distributions of more than 3.9 MiB and 258,048 bins, cannot be copied: the copy is refused, or leaves them out
with --skip-too-large and names them. Before storage version 15 this limit is 239 KiB. Bitmaps that lie by slice
or stand for strings are copied by their ids or strings, each by itself: many small ones take some 0.5 to 1.5 ms
each. With rollups that is refused. Not copied are the budget, and the ids of a dictionary: strings get other ids.

A copy that was interrupted is continued with --resume. It begins with the first key, or after the key that the
interrupted one named (--after), and replaces what is there. Keys that were deleted in FROM since stay in TO.`,
		Example: "  ebb namespace copy clicks clicks-test\n" +
			"  ebb namespace copy clicks clicks-test --resume --after link/4711",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.copyNamespace(cmd, args[0], args[1], opts, quiet)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&opts.Resume, "resume", false,
		"continue a copy that was interrupted: TO may exist, if its settings are those of FROM")
	f.StringVar(&opts.After, "after", "", "with --resume: begin after this `key`")
	f.BoolVar(&opts.SkipTooLarge, "skip-too-large", false, "leave out keys that are too large, and copy the others")
	f.BoolVar(&quiet, "quiet", false, "no progress bar")
	return cmd
}

// copyTimeout is how long one request of a copy may take if --timeout is not given. Listing the keys reads all keys of
// the namespace.
const copyTimeout = time.Minute

// namespaceCopyJSON is the result of a copy of a namespace.
type namespaceCopyJSON struct {
	From    string        `json:"from"`
	To      string        `json:"to"`
	Keys    int           `json:"keys"`
	Bytes   int64         `json:"bytes"`
	Gone    int           `json:"gone"`
	LeftOut int           `json:"left_out"`
	Left    []leftKeyJSON `json:"left"`
	Seconds float64       `json:"seconds"`
}

// leftKeyJSON is a key that was not copied.
type leftKeyJSON struct {
	keyName
	Error string `json:"error"`
}

func (s *session) copyNamespace(cmd *cobra.Command, from, to string, opts client.CopyOptions, quiet bool) error {
	if opts.After != "" && !opts.Resume {
		return usagef("--after continues a copy that was interrupted: it needs --resume")
	}
	var own []client.Option
	if !s.timeoutSet {
		own = append(own, client.WithTimeout(copyTimeout))
	}
	c, err := s.dial(cmd, own...)
	if err != nil {
		return err
	}
	defer c.Close()
	start := time.Now()
	show, done := s.copyBar(quiet)
	opts.Progress = show
	result, err := c.CopyNamespace(cmd.Context(), from, to, opts)
	done()
	for _, left := range result.Left {
		fmt.Fprintf(s.term.err, "not copied: %s: %v\n", printable([]byte(left.Key)), left.Err)
	}
	if n := result.LeftOut - len(result.Left); n > 0 {
		fmt.Fprintf(s.term.err, "not copied: %d more\n", n)
	}
	if err != nil {
		switch made := result.Namespace.Name != ""; {
		case made && result.After != "":
			fmt.Fprintf(s.term.err, "%d keys are copied; continue with --resume --after %s\n", result.Keys,
				printable([]byte(result.After)))
		case made:
			fmt.Fprintf(s.term.err, "%d keys are copied; continue with --resume\n", result.Keys)
		}
		return err
	}
	if s.output == "json" {
		left := make([]leftKeyJSON, 0, len(result.Left))
		for _, k := range result.Left {
			left = append(left, leftKeyJSON{keyNameOf([]byte(k.Key)), k.Err.Error()})
		}
		return printJSON(s.term.out, namespaceCopyJSON{
			from, to, result.Keys, result.Bytes, result.Gone, result.LeftOut,
			left, time.Since(start).Seconds(),
		})
	}
	fmt.Fprintf(s.term.out, "copied namespace %s to %s: %s, %s, in %v\n", from, to, plural(result.Keys, "key", "keys"),
		bytesText(uint64(result.Bytes)), tookSince(start))
	if result.LeftOut > 0 {
		fmt.Fprintf(s.term.out, "%s left out\n", plural(result.LeftOut, "key", "keys"))
	}
	return nil
}

// copyBar draws a progress bar if stderr is a terminal. done ends it.
func (s *session) copyBar(quiet bool) (show func(client.CopyProgress), done func()) {
	if quiet || !interactive(s.term.err) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(rawTerminal(s.term.err)),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	return func(p client.CopyProgress) {
		if p.Keys == 0 {
			bar.Describe(fmt.Sprintf("checking: %d keys", p.Checked))
			return
		}
		bar.ChangeMax(max(p.Total, p.Keys))
		bar.Describe(fmt.Sprintf("copying: %d of %d keys, %s", p.Keys, p.Total, bytesText(uint64(p.Bytes))))
		_ = bar.Set(p.Keys)
	}, func() { _ = bar.Finish() }
}
