package sketch

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newPhrases(t testing.TB, members ...string) *Phrases {
	t.Helper()
	p, err := NewPhrases(Hash{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if _, err := p.Add([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	return &p
}

func phrasesSamples(t testing.TB) []*Phrases {
	many := newPhrases(t)
	for i := range 300 {
		if _, err := many.Add(fmt.Appendf(nil, "phrase %d of %d", i, i%7)); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			many.Remove(fmt.Appendf(nil, "phrase %d of %d", i/2, i/2%7))
		}
	}
	return []*Phrases{
		newPhrases(t), newPhrases(t, "a"), newPhrases(t, "New York", "new  york", "new york city", "york"),
		newPhrases(t, "!?", "\xff\xfe", "東京", "❤️", strings.Repeat("a ", 128)), many,
	}
}

func usePhrases(p *Phrases) {
	p.Find([]byte("new york phrase 7 of 0 \xff東京"), func(PhraseMatch) bool { return true })
	for _, m := range p.Clone().members() {
		p.Remove([]byte(m))
	}
}

func (p Phrases) members() (all []string) {
	for _, m := range p.Sorted() {
		all = append(all, string(m))
	}
	return all
}

func TestPhrasesCodec(t *testing.T) { checkCodec(t, phrasesSamples(t), usePhrases) }

func FuzzPhrases(f *testing.F) { fuzzCodec(f, phrasesSamples(f), usePhrases) }

// What a text falls into.
func TestTokens(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{" .,;!\n", ""},
		{"one", "one"},
		{"Don't stop—2 times!", "Don|t|stop|2|times"},
		{"#ebb @ebb_db ebb.example/a?b=c", "ebb|ebb|db|ebb|example|a|b|c"},
		{"naïve Straße ΑΣ", "naïve|Straße|ΑΣ"},
		{"e\u0301te\u0301", "e\u0301te\u0301"},
		{"\u0301x", "\u0301x"},
		{"東京へ行く", "東|京|へ|行|く"},
		{"go東京2020", "go|東|京|2020"},
		{"한국어 말", "한국어|말"},
		{"i❤️NY 😀😀👍🏽", "i|❤️|NY|😀|😀|👍|🏽"},
		{"\ufe0f a\ufe0fb", "a\ufe0fb"},
		{"ab\xffcd \xc3 \xe6\x9d", "ab|cd"},
		{"a\ufffdb", "a|b"},
		{"½ x² Ⅻ", "½|x²|Ⅻ"},
		{"a\x00b\u200dc\u00a0d", "a|b|c|d"},
	} {
		var got []string
		for _, tk := range tokensOf([]byte(c.text), 1) {
			got = append(got, c.text[tk.begin:tk.end])
		}
		if strings.Join(got, "|") != c.want {
			t.Errorf("%q falls into %q, want %q", c.text, strings.Join(got, "|"), c.want)
		}
	}
}

// What is found in a text, and where. Matches are written begin-end:phrase.
func TestPhrasesFind(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("a ", 128))
	for _, c := range []struct {
		name    string
		phrases []string
		text    string
		want    string
	}{
		{"nothing to find", nil, "anything", ""},
		{"nothing to search", []string{"a"}, "", ""},
		{"whole tokens only", []string{"cat"}, "concatenate cats bobcat cat", "24-27:cat"},
		{"in any case", []string{"new york"}, "NEW York, nEw yORK", "0-8:new york 10-18:new york"},
		{"the kelvin sign is a k, and the long s an s", []string{"kiss"}, "\u212ai\u017fs", "0-7:kiss"},
		{"whatever stands between", []string{"new york"}, "new... york new\nyork new-york", "0-11:new york 12-20:new york 21-29:new york"},
		{"but nothing that counts", []string{"new york"}, "new old york", ""},
		{"one within another", []string{"new york city", "york", "new york"}, "new york city", "0-8:new york 0-13:new york city 4-8:york"},
		{"overlapping", []string{"a b", "b c", "c a"}, "a b c a", "0-3:a b 2-5:b c 4-7:c a"},
		{"overlapping itself", []string{"a a"}, "a a a", "0-3:a a 2-5:a a"},
		{"a beginning that leads nowhere", []string{"a b c d", "b c"}, "a b c e", "2-5:b c"},
		{"those that read alike, each as written", []string{"New York", "new  york", "NEW-YORK"}, "new york", "0-8:NEW-YORK 0-8:New York 0-8:new  york"},
		{"no spaces", []string{"東京"}, "私は東京へ", "6-12:東京"},
		{"symbols", []string{"❤ ny", "😀"}, "i ❤️ NY 😀", "2-11:❤ ny 12-16:😀"},
		{"bytes that are not UTF-8 separate", []string{"a b", "ab"}, "a\xffb ab\xfe", "0-3:a b 4-6:ab"},
		{"phrases without tokens are nowhere", []string{"!", "…", "\xff"}, "! … \xff", ""},
		{"the longest there can be", []string{long}, long + " a", "0-255:" + long + " 2-257:" + long},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			newPhrases(t, c.phrases...).Find([]byte(c.text), func(m PhraseMatch) bool {
				got = append(got, fmt.Sprintf("%d-%d:%s", m.Begin, m.End, m.Phrase))
				return true
			})
			if strings.Join(got, " ") != c.want {
				t.Errorf("found %q\nwant  %q", strings.Join(got, " "), c.want)
			}
		})
	}
}

