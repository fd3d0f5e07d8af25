package transport

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/acked"
	"github.com/ebbdb/ebb/proto"
)

const (
	// inboxMax is how many requests may be queued for one replica's Raft.
	inboxMax = 128
	// requestHead is an upper bound of what a request needs in addition to its entries.
	requestHead = 8 << 10
)

// Group is the transport of one replica: one Raft group on this node.
type Group struct {
	mux     *Mux
	id      uint32
	local   raft.ServerAddress
	replica uint64
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	shelf       atomic.Pointer[Shelf] // nil: Raft reads snapshots itself as they arrive
	prioritized atomic.Pointer[func(replica uint64) bool]
	witness     atomic.Pointer[Witness]   // nil: the positions of other replicas' logs are not recorded
	past        atomic.Pointer[Applied]   // nil: the applied index is not known
	abstains    atomic.Bool               // neither votes nor asks for votes
	order       atomic.Pointer[pollOrder] // the voters in the order in which to ask them, as of the last read
	consumer    chan raft.RPC
	inbox       chan *request
	leader      raft.ServerAddress // the sender of the last request; used only by serve's goroutine

	mu        sync.Mutex // guards what follows
	closed    bool
	heartbeat func(raft.RPC) // only with faults.heartbeatFastPath
}

var (
	_ raft.Transport   = (*Group)(nil)
	_ raft.WithPreVote = (*Group)(nil)
	_ raft.WithClose   = (*Group)(nil)
)

func newGroup(m *Mux, id uint32, local raft.ServerAddress, replica uint64) *Group {
	g := &Group{
		mux: m, id: id, local: local, replica: replica,
		consumer: make(chan raft.RPC), inbox: make(chan *request, inboxMax),
	}
	g.ctx, g.cancel = context.WithCancel(m.ctx)
	return g
}

// Consumer returns the channel from which Raft takes requests.
func (g *Group) Consumer() <-chan raft.RPC { return g.consumer }

// Receive sets the shelf on which the chunks of snapshots arrive before Raft processes them.
func (g *Group) Receive(shelf Shelf) { g.shelf.Store(&shelf) }

// Prioritize sets which replicas' snapshots ignore Config.SnapshotRate. needed is called before every frame; it must
// not block.
func (g *Group) Prioritize(needed func(replica uint64) bool) { g.prioritized.Store(&needed) }

// needed reports whether snapshots to a replica ignore the rate limit.
func (g *Group) needed(replica uint64) bool {
	needed := g.prioritized.Load()
	return needed != nil && (*needed)(replica)
}

// Remember sets the witness that records the log positions of other replicas.
func (g *Group) Remember(w Witness) { g.witness.Store(&w) }

// Abstain sets whether the replica abstains: it neither votes nor asks for votes.
func (g *Group) Abstain(on bool) { g.abstains.Store(on) }

// errAbstains is the refusal of a replica that may lack what it acknowledged.
func (g *Group) errAbstains() error {
	return proto.ErrUnreachable.Errorf("replica %d of group %d on node %s does not vote: its log lacks what it had",
		g.replica, g.id, g.mux.cfg.Node)
}

// LocalAddr returns this replica's address, "<node>/<replica id>".
func (g *Group) LocalAddr() raft.ServerAddress { return g.local }

// EncodePeer returns the address as bytes.
func (g *Group) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer is the inverse of EncodePeer.
func (g *Group) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler is ignored. A handler outside Raft's main goroutine would race with that goroutine
// (hashicorp/raft #695).
func (g *Group) SetHeartbeatHandler(h func(raft.RPC)) {
	if g.mux.faults.heartbeatFastPath {
		g.mu.Lock()
		g.heartbeat = h
		g.mu.Unlock()
	}
}

// AppendEntriesPipeline returns an error: a rejected append in a pipeline blocks replication (hashicorp/raft #612).
func (g *Group) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if f := g.mux.faults.pipeline; f != nil {
		return f(g, id, target)
	}
	return nil, raft.ErrPipelineReplicationNotSupported
}

