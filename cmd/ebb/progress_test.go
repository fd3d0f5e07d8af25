package main

import (
	"strings"
	"testing"
	"time"
)

// TestProgressBarLine: the line has a bar and the time left where the total is known.
func TestProgressBarLine(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		bytes       bool
		done, total int64
		want        string
	}{
		{true, 0, 0, "10 rows  0 B"},
		{true, 3 * mb, -1, "10 rows  3.0 MiB"},
		{true, 0, 4 * mb, "10 rows    0% [                              ]  0 B of 4.0 MiB"},
		{true, mb, 4 * mb, "10 rows   25% [=======                       ]  1.0 MiB of 4.0 MiB  30s left"},
		{false, 2, 4, "10 rows   50% [===============               ]  10s left"},
		{false, 4, 4, "10 rows  100% [==============================]"},
		{false, 9, 4, "10 rows  100% [==============================]"},
	} {
		b := progressBar{bytes: c.bytes}
		if got := b.line("10 rows", c.done, c.total, 10*time.Second); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestProgressBarIsDrawnInPlace: at most ten times a second, and cleared at the end if there is anything to clear.
func TestProgressBarIsDrawnInPlace(t *testing.T) {
	var out strings.Builder
	at := time.Unix(1, 0)
	b := progressBar{w: &out, began: at, now: func() time.Time { return at }}
	b.clear()
	for range 6 {
		b.show("keys", 1, 0)
		at = at.Add(barInterval / 2)
	}
	b.clear()
	if want := strings.Repeat("\r\033[Kkeys", 3) + "\r\033[K"; out.String() != want {
		t.Errorf("%q, not %q", out.String(), want)
	}
}
