package shard

import (
	"github.com/ebbdb/ebb/internal/kernel"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// evaluator evaluates an expression over the containers of one slice.
type evaluator struct {
	root    *bitmapNode
	scratch []uint64
}

func newEvaluator(root *bitmapNode) evaluator {
	return evaluator{root: root, scratch: make([]uint64, bitmap.ScratchWords)}
}

func (e *evaluator) count(leaves []bitmap.Container) int { return int(e.eval(leaves).Count) }

func (e *evaluator) eval(leaves []bitmap.Container) bitmap.Container {
	if e.root.op == opTerm {
		return leaves[e.root.term]
	}
	b := e.block(e.root, leaves)
	copy(e.scratch, b[:])
	return bitmap.Settle(e.scratch)
}

func (e *evaluator) block(n *bitmapNode, leaves []bitmap.Container) *kernel.Block {
	out := new(kernel.Block)
	if n.op == opTerm {
		bitmap.Expand(out, leaves[n.term])
		return out
	}
	var counts []uint16
	if n.op == opAtLeast {
		counts = make([]uint16, bitmap.SliceLen)
	}
	for i := range n.of {
		b := e.block(&n.of[i], leaves)
		for j, w := range b {
			switch {
			case n.op == opAtLeast:
				for k := range 64 {
					counts[64*j+k] += uint16(w >> k & 1)
				}
			case i == 0:
				out[j] = w
			case n.op == opOr:
				out[j] |= w
			case n.op == opAnd:
				out[j] &= w
			case n.op == opAndNot:
				out[j] &^= w
			case n.op == opXor:
				out[j] ^= w
			}
		}
	}
	for l, c := range counts {
		if int(c) >= n.times {
			out[l>>6] |= 1 << (l & 63)
		}
	}
	return out
}