// AppendEntries sends entries, or a heartbeat if there are none.
//
// It shortens args.Entries to what fits into a frame. Raft takes the request's last entry as the follower's position,
// and sends the remaining entries next.
func (g *Group) AppendEntries(_ raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if g.mux.muted.Load() {
		return proto.ErrDisk.Errorf("node %s is muted", g.mux.cfg.Node)
	}
	if len(args.Entries) == 0 {
		return g.appended(target, args, resp, manner{timeout: g.mux.cfg.ControlTimeout, lazy: true})
	}
	n := fitting(args.Entries)
	if n == 0 {
		l := args.Entries[0]
		return proto.ErrMessageTooLarge.Errorf("entry %d of group %d has %d bytes: the limit is %d", l.Index, g.id, len(l.Data)+len(l.Extensions), EntryBytesMax)
	}
	if n < len(args.Entries) {
		args.Entries = args.Entries[:n]
	}
	return g.appended(target, args, resp, manner{timeout: g.mux.cfg.AppendTimeout, bulk: true})
}

// fitting returns how many of the first entries fit into one frame.
func fitting(entries []*raft.Log) int {
	room := FrameBytesMax - requestHead
	for i, l := range entries {
		if room -= len(l.Data) + len(l.Extensions) + logOverhead; room < 0 {
			return i
		}
	}
	return len(entries)
}

// RequestVote asks for a vote.
func (g *Group) RequestVote(_ raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if g.abstains.Load() {
		return g.errAbstains()
	}
	err := g.ask(target, args, resp, manner{timeout: g.mux.cfg.ControlTimeout})
	if err == nil {
		g.saw(target, acked.Mark{Ballot: resp.Term})
	}
	return err
}

// RequestPreVote asks whether a vote would be granted.
func (g *Group) RequestPreVote(_ raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if g.abstains.Load() {
		return g.errAbstains()
	}
	return g.ask(target, args, resp, manner{timeout: g.mux.cfg.ControlTimeout})
}

// TimeoutNow asks the target to start an election at once, for a transfer of leadership.
func (g *Group) TimeoutNow(_ raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return g.ask(target, args, resp, manner{timeout: g.mux.cfg.ControlTimeout})
}

// manner is how a request is sent.
type manner struct {
	timeout time.Duration
	lazy    bool // may wait for other messages
	bulk    bool // on an append stream, within the budget of bytes
}

// ask sends a command to a replica and waits for its response.
func (g *Group) ask(target raft.ServerAddress, command, response any, how manner) error {
	if g.mux.faults.noDeadlines {
		how.timeout = 1000 * time.Hour
	}
	if err := g.mux.cfg.Fail.Hit("transport.ask"); err != nil {
		return fmt.Errorf("group %d to %s: %w", g.id, target, err)
	}
	c := g.mux.newCall(how.timeout)
	free, err := g.roundTrip(c, target, command, response, how)
	if free {
		g.mux.freeCall(c)
	}
	if err != nil {
		return fmt.Errorf("group %d to %s: %w", g.id, target, err)
	}
	return nil
}

// roundTrip sends a command and waits. free is false if the call may still be in a queue.
func (g *Group) roundTrip(c *call, target raft.ServerAddress, command, response any, how manner) (free bool, err error) {
	node, replica, err := ParseAddress(target)
	if err != nil {
		return true, err
	}
	if node == g.mux.cfg.Node {
		return true, proto.ErrUnreachable.Errorf("replica %s is on this very node", target)
	}
	p := g.mux.peer(node)
	if p == nil || g.ctx.Err() != nil {
		return true, raft.ErrTransportShutdown
	}
	until := g.mux.mono() + how.timeout
	s, err := p.session(c.timer.C, g.ctx.Done())
	if err != nil {
		return true, err
	}
	c.data = newData()
	e := envelope{id: c.id, group: g.id, replica: replica, ttl: until - g.mux.mono()}
	*c.data = appendRequest(*c.data, g.mux.cfg.Node, e, command)
	l := s.control
	if how.bulk {
		l = s.appends[int(g.id)%len(s.appends)]
		size := len(*c.data)
		if err := g.claim(c, s, size); err != nil {
			freeData(c.data)
			c.data = nil
			return true, err
		}
		defer s.budget.release(size)
	}
	if err := l.send(c, how.lazy); err != nil {
		return true, err
	}
	if free, err = g.await(c, l, node); err != nil {
		return free, err
	}
	if err := decodeAnswer(c.reply, node, commandOf(command), response); err != nil {
		return true, err
	}
	return true, p.recordContact(g.ctx, until-g.mux.mono())
}