// bruteForce compares each phrase with each place of a text.
func bruteForce(phrases []string, text []byte) (all []string) {
	words := func(b []byte) (out []string, at [][2]int) {
		for _, tk := range tokensOf(b, 1) {
			var folded []rune
			for _, r := range string(b[tk.begin:tk.end]) {
				if !silent(r) {
					folded = append(folded, fold(r))
				}
			}
			out, at = append(out, string(folded)), append(at, [2]int{tk.begin, tk.end})
		}
		return out, at
	}
	in, at := words(text)
	for _, p := range phrases {
		of, _ := words([]byte(p))
		for i := 0; len(of) > 0 && i+len(of) <= len(in); i++ {
			if slices.Equal(in[i:i+len(of)], of) {
				all = append(all, fmt.Sprintf("%d-%d:%s", at[i][0], at[i+len(of)-1][1], p))
			}
		}
	}
	slices.Sort(all)
	return all
}

func found(p *Phrases, text []byte) (all []string) {
	p.Find(text, func(m PhraseMatch) bool {
		all = append(all, fmt.Sprintf("%d-%d:%s", m.Begin, m.End, m.Phrase))
		return true
	})
	slices.Sort(all)
	return all
}

// A set that phrases come to and go from finds what a comparison of each phrase with each place does, and is the set of
// those that are left: to the byte, whatever the order.
func TestPhrasesAgainstBruteForce(t *testing.T) {
	word := rapid.SampledFrom([]string{"a", "A", "b", "c", "ab", "東", "京", "é", "😀", "!", "\xff", "\ufe0f", " "})
	text := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(word, 1, 6).Draw(t, "words"), rapid.SampledFrom([]string{" ", "", "-"}).Draw(t, "between"))
	})
	rapid.Check(t, func(t *rapid.T) {
		p, err := NewPhrases(Hash{Seed: rapid.Uint64().Draw(t, "seed")})
		if err != nil {
			t.Fatal(err)
		}
		members := map[string]bool{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			m := text.Draw(t, "phrase")
			if rapid.IntRange(0, 2).Draw(t, "what") == 0 {
				if p.Remove([]byte(m)) != members[m] {
					t.Fatalf("removing %q", m)
				}
				delete(members, m)
				continue
			}
			if added, err := p.Add([]byte(m)); err != nil || added == members[m] {
				t.Fatalf("adding %q: %t, %v", m, added, err)
			}
			members[m] = true
		}
		var left []string
		length := 0
		fresh, _ := NewPhrases(p.Hash())
		for m := range members {
			left = append(left, m)
			length += len(m)
			if _, err := fresh.Add([]byte(m)); err != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(left)
		if !slices.Equal(p.members(), left) || p.Bytes() != length || p.Held() != fresh.Held() || !bytes.Equal(p.AppendBinary(nil), fresh.AppendBinary(nil)) {
			t.Fatalf("left are %q, want %q", p.members(), left)
		}
		if p.used != fresh.used {
			t.Fatalf("%d prefixes, want %d", p.used, fresh.used)
		}
		in := []byte(strings.Join(rapid.SliceOfN(text, 0, 6).Draw(t, "text"), " "))
		if got, want := found(&p, in), bruteForce(left, in); !slices.Equal(got, want) {
			t.Fatalf("in %q found %q, want %q", in, got, want)
		}
	})
}

