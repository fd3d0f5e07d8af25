package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newBits(s *session) *cobra.Command {
	return children(
		&cobra.Command{
			Use: "bits", Short: "Keys that hold exact sets of ids",
			Long: `A key of kind bitmap is an exact set of ids from 0 to 18446744073709551615: who was there on a day, who has paid. It does not fade. Ids that lie
close together take least: a slice of 65,536 takes 8 KiB at most, and 20 bytes when all of it is in.

In a namespace with a dictionary (ebb namespace create users --dictionary) ids are strings instead, such as uuids: each gets a number, which stays.

Intersections, unions and the like are asked for in the query language: ebb query 'count(play/2011-11-01 & premium)'.`,
		},
		s.bitsEdit("set", "Put ids in", (*client.Client).SetBits, (*client.Client).SetBitRange, (*client.Client).SetNames),
		s.bitsEdit("clear", "Take ids out", (*client.Client).ClearBits, (*client.Client).ClearBitRange, (*client.Client).ClearNames),
		s.bitsEdit("flip", "Put ids in that are out, and take out those that are in", (*client.Client).FlipBits, (*client.Client).FlipBitRange, (*client.Client).FlipNames),
		newBitsGet(s), newBitsCount(s), newBitsIDs(s), newBitsRank(s), newBitsAt(s), newBitsEnd(s, "min", "The smallest id", 0), newBitsEnd(s, "max", "The largest id", 1),
		newBitsLoad(s), newBitsExport(s),
	)
}

// parseID reads an id.
func parseID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badID(text)
	}
	return id, nil
}

func badID(text string) error {
	return usagef("id %q: it must be a whole number from 0 to 18446744073709551615; strings go into a namespace made with --dictionary", text)
}

// notNumber makes the error of an id that is no number. In a namespace with a dictionary it says where numbers are
// needed; otherwise it returns err.
func (s *session) notNumber(cmd *cobra.Command, text string, err error) error {
	ctx, c, done, failed := s.connect(cmd)
	if failed != nil {
		return err
	}
	defer done()
	if !c.HasDictionary(ctx, s.namespace) {
		return err
	}
	return usagef("%q: ranks, positions, --first, --last and --from are numbers, also in namespace %s, "+
		"where ids are strings: ebb bits ids KEY --json lists the strings with their numbers, and "+
		"ebb bits get KEY STRING says whether one is in",
		text, s.namespace)
}

// parseRange reads a range of ids, such as 10..20. is reports whether the text is a range at all.
func parseRange(text string) (first, last uint64, is bool, err error) {
	from, to, is := strings.Cut(text, "..")
	if !is {
		return 0, 0, false, nil
	}
	if first, err = parseID(from); err != nil {
		return 0, 0, true, err
	}
	if last, err = parseID(to); err != nil {
		return 0, 0, true, err
	}
	if first > last {
		return 0, 0, true, usagef("range %s is upside down: write it as %d..%d", text, last, first)
	}
	return first, last, true, nil
}

type (
	editIDs   func(c *client.Client, ctx context.Context, ns, key string, ids ...uint64) (int, error)
	editRange func(c *client.Client, ctx context.Context, ns, key string, first, last uint64) (int, error)
	editNames func(c *client.Client, ctx context.Context, ns, key string, names ...string) (int, error)
)

func (s *session) bitsEdit(verb, short string, edit editIDs, editRange editRange, editNames editNames) *cobra.Command {
	return &cobra.Command{
		Use: verb + " KEY ID...", Short: short, Args: argsBetween(2, -1, "KEY ID..."),
		Long: short + ": single ids, and ranges as 10..20, up to 134,217,728 ids each. In a namespace with a dictionary ids are strings. It says how many that\n" +
			"has changed: flip counts an id twice that is named twice.",
		Example: fmt.Sprintf("  ebb bits %[1]s play/2011-11-01 17 42 1000..1999\n  ebb -n users bits %[1]s play/2011-11-01 alice bob", verb),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, c, done, err := s.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			var changed int
			if c.HasDictionary(ctx, s.namespace) {
				changed, err = editNames(c, ctx, s.namespace, args[0], args[1:]...)
			} else {
				changed, err = s.editNumbers(ctx, c, args[0], args[1:], edit, editRange)
			}
			if err != nil && changed > 0 {
				return fmt.Errorf("%w; %d were changed before", err, changed)
			}
			if err != nil {
				return err
			}
			switch s.output {
			case "json":
				return printJSON(s.term.out, map[string]int{"changed": changed})
			case "tsv":
				_, err = fmt.Fprintln(s.term.out, changed)
			default:
				_, err = fmt.Fprintf(s.term.out, "changed %d\n", changed)
			}
			return err
		},
	}
}

