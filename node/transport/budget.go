package transport

import "sync"

// budget is a pool of bytes; waiting claims are served in order.
type budget struct {
	mu      sync.Mutex // guards what follows
	free    int
	waiting []*claim
}

type claim struct {
	n     int
	given chan struct{} // closed when the claim has its bytes
}

// acquire takes n bytes at once, or returns a claim to wait for.
func (b *budget) acquire(n int) *claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 && b.free >= n {
		b.free -= n
		return nil
	}
	c := &claim{n: n, given: make(chan struct{})}
	b.waiting = append(b.waiting, c)
	return c
}

// cancel gives up a claim, and releases its bytes if it already has them.
func (b *budget) cancel(c *claim) {
	b.mu.Lock()
	for i, w := range b.waiting {
		if w == c {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.grant()
			b.mu.Unlock()
			return
		}
	}
	b.mu.Unlock()
	b.release(c.n)
}

// release returns n bytes to the budget.
func (b *budget) release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	b.grant()
}

func (b *budget) grant() {
	for len(b.waiting) > 0 && b.waiting[0].n <= b.free {
		b.free -= b.waiting[0].n
		close(b.waiting[0].given)
		b.waiting = b.waiting[1:]
	}
}

func (b *budget) left() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.free
}
