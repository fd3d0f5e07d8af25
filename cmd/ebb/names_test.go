package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// oddNames are names that tables and TSV quote, or that look like what they quote.
var oddNames = []string{
	"plain", "a\tb", `"a\tb"`, `a\tb`, "line\nbreak", "zero\u200bwidth", "no\u00a0break", "\u2028", "\x00", "\x7f", "<&>",
	`"`, `\`, "\ufffd", "\U000e0001", "Zürich",
}

// namePrinters are all that prints names in JSON, and the paths at which each has the name.
var namePrinters = []struct {
	name  string
	print func(s *session, name []byte) error
	// single fields have a form for names that are not UTF-8; lists have not
	single, lists []string
}{
	{"keys", func(s *session, name []byte) error {
		w := &ebbv1.KeyList{Keys: []*ebbv1.KeyInfo{{Key: name}}}
		return s.printKeys(&ebbv1.Answer{Value: &ebbv1.Answer_Keys{Keys: w}}, &ebbv1.KeysQuestion{})
	}, []string{"keys.0.key"}, nil},
	{"describe", func(s *session, name []byte) error {
		w := &ebbv1.KeyDescription{Found: true, Key: &ebbv1.KeyInfo{Key: name}}
		return s.printDescription(&ebbv1.Answer{Value: &ebbv1.Answer_Describe{Describe: w}})
	}, []string{"key.key"}, nil},
	{"rename", func(s *session, name []byte) error {
		return printJSON(s.term.out, renamedOf(string(name), string(name)))
	}, []string{"key", "was"}, nil},
	{"top", func(s *session, name []byte) error {
		w := &ebbv1.Distribution{Found: true, Bins: []*ebbv1.Bin{{Bin: name}}}
		return s.printDistribution(&ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: w}}, false)
	}, []string{"bins.0.bin"}, nil},
	{"keys of top", func(s *session, name []byte) error {
		w := &ebbv1.Distribution{Found: true, Keys: [][]byte{name}}
		return s.printDistribution(&ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: w}}, false)
	}, nil, []string{"keys.0"}},
	{"missing keys", func(s *session, name []byte) error {
		w := &ebbv1.Distribution{Found: true}
		a := &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: w}, Coverage: &ebbv1.Coverage{MissingKeys: [][]byte{name}}}
		return s.printDistribution(a, false)
	}, nil, []string{"coverage.missing_keys.0"}},
	{"estimate", func(s *session, name []byte) error {
		w := &ebbv1.Summary{
			Found: true, Bins: []*ebbv1.Estimate{{}}, Items: []*ebbv1.Item{{Bin: name}}, Memberships: []*ebbv1.Membership{{}},
		}
		q := &ebbv1.SummaryQuestion{Bins: [][]byte{name}}
		return s.printSummary(&ebbv1.Answer{Value: &ebbv1.Answer_Summary{Summary: w}}, q)
	}, []string{"estimates.1.bin", "estimates.2.bin", "memberships.0.bin"}, nil},
	{"members", func(s *session, name []byte) error {
		w := &ebbv1.Summary{Found: true, Members: [][]byte{name}}
		q := &ebbv1.SummaryQuestion{Keys: [][]byte{name}, Members: true}
		return s.printSummary(&ebbv1.Answer{Value: &ebbv1.Answer_Summary{Summary: w}}, q)
	}, nil, []string{"members.0", "keys.0"}},
	{"phrases list", func(s *session, name []byte) error {
		w := &ebbv1.Summary{Found: true, Kind: ebbv1.Kind_KIND_PHRASES, Members: [][]byte{name}}
		return s.printPhrases(&ebbv1.Answer{Value: &ebbv1.Answer_Summary{Summary: w}}, string(name))
	}, nil, []string{"key", "phrases.0"}},
	{"match", func(s *session, name []byte) error {
		w := &ebbv1.Matches{Found: true, Matches: []*ebbv1.Match{{Phrase: name}}}
		return s.printMatches(&ebbv1.Answer{Value: &ebbv1.Answer_Match{Match: w}}, string(name))
	}, []string{"key", "matches.0.phrase"}, nil},
	{"feed", func(s *session, name []byte) error {
		return s.printFound(map[string]int{string(name): 1}, 1)
	}, []string{"found.0.phrase"}, nil},
	{"string get", func(s *session, name []byte) error {
		w := &ebbv1.Summary{Found: true, Kind: ebbv1.Kind_KIND_STRING}
		return s.printString(&ebbv1.Answer{Value: &ebbv1.Answer_Summary{Summary: w}}, string(name))
	}, []string{"key"}, nil},
	{"graph", func(s *session, name []byte) error {
		return s.printGraph(oddGraph(name))
	}, []string{"nodes.0.key", "nodes.0.links.0.key"}, nil},
	{"overlap", func(s *session, name []byte) error {
		w := &ebbv1.Overlap{Sets: []*ebbv1.SizedSet{{Key: name, Found: true}}}
		return s.printOverlap(&ebbv1.Answer{Value: &ebbv1.Answer_Overlap{Overlap: w}})
	}, []string{"sets.0.key"}, nil},
	{"surprise", func(s *session, name []byte) error {
		w := &ebbv1.Surprise{Found: true, Bins: []*ebbv1.SurprisingBin{{Bin: name}}, SurpriseBits: []float64{1}}
		a := &ebbv1.Answer{Value: &ebbv1.Answer_Surprise{Surprise: w}}
		return s.printSurprise(a, &ebbv1.SurpriseQuestion{Bins: [][]byte{name}})
	}, []string{"bins.0.bin", "events.0.bin"}, nil},
	{"alert", func(s *session, name []byte) error {
		w := &ebbv1.Surprise{Found: true, Bins: []*ebbv1.SurprisingBin{{Bin: name, LiftBits: 1}}}
		a := &ebbv1.Answer{Value: &ebbv1.Answer_Surprise{Surprise: w}}
		return s.printAlert(client.Event{Answer: a, Raised: true})
	}, []string{"bin"}, nil},
	{"trend", func(s *session, name []byte) error {
		of := []*ebbv1.Change{{Bin: name}}
		w := &ebbv1.Trend{Found: true, Rising: of, Falling: of, Bins: of}
		return s.printTrend(&ebbv1.Answer{Value: &ebbv1.Answer_Trend{Trend: w}})
	}, []string{"rising.0.bin", "falling.0.bin", "bins.0.bin"}, nil},
	{"count by", func(s *session, name []byte) error {
		w := &ebbv1.BitmapGroups{Groups: []*ebbv1.BitmapGroup{{Key: name}}}
		return s.printGroups(&ebbv1.Answer{Value: &ebbv1.Answer_Groups{Groups: w}})
	}, []string{"groups.0.key"}, nil},
	{"ids", func(s *session, name []byte) error {
		w := &ebbv1.BitmapAnswer{Ids: []uint64{1}, Names: [][]byte{name}}
		return s.printBitmap(&ebbv1.Answer{Value: &ebbv1.Answer_Bitmap{Bitmap: w}}, true)
	}, nil, []string{"names.0"}},
	{"bits ids", func(s *session, name []byte) error {
		w := &ebbv1.BitmapAnswer{Ids: []uint64{1}, Names: [][]byte{name}}
		return printJSON(s.term.out, s.bitsJSON(&ebbv1.Answer{Value: &ebbv1.Answer_Bitmap{Bitmap: w}}, string(name), &ebbv1.BitmapQuestion{}))
	}, nil, []string{"key", "names.0"}},
	{"sketch list", func(s *session, name []byte) error {
		return printJSON(s.term.out, sketchJSON{keyName: keyNameOf(name)})
	}, []string{"key"}, nil},
	{"namespace copy", func(s *session, name []byte) error {
		return printJSON(s.term.out, leftKeyJSON{keyName: keyNameOf(name)})
	}, []string{"key"}, nil},
}

func oddGraph(name []byte) *ebbv1.Answer {
	node := &ebbv1.GraphNode{Set: &ebbv1.SizedSet{Key: name, Found: true}, Links: []*ebbv1.GraphLink{{To: 0}}}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Graph{Graph: &ebbv1.Graph{Nodes: []*ebbv1.GraphNode{node}}}}
}

// printedName prints a name as JSON, and decodes it.
func printedName(print func(*session, []byte) error, name []byte) (document any, err error) {
	var out, notes bytes.Buffer
	s := &session{term: terminal{out: &out, err: &notes}, output: "json"}
	if err = print(s, name); err != nil {
		return nil, err
	}
	return document, json.Unmarshal(out.Bytes(), &document)
}

func TestNamesInJSON(t *testing.T) {
	for _, c := range namePrinters {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range oddNames {
				document, err := printedName(c.print, []byte(name))
				if err != nil {
					t.Fatalf("%q: %v", name, err)
				}
				for _, path := range append(c.single, c.lists...) {
					if got, err := follow(document, path); err != nil || got != name {
						t.Errorf("%s is %q, %v: want %q", path, got, err, name)
					}
				}
			}
		})
	}
}

// A name that is not UTF-8 is base64, as over HTTP, or an error where it is in a list: never other characters.
func TestBinaryNamesInJSON(t *testing.T) {
	for _, c := range namePrinters {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"\xff", "a\xc3", "\xed\xa0\x80"} {
				document, err := printedName(c.print, []byte(name))
				if len(c.lists) > 0 {
					if !errors.Is(err, proto.ErrNotUTF8) || strings.Contains(err.Error(), "json:") {
						t.Errorf("%q: %v: want NOT_UTF8", name, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%q: %v", name, err)
				}
				for _, path := range c.single {
					want := base64.StdEncoding.EncodeToString([]byte(name))
					if got, err := follow(document, path+"_base64"); err != nil || got != want {
						t.Errorf("%s_base64 is %v, %v: want %s", path, got, err, want)
					}
					if got, err := follow(document, path); err == nil {
						t.Errorf("%s is %q, too", path, got)
					}
				}
			}
		})
	}
}
