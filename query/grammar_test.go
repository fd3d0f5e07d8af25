package query

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/query/ebnf"
)

// examples of the classes of tokens; Classes has more words.
var examples = map[string][]string{
	"KEY":        {"a", "clicks/country", "play/2011-11-01", "2011", `"two words"`, `"\xff"`, `"top"`, "@sales/x", `@sales/"two words"`, "a-b", "Müller", "p", "atleast", "links"},
	"OWNKEY":     {"a", "clicks/country", `"two words"`},
	"PATTERN":    {"*", "link/*", "clicks/**", `like "two words/*"`, "@sales/link/*", `like @sales/"a *"`},
	"RANGE":      {"play/2011-11-01 .. 2011-11-30", "play/2011-W44..play/2012-W03", "@sales/x/2011-01 .. 2012-12", `"my x/2011-01-01T00" .. 2011-01-02T23`},
	"STRING":     {`"US"`, `"\xff"`, `"with \"quotes\""`},
	"INTEGER":    {"1", "7", "100"},
	"LINKS":      {"1", "100"},
	"FRACTION":   {"0", "0.5", "1", "1e-3"},
	"LEAST":      {"0.1", "1"},
	"CONFIDENCE": {"0.5", "0.99"},
	"DURATION":   {"1s", "10m", "6h", "90d", "1500ms", "2y", "1h30m", "1.5d"},
	"TIME":       {"2013-05-06", "2013-05-06T12:00:00Z", `"2013-05-06T12:00:00+02:00"`},
	"NAMESPACE":  {"sales", "a-b", `"a..b"`},
}

// Sentences of the grammar are questions, and mean what they are written as. Only what the grammar does not say is
// refused: clauses said twice, and periods that cohorts cannot be made of.
func TestSentencesOfTheGrammar(t *testing.T) {
	grammar := ebnf.Parse(Grammar)
	rng := rand.New(rand.NewPCG(4, 22))
	generator := ebnf.Generator{Pick: rng.IntN, Depth: 14, Words: 60, Class: func(name string) string {
		if len(examples[name]) == 0 {
			t.Fatalf("no example of %s", name)
		}
		return examples[name][rng.IntN(len(examples[name]))]
	}}
	asked := map[string]int{}
	good := 0
	for range 20_000 {
		text := strings.Join(generator.Sentence(grammar), " ")
		plan, err := Parse(text)
		if err != nil {
			if e := err.Error(); !strings.Contains(e, "said twice") && !strings.Contains(e, "is not made of whole") {
				t.Fatalf("%.2000s\n%v", text, err)
			}
			continue
		}
		good++
		asked[fmt.Sprintf("%T", plan.GetAsk())]++
		sameAgain(t, plan)
	}
	if good < 15_000 || len(asked) != 15 {
		t.Errorf("%d of 20,000 sentences were taken, of these questions: %v", good, asked)
	}
}

// What the parser takes are sentences of the grammar, and what it refuses are none, unless it is for a number, a name
// or a date. The grammar knows only the shape of those.
func TestGrammarKnowsWhatIsParsed(t *testing.T) {
	grammar := ebnf.Parse(Grammar)
	beyond := []string{
		"whole number", "there is no", "expected how many", "before it begins", "same length", "a range is of one", "no key of a period", "said twice", "bytes:", "without any bytes",
		"backslash",
		"more than 10000", "namespace name", "not made of whole", "a time that there is", "from 0.5", "of 0, which",
		"leap second", "a half-life", "a window", "a number from", "how old",
	}
	for file, good := range map[string]bool{questionsFile: true, wrongFile: false} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			question, says, _ := strings.Cut(strings.TrimSuffix(line, "\n"), becomes)
			known := understood(grammar, question)
			excused := !good && slices.ContainsFunc(beyond, func(text string) bool { return strings.Contains(says, text) })
			if known != good && !excused {
				t.Errorf("%s\nthe grammar knows it: %v; the parser: %s", question, known, says)
			}
		}
	}
}

// understood says whether the tokens of a question are a sentence of the grammar.
func understood(grammar *ebnf.Grammar, question string) bool {
	lex := lexer{text: question, at: position{line: 1, column: 1}}
	var tokens []token
	for t := lex.next(); t.class != end; t = lex.next() {
		if t.class == broken {
			return false
		}
		tokens = append(tokens, t)
	}
	l := ebnf.Matcher{Tokens: len(tokens), Terminal: func(at int, text string) bool { return tokens[at].is(text) }}
	l.Class = func(at int, name string) []int { return classOf(tokens[at:], name) }
	return l.Matches(grammar)
}

