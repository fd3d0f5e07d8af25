package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newMatch(s *session) *cobra.Command {
	var q questionFlags
	cmd := &cobra.Command{
		Use: "match KEY [TEXT]", Short: "The phrases of a key that stand in a text", Args: argsBetween(1, 2, "KEY [TEXT]"),
		Long: `Finds all phrases of a key in a text of up to 262,144 bytes: the one named, or the
standard input. Phrases that overlap or contain each other are all found. BEGIN and END
are bytes of the text.`,
		Example: "  ebb match places \"from New York to Paris\"\n  ebb match places < article.txt",
		RunE: func(cmd *cobra.Command, args []string) error {
			var text []byte
			if len(args) > 1 {
				text = []byte(args[1])
			} else {
				var err error
				if text, err = io.ReadAll(io.LimitReader(s.term.in, proto.MatchTextMax+1)); err != nil {
					return err
				}
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Match{Match: &ebbv1.MatchQuestion{Key: []byte(args[0]), Text: text}}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error { return s.printMatches(a, args[0]) })
		},
	}
	q.addReading(cmd)
	return cmd
}

type matchJSON struct {
	phraseName
	Begin uint32 `json:"begin"`
	End   uint32 `json:"end"`
}

type matchesJSON struct {
	Namespace string `json:"namespace"`
	keyName
	Found    bool         `json:"found"`
	Matches  []matchJSON  `json:"matches"`
	AsOfUS   int64        `json:"as_of_us"`
	Coverage coverageJSON `json:"coverage"`
}

func (s *session) printMatches(a *ebbv1.Answer, key string) error {
	w := a.GetMatch()
	out := matchesJSON{
		Namespace: s.namespace, keyName: keyNameOf([]byte(key)), Found: w.GetFound(), Matches: []matchJSON{}, AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage()),
	}
	var table [][]string
	for _, m := range w.GetMatches() {
		out.Matches = append(out.Matches, matchJSON{phraseNameOf(m.GetPhrase()), m.GetBegin(), m.GetEnd()})
		table = append(table, []string{printable(m.GetPhrase()), strconv.FormatUint(uint64(m.GetBegin()), 10), strconv.FormatUint(uint64(m.GetEnd()), 10)})
	}
	switch {
	case s.output == "json":
		return printJSON(s.term.out, out)
	case s.output == "table" && !out.Found:
		return printNothing(s.term.out, a, "nothing known", whyAbsent, out.AsOfUS)
	}
	if err := s.printTable("PHRASE\tBEGIN\tEND", table); err != nil || s.output != "table" {
		return err
	}
	_, err := fmt.Fprint(s.term.out, "\n", asOfText(a, out.AsOfUS))
	return err
}

func newFeed(s *session) *cobra.Command {
	var to client.Feeding
	var kindName, at string
	cmd := &cobra.Command{
		Use: "feed KEY --into KEY", Short: "Count the phrases of a key that stand in texts", Args: argsBetween(1, 1, "KEY --into KEY"),
		Long: `Reads texts from the standard input, one a line, and counts each phrase of KEY each time that it
stands in them: as a bin of the key --into, which is a distribution if it is new, or of another
--kind. With --member, each phrase has a key INTO/PHRASE of its own, in which the member
is counted: who speaks of what.`,
		Example: "  ebb feed places --into mentioned < articles.txt\n" +
			"  echo \"I am off to New York\" | ebb feed places --into speaks/of --member ann",
		RunE: func(cmd *cobra.Command, args []string) error {
			if to.Into == "" {
				return usagef("--into which key are phrases counted?")
			}
			to.Phrases = args[0]
			if kindName != "" {
				kind, known := proto.KindNamed(kindName)
				if !known {
					return noneOf("--kind", kindName, strings.Split(proto.KindNames(), ", "))
				}
				to.Kind = kind
				if err := proto.CheckFeedKind(kind); err != nil {
					return err
				}
			}
			var err error
			if to.Time, err = instantTime(at); err != nil {
				return err
			}
			return s.feed(cmd, to)
		},
	}
	f := cmd.Flags()
	f.StringVar(&to.Into, "into", "", "`key` that counts, or with --member the beginning of keys")
	f.StringVar(&kindName, "kind", "", "`kind` of the keys that count, if they are new (default distribution, and set with --member)")
	f.StringVar(&to.Member, "member", "", "who said it: `ID` is counted in a key of each phrase")
	f.StringVar(&at, "at", "", "`time` at which it was said ("+timeForms+") instead of now")
	return cmd
}

// feedBatch is how many bytes of lines are collected before a request is sent.
const feedBatch = 256 << 10

func (s *session) feed(cmd *cobra.Command, to client.Feeding) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	counts, lines := map[string]int{}, 0
	var batch []string
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
		defer cancel()
		found, err := c.Feed(ctx, s.namespace, to, batch...)
		if err != nil {
			return err
		}
		for _, f := range found {
			counts[f.Phrase] += f.Count
		}
		lines, batch, size = lines+len(batch), batch[:0], 0
		return nil
	}
	err = eachLine(s.term.in, func(line string) error {
		batch, size = append(batch, line), size+len(line)
		if size < feedBatch && len(batch) < proto.BatchOpsMax {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil && lines > 0 {
		err = fmt.Errorf("the first %d texts are counted, the next few may be: %w", lines, err)
	}
	if err != nil {
		return err
	}
	return s.printFound(counts, lines)
}

type foundJSON struct {
	phraseName
	Count int `json:"count"`
}

func (s *session) printFound(counts map[string]int, lines int) error {
	phrases := make([]string, 0, len(counts))
	for p := range counts {
		phrases = append(phrases, p)
	}
	all, table := []foundJSON{}, [][]string(nil)
	for _, p := range sorted(phrases) {
		all = append(all, foundJSON{phraseNameOf([]byte(p)), counts[p]})
		table = append(table, []string{printable([]byte(p)), strconv.Itoa(counts[p])})
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"namespace": s.namespace, "texts": lines, "found": all})
	}
	if err := s.printTable("PHRASE\tCOUNT", table); err != nil || s.output != "table" {
		return err
	}
	_, err := fmt.Fprintf(s.term.out, "\n%s in %s\n", plural(len(all), "phrase", "phrases"), plural(lines, "text", "texts"))
	return err
}
