package query

import "testing"

// Durations are read as the command line and HTTP take them.
func TestParseDuration(t *testing.T) {
	const day = 86_400_000_000
	for text, want := range map[string]int64{
		"2y": 730.5 * day, "1w": 7 * day, "90d": 90 * day, "1.5d": 1.5 * day, "1h30m": day / 16, "500ms": 500_000,
		"10us": 10, "-1d": -day, "0s": 0,
	} {
		if got, err := ParseDuration(text); got != want || err != nil {
			t.Errorf("%s: %d, %v: want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "y", "d", "10", "1_0d", "0x1p4d", "infd", "nand", "1e3d", "293y", "1y1d", "1d1h", "1_0s",
	} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%s is %d", text, got)
		}
	}
	for text, want := range map[string]string{
		"top 3 keys plat/* by trend(90d, 2y)":  "top 3 keys plat/* by trend(90d, 2y)",
		"top 3 keys by trend(2160h, 730.5d)":   "top 3 keys by trend(90d, 2y)",
		"distinct(a, 1h30m)":                   "distinct(a, 90m)",
		"total(a) with consistency bounded 1w": "total(a) with consistency bounded 1w",
	} {
		plan, err := Parse(text)
		if err != nil || Text(plan) != want {
			t.Errorf("%s: %q, %v", text, Text(plan), err)
		}
	}
}
