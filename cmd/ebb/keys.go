package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// patternHelp explains patterns, in the help of commands that take them.
const patternHelp = `In a pattern * stands for any bytes but '/', ** for any bytes, and \* for a star: 'link/*' is every key of the directory link,
'link/**' all that lies below it, and '**' every key. Quote it, or the shell looks for files.`

// isPattern reports whether a word is a pattern and not the name of a key.
func isPattern(word string) bool { return strings.Contains(word, "*") }

// splitPatterns separates keys from patterns.
func splitPatterns(args []string) (keys, patterns []string) {
	for _, a := range args {
		if isPattern(a) {
			patterns = append(patterns, a)
		} else {
			keys = append(keys, a)
		}
	}
	return keys, patterns
}

// splitPatternBytes is splitPatterns for messages, which hold keys as bytes.
func splitPatternBytes(args []string) (keys, patterns [][]byte) {
	k, p := splitPatterns(args)
	return keysOf(k), keysOf(p)
}

// notePattern prints a note for each word that looks like a pattern, in a command that takes only names.
func (s *session) notePattern(words ...string) {
	for _, word := range words {
		if isPattern(word) {
			fmt.Fprintf(s.term.err, "note: %s is taken for the name of a key; `ebb keys` lists what matches a pattern\n", printable([]byte(word)))
			return
		}
	}
}

var keyOrders = map[string]ebbv1.KeyOrder{
	"name": ebbv1.KeyOrder_KEY_ORDER_NAME, "total": ebbv1.KeyOrder_KEY_ORDER_TOTAL, "recent": ebbv1.KeyOrder_KEY_ORDER_RECENT,
}

func newKeys(s *session) *cobra.Command {
	var q questionFlags
	var kindName, order, after string
	var limit, top int64
	cmd := &cobra.Command{
		Use: "keys [PATTERN]", Short: "Which keys there are, and which are hottest", Args: argsBetween(0, 1, "[PATTERN]"),
		Long:    "The keys of a namespace, over all shards, with what is known of each.\n\n" + patternHelp,
		Example: "  ebb keys\n  ebb keys 'link/*' --top 20\n  ebb keys --kind distinct --order recent --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > proto.KeysListMax {
				return usagef("--limit %d: it must be from 1 to %d", limit, proto.KeysListMax)
			}
			kq := &ebbv1.KeysQuestion{After: []byte(after), Limit: uint32(limit)}
			if len(args) > 0 {
				kq.Pattern = []byte(args[0])
			}
			var err error
			if kq.Order, err = choice("order", order, keyOrders); err != nil {
				return err
			}
			if cmd.Flags().Changed("top") {
				if top < 1 || top > proto.KeysListMax {
					return usagef("--top %d: it must be from 1 to %d", top, proto.KeysListMax)
				}
				if s.given["limit"] || s.given["order"] {
					return usagef("--top n is --order total --limit n: give it alone, or these")
				}
				kq.Order, kq.Limit = ebbv1.KeyOrder_KEY_ORDER_TOTAL, uint32(top)
			}
			if kindName != "" {
				known := false
				if kq.Kind, known = proto.KindNamed(kindName); !known {
					return noneOf("--kind", kindName, strings.Split(proto.KindNames(), ", "))
				}
			}
			if kq.AsOfUs, err = instant(q.asOf); err != nil {
				return err
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Keys{Keys: kq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error { return s.printKeys(a, kq) })
		},
	}
	q.addAsking(cmd)
	cmd.Flags().StringVar(&kindName, "kind", "", "only keys of this `kind`: "+proto.KindNames())
	cmd.Flags().StringVar(&order, "order", "name", "by name, by total (the largest first) or the most recent first")
	cmd.Flags().Int64Var(&top, "top", 0, "the `n` keys with the largest totals: the same as --order total --limit n")
	cmd.Flags().Int64Var(&limit, "limit", 100, "how many keys, 1 to 10,000")
	cmd.Flags().StringVar(&after, "after", "", "of the order by name: keys after this `key`")
	return cmd
}

