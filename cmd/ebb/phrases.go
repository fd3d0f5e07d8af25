package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newPhrases(s *session) *cobra.Command {
	var adding, removing phrasesFlags
	add := &cobra.Command{
		Use: "add KEY [PHRASE...]", Short: "Add phrases", Args: argsBetween(1, -1, "KEY [PHRASE...]"),
		Example: "  ebb phrases add places \"New York\" Paris\n  ebb phrases add places --file places.txt\n" +
			"  ebb phrases add places Rome -n archive --at 2026-11-20",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.changePhrases(cmd, args[0], args[1:], &adding, 1)
		},
	}
	adding.add(add, "add")
	remove := &cobra.Command{
		Use: "remove KEY [PHRASE...]", Short: "Remove phrases, as they were added", Args: argsBetween(1, -1, "KEY [PHRASE...]"),
		Example: "  ebb phrases remove places Paris",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.changePhrases(cmd, args[0], args[1:], &removing, -1)
		},
	}
	removing.add(remove, "remove")
	var q questionFlags
	list := &cobra.Command{
		Use: "list KEY", Short: "The phrases of a key, by their bytes", Args: argsBetween(1, 1, "KEY"),
		Example: "  ebb phrases list places -o tsv",
		RunE: func(cmd *cobra.Command, args []string) error {
			sq := &ebbv1.SummaryQuestion{Keys: keysOf(args), Members: true}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Summary{Summary: sq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error { return s.printPhrases(a, args[0]) })
		},
	}
	q.addReading(list)
	return children(
		&cobra.Command{
			Use: "phrases", Short: "Keys that hold phrases to be found in texts",
			Long: `A key of kind phrases holds up to 65,536 phrases of up to 256 bytes, 2 MiB together.
They are found in a text token by token: a token is a run of letters and numbers, one
character of a script that is written without spaces, or a symbol such as an emoji.
Punctuation and signs such as + and # are no tokens: C++ is found wherever C is.
Letters are compared in any case, and what stands between tokens makes no difference.
See ebb match and ebb feed.`,
		},
		add, remove, list,
	)
}

// phrasesFlags say which phrases are changed, and the time of the change.
type phrasesFlags struct{ file, at string }

func (f *phrasesFlags) add(cmd *cobra.Command, verb string) {
	cmd.Flags().StringVar(&f.file, "file", "",
		verb+" each line of this `file`, also as phrases list -o tsv prints it; - is the standard input")
	cmd.Flags().StringVar(&f.at, "at", "",
		"`time` of the change ("+timeForms+") instead of now; the last change counts, whatever its time")
}

// linesOf returns the lines of a file that are not empty. A line that is quoted as printable quotes is returned without
// quotes. If one line is no phrase, the file is refused.
func (s *session) linesOf(path string) ([]string, error) {
	in, err := s.open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var phrases []string
	number := 0
	err = eachLine(in, func(line string) error {
		number++
		if strings.TrimSpace(line) == "" {
			return nil
		}
		if phrase, ok := unprinted(line); ok {
			line = phrase
		}
		event := proto.IncrementWire{Kind: ebbv1.Kind_KIND_PHRASES, Bin: []byte(line), Amount: 1}
		if err := event.CheckEvent(); err != nil {
			return fmt.Errorf("%s, line %d: %w", path, number, err)
		}
		phrases = append(phrases, line)
		return nil
	})
	return phrases, err
}

// eachLine visits the lines of a text, without their line ends.
func eachLine(in io.Reader, visit func(line string) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), proto.MatchTextMax+2) // includes the line end
	for lines.Scan() {
		if err := visit(lines.Text()); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return usagef("a line is longer than %d bytes, which is the limit of a text", proto.MatchTextMax)
	}
	return lines.Err()
}

