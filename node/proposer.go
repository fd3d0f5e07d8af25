package node

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// nodeBytesMax bounds the commands that wait at all shards of a node.
	nodeBytesMax = 128 << 20
	// retryAfter is the least retry time that callers get when a queue is full.
	retryAfter = 50 * time.Millisecond
	// clockPoll is how often a proposal looks again at a clock that could not be judged.
	clockPoll = 5 * time.Millisecond
)

// proposals is what a proposer needs of its shard.
type proposals interface {
	// propose hands an entry to Raft. It does not wait for its outcome.
	propose(entry []byte) raft.ApplyFuture
	// leading returns the term in which this replica believes that it leads.
	leading() (term uint64, ok bool)
	// notLeader returns the error for requests to a replica that does not lead.
	notLeader() *proto.Error
	// stamp returns the time of day. It returns an error if the clock of this node is not fit to lead.
	stamp() (int64, error)
	// clockUS is the shard's clock as applied here.
	clockUS() int64
	// namespace returns a namespace as the cluster's table has it, or nil.
	namespace(name []byte) *ebbv1.Namespace
	// version returns the version of a namespace that the shard has applied; 0 for none.
	version(name string) uint64
	// eventClock returns how far the event clock of a namespace has come in other shards. It returns nil if that is not
	// further than in this shard, or not further than told, which the log has already. redefined reports that the
	// settings of the namespace change.
	eventClock(ns *ebbv1.Namespace, told *ebbv1.EventClock, redefined bool) *ebbv1.EventClock
	// behaviour returns the behaviour version that the shard has applied, and the one that the storage version in force
	// needs.
	behaviour() (has, wants uint32)
	// undefinable is called when the shard refuses a version of a namespace.
	undefinable(ns *ebbv1.Namespace, err *ebbv1.Error)
	// settled is called with the outcome of every entry.
	settled(err error)
	// unfit is called when the clock kept this leader from serving.
	unfit()
}

// proposer collects the commands that wait for one shard and puts them into its
// log, many to an entry:
//
//	commands --> queue --> [stamp | behaviour, definitions | commands] --> Raft --> results
//
// An entry is proposed at once when no entry is in flight, or when 64 KiB wait. A goroutine exists only while entries
// are in flight.
type proposer struct {
	shard  uint32
	to     proposals
	count  *proposeMetrics
	limits Limits

	mu       sync.Mutex // guards what follows; nothing waits while holding it
	queue    []waiting  // from head on
	head     int
	bytes    int // of the commands in queue
	shares   shares
	line     line
	flushers int // goroutines in flushLoop
	paused   bool
	closed   bool
	idle     chan struct{} // closed when flushers falls to 0; nil when no caller waits

	order   sync.Mutex                   // held from choosing an entry's commands until Raft has it
	last    int64                        // newest stamp given; guarded by order
	term    uint64                       // the term of defined; guarded by order
	defined map[string]uint64            // versions that this term's log defines; guarded by order
	clocks  map[string]*ebbv1.EventClock // event clocks of namespaces that this term's log sets; guarded by order
	behaves uint32                       // the behaviour version that this term's log switches on; guarded by order
}

// waiting is a command in the queue. The zero value stands for a command that has left the queue.
type waiting struct {
	command []byte
	call    *call
	at      int // position in call
	owner   owner
}

func newProposer(shard uint32, to proposals, count *proposeMetrics, limits Limits) *proposer {
	return &proposer{
		shard: shard, to: to, count: count, limits: limits,
		defined: make(map[string]uint64), clocks: make(map[string]*ebbv1.EventClock),
	}
}

// enqueue adds a command, whose result goes to c. The command is proposed only after kick, so that the commands of one
// request can share an entry.
func (p *proposer) enqueue(c *call, at int, command []byte) {
	if err := p.admit(command); err != nil {
		c.fail(at, err)
		return
	}
	w := waiting{command, c, at, ownerOf(command, c.sender)}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		c.fail(at, errShuttingDown(p.shard))
	case !p.hasRoom(w):
		c.fail(at, p.overloaded("shard", p.bytes, p.line.limit(&p.limits)))
	case p.count.waiting.Load()+int64(len(command)) > p.limits.NodeBytes:
		c.fail(at, p.overloaded("node", int(p.count.waiting.Load()), int(p.limits.NodeBytes)))
	default:
		p.queue = append(p.queue, w)
		p.wait(w, 1)
	}
}