// keyJSON is a key and its description as JSON.
type keyJSON struct {
	keyName
	Kind        string       `json:"kind,omitempty"`
	Total       estimateJSON `json:"total"`
	Bins        uint32       `json:"bins,omitempty"`
	LastEventUS int64        `json:"last_event_us,omitempty"`
	FadesUS     int64        `json:"fades_us,omitempty"`
	ExpiresUS   int64        `json:"expires_us,omitempty"`
	Shard       uint32       `json:"shard"`
}

func keyOf(w *ebbv1.KeyInfo) keyJSON {
	return keyJSON{
		keyName: keyNameOf(w.GetKey()), Kind: proto.KindName(w.GetKind()), Total: estimateOf("total", w.GetTotal()), Bins: w.GetBins(),
		LastEventUS: w.GetLastEventUs(), FadesUS: w.GetFadesUs(), ExpiresUS: w.GetExpiresUs(), Shard: w.GetShard(),
	}
}

// keysJSON is the answer to ebb keys as JSON.
type keysJSON struct {
	Namespace string       `json:"namespace"`
	Keys      []keyJSON    `json:"keys"`
	Matched   uint64       `json:"matched"`
	AsOfUS    int64        `json:"as_of_us"`
	Coverage  coverageJSON `json:"coverage"`
}

func (s *session) printKeys(a *ebbv1.Answer, q *ebbv1.KeysQuestion) error {
	w := a.GetKeys()
	s.noteAsOf(q.GetAsOfUs(), w.GetAsOfUs())
	if s.output == "json" {
		out := keysJSON{Namespace: s.namespace, Keys: []keyJSON{}, Matched: w.GetMatched(), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage())}
		for _, info := range w.GetKeys() {
			out.Keys = append(out.Keys, keyOf(info))
		}
		return printJSON(s.term.out, out)
	}
	var rows [][]string
	for _, info := range w.GetKeys() {
		total, std := info.GetTotal().GetValue(), info.GetTotal().GetStdError()
		row := []string{printable(info.GetKey()), proto.KindName(info.GetKind())}
		if s.output == "tsv" {
			row = append(row, exact(total), exact(std), fmt.Sprint(info.GetBins()), fmt.Sprint(info.GetLastEventUs()), fmt.Sprint(info.GetFadesUs()), fmt.Sprint(info.GetExpiresUs()))
		} else {
			row = append(row, figure(total, 4), figure(std, 2), dash(info.GetBins()), moment(info.GetLastEventUs()), moment(info.GetFadesUs()), moment(info.GetExpiresUs()))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		if s.output == "tsv" { // an empty list is also data
			_, err := fmt.Fprintf(s.term.err, "no key matches\n%s\n", coverageText(a.GetCoverage()))
			return err
		}
		_, err := fmt.Fprint(s.term.out, "no key matches\n\n", asOfText(a, w.GetAsOfUs()))
		return err
	}
	if err := s.printTable("KEY\tKIND\tTOTAL\tSTD ERROR\tBINS\tLAST EVENT\tFADES\tEXPIRES", rows); err != nil || s.output == "tsv" {
		return err
	}
	more := ""
	if last := w.GetKeys()[len(rows)-1]; uint64(len(rows)) < w.GetMatched() && q.GetOrder() == ebbv1.KeyOrder_KEY_ORDER_NAME {
		more = "; go on with --after " + printable(last.GetKey())
	}
	_, err := fmt.Fprintf(s.term.out, "\n%d of %d keys, as of %s%s\n%s\n", len(rows), w.GetMatched(), when(w.GetAsOfUs()), more, coverageText(a.GetCoverage()))
	return err
}

