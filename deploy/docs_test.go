package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// ours is `ebb` where a shell would start it: at the beginning of a line or of a code span, or after kubectl's
	// "--".
	ours  = regexp.MustCompile("(?m)(?:^ *|`|-- )ebb ([a-z][^`\n]*)")
	links = regexp.MustCompile(`\]\(([a-z][^):#]*\.md)\)`)
	paths = regexp.MustCompile(`\bdeploy/[A-Za-z0-9_./-]+[A-Za-z0-9]`)
)

// The commands in pages for operators are commands, with flags that they have, and
// the pages and files that they name are there.
func TestDocumentedCommandsExist(t *testing.T) {
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	helps := map[string]string{}
	commands := 0
	for _, page := range append(pages, "../docs/deploy.md") {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range ours.FindAllStringSubmatch(string(raw), -1) {
			commands++
			words := strings.Fields(found[1])
			if helps[words[0]] == "" {
				helps[words[0]] = ebb(t, words[0], "--help") // fails for none of ours
			}
			for _, w := range words[1:] {
				if !strings.HasPrefix(w, "--") || w == "--help" || strings.Contains(helps[words[0]], w+" ") {
					continue
				}
				if !strings.Contains(ebb(t, words[0], words[1], "--help"), w+" ") {
					t.Errorf("%s: ebb %s has no flag %s", page, words[0], w)
				}
			}
		}
		for _, link := range links.FindAllStringSubmatch(string(raw), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), link[1])); err != nil {
				t.Error(err)
			}
		}
		for _, path := range paths.FindAllString(string(raw), -1) {
			if _, err := os.Stat("../" + path); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	if commands < 20 {
		t.Errorf("only %d commands were found", commands)
	}
}
