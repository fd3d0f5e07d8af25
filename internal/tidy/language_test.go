package tidy

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// privateWords are parts of names that mean nothing to who knows Go, Raft and databases, with the field's word for
// each.
var privateWords = map[string]string{
	"acquaintances": "knownPeers", "ager": "expiry workload", "attendance": "continuousUptime", "beware": "detectForeignCluster",
	"companion": "slow namespace", "contest": "retryFenced", "courier": "sender", "crew": "workload", "discharge": "quorumCheck",
	"errand": "stage", "fader": "decay workload", "flee": "evacuate", "hail": "preface", "harmless": "allowed",
	"hearsay": "unverifiedLeader", "heed": "check", "hurried": "prioritized", "hurry": "prioritize", "inquiry": "execution",
	"legible": "verifyLog", "lexicon": "dictionary", "lookahead": "prefetcher", "lore": "namespaceCache", "mortal": "withShutdown",
	"namer": "dictionary workload", "newborn": "unknownNamespace", "oddity": "extraResult", "outcast": "checkRemoved",
	"parting": "removal", "pivotal": "quorumCritical", "postbox": "queue", "raiser": "versionUpgrader", "remnant": "orphan",
	"roster": "cowTable", "rouse": "triggerElection", "scribe": "auditWriter", "scribes": "logWriters", "tainted": "maybeApplied",
	"tenure": "replicaRecord", "turnstile": "inflightTracker", "vigil": "leaderFailureDetector", "wrongdoor": "diagnoseEndpoint",
	"yielder": "slowDiskBalancer",
}

// phrases are words that comments and pages do without. What stands in quotes, or behind a $, is a name.
var phrases = regexp.MustCompile(`(?i)(^|[^"$\w])(nobody|somebody|goes on|is told|of which|beside|meanwhile)\b`)

// records are pages of runs and decisions of the past, which stay as they were.
var records = []string{"docs/adr/", "docs/benchmarks.md", "docs/nightly.md", "docs/mutation.md", "docs/reliability.md"}

var nameParts = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

// Names of the project's own are in the words of the field.
func TestNamesAreOfTheField(t *testing.T) {
	for _, s := range sources(t) {
		check := func(name string) {
			for _, part := range nameParts.FindAllString(name, -1) {
				if word, private := privateWords[strings.ToLower(part)]; private {
					t.Errorf("%s: %s has a private word: %s is the field's", s.path, name, word)
				}
			}
		}
		check(strings.TrimSuffix(filepath.Base(s.path), ".go"))
		ast.Inspect(s.file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				check(id.Name)
			}
			return true
		})
	}
}

// Comments and pages say things plainly.
func TestPlainPhrases(t *testing.T) {
	check := func(name, text string) {
		for line := range strings.SplitSeq(text, "\n") {
			if m := phrases.FindStringSubmatch(line); m != nil {
				t.Errorf("%s: say it without %q: %s", name, m[2], line)
			}
		}
	}
	for _, s := range sources(t) {
		if strings.HasPrefix(s.path, "proto/ebbv1") || strings.HasPrefix(s.path, "proto/peerv1") {
			continue // generated
		}
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				check(s.path, c.Text)
			}
		}
	}
	for name, text := range pages(t) {
		if !slices.ContainsFunc(records, func(r string) bool { return strings.HasPrefix(name, r) }) {
			check(name, text)
		}
	}
}
