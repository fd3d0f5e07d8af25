package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// tourPages are the pages of the tour, in the order in which a reader follows them.
var tourPages = []string{"../../README.md", "../../docs/quickstart.md"}

func readTour(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, page := range tourPages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Every command of the README and the quick start that a lone node carries out is in the script of their tour, which
// carries it out.
func TestReadmeIsToured(t *testing.T) {
	tour, err := os.ReadFile("testdata/script/tour.txtar")
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.NewReplacer(`"`, "'")
	toured := map[string]bool{}
	for line := range strings.Lines(string(tour)) {
		if _, args, ok := strings.Cut(strings.TrimSpace(line), "exec ebb "); ok {
			toured[quoted.Replace(args)] = true
		}
	}
	some := 0
	for line := range strings.Lines(readTour(t)) {
		command, is := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		_, args, ebb := strings.Cut(command, "./ebb ")
		if !is || !ebb || strings.Contains(command, "serve") || strings.Contains(command, "--addr") {
			continue
		}
		some++
		if !toured[quoted.Replace(args)] {
			t.Errorf("the tour leaves out %s", args)
		}
	}
	if some < 20 {
		t.Errorf("%d commands", some)
	}
}

// varies is what differs from one run of a command to the next: its figures, and the hash in the name of a source.
var varies = regexp.MustCompile(`\b[0-9a-f]{16}\b|\d[\d.:]*(ms|µs|s)?\b|[ \t]+`)

func masked(text string) string {
	return strings.TrimSpace(varies.ReplaceAllStringFunc(text, func(s string) string {
		if strings.TrimSpace(s) == "" {
			return " "
		}
		return "#"
	}))
}

// What the README and the quick start show below a command is what the command prints, but for figures and times.
func TestReadmeShowsWhatIsPrinted(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real node")
	}
	h, compared := newHelpWorld(t), 0
	for _, block := range strings.Split(readTour(t), "```console\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.Contains(block, "./ebb serve") {
			continue
		}
		for _, of := range strings.Split("\n"+block, "\n$ ")[1:] {
			line, want, _ := strings.Cut(of, "\n")
			if strings.HasPrefix(line, "curl") {
				continue // the node has another port here
			}
			got := h.run(strings.ReplaceAll(line, "./ebb", "ebb"), false)
			if want = masked(want); want == "" {
				continue
			}
			compared++
			if got = masked(got); got != want {
				t.Errorf("$ %s\nprints\n%s\nand the page shows\n%s", line, got, want)
			}
		}
	}
	if compared < 7 {
		t.Errorf("%d commands", compared)
	}
}