func (s *session) changePhrases(cmd *cobra.Command, key string, list []string, f *phrasesFlags, amount float64) error {
	if f.file != "" {
		more, err := s.linesOf(f.file)
		if err != nil {
			return err
		}
		list = append(list, more...)
	}
	if len(list) == 0 {
		return usagef("which phrases? name some, or a --file with one a line")
	}
	at, err := instantTime(f.at)
	if err != nil {
		return err
	}
	increments := client.Phrases(key, list...)
	for i := range increments {
		increments[i].Amount, increments[i].Time = amount, at
	}
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	there := map[string]bool{}
	if amount < 0 { // removing a phrase that does not exist is no error, but may be a mistake
		if there, err = s.phrasesOf(ctx, c, key); err != nil {
			return err
		}
	}
	if err := c.Increment(ctx, s.namespace, increments...); err != nil {
		return partly(len(increments), err)
	}
	if amount > 0 {
		return s.printChanged(map[string]int{"added": len(list)}, len(list), fmt.Sprintf("added %d", len(list)))
	}
	removed, absent := 0, []string{}
	for _, p := range list {
		if there[p] {
			removed++
			delete(there, p)
			continue
		}
		absent = append(absent, printable([]byte(p)))
	}
	text := fmt.Sprintf("removed %d", removed)
	if n := len(absent); n > 0 {
		text += fmt.Sprintf("; not there: %s", strings.Join(absent[:min(n, absentShown)], ", "))
		if n > absentShown {
			text += fmt.Sprintf(" and %d more", n-absentShown)
		}
	}
	return s.printChanged(map[string]int{"removed": removed, "absent": len(absent)}, removed, text)
}

// absentShown is how many phrases that did not exist are named.
const absentShown = 5

func (s *session) printChanged(counts map[string]int, n int, text string) (err error) {
	switch s.output {
	case "json":
		return printJSON(s.term.out, counts)
	case "tsv":
		_, err = fmt.Fprintln(s.term.out, n)
	default:
		_, err = fmt.Fprintln(s.term.out, text)
	}
	return err
}

// phrasesOf returns the phrases of a key; it returns none if the key does not exist or holds another kind.
func (s *session) phrasesOf(ctx context.Context, c *client.Client, key string) (map[string]bool, error) {
	there := map[string]bool{}
	w, err := c.Summary(ctx, s.namespace, client.SummaryQuery{Keys: []string{key}, Members: true})
	if err != nil && !errors.Is(err, proto.ErrWrongKind) {
		return nil, err
	}
	if w.Kind == client.KindPhrases {
		for _, m := range w.Members {
			there[m] = true
		}
	}
	return there, nil
}

type phrasesJSON struct {
	Namespace string `json:"namespace"`
	keyName
	Found    bool         `json:"found"`
	Phrases  []listedName `json:"phrases"`
	AsOfUS   int64        `json:"as_of_us"`
	Coverage coverageJSON `json:"coverage"`
}

func (s *session) printPhrases(a *ebbv1.Answer, key string) error {
	w := a.GetSummary()
	if w.GetFound() && w.GetKind() != ebbv1.Kind_KIND_PHRASES {
		return proto.ErrWrongKind.Errorf("key %q is a %s, and holds no phrases", key, proto.KindName(w.GetKind()))
	}
	out := phrasesJSON{
		Namespace: s.namespace, keyName: keyNameOf([]byte(key)), Found: w.GetFound(), Phrases: append([]listedName{}, listedNames(w.GetMembers())...), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage()),
	}
	switch s.output {
	case "json":
		return printJSON(s.term.out, out)
	case "table":
		if !out.Found {
			return printNothing(s.term.out, a, "nothing known", whyAbsent, out.AsOfUS)
		}
	}
	for _, p := range out.Phrases {
		fmt.Fprintln(s.term.out, printable([]byte(p)))
	}
	if s.output != "table" {
		return nil
	}
	_, err := fmt.Fprintf(s.term.out, "\n%d phrases\nas of %s\n%s\n", len(out.Phrases), when(out.AsOfUS), coverageText(a.GetCoverage()))
	return err
}