// FuzzPhrasesFind takes the lines of a list as phrases.
func FuzzPhrasesFind(f *testing.F) {
	for _, seed := range [][2]string{
		{"new york\nNew York\nyork", "in new york, New  York"},
		{"a\na a\na a a\n", "a a a a a"},
		{"東京\n京", "東京京"},
		{"\xff\n!\n\ufe0f", "\xff ! \ufe0f"},
		{"é\ne\u0301", "é e\u0301"},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, list, text []byte) {
		p := newPhrases(t)
		var members []string
		for line := range bytes.SplitSeq(list[:min(len(list), 1<<12)], []byte("\n")) {
			if added, err := p.Add(line); added {
				members = append(members, string(line))
			} else if err != nil && !errors.Is(err, ErrName) {
				t.Fatal(err)
			}
		}
		text = text[:min(len(text), 1<<12)]
		if got, want := found(p, text), bruteForce(members, text); !slices.Equal(got, want) {
			t.Fatalf("found %q, want %q", got, want)
		}
		for _, m := range members {
			if !p.Remove([]byte(m)) {
				t.Fatalf("%q is gone", m)
			}
		}
		if p.Len() != 0 || p.used != 0 || p.Bytes() != 0 {
			t.Fatalf("%d phrases, %d prefixes, %d bytes are left", p.Len(), p.used, p.Bytes())
		}
	})
}