// wait adjusts the counts of waiting bytes: by the command's size with sign 1, or by minus that with sign -1. p.mu is
// held.
func (p *proposer) wait(w waiting, sign int) {
	bytes := sign * len(w.command)
	p.bytes += bytes
	p.count.waiting.Add(int64(bytes))
	p.shares.add(w.owner, bytes)
}

// hasRoom reports whether a command may wait. In a full queue, a command whose owner has less than its share takes the
// place of others. Those are the newest commands of owners that have more than their share. p.mu is held.
func (p *proposer) hasRoom(w waiting) bool {
	limit := p.line.limit(&p.limits)
	over := p.bytes + len(w.command) - limit
	if p.bytes == 0 || over <= 0 {
		return true
	}
	yields := p.shares.yields(w.owner, len(w.command), limit)
	if yields == nil {
		return false
	}
	for over > 0 {
		dropped := p.dropNewest(yields, limit)
		if dropped == 0 {
			return false
		}
		over -= dropped
	}
	return true
}

// dropNewest refuses the newest command for which yields returns true. It returns the size of the command in bytes; 0
// if there is none. p.mu is held.
func (p *proposer) dropNewest(yields func(owner) bool, limit int) int {
	for i := len(p.queue) - 1; i >= p.head; i-- {
		w := p.queue[i]
		if w.call == nil || !yields(w.owner) {
			continue
		}
		if p.queue[i] = (waiting{}); i == len(p.queue)-1 {
			p.queue = p.queue[:i]
		}
		w.call.fail(w.at, p.overloaded("shard", p.bytes, limit))
		p.wait(w, -1)
		return len(w.command)
	}
	return 0
}

func (p *proposer) overloaded(what string, bytes, limit int) *proto.Error {
	p.count.overloads.Add(1)
	err := proto.ErrOverloaded.Errorf("shard %d: %d bytes wait at this %s already: the limit is %d",
		p.shard, bytes, what, limit).WithShard(p.shard)
	err.RetryAfterUS = p.line.wait(bytes, &p.limits).Microseconds()
	return err
}

func (p *proposer) admit(command []byte) *proto.Error {
	if err := proto.CheckCommandSize(command); err != nil {
		return err.WithShard(p.shard)
	}
	if _, ok := p.to.leading(); !ok {
		return p.to.notLeader()
	}
	return nil
}

// kick proposes the commands that wait, if an entry is due.
func (p *proposer) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head == len(p.queue) || p.paused || p.flushers >= p.limits.EntriesInFlight {
		return
	}
	if p.flushers > 0 && p.bytes < p.limits.EntryBytes {
		return // the last flusher to finish takes it along
	}
	p.flushers++
	go p.flushLoop()
}

// pause holds further entries back and waits, at most atMost, until none is in flight: then leadership changes with no
// write in doubt. It reports whether that happened in time. The caller must call resume in any case.
func (p *proposer) pause(atMost time.Duration) bool {
	p.mu.Lock()
	p.paused = true
	p.mu.Unlock()
	return p.drained(atMost)
}

// drained waits, at most atMost, until no entry is in flight. It reports whether that happened in time.
func (p *proposer) drained(atMost time.Duration) bool {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-p.whenIdle():
		return true
	case <-timer.C:
		return false
	}
}

// resume proposes the commands that have waited since pause.
func (p *proposer) resume() {
	p.mu.Lock()
	p.paused = false
	p.mu.Unlock()
	p.kick()
}

// whenIdle returns a channel that is closed when no entry is in flight.
func (p *proposer) whenIdle() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	if p.flushers == 0 {
		close(p.idle)
		p.idle = nil
	}
	return idle
}

// close refuses the commands that wait and all further ones.
func (p *proposer) close() {
	p.mu.Lock()
	p.closed = true
	refused := p.queue[p.head:]
	p.queue, p.head = nil, 0
	for _, w := range refused {
		if w.call != nil {
			p.wait(w, -1)
		}
	}
	p.mu.Unlock()
	for _, w := range refused {
		if w.call != nil {
			w.call.fail(w.at, errShuttingDown(p.shard))
		}
	}
}

// flushLoop proposes entries until the queue is empty.
func (p *proposer) flushLoop() {
	var batch []waiting
	for {
		now, refusal := p.clock()
		if refusal != nil {
			batch = p.take(batch[:0])
			failAll(batch, refusal)
		} else {
			batch = p.send(batch[:0], now)
		}
		clear(batch)
		if p.done() {
			return
		}
	}
}

