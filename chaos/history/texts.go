// Package history records the writes and reads of strings and bits by many clients. Porcupine then looks for one order
// of all operations that explains every answer.
//
//	Write, Read ──> Operation ──Done, Unknown──> Texts ──Check──> Ok, Illegal, or Unknown: no verdict in time
//	                                                      └─Explain──> what no order has a place for
package history

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

// Texts is a history of strings. Several goroutines may call its methods at once.
type Texts struct {
	now func() time.Duration
	// clock orders the begins and ends of operations: in virtual time, many of them have the same time.
	clock atomic.Int64

	mu   sync.Mutex // guards what follows
	done []porcupine.Operation
	// lost are the writes without an answer. Each may have been done at any time after it began, or never.
	lost []porcupine.Operation
}

// New returns an empty history; now returns how long the run has lasted.
func New(now func() time.Duration) *Texts { return &Texts{now: now} }

// text is the input of an operation.
type text struct {
	key   string
	write bool
	value string // of a write
}

// course is what reports show of an operation, in addition to its input and output.
type course struct {
	where    string
	from, to time.Duration
}

// Operation is an operation that has begun.
type Operation struct {
	of *Texts
	op porcupine.Operation
	text
	course
}

// Write begins a write of a value that no other write has. The name where is for reports.
func (t *Texts) Write(client int, where, key string) *Operation {
	o := t.begin(client, where, text{key: key, write: true})
	o.value = fmt.Sprintf("%d.%d", client, o.op.Call)
	return o
}

// Read begins a linearizable read. The name where is for reports.
func (t *Texts) Read(client int, where, key string) *Operation {
	return t.begin(client, where, text{key: key})
}

func (t *Texts) begin(client int, where string, in text) *Operation {
	return &Operation{of: t, op: porcupine.Operation{ClientId: client, Call: t.clock.Add(1)}, text: in, course: course{where: where, from: t.now()}}
}

// Key returns the key of the string.
func (o *Operation) Key() string { return o.key }

// Value returns the value to write.
func (o *Operation) Value() string { return o.value }

// Done ends a write that was acknowledged, or a read that returned this value. The value is empty if the key has none.
func (o *Operation) Done(value string) {
	o.op.Output = value
	o.end(o.of.clock.Add(1))
}

// Unknown ends a write of unknown outcome: it may have been done, or may be done later.
func (o *Operation) Unknown() { o.end(math.MaxInt64) }

// end records the operation. An operation that is never ended counts as not done.
func (o *Operation) end(at int64) {
	o.op.Return, o.to = at, o.of.now()
	o.op.Input, o.op.Metadata = o.text, o.course
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	if at == math.MaxInt64 {
		o.of.lost = append(o.of.lost, o.op)
		return
	}
	o.of.done = append(o.of.done, o.op)
}

// model is the behaviour of strings: a read returns the last value written.
var model = porcupine.Model{
	Partition: byKey,
	Init:      func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		if in := input.(text); in.write {
			return true, in.value
		}
		return output == state, state
	},
	DescribeOperation: func(input, output any) string {
		in := input.(text)
		if in.write {
			return fmt.Sprintf("%s = %s", in.key, in.value)
		}
		return fmt.Sprintf("%s is %q", in.key, output)
	},
}

// byKey splits a history by key.
func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	return parted(history, func(op porcupine.Operation) any { return op.Input.(text).key })
}

// parted splits a history by the object of each operation. The parts are in the order of their first operations.
func parted(history []porcupine.Operation, on func(porcupine.Operation) any) (parts [][]porcupine.Operation) {
	at := map[any]int{}
	for _, op := range history {
		k, known := at[on(op)]
		if !known {
			k = len(parts)
			at[on(op)] = k
			parts = append(parts, nil)
		}
		parts[k] = append(parts[k], op)
	}
	return parts
}

// operations returns all operations that an order must explain. It leaves out a write without an answer if no read
// returned its value: then it makes no difference whether or when the write was done.
func (t *Texts) operations() []porcupine.Operation {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[any]bool{}
	for _, op := range t.done {
		if !op.Input.(text).write {
			seen[op.Output] = true
		}
	}
	history := slices.Clone(t.done)
	for _, op := range t.lost {
		if seen[op.Input.(text).value] {
			history = append(history, op)
		}
	}
	return history
}

// Check looks for an order, for at most limit of real time. It also returns the number of operations. Do not call it in
// a bubble, where the limit would never be reached.
func (t *Texts) Check(limit time.Duration) (porcupine.CheckResult, int) {
	history := t.operations()
	return porcupine.CheckOperationsTimeout(model, history, limit), len(history)
}

// Picture writes an HTML page to file that shows the history and its longest orders. The search takes at most limit of
// real time.
func (t *Texts) Picture(file string, limit time.Duration) error {
	_, info := porcupine.CheckOperationsVerbose(model, t.operations(), limit)
	page, err := os.Create(file)
	if err != nil {
		return err
	}
	defer page.Close()
	return porcupine.Visualize(model, info, page)
}

// Event is a sentence of a report about an operation.
type Event struct {
	At   time.Duration // when the operation ended, or was given up
	Text string
}

const (
	// placedMax is how many operations of the longest order are reported: its last ones.
	placedMax = 8
	// unplacedMax is how many operations that are not in the longest order are reported.
	unplacedMax = 8
)

// Explain reports each key whose operations no order explains. It shows how the longest order ends, and the operations
// that this order does not contain. The search takes at most limit of real time.
func (t *Texts) Explain(limit time.Duration) []Event {
	return explain(model, t.operations(), limit, func(in any) string { return in.(text).key })
}

// explain does the same for any model; name returns the object of an operation.
func explain(model porcupine.Model, history []porcupine.Operation, limit time.Duration, name func(input any) string) (events []Event) {
	_, info := porcupine.CheckOperationsVerbose(model, history, limit)
	parts := model.Partition(history)
	for p, orders := range info.PartialLinearizationsOperations() {
		var order []porcupine.Operation // the longest
		for _, o := range orders {
			if len(o) > len(order) {
				order = o
			}
		}
		if len(order) == len(parts[p]) {
			continue
		}
		placed := map[int64]bool{} // by their Call times, which are unique
		for _, op := range order {
			placed[op.Call] = true
		}
		left := slices.DeleteFunc(slices.Clone(parts[p]), func(op porcupine.Operation) bool { return placed[op.Call] })
		sort.Slice(left, func(i, j int) bool { return left[i].Return < left[j].Return })
		events = append(events, Event{left[0].Metadata.(course).to, fmt.Sprintf("%s: the longest order has a place for %d of %d operations, and ends with", name(left[0].Input), len(order), len(parts[p]))})
		for _, op := range order[max(0, len(order)-placedMax):] {
			events = append(events, tell(model, op, "placed"))
		}
		for _, op := range left[:min(len(left), unplacedMax)] {
			events = append(events, tell(model, op, "not placed"))
		}
	}
	return events
}

// tell describes an operation in a sentence.
func tell(model porcupine.Model, op porcupine.Operation, how string) Event {
	at := op.Metadata.(course)
	end := fmt.Sprintf("to %.3fs", at.to.Seconds())
	if op.Return == math.MaxInt64 {
		end = fmt.Sprintf("without an answer at %.3fs", at.to.Seconds())
	}
	return Event{at.to, fmt.Sprintf("%s: %s, client %d at %s, from %.3fs %s", how, model.DescribeOperation(op.Input, op.Output), op.ClientId, at.where, at.from.Seconds(), end)}
}