func TestPhrasesLimits(t *testing.T) {
	p := newPhrases(t, "a")
	for _, bad := range []string{"", strings.Repeat("x", PhraseLenMax+1)} {
		if _, err := p.Add([]byte(bad)); !errors.Is(err, ErrName) {
			t.Errorf("a phrase of %d bytes: %v", len(bad), err)
		}
	}
	for i := 1; i < PhrasesMax; i++ {
		if _, err := p.Add(fmt.Appendf(nil, "p%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	before := p.AppendBinary(nil)
	if _, err := p.Add([]byte("one more")); !errors.Is(err, ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if added, err := p.Add([]byte("p77")); added || err != nil {
		t.Errorf("one that is there: %t, %v", added, err)
	}
	if err := p.Merge(newPhrases(t, "p8", "q")); !errors.Is(err, ErrFull) || !bytes.Equal(p.AppendBinary(nil), before) {
		t.Errorf("a union that is too large: %v", err)
	}
	long := newPhrases(t)
	for i := 0; ; i++ {
		_, err := long.Add(fmt.Appendf(nil, "%0256d", i))
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil || i > PhrasesBytesMax {
			t.Fatal(i, err)
		}
	}
	if long.Bytes() != PhrasesBytesMax {
		t.Errorf("full with %d bytes", long.Bytes())
	}
	other, err := NewPhrases(Hash{Seed: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Merge(&other); !errors.Is(err, ErrIncompatible) {
		t.Errorf("another seed: %v", err)
	}
	if _, err := NewPhrases(Hash{ID: 99}); !errors.Is(err, ErrParams) {
		t.Errorf("an unknown hash: %v", err)
	}
}

// Merging is a union, and a copy shares nothing.
func TestPhrasesMerge(t *testing.T) {
	a, b := newPhrases(t, "x", "y z"), newPhrases(t, "y z", "w")
	c := a.Clone()
	if err := c.Merge(b); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.members(), ","); got != "w,x,y z" {
		t.Errorf("the union is %s", got)
	}
	if got := strings.Join(a.members(), ","); got != "x,y z" {
		t.Errorf("the original became %s", got)
	}
}

// Find ends when the function returns false.
func TestPhrasesFindEnds(t *testing.T) {
	n := 0
	newPhrases(t, "a").Find([]byte("a a a"), func(PhraseMatch) bool {
		n++
		return n < 2
	})
	if n != 2 {
		t.Errorf("%d visits", n)
	}
}

// keywords makes phrases of 1 to 3 words out of 20,000, and a text of such words that contains some phrases.
func keywords(t testing.TB, n, words int) (*Phrases, []byte) {
	p := newPhrases(t)
	pick := func(seed uint64) string { return fmt.Sprintf("w%d", remix(seed, 9)%20_000) }
	for i := uint64(0); p.Len() < n; i++ {
		var phrase []string
		for j := range 1 + remix(i, 1)%3 {
			phrase = append(phrase, pick(10*i+j))
		}
		if _, err := p.Add([]byte(strings.Join(phrase, " "))); err != nil {
			t.Fatal(err)
		}
	}
	var text []string
	for i := range words {
		text = append(text, pick(uint64(1e9+i)))
	}
	return p, []byte(strings.Join(text, " "))
}

// BenchmarkPhrasesFind searches a text of 1,000 words for 16,000 phrases.
func BenchmarkPhrasesFind(b *testing.B) {
	for _, n := range []int{10_000, 16_000, 65_536} {
		b.Run(fmt.Sprintf("phrases=%d", n), func(b *testing.B) {
			p, text := keywords(b, n, 1000)
			matches := 0
			for b.Loop() {
				matches = 0
				p.Find(text, func(PhraseMatch) bool { matches++; return true })
			}
			b.ReportMetric(float64(p.Size())/float64(p.Len()), "B/phrase")
			b.ReportMetric(float64(matches), "matches")
		})
	}
	b.Run("repeated", func(b *testing.B) { // each place begins all of 128 phrases
		p := newPhrases(b)
		for i := range 128 {
			if _, err := p.Add([]byte(strings.TrimSpace(strings.Repeat("a ", i+1)))); err != nil {
				b.Fatal(err)
			}
		}
		text := bytes.Repeat([]byte("a "), 1000)
		for b.Loop() {
			p.Find(text, func(PhraseMatch) bool { return true })
		}
	})
}

func BenchmarkPhrasesAdd(b *testing.B) {
	p, _ := keywords(b, 16_000, 0)
	all := p.Sorted()
	i := 0
	for b.Loop() {
		m := all[i%len(all)]
		if i++; !p.Remove(m) {
			b.Fatal("gone")
		}
		if _, err := p.Add(slices.Clone(m)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPhrasesBloom searches as the report does, by a hierarchy of Bloom filters: one of what phrases begin with,
// and one of phrases. It tells what the exact search costs more, and what this one finds that is not there.
func BenchmarkPhrasesBloom(b *testing.B) {
	for _, rate := range []float64{0.01, 0.0001} {
		b.Run(fmt.Sprintf("phrases=10000/rate=%g", rate), func(b *testing.B) {
			p, text := keywords(b, 10_000, 1000)
			begins, err := NewBloom(BloomParams{Capacity: uint64(p.used), FalseRate: rate})
			whole, err2 := NewBloom(BloomParams{Capacity: uint64(p.Len()), FalseRate: rate})
			if err := errors.Join(err, err2); err != nil {
				b.Fatal(err)
			}
			for _, m := range p.Sorted() {
				h := p.begin()
				for _, t := range tokensOf(m, p.seed.Seed) {
					h = extend(h, t.hash)
					begins.Add(h)
				}
				whole.Add(h)
			}
			said := 0
			for b.Loop() {
				said = 0
				all := tokensOf(text, p.seed.Seed)
				for i := range all {
					h := p.begin()
					for _, t := range all[i:] {
						h = extend(h, t.hash)
						if !begins.Has(h).Found {
							break
						}
						if whole.Has(h).Found {
							said++
						}
					}
				}
			}
			there := 0
			p.Find(text, func(PhraseMatch) bool { there++; return true })
			b.ReportMetric(float64(begins.Size()+whole.Size())/float64(p.Len()), "B/phrase")
			b.ReportMetric(float64(there), "matches")
			b.ReportMetric(float64(said-there), "wrong")
		})
	}
}

// There are many ways to write the same words, and a set of them must not take ever longer to write to.
func TestPhrasesAlike(t *testing.T) {
	written := func(i int) []byte {
		text := []byte("abcdefgh")
		for bit := range text {
			if i>>bit&1 != 0 {
				text[bit] -= 'a' - 'A'
			}
		}
		return text
	}
	p := newPhrases(t)
	for i := range PhrasesAlikeMax {
		if added, err := p.Add(written(i)); !added || err != nil {
			t.Fatalf("%d: %v, %v", i, added, err)
		}
	}
	before := p.AppendBinary(nil)
	if _, err := p.Add(written(PhrasesAlikeMax)); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if added, err := p.Add(written(0)); added || err != nil {
		t.Errorf("one that is there: %v, %v", added, err)
	}
	if err := p.Merge(newPhrases(t, "another", string(written(PhrasesAlikeMax)))); !errors.Is(err, ErrFull) || !bytes.Equal(p.AppendBinary(nil), before) {
		t.Errorf("merge: %v", err)
	}
	if !p.Remove(written(3)) {
		t.Error("one that is there is not removed")
	}
	if added, err := p.Add(written(PhrasesAlikeMax)); !added || err != nil {
		t.Errorf("in the place of another: %v, %v", added, err)
	}
}
