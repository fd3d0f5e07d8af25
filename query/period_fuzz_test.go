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
