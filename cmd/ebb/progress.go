package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	// barWidth is how many characters the bar of a progressBar takes.
	barWidth = 30
	// barInterval is how long a line stays at least before it is drawn again.
	barInterval = 100 * time.Millisecond
)

// progressBar is a line on a terminal that says how far a command is: a description, and a bar with the time left
// where the total is known. It is drawn in place, at most once every barInterval, and cleared at the end. Several
// goroutines may use it.
type progressBar struct {
	w     io.Writer
	bytes bool // the units are bytes, and are shown
	began time.Time
	now   func() time.Time

	mu    sync.Mutex // guards what follows
	drawn time.Time
}

// newProgressBar returns a bar on the terminal of standard error. With bytes the line shows how many there are.
func newProgressBar(s *session, bytes bool) *progressBar {
	return &progressBar{w: undisplayed(s.term.err), bytes: bytes, began: time.Now(), now: time.Now}
}

// show draws what is done of total units; a total that is not above zero is not known.
func (b *progressBar) show(what string, done, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if now.Sub(b.drawn) < barInterval {
		return
	}
	b.drawn = now
	fmt.Fprintf(b.w, "\r\033[K%s", b.line(what, done, total, now.Sub(b.began)))
}

// line is what is shown after some time.
func (b *progressBar) line(what string, done, total int64, passed time.Duration) string {
	parts := []string{what}
	if total > 0 {
		share := min(max(float64(done)/float64(total), 0), 1)
		full := int(share * barWidth)
		bar := strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full)
		parts = append(parts, fmt.Sprintf("%3.0f%% [%s]", 100*share, bar))
	}
	if b.bytes {
		size := bytesText(uint64(max(done, 0)))
		if total > 0 {
			size += " of " + bytesText(uint64(total))
		}
		parts = append(parts, size)
	}
	if total > done && done > 0 {
		left := time.Duration(float64(passed) / float64(done) * float64(total-done))
		parts = append(parts, fmt.Sprintf("%v left", left.Round(time.Second)))
	}
	return strings.Join(parts, "  ")
}

// clear takes the line away.
func (b *progressBar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.drawn.IsZero() {
		fmt.Fprint(b.w, "\r\033[K")
	}
}
