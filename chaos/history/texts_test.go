package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// limit is generous: all of these take microseconds.
const limit = time.Minute

// Histories that registers can have, and such that they cannot.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name    string
		play    func(h *Texts)
		want    porcupine.CheckResult
		explain string
	}{
		{"nothing", func(*Texts) {}, porcupine.Ok, ""},
		{"a write, and what it wrote", func(h *Texts) {
			w := write(h, "a")
			read(h, "a", w)
		}, porcupine.Ok, ""},
		{"nothing is there before", func(h *Texts) {
			read(h, "a", "")
			write(h, "a")
		}, porcupine.Ok, ""},
		{"keys are apart", func(h *Texts) {
			w := write(h, "a")
			read(h, "b", "")
			read(h, "a", w)
		}, porcupine.Ok, ""},
		{"an acknowledged write is not read", func(h *Texts) {
			write(h, "a")
			read(h, "a", "")
		}, porcupine.Illegal, `not placed: a is ""`},
		{"of two writes the older is read", func(h *Texts) {
			w := write(h, "a")
			write(h, "a")
			read(h, "a", w)
		}, porcupine.Illegal, "not placed: a is"},
		{"a read during a write has either value", func(h *Texts) {
			w := h.Write(1, "x", "a")
			read(h, "a", w.Value())
			w.Done("")
		}, porcupine.Ok, ""},
		{"once read, it stays", func(h *Texts) {
			w := h.Write(1, "x", "a")
			read(h, "a", w.Value())
			read(h, "a", "")
			w.Done("")
		}, porcupine.Illegal, `a is ""`},
		{"a write without an answer may come late", func(h *Texts) {
			w := h.Write(1, "x", "a")
			w.Unknown()
			read(h, "a", "")
			read(h, "a", w.Value())
		}, porcupine.Ok, ""},
		{"or never", func(h *Texts) {
			h.Write(1, "x", "a").Unknown()
			read(h, "a", "")
		}, porcupine.Ok, ""},
		{"but once", func(h *Texts) {
			w := h.Write(1, "x", "a")
			w.Unknown()
			read(h, "a", w.Value())
			v := write(h, "a")
			read(h, "a", v)
			read(h, "a", w.Value())
		}, porcupine.Illegal, "not placed"},
		{"a write that failed was not done", func(h *Texts) {
			w := h.Write(1, "x", "a")
			read(h, "a", w.Value())
		}, porcupine.Illegal, "not placed: a is"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := New(func() time.Duration { return 1500 * time.Millisecond })
			c.play(h)
			if got, n := h.Check(limit); got != c.want || n > len(h.done)+len(h.lost) {
				t.Errorf("%v of %d operations", got, n)
			}
			var said strings.Builder
			for _, e := range h.Explain(limit) {
				said.WriteString(e.Text + "\n")
			}
			if (said.Len() == 0) != (c.want == porcupine.Ok) || !strings.Contains(said.String(), c.explain) {
				t.Errorf("explained: %q", said.String())
			}
		})
	}
}

// What cannot be decided in time has no verdict.
func TestCheckWithoutTime(t *testing.T) {
	h := New(func() time.Duration { return 0 })
	// all at once, and one read that none of them explains: porcupine tries every set of them
	var open []*Operation
	for i := range 24 {
		open = append(open, h.Write(i, "x", "a"))
	}
	read(h, "a", "never written")
	for _, o := range open {
		o.Done("")
	}
	if got, _ := h.Check(time.Millisecond); got != porcupine.Unknown {
		t.Errorf("%v", got)
	}
}

// The picture of a history is a page.
func TestPicture(t *testing.T) {
	h := New(func() time.Duration { return 0 })
	write(h, "a")
	read(h, "a", "")
	file := filepath.Join(t.TempDir(), "history.html")
	if err := h.Picture(file, limit); err != nil {
		t.Fatal(err)
	}
	if page, err := os.ReadFile(file); err != nil || !strings.Contains(string(page), "a = 1.1") {
		t.Errorf("%v, %d bytes", err, len(page))
	}
}

func write(h *Texts, key string) (value string) {
	w := h.Write(1, "x", key)
	w.Done("")
	return w.Value()
}

func read(h *Texts, key, value string) { h.Read(2, "y", key).Done(value) }