func dash(n uint32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// moment formats a time for a table, to the second.
func moment(us int64) string {
	if us == 0 {
		return "-"
	}
	return time.UnixMicro(us).UTC().Format("2006-01-02 15:04:05")
}

func newDescribe(s *session) *cobra.Command {
	var q questionFlags
	cmd := &cobra.Command{
		Use: "describe KEY", Short: "What a key is: its kind, sizes, errors, and when it leaves", Args: argsBetween(1, 1, "KEY"),
		Long: `What a key is, and how large its errors are. The last event is the one with the latest
time. Some kinds know less. A bloom that forgets and a distinct with a window know times by their slices: the last event
is where a slice begins. A set or distinct that fades knows when it was written last, by its namespace's clock: a late
event does not show there. Kinds without times know none. "keys --order recent" sorts by the same times.`,
		Example: "  ebb describe clicks/country\n  ebb describe visitors/today --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			dq := &ebbv1.DescribeQuestion{Key: []byte(args[0])}
			var err error
			if dq.AsOfUs, err = instant(q.asOf); err != nil {
				return err
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Describe{Describe: dq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error {
				s.noteAsOf(dq.GetAsOfUs(), a.GetDescribe().GetAsOfUs())
				if !a.GetDescribe().GetFound() {
					s.notePattern(args...)
				}
				return s.printDescription(a)
			})
		},
	}
	q.addAsking(cmd)
	return cmd
}

// descriptionJSON is the answer to ebb describe as JSON.
type descriptionJSON struct {
	Namespace  string             `json:"namespace"`
	Found      bool               `json:"found"`
	Key        keyJSON            `json:"key"`
	Bytes      uint64             `json:"bytes"` // of the key's state in a snapshot
	Memory     uint64             `json:"memory_bytes"`
	Decay      string             `json:"decay,omitempty"`
	HalfLifeUS int64              `json:"half_life_us"`
	Clock      string             `json:"clock,omitempty"`
	Properties map[string]float64 `json:"properties"`
	Accuracy   string             `json:"accuracy"`
	AsOfUS     int64              `json:"as_of_us"`
	Coverage   coverageJSON       `json:"coverage"`
}

func (s *session) printDescription(a *ebbv1.Answer) error {
	w := a.GetDescribe()
	info := w.GetKey()
	out := descriptionJSON{
		Namespace: s.namespace, Found: w.GetFound(), Key: keyOf(info), Bytes: w.GetBytes(), Memory: w.GetMemoryBytes(),
		HalfLifeUS: w.GetHalfLifeUs(), Accuracy: w.GetAccuracy(),
		Decay: enumWord(w.GetDecay().String(), "DECAY_"), Clock: enumWord(w.GetClock().String(), "CLOCK_"),
		Properties: map[string]float64{}, AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage()),
	}
	if !out.Found {
		out.Key.Kind, out.Decay, out.Clock = "", "", ""
	}
	for _, p := range w.GetProperties() {
		out.Properties[p.GetName()] = p.GetValue()
	}
	if s.output == "json" {
		return printJSON(s.term.out, out)
	}
	if !out.Found {
		where := fmt.Sprintf("%s; it would be in shard %d", whyFaded, info.GetShard())
		if s.output == "tsv" {
			_, err := fmt.Fprintf(s.term.out, "nothing known (%s)\n", where)
			return err
		}
		return printNothing(s.term.out, a, "nothing known", where, w.GetAsOfUs())
	}
	rows := [][]string{
		{"key", printable(info.GetKey())},
		{"kind", out.Key.Kind},
		{"shard", fmt.Sprint(info.GetShard())},
		{"total", figure(info.GetTotal().GetValue(), 6) + plusMinus(info.GetTotal().GetStdError())},
	}
	if info.GetBins() > 0 {
		rows = append(rows, []string{"bins", fmt.Sprint(info.GetBins())})
	}
	if out.Memory > 0 {
		rows = append(rows, []string{"memory bytes", fmt.Sprint(out.Memory)})
	}
	rows = append(rows, []string{"snapshot bytes", fmt.Sprint(w.GetBytes())}, []string{"decay", out.Decay})
	if w.GetHalfLifeUs() > 0 {
		rows = append(rows, []string{"half-life", (time.Duration(w.GetHalfLifeUs()) * time.Microsecond).String()})
	}
	rows = append(rows,
		[]string{"clock", out.Clock}, []string{"last event", moment(info.GetLastEventUs())},
		[]string{"fades", moment(info.GetFadesUs())}, []string{"expires", moment(info.GetExpiresUs())})
	for _, p := range w.GetProperties() {
		rows = append(rows, []string{p.GetName(), figure(p.GetValue(), 4)})
	}
	rows = append(rows, []string{"accuracy", w.GetAccuracy()})
	if err := s.printTable("WHAT\t", rows); err != nil || s.output == "tsv" {
		return err
	}
	_, err := fmt.Fprint(s.term.out, "\n", asOfText(a, w.GetAsOfUs()))
	return err
}

