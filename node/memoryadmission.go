package node

import (
	"fmt"
	"log/slog"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// A node is full from nine tenths of its limit on, and until it takes less than 17/20. The rest is for garbage, for
	// data in flight, and for pages that a snapshot holds.
	fullShare, freeShare = 0.90, 0.85
	// A node is under pressure from three quarters of its limit on, and until it takes less than 14/20. Namespaces that
	// have their equal share of it already must not grow then. The memory up to nine tenths is for the others.
	pressedShare, easedShare = 0.75, 0.70
	// fullRetry is the retry time that callers get when there is no memory, since memory is not freed soon.
	fullRetry = time.Second
	// keptShare limits the last answers of watches, which are compared with the next ones. They may take 1/keptShare of
	// the memory for answers, in addition to it.
	keptShare = 3
	// growthFactor is how many bytes of memory a byte of a command counts for, until the next look counts the memory
	// itself. An increment that makes a key has about 20 bytes, and its key takes 150.
	growthFactor = 8
	// keyCommandBytes is the least size of a command, in bytes, for each key that it makes.
	keyCommandBytes = 8
	// lookAgain is the least time between two looks, when a burst of commands may have changed the figures.
	lookAgain = 10 * time.Millisecond
)

// memoryAdmission refuses commands that grow a shard while one of its nodes has no memory left for more. Otherwise the
// system would kill that node, and again after each replay of its log. It also refuses commands that grow a namespace
// beyond its budget, or beyond its share of a node under pressure.
//
// Leaders decide before a command enters the log: all replicas apply what is in the log, whatever memory they have.
type memoryAdmission struct {
	node   string
	limit  int64 // bytes; 0: none
	used   func() int64
	peers  fullness
	logger *slog.Logger

	usage     *usage
	replicas  func() []usageSource
	unapplied func() int64 // bytes of commands that were admitted and are not applied yet
	// budgets returns the budgets of all namespaces that have one; nil: none has.
	budgets func() map[string]*ebbv1.NamespaceBudget
	// peersUnderstand reports whether all nodes run a version that supports messages about memory pressure.
	peersUnderstand func() bool

	states   atomic.Pointer[nodeStates] // nil: no node is full, nor under pressure
	pending  atomic.Int64               // bytes of commands admitted since the last look, or not applied then
	lastUsed atomic.Int64               // at the last look

	refusals, budgetRefusals, shareRefusals atomic.Uint64

	mu     sync.Mutex // guards the fields below; held while looking
	looked time.Time
	took   time.Duration // by the last look
}

// nodeStates are the nodes that are short of memory.
type nodeStates struct{ full, pressed []string }

// fullness is how nodes report to each other that they are short of memory.
type fullness interface {
	SetFull(full bool)
	Full() []string
	SetPressed(pressed bool)
	Pressed() []string
}

// electorate is a group whose voters are known.
type electorate interface {
	voters() (addresses []raft.ServerAddress, nodes []string)
}

var _ fullness = (*transport.Mux)(nil)

func newMemoryAdmission(node string, limit int64, used func() int64, peers fullness, logger *slog.Logger) *memoryAdmission {
	return &memoryAdmission{
		node: node, limit: limit, used: used, peers: peers, logger: logger, usage: newUsage(),
		replicas: func() []usageSource { return nil }, unapplied: func() int64 { return 0 },
		budgets: func() map[string]*ebbv1.NamespaceBudget { return nil }, peersUnderstand: func() bool { return true },
	}
}

// full reports whether this node is full.
func (a *memoryAdmission) full() bool {
	states := a.states.Load()
	return states != nil && slices.Contains(states.full, a.node)
}

// pressed reports whether this node is under pressure.
func (a *memoryAdmission) pressed() bool {
	states := a.states.Load()
	return states != nil && slices.Contains(states.pressed, a.node)
}

// look is called every watchEvery.
func (a *memoryAdmission) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lookLocked()
}

// again looks before the next look is due, unless the last one was just now, or another goroutine looks.
func (a *memoryAdmission) again() {
	if !a.mu.TryLock() {
		return
	}
	defer a.mu.Unlock()
	if time.Since(a.looked) >= max(lookAgain, 8*a.took) {
		a.lookLocked()
	}
}

