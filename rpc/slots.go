package rpc

import (
	"context"
	"runtime"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
)

const (
	// slotFree is the length in bytes up to which a message needs no slot: to decode it takes about a millisecond.
	slotFree = 64 << 10
	// slotBytes is what a message in a slot takes of the pool, whatever its length.
	slotBytes = proto.MessageBytesMax
)

// newSlots returns the pool of slots: a large message is decoded or encoded only in one. There is a slot for each core
// that Go uses, and two at the least, so that one message that waits for memory keeps no other waiting.
//
// A goroutine that computes is preempted after 10 ms, and runs again after all others that can run. Without slots, 64
// requests with large messages would keep a goroutine with little to do, as a probe of health, waiting for hundreds of
// milliseconds. With slots all but a few of them wait here, where they do not compete. The messages are
// done as fast: cores are as busy as before. Small messages never wait.
func newSlots() *budget.Pool {
	return budget.New("large messages that are decoded or encoded", int64(max(2, runtime.GOMAXPROCS(0)))*slotBytes)
}

// slot waits for a slot for a message of n bytes. done gives it back. It refuses with OVERLOADED when there is no slot
// within a second, or within the time that ctx has.
func (b *Budget) slot(ctx context.Context, n int) (done func(), err error) {
	if b == nil || n <= slotFree {
		return func() {}, nil
	}
	if err := b.slots.Acquire(ctx, slotBytes); err != nil {
		return nil, err
	}
	return b.leaveSlot, nil
}

func (b *Budget) leaveSlot() { b.slots.Release(slotBytes) }

// slot is Budget.slot for what is charged. What nodes tell each other waits, too, and is never refused.
func (c *charge) slot(n int) (done func(), err error) {
	ctx := c.ctx
	if ctx == nil {
		ctx = context.Background() // in tests
	}
	done, err = c.budget.slot(ctx, n)
	if err != nil && c.forced {
		return func() {}, nil
	}
	return done, err
}

// encodeSlot waits for a slot to encode an answer of n bytes. An answer is never refused for want of a slot: what was
// asked is done.
func (b *Budget) encodeSlot(ctx context.Context, n int) (done func()) {
	done, err := b.slot(ctx, n)
	if err != nil {
		return func() {}
	}
	return done
}
