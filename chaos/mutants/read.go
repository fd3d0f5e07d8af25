package mutants

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	said    = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: (.*)$`)
	seed    = regexp.MustCompile(`seed (\d+)`)
	hung    = regexp.MustCompile(`(?m)^panic: test timed out`)
	paniced = regexp.MustCompile(`(?m)^(?:panic|fatal error): (.*)$`)
	running = regexp.MustCompile(`(?m)^=== (?:RUN|CONT)\s+(\S+)`)
)

// read finds in the output of failed tests which test failed, its message, and the seed.
func read(out []byte) (by, what string, with uint64) {
	text := string(out)
	if m := seed.FindAllStringSubmatch(text, -1); m != nil {
		with, _ = strconv.ParseUint(m[len(m)-1][1], 10, 64) // digits
	}
	last := ""
	if m := running.FindAllStringSubmatch(text, -1); m != nil {
		last = m[len(m)-1][1]
	}
	switch {
	case hung.MatchString(text):
		return last, "it hangs", with
	case paniced.MatchString(text):
		return last, "panic: " + paniced.FindStringSubmatch(text)[1], with
	}
	if m := failed.FindStringSubmatch(text); m != nil {
		by = m[1]
	}
	if _, after, ok := strings.Cut(text, "=== RUN   "+by+"\n"); ok {
		text = after
	}
	if m := said.FindAllStringSubmatch(text, -1); m != nil {
		what = m[0][1]
		for _, line := range m { // what a test logs before it fails is no verdict
			if strings.Contains(line[1], "seed") || strings.Contains(line[1], "want") {
				what = line[1]
				break
			}
		}
	}
	return by, what, with
}
