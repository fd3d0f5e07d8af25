package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// distributionJSON is a distribution as `--json` prints it.
type distributionJSON struct {
	Namespace   string       `json:"namespace"`
	Keys        []listedName `json:"keys"`
	Matched     uint64       `json:"matched,omitempty"` // keys that the patterns found
	Found       bool         `json:"found"`
	Z           float64      `json:"z"`
	Z2          float64      `json:"z2"`
	Other       *float64     `json:"other,omitempty"` // left out when brief
	EffectiveN  float64      `json:"effective_n"`
	EntropyBits *float64     `json:"entropy_bits,omitempty"` // left out when brief
	BinsTotal   uint32       `json:"bins_total"`             // when brief, an upper bound
	Brief       bool         `json:"brief,omitempty"`        // very many bins, not all visited
	Lost        float64      `json:"lost"`                   // z and each count may be larger by up to this
	Bins        []binJSON    `json:"bins"`
	AsOfUS      int64        `json:"as_of_us"`
	LastEventUS int64        `json:"last_event_us"`
	Confidence  float64      `json:"confidence"`
	Coverage    coverageJSON `json:"coverage"`
}

type binJSON struct {
	binName
	Count float64 `json:"count"`
	P     float64 `json:"p"`
	PLow  float64 `json:"p_low"`
	PHigh float64 `json:"p_high"`
	// what is left of a bin that was asked for and is below the threshold
	Hidden float64 `json:"hidden,omitempty"`
}

type coverageJSON struct {
	ShardsTotal    uint32       `json:"shards_total"`
	ShardsAnswered uint32       `json:"shards_answered"`
	ShardsFailed   []uint32     `json:"shards_failed,omitempty"`
	ShardsStale    []uint32     `json:"shards_stale,omitempty"`
	MissingKeys    []listedName `json:"missing_keys,omitempty"`
	MissingTotal   uint32       `json:"missing_total,omitempty"`
}