// clock reads the clock. If the clock cannot be judged yet, it tries again for at most clockWait.
func (p *proposer) clock() (int64, *proto.Error) {
	now, err := p.to.stamp()
	for waited := time.Duration(0); err == errClockUnknown && waited < clockWait && !p.isClosed(); waited += clockPoll {
		time.Sleep(clockPoll)
		now, err = p.to.stamp()
	}
	if err == nil {
		return now, nil
	}
	if err != errClockUnknown {
		p.to.unfit()
	}
	return 0, proto.AsError(err).WithShard(p.shard)
}

func (p *proposer) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// done ends a flushLoop, unless an entry's worth of commands waits, or any command waits and no other flushLoop runs.
// It reports whether the loop is over.
func (p *proposer) done() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if waits := p.head < len(p.queue); waits && !p.paused && (p.flushers == 1 || p.bytes >= p.limits.EntryBytes) {
		return false
	}
	p.flushers--
	if p.flushers == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
	return true
}

// send makes an entry of the commands that wait, proposes it, and delivers the results.
func (p *proposer) send(batch []waiting, now int64) []waiting {
	batch, definitions, future := p.propose(batch, now)
	if len(batch) > 0 {
		bytes := bytesOf(batch)
		p.count.inFlight.Add(bytes)
		began := time.Now()
		p.deliver(batch, definitions, future)
		p.count.inFlight.Add(-bytes)
		p.served(time.Since(began))
	}
	return batch
}

// served records how long an entry took.
func (p *proposer) served(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line.served(took)
}

// propose makes an entry of the commands that wait, if there are any, and gives it to Raft.
func (p *proposer) propose(batch []waiting, now int64) (_ []waiting, definitions []definition, _ raft.ApplyFuture) {
	p.order.Lock()
	defer p.order.Unlock()
	batch = p.take(batch)
	if len(batch) == 0 {
		return batch, nil, nil
	}
	n, definitions := p.load(batch)
	if n < len(batch) {
		p.putBack(batch[n:])
		clear(batch[n:])
		batch = batch[:n]
	}
	if batch = p.claim(batch); len(batch) == 0 {
		p.believeNothing() // the definitions are not proposed
		return batch, nil, nil
	}
	entry := p.entry(p.next(now), definitions, batch)
	p.count.sent(len(entry), len(batch))
	return batch, definitions, p.to.propose(entry)
}

// claim drops commands for which no caller waits any more.
func (p *proposer) claim(batch []waiting) []waiting {
	kept := batch[:0]
	for _, w := range batch {
		if w.call.claim(w.at) {
			kept = append(kept, w)
		}
	}
	if dropped := len(batch) - len(kept); dropped > 0 {
		p.count.expired.Add(uint64(dropped))
		clear(batch[len(kept):])
	}
	return kept
}

// bytesOf returns the size of the commands in bytes.
func bytesOf(batch []waiting) (n int64) {
	for _, w := range batch {
		n += int64(len(w.command))
	}
	return n
}

// tick proposes an empty entry. It advances the shard's clock, shows how far the log is committed in this term, and
// gives followers the new commit index. Its stamp does not wait until the clock can be judged.
func (p *proposer) tick() raft.ApplyFuture { return p.alone() }

// audit proposes an entry at which all replicas compute the checksum of one part of their state. part is the number of
// the part, and of is the number of parts.
func (p *proposer) audit(part, of uint32) raft.ApplyFuture {
	raw, _ := protobuf.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Audit{Audit: &ebbv1.Audit{Part: part, Of: of}}}) // cannot fail
	return p.alone(waiting{command: raw})
}

// alone proposes an entry of commands that no caller waits for.
func (p *proposer) alone(batch ...waiting) raft.ApplyFuture {
	now, err := p.to.stamp()
	if err != nil {
		now = 0
	}
	p.order.Lock()
	defer p.order.Unlock()
	return p.to.propose(p.entry(p.next(now), nil, batch))
}

// next returns the stamp of the next entry: now, but more than the last stamp and than the shard's clock. p.order is
// held.
func (p *proposer) next(now int64) int64 {
	p.last = max(p.last+1, p.to.clockUS()+1, now)
	return p.last
}

// take moves commands from the queue into batch: at least one if there is one, and no more than the soft size limit of
// an entry.
func (p *proposer) take(batch []waiting) []waiting {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		return batch
	}
	size, now := 0, time.Now()
	for p.head < len(p.queue) {
		w := p.queue[p.head]
		switch {
		case w.call == nil: // it gave its place to another command
			p.head++
			continue
		case w.call.expired(now):
			p.count.expired.Add(1)
			w.call.fail(w.at, errNotApplied(whyLate).WithShard(p.shard))
		default:
			if size += len(w.command); size > p.limits.EntryBytes && len(batch) > 0 {
				return batch
			}
			batch = append(batch, w)
		}
		p.wait(w, -1)
		p.queue[p.head] = waiting{}
		p.head++
	}
	if p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	}
	return batch
}

