package rpc

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// receiveBuffers is the pool of buffers in which gRPC puts arriving frames. Its sizes are closer to each other than
// those of gRPC's own pool, so a frame takes at most twice its bytes. It keeps no buffers while requests take much
// memory. Otherwise it would hold the most that ever arrived at a time.
type receiveBuffers struct {
	budget *Budget
	pools  [len(receiveSizes)]sync.Pool
}

var _ mem.BufferPool = (*receiveBuffers)(nil)

// receiveSizes are the sizes of buffers: a frame has 16 KiB at most.
var receiveSizes = [...]int{2 << 10, 4 << 10, 8 << 10, 16 << 10}

// keepShare: buffers are kept while at most this part of the budget is used, one byte in so many.
const keepShare = 8

// Get implements mem.BufferPool. The buffer has arbitrary content.
func (p *receiveBuffers) Get(n int) *[]byte {
	for i, size := range receiveSizes {
		if n > size {
			continue
		}
		b, ok := p.pools[i].Get().(*[]byte)
		if !ok {
			made := make([]byte, size)
			b = &made
		}
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool.
func (p *receiveBuffers) Put(b *[]byte) {
	if p.budget.used.Load() > p.budget.limit/keepShare {
		return
	}
	for i, size := range receiveSizes {
		if cap(*b) == size {
			p.pools[i].Put(b)
			return
		}
	}
}