// claim waits for room in the peer's budget of bytes.
func (g *Group) claim(c *call, s *session, size int) error {
	waits := s.budget.acquire(size)
	if waits == nil {
		return nil
	}
	var err error
	select {
	case <-waits.given:
		return nil
	case <-c.timer.C:
		err = proto.ErrOverloaded.Errorf("node %s: %d bytes have been in flight for too long", s.peer.node, g.mux.cfg.InFlightBytesMax)
	case <-s.broken:
		err = s.err
	case <-g.ctx.Done():
		err = raft.ErrTransportShutdown
	}
	s.budget.cancel(waits)
	return err
}

// await waits for a call's answer.
func (g *Group) await(c *call, l *link, node string) (free bool, err error) {
	select {
	case <-c.done:
		return true, c.err
	case <-c.timer.C:
		err = proto.ErrDeadline.Errorf("node %s has not answered in time", node)
	case <-g.ctx.Done():
		err = raft.ErrTransportShutdown
	}
	if l.forget(c) {
		return false, err
	}
	<-c.done // the answer is arriving at this moment
	return true, c.err
}

// Close fails this replica's outstanding calls at once and refuses later requests to it. Raft calls it at the end of
// its shutdown. A node calls it right after Shutdown, before waiting, so that it does not wait for deadlines.
func (g *Group) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.mux.forget(g)
	g.cancel()
	return nil
}

// deliver queues a request for Raft. It never waits.
func (g *Group) deliver(r *request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return g.refusal()
	}
	if h := g.heartbeat; h != nil && r.isHeartbeat() {
		rpc := raft.RPC{Command: r.command, RespChan: r.responses}
		g.mux.goFunc(func() { h(rpc); a := <-r.responses; r.respond(a.Response, a.Error) })
		return nil
	}
	select {
	case g.inbox <- r:
		return nil
	default:
		return proto.ErrOverloaded.Errorf("%d requests wait for group %d on node %s", inboxMax, g.id, g.mux.cfg.Node)
	}
}

func (g *Group) refusal() error {
	return proto.ErrUnreachable.Errorf("replica %d of group %d is closed on node %s", g.replica, g.id, g.mux.cfg.Node)
}

// serve passes requests to Raft, one after the other, as Raft's main goroutine takes them, and sends the answers.
func (g *Group) serve() {
	for {
		select {
		case r := <-g.inbox:
			if g.mux.mono() > r.expires && !g.mux.faults.noDeadlines {
				r.discard() // the caller no longer waits
				continue
			}
			if g.abstains.Load() && r.isBallot() {
				r.respond(nil, g.errAbstains())
				continue
			}
			resp, err := g.process(raft.RPC{Command: r.command, RespChan: r.responses}, r.responses)
			if rest := g.beyond(r.command, resp); rest != nil && err == nil {
				resp, err = g.process(raft.RPC{Command: rest, RespChan: r.responses}, r.responses)
			}
			if err == nil {
				g.recordSender(r.command)
			}
			r.respond(resp, err)
		case <-g.ctx.Done():
			g.drain()
			return
		}
	}
}

// process runs one request through Raft.
func (g *Group) process(rpc raft.RPC, responses <-chan raft.RPCResponse) (any, error) {
	select {
	case g.consumer <- rpc:
	case <-g.ctx.Done():
		return nil, g.refusal()
	}
	select {
	case a := <-responses:
		return a.Response, a.Error
	case <-g.ctx.Done():
		return nil, g.refusal()
	}
}

// drain refuses the requests that were queued when the replica was closed.
func (g *Group) drain() {
	for {
		select {
		case r := <-g.inbox:
			r.respond(nil, g.refusal())
		default:
			return
		}
	}
}