func enumWord(name, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
}

func plusMinus(stdErr float64) string {
	if stdErr == 0 {
		return ""
	}
	return " ± " + figure(stdErr, 2)
}

// onKeys does something to keys, and prints to how many of them.
func (s *session) onKeys(cmd *cobra.Command, verb string, keys []string, do func(context.Context, *client.Client) (int, error)) error {
	if key, twice := repeated(keysOf(keys)); twice {
		return usagef("key %s is named twice", printable(key))
	}
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	n, err := do(ctx, c)
	if err != nil && n > 0 {
		err = fmt.Errorf("%s %d of %d: %w", verb, n, len(keys), err)
	}
	if err != nil {
		return err
	}
	switch s.output {
	case "json":
		return printJSON(s.term.out, map[string]int{strings.ReplaceAll(verb, " ", "_"): n, "absent": len(keys) - n})
	case "tsv":
		_, err = fmt.Fprintln(s.term.out, n)
		return err
	}
	absent := ""
	if n < len(keys) {
		absent = fmt.Sprintf(", %d not there", len(keys)-n)
		s.notePattern(keys...)
	}
	_, err = fmt.Fprintf(s.term.out, "%s %d%s\n", verb, n, absent)
	return err
}

func newDel(s *session) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use: "del KEY...", Short: "Forget keys", Args: argsBetween(0, -1, "KEY..."),
		Long: `Forgets keys and all that they hold, whatever their kind. It takes names and no patterns: ebb keys PATTERN -o tsv
lists names, and --file reads what it lists. There, as in all TSV of ebb, a name that begins with " or holds a character
that cannot be printed is quoted with escapes, as in Go ("tmp/a\tb"), and any other name is as it is. Before a KEY that
begins with - write --.`,
		Example: "  ebb del clicks/country\n  ebb del -- --help\n" +
			"  ebb keys 'tmp/*' --limit 10000 -o tsv | ebb del --file -",
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) > 0) == (from != "") {
				return usagef("which keys? name some, or a --file")
			}
			if from != "" {
				var err error
				if args, err = s.keysIn(from); err != nil {
					return err
				}
			}
			return s.onKeys(cmd, "deleted", args, func(ctx context.Context, c *client.Client) (deleted int, err error) {
				for batch := range slices.Chunk(args, deleteBatch) {
					n, err := c.Delete(ctx, s.namespace, batch...)
					if deleted += n; err != nil {
						return deleted, err
					}
				}
				return deleted, nil
			})
		},
	}
	cmd.Flags().StringVar(&from, "file", "",
		"the keys are the first column of this `file`, as ebb keys -o tsv prints it; - is the standard input")
	return cmd
}

// deleteBatch is how many keys one request deletes.
const deleteBatch = 1000

// keysIn returns the keys in the first column of a TSV file.
func (s *session) keysIn(path string) (keys []string, err error) {
	in, err := s.open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	line := 0
	err = eachLine(in, func(text string) error {
		line++
		cell, _, _ := strings.Cut(text, "\t")
		if cell == "" {
			return nil
		}
		key, ok := unprinted(cell)
		if !ok {
			return usagef("line %d of %s: %s is not a name as ebb keys -o tsv prints it", line, path, printable([]byte(cell)))
		}
		keys = append(keys, key)
		return nil
	})
	return keys, err
}