// printTable prints rows as columns under a header, or as lines of TSV without one.
func (s *session) printTable(header string, rows [][]string) error {
	if s.output == "tsv" {
		for _, row := range rows {
			if _, err := fmt.Fprintln(s.term.out, strings.Join(row, "\t")); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(s.term.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, header)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	if wrapped := (*json.MarshalerError)(nil); errors.As(err, &wrapped) {
		return wrapped.Unwrap() // a name that JSON cannot hold, see listedName
	}
	return err
}

// text returns b as text for JSON, which cannot hold bytes that are not UTF-8.
func text(what string, b []byte) (string, error) {
	if !utf8.Valid(b) {
		return "", proto.ErrNotUTF8.Errorf("%s %q is not UTF-8, which JSON needs", what, b).WithHint("-o tsv or -o table print it quoted")
	}
	return string(b), nil
}

// printDistribution prints an answer; asked reports whether the question named the bins.
func (s *session) printDistribution(a *ebbv1.Answer, asked bool) error {
	switch s.output {
	case "json":
		return printJSON(s.term.out, s.distributionJSON(a))
	case "tsv":
		for _, b := range a.GetDistribution().GetBins() {
			fmt.Fprintf(s.term.out, "%s\t%s\t%s\n", printable(b.GetBin()), exact(b.GetCount()), exact(b.GetP()))
		}
		return nil
	}
	return printDistributionTable(s.term.out, a, asked)
}

func (s *session) distributionJSON(a *ebbv1.Answer) *distributionJSON {
	d, c := a.GetDistribution(), a.GetCoverage()
	out := &distributionJSON{
		Namespace: s.namespace, Matched: d.GetMatched(), Found: d.GetFound(), Z: d.GetZ(), Z2: d.GetZ2(),
		EffectiveN: d.GetEffectiveN(), BinsTotal: d.GetBinsTotal(), Brief: d.GetBrief(), Lost: d.GetLost(),
		Bins: []binJSON{}, Keys: append([]listedName{}, listedNames(d.GetKeys())...), AsOfUS: d.GetAsOfUs(), LastEventUS: d.GetLastEventUs(), Confidence: d.GetConfidence(),
		Coverage: coverageOf(c),
	}
	if !d.GetBrief() {
		out.Other, out.EntropyBits = &d.Other, &d.EntropyBits
	}
	for _, b := range d.GetBins() {
		out.Bins = append(out.Bins, binJSON{binNameOf(b.GetBin()), b.GetCount(), b.GetP(), b.GetPLow(), b.GetPHigh(), b.GetHidden()})
	}
	return out
}

// Why an answer has nothing about a key. Strings and phrases do not fade: only a deletion removes them.
const (
	whyFaded  = "no such key, or all of it has faded"
	whyAbsent = "no such key"
)

// printNothing prints an answer that has nothing. It names the missing key if the question was about one key. It prints
// the as-of time, because an event clock that a wrong date moved ahead explains why all has faded.
func printNothing(w io.Writer, a *ebbv1.Answer, what, why string, asOfUS int64) error {
	of := ""
	if saysNothing(a) && a.GetCoverage().GetMissingTotal() == 1 {
		of = " of " + missingText(a.GetCoverage())
	}
	_, err := fmt.Fprintf(w, "%s%s (%s)\n\n%s", what, of, why, asOfText(a, asOfUS))
	return err
}

// asOfText returns the last lines of an answer that has nothing more.
func asOfText(a *ebbv1.Answer, asOfUS int64) string {
	return fmt.Sprintf("as of %s\n%s\n", when(asOfUS), coverageText(a.GetCoverage()))
}

func printDistributionTable(w io.Writer, a *ebbv1.Answer, asked bool) error {
	d := a.GetDistribution()
	if !d.GetFound() {
		return printNothing(w, a, "nothing known", whyFaded, d.GetAsOfUs())
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "BIN\tCOUNT\tP\t%g%% INTERVAL\n", 100*d.GetConfidence())
	for _, b := range d.GetBins() {
		fmt.Fprintf(tw, "%s\t%s\t%.4f\t%.4f to %.4f\n", printable(b.GetBin()), figure(b.GetCount(), 4), b.GetP(), b.GetPLow(), b.GetPHigh())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, b := range d.GetBins() {
		if b.GetHidden() != 0 {
			fmt.Fprintf(w, "%s: %s is left of it, which is below the threshold\n",
				printable(b.GetBin()), figure(b.GetHidden(), 2))
		}
	}
	bins := fmt.Sprintf("%d of %d bins", len(d.GetBins()), d.GetBinsTotal())
	if asked {
		bins = fmt.Sprintf("%s asked for; the distribution has %s", plural(len(d.GetBins()), "bin", "bins"),
			plural(int(d.GetBinsTotal()), "bin", "bins"))
	}
	if d.GetMatched() > 0 {
		bins += " of " + matching(d.GetMatched())
	}
	if d.GetBrief() {
		_, err := fmt.Fprintf(w, "\n%s at most (the rest was not visited), z %s, effective n %s, as of %s\n%s%s\n",
			bins, figure(d.GetZ(), 6), figure(d.GetEffectiveN(), 4), when(d.GetAsOfUs()),
			lostText(d), coverageText(a.GetCoverage()))
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s, z %s (other %s), effective n %s, entropy %.3f bits, as of %s\n%s%s\n",
		bins, figure(d.GetZ(), 6), figure(d.GetOther(), 3), figure(d.GetEffectiveN(), 4), d.GetEntropyBits(),
		when(d.GetAsOfUs()), lostText(d), coverageText(a.GetCoverage()))
	return err
}

// lostText returns a line with the possible error of counts; "" if they are exact, or exact to the digits shown.
func lostText(d *ebbv1.Distribution) string {
	if d.GetLost() < 1e-9*d.GetZ() || d.GetLost() == 0 {
		return ""
	}
	either := ""
	if d.GetSigned() {
		either = " or less"
	}
	return fmt.Sprintf("each count and z: at most %s more%s, whatever order events came in\n",
		figure(d.GetLost(), 2), either)
}

// matching returns how many keys matched a pattern, in words.
func matching(n uint64) string {
	return plural(n, "key that matches", "keys that match")
}

// plural returns a number with the singular or plural of a word.
func plural[N int | uint64](n N, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// figure formats v for people, with digits significant digits. It shows all digits before the point up to 2^53; above
// that, floats are not exact.
func figure(v float64, digits int) string {
	size := math.Abs(v)
	if size == math.MaxFloat64 {
		return "no bound" // an end of an interval with no known bound
	}
	if size >= 1<<53 || size < 1e-4 || math.IsNaN(v) {
		return fmt.Sprintf("%.*g", digits, v)
	}
	decimals := max(0, digits-1-int(math.Floor(math.Log10(size))))
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if decimals > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

func coverageOf(c *ebbv1.Coverage) coverageJSON {
	return coverageJSON{
		c.GetShardsTotal(), c.GetShardsAnswered(), c.GetShardsFailed(), c.GetShardsStale(),
		listedNames(c.GetMissingKeys()), c.GetMissingTotal(),
	}
}

// missingShownMax is how many missing keys a line names.
const missingShownMax = 10

// noteMissing prints which keys an answer lacks. It prints nothing if the answer is about one key and names it already.
func (s *session) noteMissing(a *ebbv1.Answer) {
	missing := missingText(a.GetCoverage())
	says := saysNothing(a) && (s.output == "table" || a.GetMatch() == nil) // in TSV, a key without a match has no line
	if missing == "" || s.output == "json" || a.GetCoverage().GetMissingTotal() == 1 && says {
		return
	}
	fmt.Fprintf(s.term.err, "note: not there, counted as empty: %s\n", missing)
}

// saysNothing reports whether an answer says that nothing is known.
func saysNothing(a *ebbv1.Answer) bool {
	switch v := a.GetValue().(type) {
	case *ebbv1.Answer_Distribution:
		return !v.Distribution.GetFound()
	case *ebbv1.Answer_Summary:
		return !v.Summary.GetFound()
	case *ebbv1.Answer_Describe:
		return !v.Describe.GetFound()
	case *ebbv1.Answer_Match:
		return !v.Match.GetFound()
	}
	return false
}

// missingText names the keys that an answer lacks; "" if it lacks none.
func missingText(c *ebbv1.Coverage) string {
	var names []string
	for _, key := range c.GetMissingKeys()[:min(len(c.GetMissingKeys()), missingShownMax)] {
		names = append(names, printable(key))
	}
	if n := int(c.GetMissingTotal()) - len(names); n > 0 {
		names = append(names, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

func coverageText(c *ebbv1.Coverage) string {
	out := fmt.Sprintf("coverage: %d of %d shards", c.GetShardsAnswered(), c.GetShardsTotal())
	if n := len(c.GetShardsFailed()); n > 0 {
		out += fmt.Sprintf(", failed %v", c.GetShardsFailed())
	}
	if n := len(c.GetShardsStale()); n > 0 {
		out += fmt.Sprintf(", perhaps stale %v", c.GetShardsStale())
	}
	return out
}

// exact formats a float so that it reads back as the same float.
func exact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// printable quotes a name that a terminal or a line of TSV cannot show, or that begins with a quote. So no two names
// are printed alike, and unprinted can read each of them back.
func printable(b []byte) string {
	s := string(b)
	hidden := func(r rune) bool { return !strconv.IsPrint(r) }
	if !utf8.ValidString(s) || strings.HasPrefix(s, `"`) || strings.ContainsFunc(s, hidden) {
		return strconv.Quote(s)
	}
	return s
}

// unprinted returns the name that printable has printed as text. ok is false if printable prints no name like that.
func unprinted(text string) (name string, ok bool) {
	name = text
	if strings.HasPrefix(text, `"`) {
		var err error
		if name, err = strconv.Unquote(text); err != nil {
			return text, false
		}
	}
	return name, printable([]byte(name)) == text
}

// when formats a time in microseconds as date and time in UTC; 0 is "never".
func when(us int64) string {
	if us == 0 {
		return "never"
	}
	return time.UnixMicro(us).UTC().Format("2006-01-02 15:04:05.000 MST")
}

// timeForms says in help texts how a time may be written.
const timeForms = "RFC 3339, a date with or without a time of day in UTC, or seconds since 1970"

// instant reads a time as people write it: RFC 3339, a date, or seconds since 1970 (with a fraction, or in ms or µs if
// the number is that large). It returns microseconds: 0 for now, and at least 1 for any other time. Digits that may be
// a date are refused.
func instant(text string) (int64, error) {
	if text == "" || text == "now" {
		return 0, nil
	}
	if t, ok := load.ParseDate(text); ok {
		return tick(t.UnixMicro(), text)
	}
	if proto.HasLeapSecond(text) {
		return 0, usagef("time %q: %s", text, proto.LeapSecond)
	}
	if both := load.Ambiguous(text); both != nil {
		date, number := both.Readings()
		return 0, usagef("time %q may be the date %s, or a number since 1970, which is %s: write it as one of these",
			text, date, number)
	}
	seconds, err := proto.ParseNumber(text)
	if err != nil || !(math.Abs(seconds) < 1e18) { // 1e18 µs is the year 33658
		return 0, usagef("time %q: write it as 2013-05-17T21:04:00Z, as a date, or in seconds since 1970", text)
	}
	switch {
	case seconds >= 1e14:
		return tick(int64(seconds), text)
	case seconds >= 1e11:
		return tick(int64(seconds*1e3), text)
	}
	return tick(int64(seconds*1e6+0.5), text)
}

func tick(us int64, text string) (int64, error) {
	if us < 0 {
		return 0, proto.ErrBadTime.Errorf("time %q is before 1970-01-01", text)
	}
	return max(us, 1), nil // 0 would mean now
}

// instantTime does what instant does, and returns a time.Time; zero for now.
func instantTime(text string) (time.Time, error) {
	us, err := instant(text)
	if err != nil || us == 0 {
		return time.Time{}, err
	}
	return time.UnixMicro(us), nil
}