// load returns how many commands of the batch fit into one entry, and the definitions that must precede them.
// Definitions are: the behaviour version in force, if the shard has an older one; namespaces that the shard lacks or
// has in an older version; and event clocks that have come further in other shards. All of it stays within the hard
// limit; the first command with its definition always does. p.order is held.
func (p *proposer) load(batch []waiting) (n int, definitions []definition) {
	if term, _ := p.to.leading(); term != p.term {
		p.term = term
		p.believeNothing()
	}
	room := proto.EntryBytesHard - stampBytes
	if has, wants := p.to.behaviour(); max(has, p.behaves) < wants {
		definitions = append(definitions, definition{command: behaviourCommand(wants)})
		room -= fieldBytes(len(definitions[0].command))
		p.behaves = wants
	}
	var before []byte
	looked := false // before has been looked up
	for i, w := range batch {
		name := proto.CommandNamespace(w.command)
		var d definition
		var command []byte
		var ns *ebbv1.Namespace
		var clock *ebbv1.EventClock
		redefined := false
		// A restore needs no definition: the shard then has those of the backup, and no others.
		if (!looked || !bytes.Equal(name, before)) && !bytes.HasPrefix(w.command, restoreTag) {
			ns = p.to.namespace(name)
			d = p.undefined(ns)
			redefined = d.of != nil && p.to.version(ns.GetName()) > 0
			command, clock = p.clockAhead(ns, redefined)
			before, looked = name, true
		}
		if room -= fieldBytes(len(w.command)) + fieldBytes(len(command)); d.of != nil {
			room -= fieldBytes(len(d.command)) + fieldBytes(len(command))
		}
		if room < 0 && i > 0 {
			return i, definitions
		}
		if d.of != nil {
			// New settings apply from here on. Until the event clock's time, the counts decay by the old settings.
			if redefined && clock != nil {
				definitions = append(definitions, definition{command: command})
			}
			definitions = append(definitions, d)
			p.defined[d.of.GetName()] = d.of.GetVersion()
		}
		if clock != nil {
			definitions = append(definitions, definition{command: command})
			p.clocks[ns.GetName()] = clock
		}
	}
	return len(batch), definitions
}

// putBack returns commands to the head of the queue from which they have just been taken. p.order is held, so that no
// other commands overtake them.
func (p *proposer) putBack(batch []waiting) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.queue, p.head = slices.Concat(batch, p.queue[p.head:]), 0
		for _, w := range batch {
			p.wait(w, 1)
		}
	}
	p.mu.Unlock()
	if closed {
		failAll(batch, errShuttingDown(p.shard))
	}
}

// definition is a command that defines a namespace, its event clock, or a behaviour version in a shard.
type definition struct {
	of      *ebbv1.Namespace // nil for the others, which are never refused; from undefined: nothing to define
	command []byte
}

func behaviourCommand(version uint32) []byte {
	body := &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: version}}
	raw, _ := protobuf.Marshal(&ebbv1.Command{Body: body}) // cannot fail
	return raw
}

// undefined returns the definition of a namespace if the shard lacks this version of it, else the zero value. p.order
// is held.
func (p *proposer) undefined(ns *ebbv1.Namespace) (d definition) {
	if ns == nil {
		return d // the shard will report that there is no such namespace
	}
	known := p.defined[ns.GetName()]
	if known == 0 {
		known = p.to.version(ns.GetName())
	}
	if known >= ns.GetVersion() {
		p.defined[ns.GetName()] = known
		return d
	}
	return definition{ns, defineCommand(ns)}
}

// clockAhead returns the command that advances the shard's event clock of a namespace to the newest of other shards;
// nil if it need not advance. redefined reports that the settings of the namespace change.
func (p *proposer) clockAhead(ns *ebbv1.Namespace, redefined bool) (command []byte, clock *ebbv1.EventClock) {
	if ns == nil || !proto.OnEventTime(ns) {
		return nil, nil
	}
	clock = p.to.eventClock(ns, p.clocks[ns.GetName()], redefined)
	if clock == nil {
		return nil, nil
	}
	raw, _ := protobuf.Marshal(&ebbv1.Command{ // cannot fail
		Namespace: ns.GetName(), Body: &ebbv1.Command_EventClock{EventClock: clock},
	})
	return raw, clock
}

