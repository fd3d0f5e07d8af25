package query

import "testing"

// FuzzPeriod: what looks like a period is one, or refused; and its text is a period again, the same.
func FuzzPeriod(f *testing.F) {
	for _, text := range []string{"2011", "2011-11", "2011-Q4", "2011-W44", "2011-11-01", "2011-11-01T13", "0000-00-00", "9999-12-31", "2011-W54", "2011-Q5", "2011-02-30", "-201", "201１"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, looks, err := ParsePeriod(text)
		if err != nil || !looks {
			return
		}
		again, looks, err := ParsePeriod(p.String())
		if !looks || err != nil || again != p {
			t.Fatalf("%q is %v, which is %v, %v", text, p, again, err)
		}
	})
}

// FuzzParseKey: what is the key of a period is written the same, and read the same again.
func FuzzParseKey(f *testing.F) {
	for _, key := range []string{
		"play/2011-11-01", "play:2011-W44", "play_20111101", "play.2011110113", "play-20111101T13", "a/b:201111", "user-1234",
	} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		s, p, ok := ParseKey(key)
		if !ok {
			return
		}
		if again := string(s.Key(p)); again != key {
			t.Fatalf("%q is written %q", key, again)
		}
		if s2, p2, ok := ParseKey(string(s.Key(Period{p.Unit, p.Number}))); !ok || s2 != s || p2 != p {
			t.Fatalf("%q is %+v %v, and %+v %v", key, s, p, s2, p2)
		}
	})
}