func newExpire(s *session) *cobra.Command {
	var at string
	var never bool
	cmd := &cobra.Command{
		Use: "expire KEY [DURATION]", Short: "Say until when a key lives at most", Args: argsBetween(1, 2, "KEY [DURATION]"),
		Long: `A key leaves at that time by the clock of its namespace, whatever is added until then; earlier if it has faded. One that is
written again later is a new key, without a time. A time that has passed ends it at once.`,
		Example: "  ebb expire session/ann 10m\n  ebb expire session/bob 7d\n  ebb expire clicks/today --at 2030-01-01\n  ebb expire clicks/today --never",
		RunE: func(cmd *cobra.Command, args []string) error {
			given := len(args) - 1
			for _, flag := range []string{"at", "never"} {
				if cmd.Flags().Changed(flag) {
					given++
				}
			}
			if given != 1 {
				return usagef("until when? one of a duration, --at and --never: ebb expire KEY 10m")
			}
			us, err := instant(at)
			if err != nil {
				return err
			}
			var ttl time.Duration
			if len(args) > 1 {
				lives, err := query.ParseDuration(args[1])
				switch {
				case err != nil:
					return usagef("DURATION %q: write it as 30s, 10m, 6h, 7d or 2y", args[1])
				case lives <= 0 || lives > proto.TTLMaxUS:
					return usagef("DURATION %q: it must be above zero, and 100 years at most", args[1])
				}
				ttl = time.Duration(lives) * time.Microsecond
			}
			return s.onKeys(cmd, "changed", args[:1], func(ctx context.Context, c *client.Client) (int, error) {
				switch {
				case never:
					return c.Persist(ctx, s.namespace, args[0])
				case at != "":
					if us == 0 {
						us = time.Now().UnixMicro()
					}
					return c.ExpireAt(ctx, s.namespace, time.UnixMicro(us), args[0])
				}
				return c.Expire(ctx, s.namespace, ttl, args[0])
			})
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "at this `time` ("+timeForms+")")
	cmd.Flags().BoolVar(&never, "never", false, "take back what was said before: it leaves when it has faded")
	return cmd
}

// renamedJSON is what ebb rename has done.
type renamedJSON struct {
	keyName
	Was       *string `json:"was,omitempty"`
	WasBase64 []byte  `json:"was_base64,omitempty"`
}

func renamedOf(key, was string) renamedJSON {
	out := renamedJSON{keyName: keyNameOf([]byte(key))}
	out.Was, out.WasBase64 = textOrBinary([]byte(was))
	return out
}

func newRename(s *session) *cobra.Command {
	var overwrite bool
	cmd := &cobra.Command{
		Use: "rename KEY NEW", Short: "Give a key another name", Args: argsBetween(2, 2, "KEY NEW"),
		Long: `All that the key holds goes along, and its time to live. Where the two names belong to different shards it is copied and then deleted, again if it is written
in between; what it holds may take 4,128,768 bytes then. Rates of ebb trend stay under an event clock. Under a wall clock, where rates
begin with a shard, those of other keys of the new shard may change. Bitmaps that are placed by slice cannot be renamed.`,
		Example: "  ebb rename clicks/tody clicks/today\n  ebb rename clicks/new clicks/today --overwrite",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, c, done, err := s.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			if err := c.Rename(ctx, s.namespace, args[0], args[1], overwrite); err != nil {
				return err
			}
			switch s.output {
			case "json":
				return printJSON(s.term.out, renamedOf(args[1], args[0]))
			case "tsv":
				_, err = fmt.Fprintf(s.term.out, "%s\t%s\n", printable([]byte(args[0])), printable([]byte(args[1])))
				return err
			}
			_, err = fmt.Fprintf(s.term.out, "%s is %s now\n", args[0], args[1])
			return err
		},
	}
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "also if there is a key of the new name, which is lost")
	return cmd
}