// forget drops what the proposer assumes that the log defines, since an entry with a definition may not have reached
// the log.
func (p *proposer) forget() {
	p.order.Lock()
	defer p.order.Unlock()
	p.believeNothing()
}

// believeNothing drops what the proposer assumes that the log defines. p.order is held.
func (p *proposer) believeNothing() {
	clear(p.defined)
	clear(p.clocks)
	p.behaves = 0
}

// refused drops the assumption that the log defines a version, since the shard refused it. The next command under that
// namespace proposes it again.
func (p *proposer) refused(ns *ebbv1.Namespace, err *ebbv1.Error) {
	p.order.Lock()
	if p.defined[ns.GetName()] == ns.GetVersion() {
		delete(p.defined, ns.GetName())
	}
	p.order.Unlock()
	p.to.undefinable(ns, err)
}

func defineCommand(ns *ebbv1.Namespace) []byte {
	raw, err := protobuf.Marshal(&ebbv1.Command{
		Namespace: ns.GetName(),
		Body:      &ebbv1.Command_DefineNamespace{DefineNamespace: ns},
	})
	if err != nil {
		panic("node: a namespace of the table does not serialise: " + err.Error())
	}
	return raw
}

// Tags of ebbv1.Entry.
const (
	fieldEntryStamp    = 1
	fieldEntryCommands = 2
)

// restoreTag begins a command of a restore, which has neither a namespace nor an identity.
var restoreTag = protowire.AppendTag(nil, proto.FieldCommandRestore, protowire.BytesType)

// stampBytes is the size of an entry's stamp.
const stampBytes = 1 + 8

// fieldBytes is the encoded size of a field of n bytes that has a low field number.
func fieldBytes(n int) int { return 1 + protowire.SizeBytes(n) }

// entry serialises an ebbv1.Entry. The commands are already serialised.
func (p *proposer) entry(stamp int64, definitions []definition, batch []waiting) []byte {
	size := stampBytes
	for _, d := range definitions {
		size += fieldBytes(len(d.command))
	}
	for _, w := range batch {
		size += fieldBytes(len(w.command))
	}
	b := make([]byte, 0, size)
	b = protowire.AppendTag(b, fieldEntryStamp, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, uint64(stamp))
	for _, d := range definitions {
		b = protowire.AppendTag(b, fieldEntryCommands, protowire.BytesType)
		b = protowire.AppendBytes(b, d.command)
	}
	for _, w := range batch {
		b = protowire.AppendTag(b, fieldEntryCommands, protowire.BytesType)
		b = protowire.AppendBytes(b, w.command)
	}
	return b
}

// deliver waits for the outcome of an entry and delivers its results.
func (p *proposer) deliver(batch []waiting, definitions []definition, future raft.ApplyFuture) {
	err := future.Error()
	p.to.settled(err)
	if err != nil {
		p.forget()
		failAll(batch, p.refusal(err))
		return
	}
	results, _ := future.Response().([]*ebbv1.CommandResult)
	if len(results) != len(definitions)+len(batch) {
		failAll(batch, errUnknownOutcome(p.shard, "the entry was applied before"))
		return
	}
	for i, d := range definitions {
		if refusal := results[i].GetError(); refusal != nil && d.of != nil {
			p.refused(d.of, refusal)
		}
	}
	for i, w := range batch {
		result := results[len(definitions)+i]
		if result.GetRestore().GetDone() {
			p.forget() // the restored state has the definitions of its backup
		}
		w.call.finish(w.at, result)
	}
}

func failAll(batch []waiting, err *proto.Error) {
	for _, w := range batch {
		w.call.fail(w.at, err)
	}
}

// refusal translates Raft's error for a proposal. A caller may retry elsewhere without risk only if the entry certainly
// did not reach the log.
func (p *proposer) refusal(err error) *proto.Error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return p.to.notLeader()
	case errors.Is(err, proto.ErrMessageTooLarge):
		return proto.AsError(err).WithShard(p.shard)
	case errors.Is(err, raft.ErrLeadershipLost):
		return errUnknownOutcome(p.shard, "leadership was lost while the entry was on its way")
	}
	return errUnknownOutcome(p.shard, err.Error())
}

func errUnknownOutcome(shard uint32, why string) *proto.Error {
	return proto.ErrUnknownOutcome.Errorf("shard %d: the write may or may not be applied: %s", shard, why).
		WithHint(proto.UnknownOutcomeHint).WithShard(shard)
}

func errShuttingDown(shard uint32) *proto.Error {
	return proto.ErrShuttingDown.Errorf("the node is stopping").WithShard(shard)
}