// editNumbers edits ids and ranges of them.
func (s *session) editNumbers(ctx context.Context, c *client.Client, key string, args []string, edit editIDs, editRange editRange) (changed int, err error) {
	ids, ranges := []uint64(nil), [][2]uint64(nil)
	for _, text := range args {
		first, last, is, err := parseRange(text)
		switch {
		case err != nil:
			return 0, err
		case is:
			ranges = append(ranges, [2]uint64{first, last})
			continue
		}
		id, err := parseID(text)
		if err != nil {
			return 0, err
		}
		ids = append(ids, id)
	}
	changed, err = edit(c, ctx, s.namespace, key, ids...)
	for _, r := range ranges {
		if err != nil {
			break
		}
		var n int
		n, err = editRange(c, ctx, s.namespace, key, r[0], r[1])
		changed += n
	}
	return changed, err
}

// bitsFlags are the flags that all questions about bitmaps share.
type bitsFlags struct {
	questionFlags
	first, last string
}

func (f *bitsFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.first, "first", "", "only ids from this `id` on")
	cmd.Flags().StringVar(&f.last, "last", "", "only ids up to this `id`")
	f.addReading(cmd)
}

// bitsJSON is the answer about a bitmap as JSON.
type bitsJSON struct {
	Namespace string `json:"namespace"`
	keyName
	Count    *uint64      `json:"count,omitempty"`
	StdError float64      `json:"std_error"`
	IDs      []idJSON     `json:"ids,omitzero"`    // of questions that list ids; then it is not nil
	Names    []listedName `json:"names,omitempty"` // the strings of the ids, in a namespace with a dictionary
	Contains []bool       `json:"contains,omitempty"`
	More     bool         `json:"more,omitempty"`
	Next     idJSON       `json:"next,omitempty"`
	AsOfUS   int64        `json:"as_of_us"`
	Coverage coverageJSON `json:"coverage"`
}

// askBits asks a question about one bitmap and prints the answer. lines formats the answer for table and tsv.
func (s *session) askBits(cmd *cobra.Command, f *bitsFlags, key string, q *ebbv1.BitmapQuestion, lines func(w *ebbv1.BitmapAnswer) []string) error {
	q.Expr = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
	if f.first != "" || f.last != "" {
		r := &ebbv1.BitRange{Last: 1<<64 - 1}
		for _, end := range []struct {
			text string
			id   *uint64
		}{{f.first, &r.First}, {f.last, &r.Last}} {
			if end.text == "" {
				continue
			}
			var err error
			if *end.id, err = parseID(end.text); err != nil {
				return s.notNumber(cmd, end.text, err)
			}
		}
		q.Range = r
	}
	question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Bitmap{Bitmap: q}}
	return s.put(cmd, &f.questionFlags, question, func(a *ebbv1.Answer) error {
		w := a.GetBitmap()
		if s.output == "json" {
			return printJSON(s.term.out, s.bitsJSON(a, key, q))
		}
		for _, line := range lines(w) {
			fmt.Fprintln(s.term.out, line)
		}
		if s.output == "tsv" {
			return nil
		}
		if w.GetMore() {
			fmt.Fprintf(s.term.err, "note: there are more: continue with --from %d\n", w.GetNext())
		}
		return s.printExact(w.GetAsOfUs(), a.GetCoverage())
	})
}

func (s *session) bitsJSON(a *ebbv1.Answer, key string, q *ebbv1.BitmapQuestion) bitsJSON {
	w := a.GetBitmap()
	out := bitsJSON{
		Namespace: s.namespace, keyName: keyNameOf([]byte(key)), StdError: w.GetStdError(), Names: listedNames(w.GetNames()),
		Contains: w.GetContains(), More: w.GetMore(), Next: idJSON(w.GetNext()), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage()),
	}
	counts, lists := answered(q)
	if counts {
		out.Count = new(w.GetCount())
	}
	if lists {
		out.IDs = idsJSON(w.GetIds())
	}
	return out
}

// answered reports whether the answer to a question has a number, and whether it has ids.
func answered(q *ebbv1.BitmapQuestion) (counts, lists bool) {
	switch q.GetSelect().(type) {
	case *ebbv1.BitmapQuestion_Count, *ebbv1.BitmapQuestion_Rank:
		return true, false
	case *ebbv1.BitmapQuestion_Ids, *ebbv1.BitmapQuestion_Position:
		return false, true
	case *ebbv1.BitmapQuestion_Ends:
		return true, true
	}
	return false, false
}

// bitsQuestion makes a command whose arguments after the key are numbers, and whose answer is a number.
func (s *session) bitsQuestion(use, short, example string, ask func(numbers []uint64) *ebbv1.BitmapQuestion, line func(w *ebbv1.BitmapAnswer) string) *cobra.Command {
	var f bitsFlags
	_, names, _ := strings.Cut(use, " ")
	n := len(strings.Fields(names))
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: argsBetween(n, n, names),
		RunE: func(cmd *cobra.Command, args []string) error {
			var numbers []uint64
			for _, text := range args[1:] {
				number, err := parseID(text)
				if err != nil {
					return s.notNumber(cmd, text, err)
				}
				numbers = append(numbers, number)
			}
			return s.askBits(cmd, &f, args[0], ask(numbers), func(w *ebbv1.BitmapAnswer) []string { return []string{line(w)} })
		},
	}
	f.add(cmd)
	return cmd
}

