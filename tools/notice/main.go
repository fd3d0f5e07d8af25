// Command notice writes the file NOTICE: the licences of all that is linked into the binary ebb, as they stand in the
// sources of its modules. With -check it compares instead, and fails if the file would change.
//
//	go -C tools run ./notice [-check]
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// platforms are the platforms for which ebb is built; each may link other modules.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/arm64"}

// licence matches the names of files with a licence, or with a notice that must be passed on.
var licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|unlicense)([.-].*)?$`)

// source matches source files, which are no licences even if their names begin like one.
var source = regexp.MustCompile(`\.(go|s|c|h|sh|py)$`)

func main() {
	check := flag.Bool("check", false, "fail if NOTICE is not what it would be")
	root := flag.String("root", "..", "directory of the module ebb")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	found := make(notices)
	for _, platform := range platforms {
		if err := found.collect(root, platform); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	text, err := found.text()
	if err != nil {
		return err
	}
	path := filepath.Join(root, "NOTICE")
	if !check {
		return os.WriteFile(path, text, 0o644)
	}
	have, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(have, text) {
		err = errors.New("NOTICE does not have the licences of what is linked: `make notice` writes it")
	}
	return err
}

// notices has the files with licences of each component.
type notices map[component]map[string]bool

// component is a module, or the standard library.
type component struct{ path, version, dir string }

// collect adds the licences of what the build for a platform links. It looks in the directories of the packages, and
// above them in their modules.
func (n notices) collect(root, platform string) error {
	system, arch, _ := strings.Cut(platform, "/")
	const form = `{{if .Standard}}std{{"\t"}}{{else}}` +
		`{{with .Module}}{{if not .Main}}{{.Path}}{{"\t"}}{{.Version}}{{"\t"}}{{.Dir}}{{end}}{{end}}{{"\t"}}{{.Dir}}{{end}}`
	cmd := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace,nethttpomithttp2", "-f", form, "./cmd/ebb")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOOS="+system, "GOARCH="+arch)
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		switch {
		case fields[0] == "std":
		case len(fields) == 4:
			if err := n.add(component{fields[0], fields[1], fields[2]}, fields[3]); err != nil {
				return err
			}
		}
	}
	env, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	goroot := strings.TrimSpace(string(env))
	return n.add(component{"the Go standard library", "", goroot}, goroot)
}

func (n notices) add(c component, dir string) error {
	if n[c] == nil {
		n[c] = make(map[string]bool)
	}
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Type().IsRegular() && licence.MatchString(e.Name()) && !source.MatchString(e.Name()) {
				n[c][filepath.Join(dir, e.Name())] = true
			}
		}
		if dir == c.dir || len(dir) <= len(c.dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// text returns the file NOTICE. A text that several components share stands there once.
func (n notices) text() ([]byte, error) {
	order := slices.SortedFunc(maps.Keys(n), func(a, b component) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.version, b.version))
	})
	var texts []string
	users := make(map[string][]string)
	for _, c := range order {
		if len(n[c]) == 0 {
			return nil, fmt.Errorf("%s %s has no file with a licence in %s", c.path, c.version, c.dir)
		}
		for _, path := range slices.Sorted(maps.Keys(n[c])) {
			raw, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			within, err := filepath.Rel(c.dir, path)
			if err != nil {
				return nil, err
			}
			text := normal(raw)
			if users[text] == nil {
				texts = append(texts, text)
			}
			name := strings.TrimSpace(c.path + " " + c.version)
			users[text] = append(users[text], fmt.Sprintf("%s (%s)", name, filepath.ToSlash(within)))
		}
	}
	var b bytes.Buffer
	b.WriteString("ebb is licensed under the Apache License 2.0, see the file LICENSE.\n" +
		"The binary also holds the components below, each under its own licence. `make notice` writes this file.\n")
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return b.Bytes(), nil
}

// normal returns a text without differences in line ends and trailing white space.
func normal(raw []byte) string {
	lines := strings.Split(strings.ReplaceAll(string(raw), "\r\n", "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t\f")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}
