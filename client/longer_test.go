package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A try that its limit ended is followed by a longer one, but several nodes that hang are all tried.
func TestLongerTries(t *testing.T) {
	const s = time.Second
	for _, c := range []struct{ left, limit, took, want time.Duration }{
		{0, 3 * s, 3 * s, 6 * s}, // no deadline
		{60 * s, 3 * s, 3 * s, 6 * s},
		{60 * s, 3 * s, 2 * s, 3 * s}, // refused, not ended
		{60 * s, 3 * s, 2500 * time.Millisecond, 6 * s},
		{7 * s, 3 * s, 3 * s, 3500 * time.Millisecond},
		{4 * s, 3 * s, 3 * s, 3 * s},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.Background(), func() {}
			if c.left > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.left)
			}
			defer cancel()
			if got := longer(ctx, c.limit, c.took); got != c.want {
				t.Errorf("%v left, limit %v, took %v: %v, want %v", c.left, c.limit, c.took, got, c.want)
			}
		})
	}
}