// classOf returns how many of these tokens are one of a class.
func classOf(tokens []token, name string) []int {
	t := tokens[0]
	one := func(yes bool) []int {
		if yes {
			return []int{1}
		}
		return nil
	}
	plain := t.class == word && t.namespace == ""
	number, err := strconv.ParseFloat(t.value, 64)
	isNumber := plain && err == nil && t.value[0] >= '0' && t.value[0] <= '9' && !strings.ContainsAny(t.value, "xX_")
	_, whole := strconv.ParseUint(t.value, 10, 64)
	switch name {
	case "KEY", "OWNKEY":
		key := t.class == quoted || t.class == word && !strings.Contains(t.value, "*") && !(plain && reserved(t.value))
		return one(key && (name == "KEY" || t.namespace == ""))
	case "PATTERN":
		if t.is("like") && len(tokens) > 1 && tokens[1].class == quoted {
			return []int{2}
		}
		return one(t.class == word && strings.Contains(t.value, "*"))
	case "RANGE":
		if len(tokens) > 2 && tokens[1].is("..") && classOf(tokens, "KEY") != nil && (tokens[2].class == word || tokens[2].class == quoted) {
			return []int{3}
		}
		return nil
	case "STRING":
		return one(t.class == quoted && t.namespace == "")
	case "INTEGER", "LINKS":
		return one(plain && whole == nil && number > 0 || t.value == "0")
	case "FRACTION", "LEAST", "CONFIDENCE":
		return one(isNumber)
	case "DURATION":
		_, err := ParseDuration(t.value)
		return one(plain && err == nil)
	case "TIME", "NAMESPACE":
		return one((t.class == word || t.class == quoted) && t.namespace == "")
	}
	panic("no class " + name)
}

// Every class of the grammar has words in the documentation, and there is none without use.
func TestClasses(t *testing.T) {
	var names []string
	for _, c := range Classes() {
		names = append(names, c.Name)
		if !strings.Contains(Grammar, c.Name) || examples[c.Name] == nil || c.Means == "" {
			t.Errorf("class %s is not used, or has no examples", c.Name)
		}
	}
	if len(names) != len(examples) {
		t.Errorf("%d classes are documented, %d have examples", len(names), len(examples))
	}
}

const pageFile = "../docs/query.md"

// docs/query.md has what the package says of itself. `go test ./query -run Page -args -rewrite` writes it.
func TestPageIsCommitted(t *testing.T) {
	was, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	is := was
	for name, text := range map[string]string{"questions": formsTable(), "tokens": classesTable(), "railroads": railroads()} {
		begin, end := []byte("<!-- "+name+": written by make generate -->\n"), []byte("<!-- end of "+name+" -->")
		head, rest, found := bytes.Cut(is, begin)
		_, tail, closed := bytes.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no place for %s", pageFile, name)
		}
		is = slices.Concat(head, begin, []byte("\n"+text+"\n"), end, tail)
	}
	if bytes.Equal(was, is) {
		return
	}
	if !*rewrite {
		t.Fatalf("%s is stale: make generate writes it", pageFile)
	}
	if err := os.WriteFile(pageFile, is, 0o644); err != nil {
		t.Fatal(err)
	}
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func formsTable() string {
	var b strings.Builder
	b.WriteString("| question | what it asks |\n| --- | --- |\n")
	for _, f := range Forms() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", cell(f.Usage), cell(f.Summary))
	}
	return b.String()
}

func classesTable() string {
	var b strings.Builder
	b.WriteString("| token | what it is | as |\n| --- | --- | --- |\n")
	for _, c := range Classes() {
		fmt.Fprintf(&b, "| %s | %s | `%s` |\n", c.Name, cell(c.Means), cell(c.Example))
	}
	return b.String()
}

func railroads() string {
	var b strings.Builder
	for _, r := range ebnf.Parse(Grammar).Rules {
		fmt.Fprintf(&b, "**%s**", r.Name)
		if r.Comment != "" {
			b.WriteString(" " + r.Comment)
		}
		fmt.Fprintf(&b, "\n\n```\n%s```\n\n", r.Railroad())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Every example of docs/query.md in a block of questions is one.
func TestExamplesOfThePage(t *testing.T) {
	page, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	examples := blocks(string(page))
	if len(examples) < 20 {
		t.Errorf("%d examples", len(examples))
	}
	for _, example := range examples {
		plan, err := Parse(example)
		if err != nil {
			t.Errorf("%s: %v", example, err)
			continue
		}
		sameAgain(t, plan)
	}
}

// blocks returns the lines of all blocks of questions.
func blocks(page string) []string {
	var out []string
	inside := false
	for line := range strings.Lines(page) {
		switch line = strings.TrimSpace(line); {
		case line == "```ebbq":
			inside = true
		case line == "```":
			inside = false
		case inside && line != "":
			out = append(out, line)
		}
	}
	return out
}
