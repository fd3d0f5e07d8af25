package main

import (
	"fmt"
	"strconv"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// bitmapJSON is the answer to count and ids as JSON.
type bitmapJSON struct {
	Namespace string       `json:"namespace"`
	Count     *uint64      `json:"count,omitempty"` // of question count
	IDs       []idJSON     `json:"ids,omitzero"`    // of question ids; then it is not nil
	Names     []listedName `json:"names,omitempty"` // the strings of the ids, in a namespace with a dictionary
	Next      *idJSON      `json:"next,omitempty"`  // the next id, if there are more
	StdError  float64      `json:"std_error"`
	AsOfUS    int64        `json:"as_of_us"`
	Coverage  coverageJSON `json:"coverage"`
}

// printBitmap prints ids, or their number.
func (s *session) printBitmap(a *ebbv1.Answer, ids bool) error {
	w := a.GetBitmap()
	if s.output == "json" {
		out := bitmapJSON{Namespace: s.namespace, StdError: w.GetStdError(), Names: listedNames(w.GetNames()), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage())}
		if ids {
			out.IDs = idsJSON(w.GetIds())
		} else {
			out.Count = &w.Count
		}
		if w.GetMore() {
			next := idJSON(w.GetNext())
			out.Next = &next
		}
		return printJSON(s.term.out, out)
	}
	for i := range w.GetIds() {
		fmt.Fprintln(s.term.out, idText(w, i))
	}
	switch {
	case !ids:
		fmt.Fprintln(s.term.out, w.GetCount())
	case w.GetMore():
		fmt.Fprintf(s.term.err, "note: the first %d ids; more are from %d\n", len(w.GetIds()), w.GetNext())
	}
	if s.output == "tsv" {
		return nil
	}
	c := a.GetCoverage()
	if !ids && w.GetCount() == 0 && c.GetMissingTotal() > 0 && c.GetShardsTotal() > 0 {
		// the sets may have faded: an answer of 0 is not called exact
		_, err := fmt.Fprintf(s.term.out, "\nas of %s\n%s\n", when(w.GetAsOfUs()), coverageText(c))
		return err
	}
	return s.printExact(w.GetAsOfUs(), c)
}

// printExact prints the end of an answer about bitmaps, which has no error.
func (s *session) printExact(asOfUS int64, c *ebbv1.Coverage) error {
	if asOfUS == 0 && c.GetShardsTotal() == 0 { // such as atleast(3, ...) of two bitmaps
		_, err := fmt.Fprintln(s.term.out, "\nexact: nothing can be in, whatever the bitmaps have; no shard was asked")
		return err
	}
	_, err := fmt.Fprintf(s.term.out, "\nexact, as of %s\n%s\n", when(asOfUS), coverageText(c))
	return err
}

// groupsJSON is the answer to count by as JSON.
type groupsJSON struct {
	Namespace string       `json:"namespace"`
	Count     uint64       `json:"count"`
	Groups    []groupJSON  `json:"groups"`
	AsOfUS    int64        `json:"as_of_us"`
	Coverage  coverageJSON `json:"coverage"`
}

type groupJSON struct {
	keyName
	Count uint64 `json:"count"`
}

func (s *session) printGroups(a *ebbv1.Answer) error {
	w := a.GetGroups()
	out := groupsJSON{Namespace: s.namespace, Count: w.GetCount(), Groups: []groupJSON{}, AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage())}
	var rows [][]string
	for _, g := range w.GetGroups() {
		out.Groups = append(out.Groups, groupJSON{keyNameOf(g.GetKey()), g.GetCount()})
		rows = append(rows, []string{printable(g.GetKey()), strconv.FormatUint(g.GetCount(), 10), share(g.GetCount(), w.GetCount())})
	}
	if s.output == "json" {
		return printJSON(s.term.out, out)
	}
	if err := s.printTable("BITMAP\tCOUNT\tOF ALL", rows); err != nil || s.output == "tsv" {
		return err
	}
	_, err := fmt.Fprintf(s.term.out, "\n%d in all, as of %s\n%s\n", w.GetCount(), when(w.GetAsOfUs()), coverageText(a.GetCoverage()))
	return err
}

// share returns part of whole as a percentage; "-" if whole is 0.
func share(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return figure(100*float64(part)/float64(whole), 3) + "%"
}

// cohortJSON is the answer to cohort as JSON.
type cohortJSON struct {
	Namespace string          `json:"namespace"`
	Everyone  bool            `json:"everyone"` // rows count all ids, and not only first occurrences
	Rows      []cohortRowJSON `json:"rows"`
	AsOfUS    int64           `json:"as_of_us"`
	Coverage  coverageJSON    `json:"coverage"`
}

type cohortRowJSON struct {
	Period string   `json:"period"`
	Count  uint64   `json:"count"`
	Again  []uint64 `json:"again"` // ids that come again, for each later period, the next one first
}

// printCohort prints a table with a line for each period: the ids that occur for the first time, or with everyone all
// ids. It shows which part of them occurs again in each later period.
func (s *session) printCohort(a *ebbv1.Answer, everyone bool) error {
	w := a.GetCohort()
	out := cohortJSON{Namespace: s.namespace, Everyone: everyone, Rows: []cohortRowJSON{}, AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage())}
	header := "FIRST\tIDS"
	if everyone {
		header = "PERIOD\tIDS"
	}
	var rows [][]string
	for at, r := range w.GetRows() {
		out.Rows = append(out.Rows, cohortRowJSON{r.GetPeriod(), r.GetCount(), append([]uint64{}, r.GetAgain()...)})
		row := []string{r.GetPeriod(), strconv.FormatUint(r.GetCount(), 10)}
		for _, n := range r.GetAgain() {
			if s.output == "tsv" {
				row = append(row, strconv.FormatUint(n, 10))
			} else {
				row = append(row, share(n, r.GetCount()))
			}
		}
		if at > 0 {
			header += fmt.Sprintf("\t+%d", at)
		}
		rows = append(rows, row)
	}
	if s.output == "json" {
		return printJSON(s.term.out, out)
	}
	if err := s.printTable(header, rows); err != nil || s.output == "tsv" {
		return err
	}
	_, err := fmt.Fprintf(s.term.out, "\nas of %s\n%s\n", when(w.GetAsOfUs()), coverageText(a.GetCoverage()))
	return err
}
