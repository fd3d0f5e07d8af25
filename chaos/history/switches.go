package history

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

// Switches is a history of single bits that many clients set, clear, flip and read. The answer to a command says
// whether the command changed the bit, so every answer shows what the bit was. Several goroutines may call its methods
// at once.
type Switches struct {
	now   func() time.Duration
	clock atomic.Int64 // orders begins and ends, as the clock of Texts does

	mu   sync.Mutex // guards done
	done []porcupine.Operation
}

// NewSwitches returns an empty history; now returns how long the run has lasted.
func NewSwitches(now func() time.Duration) *Switches { return &Switches{now: now} }

// BitOp is an operation on a bit.
type BitOp string

// The operations on a bit.
const (
	Set   BitOp = "set"
	Clear BitOp = "clear"
	Flip  BitOp = "flip"
	Look  BitOp = "look"
)

// click is the input of an operation.
type click struct {
	bit uint64
	act BitOp
}

// Click is an operation that has begun.
type Click struct {
	of *Switches
	op porcupine.Operation
	click
	course
}

// Begin begins an operation. The name where is for reports.
func (s *Switches) Begin(client int, where string, bit uint64, act BitOp) *Click {
	return &Click{of: s, op: porcupine.Operation{ClientId: client, Call: s.clock.Add(1)}, click: click{bit, act}, course: course{where: where, from: s.now()}}
}

// Done ends an operation that was answered. For a Look, yes is whether the bit is set; for the others, whether the bit
// was changed.
func (c *Click) Done(yes bool) {
	c.op.Output = yes
	c.end(c.of.clock.Add(1))
}

// Unknown ends an operation of unknown outcome: it may have been done, or may be done later. An operation that is never
// ended counts as not done.
func (c *Click) Unknown() {
	if c.act != Look {
		c.end(math.MaxInt64)
	}
}

func (c *Click) end(at int64) {
	c.op.Return, c.to = at, c.of.now()
	c.op.Input, c.op.Metadata = c.click, c.course
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.done = append(c.of.done, c.op)
}

// switchModel is the behaviour of bits.
var switchModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		return parted(history, func(op porcupine.Operation) any { return op.Input.(click).bit })
	},
	Init: func() any { return false },
	Step: func(state, input, output any) (bool, any) {
		was := state.(bool)
		next := was
		switch input.(click).act {
		case Set:
			next = true
		case Clear:
			next = false
		case Flip:
			next = !was
		case Look:
			return output == was, was
		}
		return output == nil || output == (next != was), next // no answer: either is possible
	},
	DescribeOperation: func(input, output any) string {
		in := input.(click)
		if output == nil {
			return fmt.Sprintf("%s bit %d", in.act, in.bit)
		}
		return fmt.Sprintf("%s bit %d: %v", in.act, in.bit, output)
	},
}

// Check looks for an order, for at most limit of real time. It also returns the number of operations.
func (s *Switches) Check(limit time.Duration) (porcupine.CheckResult, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return porcupine.CheckOperationsTimeout(switchModel, s.done, limit), len(s.done)
}

// Explain reports each bit whose operations no order explains. It shows how the longest order ends, and the operations
// that this order does not contain. The search takes at most limit of real time.
func (s *Switches) Explain(limit time.Duration) []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return explain(switchModel, s.done, limit, func(in any) string { return fmt.Sprintf("bit %d", in.(click).bit) })
}