// lookLocked is look. a.mu is held.
func (a *memoryAdmission) lookLocked() {
	began := time.Now()
	a.pending.Store(a.unapplied())
	a.usage.look(a.replicas())
	used := a.used()
	a.lastUsed.Store(used)
	wasFull, wasPressed := a.full(), a.pressed()
	full, pressed := a.over(used, wasFull, fullShare, freeShare), a.over(used, wasPressed, pressedShare, easedShare)
	states := &nodeStates{full: a.peers.Full(), pressed: a.peers.Pressed()}
	if full {
		states.full = append(states.full, a.node)
	}
	if pressed {
		states.pressed = append(states.pressed, a.node)
	}
	if len(states.full)+len(states.pressed) == 0 {
		states = nil
	}
	a.states.Store(states)
	a.peers.SetPressed(pressed && a.peersUnderstand())
	if full != wasFull {
		a.peers.SetFull(full)
	}
	switch {
	case full && !wasFull:
		a.logger.Error("no memory left: writes that need more are refused", "used_bytes", used, "limit_bytes", a.limit)
	case wasFull && !full:
		a.logger.Info("there is memory again", "used_bytes", used, "limit_bytes", a.limit)
	case pressed && !wasPressed:
		a.logger.Warn("memory is short: writes to namespaces that take more than their share are refused",
			"used_bytes", used, "limit_bytes", a.limit, "namespaces", a.usage.inhabited.Load())
	case wasPressed && !pressed:
		a.logger.Info("memory is no longer short", "used_bytes", used, "limit_bytes", a.limit)
	}
	a.looked = time.Now()
	a.took = a.looked.Sub(began)
}

// over reports whether used has reached the share from of the limit. If it was over before, it reports whether used is
// not below the share until yet.
func (a *memoryAdmission) over(used int64, was bool, from, until float64) bool {
	if was {
		from = until
	}
	return a.limit > 0 && float64(used) >= from*float64(a.limit)
}

// estimate returns how many bytes this node takes if all commands since the last look make it grow.
func (a *memoryAdmission) estimate() int64 { return a.lastUsed.Load() + growthFactor*a.pending.Load() }

// admit refuses a command that grows a shard if a voter of the shard is full. It also refuses one that grows a
// namespace beyond its budget or its share.
func (a *memoryAdmission) admit(shard uint32, of electorate, command []byte) *proto.Error {
	short := a.short(int64(len(command)))
	states, limits := a.states.Load(), a.budgets()
	if states == nil && limits == nil && !short || !proto.CommandGrows(command) {
		return nil
	}
	full, pressed := "", ""
	if states != nil || short {
		full, pressed = a.shortOf(states, short, of)
	}
	if full != "" {
		a.refusals.Add(1)
		return outOfMemory(shard, full)
	}
	if _, field, _ := proto.CommandBody(command); field == proto.FieldCommandRestore {
		return nil // a restore is of all namespaces
	}
	name := proto.CommandNamespace(command)
	if len(name) == 0 {
		name = defaultNamespace
	}
	budget := limits[string(name)]
	if pressed == "" && budget == nil {
		return nil
	}
	space := a.usage.of(name)
	if space == nil {
		a.again() // what it holds may have come since the last look
		if space = a.usage.of(name); space == nil {
			return nil
		}
	}
	if budget != nil {
		if err := a.withinBudget(space, budget, int64(len(command))); err != nil {
			return a.refused(&a.budgetRefusals, shard, err)
		}
	}
	if pressed != "" {
		if err := a.withinShare(space, pressed); err != nil {
			return a.refused(&a.shareRefusals, shard, err)
		}
	}
	space.admitted.Add(int64(len(command)))
	return nil
}

// shortOf returns the node of a voter that is full, and of a voter under pressure; "" if there is none.
func (a *memoryAdmission) shortOf(states *nodeStates, short bool, of electorate) (full, pressed string) {
	_, voters := of.voters()
	if states != nil {
		full, pressed = oneOf(states.full, voters), oneOf(states.pressed, voters)
	}
	if pressed == "" && short && slices.Contains(voters, a.node) {
		pressed = a.node
	}
	return full, pressed
}

// short counts a command, and reports whether the commands since the last look may have put the node under pressure.
func (a *memoryAdmission) short(bytes int64) bool {
	if a.limit == 0 {
		return false
	}
	a.pending.Add(bytes)
	if !a.near() {
		return false
	}
	a.again()
	return a.near()
}

