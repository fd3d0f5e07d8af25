package rpc

import (
	"context"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/internal/cores"
	"github.com/ebbdb/ebb/proto"
)

const (
	// slotFree is the length in bytes up to which a message needs no slot: to decode it takes up to two milliseconds.
	// It is above what a command of the SDK's writers has, 64 KiB.
	slotFree = 128 << 10
	// slotBytes is what a message in a slot takes of the pool, whatever its length.
	slotBytes = proto.MessageBytesMax
	// spareFrom is how many messages wait for a slot when the scheduler gets spare processors. Fewer keep nothing else
	// waiting, and any load of large batches has some that wait for each other.
	spareFrom = 4
	// largeRequest is how many bytes a request takes that counts as a large one; as many as spareFrom of these get
	// spare processors, too. A batch of 1,000 increments takes 1.7 MiB with what is decoded from it.
	largeRequest = proto.MessageBytesMax
)

// newSlots returns the pool of slots: a large message is decoded or encoded only in one. There is a slot for each core
// but one, and one at the least: an answer that waits for memory gives its slot back.
//
// A goroutine that computes is preempted after 10 ms, and runs again after all others that can run. Without slots, 64
// requests with large messages would keep a goroutine with little to do, such as a health probe, waiting for more than
// 100 ms. With slots they wait here, where they do not compete. Small messages never wait.
func newSlots() *budget.Pool {
	return budget.New("large messages that are decoded or encoded", int64(max(1, cores.Count()-1))*slotBytes)
}

// slot waits for a slot for a message of n bytes. done gives it back. It refuses with OVERLOADED when there is no slot
// within a second, or within the time that ctx has.
func (b *Budget) slot(ctx context.Context, n int) (done func(), err error) {
	if b == nil || n <= slotFree {
		return func() {}, nil
	}
	if b.slots.Waiting()+1 >= spareFrom {
		b.spare.Wait()
	}
	if err := b.slots.Acquire(ctx, slotBytes); err != nil {
		return nil, err
	}
	return b.leaveSlot, nil
}

func (b *Budget) leaveSlot() { b.slots.Release(slotBytes) }

// slot is Budget.slot for a charged request. Calls between nodes wait, too, and are never refused.
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