func newBitsCount(s *session) *cobra.Command {
	return s.bitsQuestion("count KEY", "How many ids there are", "  ebb bits count play/2011-11-01\n  ebb bits count play/2011-11-01 --first 1000 --last 1999",
		func([]uint64) *ebbv1.BitmapQuestion {
			return &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Count{Count: true}}
		},
		func(w *ebbv1.BitmapAnswer) string { return fmt.Sprint(w.GetCount()) })
}

func newBitsGet(s *session) *cobra.Command {
	var f bitsFlags
	cmd := &cobra.Command{
		Use: "get KEY ID...", Short: "Which ids are in", Args: argsBetween(2, -1, "KEY ID..."),
		Long:    "Says of each id whether it is in. In a namespace with a dictionary ids are strings, and those that it does not have are out.",
		Example: "  ebb bits get play/2011-11-01 17 42\n  ebb -n users bits get play/2011-11-01 alice",
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := s.idsOf(cmd, args[1:])
			if err != nil {
				return err
			}
			q := &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Contains{Contains: list}}
			return s.askBits(cmd, &f, args[0], q, func(w *ebbv1.BitmapAnswer) (lines []string) {
				for i, in := range w.GetContains() {
					word := "out"
					if in {
						word = "in"
					}
					lines = append(lines, fmt.Sprintf("%s\t%s", printable([]byte(args[1+i])), word))
				}
				return lines
			})
		},
	}
	f.addReading(cmd)
	return cmd
}

func newBitsIDs(s *session) *cobra.Command {
	var f bitsFlags
	var from string
	var limit uint32
	cmd := &cobra.Command{
		Use: "ids KEY", Short: "The ids in ascending order, a page of them", Args: argsBetween(1, 1, "KEY"),
		Long:    "Lists ids in ascending order. A page has up to 100,000; --from continues after it. `ebb bits export` writes all.",
		Example: "  ebb bits ids play/2011-11-01\n  ebb bits ids play/2011-11-01 --from 5000 --limit 100 -o tsv",
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit == 0 {
				return usagef("--limit 0: a page has 1 to %d ids", proto.BitPageMax)
			}
			page := &ebbv1.BitmapPage{Limit: limit}
			if from != "" {
				var err error
				if page.From, err = parseID(from); err != nil {
					return s.notNumber(cmd, from, err)
				}
			}
			q := &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Ids{Ids: page}}
			return s.askBits(cmd, &f, args[0], q, func(w *ebbv1.BitmapAnswer) (lines []string) {
				for i := range w.GetIds() {
					lines = append(lines, idText(w, i))
				}
				return lines
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&from, "from", "", "begin at this `id`")
	cmd.Flags().Uint32Var(&limit, "limit", 1000, "how many ids, 1 to 100,000")
	return cmd
}

func newBitsRank(s *session) *cobra.Command {
	return s.bitsQuestion("rank KEY ID", "How many ids are below one", "  ebb bits rank play/2011-11-01 1000000",
		func(n []uint64) *ebbv1.BitmapQuestion {
			return &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Rank{Rank: n[0]}}
		},
		func(w *ebbv1.BitmapAnswer) string { return fmt.Sprint(w.GetCount()) })
}

func newBitsAt(s *session) *cobra.Command {
	return s.bitsQuestion("at KEY POSITION", "Which id has so many below it", "  ebb bits at play/2011-11-01 0",
		func(n []uint64) *ebbv1.BitmapQuestion {
			return &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Position{Position: n[0]}}
		},
		func(w *ebbv1.BitmapAnswer) string { return idOrNone(w, 0) })
}

func newBitsEnd(s *session, name, short string, at int) *cobra.Command {
	return s.bitsQuestion(name+" KEY", short, fmt.Sprintf("  ebb bits %s play/2011-11-01", name),
		func([]uint64) *ebbv1.BitmapQuestion {
			return &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Ends{Ends: true}}
		},
		func(w *ebbv1.BitmapAnswer) string { return idOrNone(w, at) })
}

func idOrNone(w *ebbv1.BitmapAnswer, at int) string {
	if at >= len(w.GetIds()) {
		return "none"
	}
	return idText(w, at)
}

// idText returns an id of an answer, or the string that it stands for. It returns an id such as #17 if the namespace
// has a dictionary without a string for it.
func idText(w *ebbv1.BitmapAnswer, at int) string {
	switch names := w.GetNames(); {
	case len(names) == 0:
		return strconv.FormatUint(w.GetIds()[at], 10)
	case len(names[at]) == 0:
		return fmt.Sprintf("#%d", w.GetIds()[at])
	default:
		return printable(names[at])
	}
}

// idsOf reads ids: strings if the namespace has a dictionary, and otherwise numbers.
func (s *session) idsOf(cmd *cobra.Command, args []string) (*ebbv1.BitmapIds, error) {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return nil, err
	}
	defer done()
	list := &ebbv1.BitmapIds{}
	if c.HasDictionary(ctx, s.namespace) {
		list.Names = keysOf(args)
		return list, nil
	}
	for _, text := range args {
		id, err := parseID(text)
		if err != nil {
			return nil, err
		}
		list.Ids = append(list.Ids, id)
	}
	return list, nil
}
