package tidy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	adrFolder   = "../../docs/adr"
	adrMaxLines = 80
)

var (
	adrName  = regexp.MustCompile(`^(\d{4})-[a-z0-9-]+\.md$`)
	adrTitle = regexp.MustCompile(`^# (\d+)\. (.+)$`)
	adrLink  = regexp.MustCompile(`\]\((\d{4}-[a-z0-9-]+\.md)\)`)
)

// Each decision record has a number, a title, a status, and its three sections in order, on one page. The index has its
// line, with the same title and status, and no line without a record.
func TestDecisionRecords(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(adrFolder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(adrFolder)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, e := range entries {
		name := e.Name()
		if name == "README.md" {
			continue
		}
		named := adrName.FindStringSubmatch(name)
		if named == nil {
			t.Errorf("%s: a record is named NNNN-some-words.md", name)
			continue
		}
		text, err := os.ReadFile(filepath.Join(adrFolder, name))
		if err != nil {
			t.Fatal(err)
		}
		number, _ := strconv.Atoi(named[1])
		title, status, faults := checkADR(number, string(text))
		for _, fault := range faults {
			t.Errorf("%s: %s", name, fault)
		}
		for _, link := range adrLink.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(adrFolder, link[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		want = append(want, fmt.Sprintf("| [%d](%s) | %s | %s |", number, name, title, status))
	}
	var got []string
	for line := range strings.Lines(string(index)) {
		if strings.HasPrefix(line, "| [") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("docs/adr/README.md lacks the line\n%s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("docs/adr/README.md has a line that is no record's:\n%s", line)
		}
	}
	if len(want) < 70 {
		t.Errorf("only %d records were found", len(want))
	}
}

// checkADR returns the title of a record, its status without the detail behind a colon, and what is wrong with it.
func checkADR(number int, text string) (title, status string, faults []string) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if n := len(lines); n > adrMaxLines {
		faults = append(faults, fmt.Sprintf("%d lines: a record has at most %d", n, adrMaxLines))
	}
	if m := adrTitle.FindStringSubmatch(lines[0]); m == nil || m[1] != strconv.Itoa(number) {
		faults = append(faults, fmt.Sprintf("the first line is not `# %d. Title`", number))
	} else {
		title = m[2]
	}
	if len(lines) > 2 {
		status, _ = strings.CutPrefix(lines[2], "Status: ")
		status, _, _ = strings.Cut(status, ": ")
	}
	if !strings.HasPrefix(status, "accepted") && !strings.HasPrefix(status, "superseded by [") {
		faults = append(faults, "the third line is neither `Status: accepted` nor `Status: superseded by [N](file)`")
	}
	var sections []string
	for _, line := range lines {
		if name, is := strings.CutPrefix(line, "## "); is &&
			slices.Contains([]string{"Context", "Decision", "Consequences"}, name) {
			sections = append(sections, name)
		}
	}
	if got := strings.Join(sections, ", "); got != "Context, Decision, Consequences" {
		faults = append(faults, fmt.Sprintf("sections are %q, not Context, Decision, Consequences", got))
	}
	return title, status, faults
}

// What checkADR says of records that are not in order.
func TestCheckADR(t *testing.T) {
	const good = "# 7. A title\n\nStatus: accepted\n\n## Context\n\n## Decision\n\n## Alternatives\n\n## Consequences\n"
	for _, c := range []struct{ from, to, fault string }{
		{"", "", ""},
		{"# 7.", "# 8.", "first line"},
		{"Status: accepted", "Accepted.", "third line"},
		{"## Decision", "## What was decided", "sections are"},
		{"## Consequences", "## Consequences" + strings.Repeat("\n", 80), "a record has at most"},
	} {
		_, _, faults := checkADR(7, strings.Replace(good, c.from, c.to, 1))
		if (c.fault == "") != (len(faults) == 0) || !strings.Contains(strings.Join(faults, "; "), c.fault) {
			t.Errorf("%q in place of %q: %q", c.to, c.from, faults)
		}
	}
}
