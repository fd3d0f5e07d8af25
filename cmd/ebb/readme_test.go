package main

import (
	"os"
	"strings"
	"testing"
)

// Every command of the README that a lone node carries out is in the script of its tour, which carries it out.
func TestReadmeIsToured(t *testing.T) {
	tour, err := os.ReadFile("testdata/script/tour.txtar")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
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
	for line := range strings.Lines(string(readme)) {
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
	if some < 15 {
		t.Errorf("%d commands", some)
	}
}