// near reports whether the estimate has reached the next threshold, which the figures of the last look had not.
func (a *memoryAdmission) near() bool {
	mark := pressedShare
	switch {
	case a.full():
		return false
	case a.pressed():
		mark = fullShare
	}
	return float64(a.estimate()) >= mark*float64(a.limit)
}

// withinBudget refuses a namespace that has used up its budget in the whole cluster.
func (a *memoryAdmission) withinBudget(s *spaceUsage, budget *ebbv1.NamespaceBudget, bytes int64) *proto.Error {
	over := func(admitted uint64) *proto.Error {
		held, keys := s.bytes.Load()+s.otherBytes.Load(), s.keys.Load()+s.otherKeys.Load()
		switch {
		case budget.Bytes != nil && held+growthFactor*admitted >= budget.GetBytes():
			return proto.ErrBudgetExceeded.Errorf("namespace %s holds %d bytes: its budget is %d",
				s.name, held, budget.GetBytes()).WithHint(budgetHint(s.name, "bytes"))
		case budget.Keys != nil && keys+admitted/keyCommandBytes >= budget.GetKeys():
			return proto.ErrBudgetExceeded.Errorf("namespace %s holds %d keys: its budget is %d",
				s.name, keys, budget.GetKeys()).WithHint(budgetHint(s.name, "keys"))
		}
		return nil
	}
	if over(uint64(s.admitted.Load()+bytes)) == nil {
		return nil
	}
	a.again() // only the estimate since the last look may be over it
	return over(0)
}

// withinShare refuses a namespace that has its equal share, or more, of a node under pressure. A namespace that is
// alone may have all of it. The leader judges by what the namespace takes on the leader's node, also if another node is
// under pressure: the replicas there are about as large.
func (a *memoryAdmission) withinShare(s *spaceUsage, pressed string) *proto.Error {
	inhabited := a.usage.inhabited.Load()
	if a.limit == 0 || inhabited < 2 {
		return nil
	}
	shared := pressedShare * float64(a.limit)
	if pressed != a.node {
		shared = min(shared, float64(a.lastUsed.Load()))
	}
	share := shared / float64(inhabited)
	held := float64(s.held.Load()) + float64(growthFactor*s.admitted.Load())
	if held < share {
		return nil
	}
	return proto.ErrBudgetExceeded.Errorf(
		"namespace %s takes %d bytes on node %s: its share is %.0f, like that of %d others, while memory is short on node %s",
		s.name, s.held.Load(), a.node, share, inhabited-1, pressed).
		WithHint("ebb namespace usage shows what namespaces hold; delete keys, or give the nodes more memory; " + stillTaken)
}

const stillTaken = "what makes room is still taken"

// budgetHint returns the hint for a budget of keys or bytes. A count may make a key, so it is refused even if its key
// exists.
func budgetHint(namespace, of string) string {
	return fmt.Sprintf("delete keys, or raise it: ebb namespace set %s --max-%s; until then counts of keys that are there "+
		"are refused too; %s", namespace, of, stillTaken)
}

// refused counts a refusal, and adds the shard and a retry time to its error.
func (a *memoryAdmission) refused(count *atomic.Uint64, shard uint32, err *proto.Error) *proto.Error {
	count.Add(1)
	err = err.WithShard(shard)
	err.RetryAfterUS = fullRetry.Microseconds()
	return err
}

func outOfMemory(shard uint32, node string) *proto.Error {
	err := proto.ErrOutOfMemory.Errorf("shard %d: node %s has no memory left for more", shard, node).
		WithHint("forget keys, shorten half-lives, or give the node more memory; " + stillTaken).WithShard(shard)
	err.RetryAfterUS = fullRetry.Microseconds()
	return err
}

// oneOf returns a node that is in both lists, "" if none is.
func oneOf(nodes, voters []string) string {
	if i := slices.IndexFunc(nodes, func(node string) bool { return slices.Contains(voters, node) }); i >= 0 {
		return nodes[i]
	}
	return ""
}

// memoryUsed returns how many bytes this process takes of its limit: pages in use, and the live bytes on Go's heap at
// the last collection. Garbage on the heap does not count: the collector keeps within the limit too.
func memoryUsed() int64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return mapped.Used() + int64(live[0].Value.Uint64())
}
