package transport

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// answersBytesMax bounds the queued answers to a peer that does not read them.
const answersBytesMax = 4 << 20

// silences is for how many ping timeouts a peer may be silent before the answering side ends the session: the asking
// side should detect the silence first.
const silences = 3

// server keeps the service's methods separate from Mux's own.
type server struct {
	peerv1.UnimplementedPeerServer
	mux *Mux
}

func (s server) Control(stream grpc.BidiStreamingServer[peerv1.Frame, peerv1.Frame]) error {
	return ebbv1grpc.Status(s.mux.answer(stream, kindPing))
}

func (s server) Append(stream grpc.BidiStreamingServer[peerv1.Frame, peerv1.Frame]) error {
	return ebbv1grpc.Status(s.mux.answer(stream, kindAppend))
}

func (s server) Snapshot(stream grpc.BidiStreamingServer[peerv1.Frame, peerv1.Frame]) error {
	return ebbv1grpc.Status(s.mux.receiveSnapshot(stream))
}

// sessionKey identifies a session that a peer opened.
type sessionKey struct {
	node string
	id   uint64
}

// incoming is a session on the answering side.
type incoming struct {
	streams int           // guarded by Mux.mu
	done    chan struct{} // closed when its control stream has ended
	end     sync.Once
}

func (m *Mux) join(key sessionKey) *incoming {
	m.mu.Lock()
	defer m.mu.Unlock()
	in := m.sessions[key]
	if in == nil {
		in = &incoming{done: make(chan struct{})}
		m.sessions[key] = in
	}
	in.streams++
	return in
}

func (m *Mux) leave(key sessionKey, in *incoming) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in.streams--; in.streams == 0 {
		delete(m.sessions, key)
	}
}

// inbound is one stream that a peer opened.
type inbound struct {
	mux         *Mux
	stream      grpc.ServerStream
	of          kind
	peer        string // its node, after the hello
	out         *outbox
	greeted     chan hello // receives the hello
	lastContact atomic.Int64
	working     atomic.Int64 // bytes of requests that Raft has not answered
	asks        []ask        // reused by the reader
	contacted   *peer        // the peer, once its contact is recorded; only the reader uses it
}

// answer serves a control or append stream until it or its session ends.
func (m *Mux) answer(stream grpc.ServerStream, of kind) error {
	in := &inbound{mux: m, stream: stream, of: of, out: newOutbox(0), greeted: make(chan hello, 1)}
	if of == kindPing {
		in.out.coalesce = m.cfg.Coalesce
	}
	defer in.out.close()
	ended := make(chan error, 2) // results of the reader and the writer
	if !m.goFunc(func() { ended <- in.read() }) {
		return errClosing
	}
	h, err := in.greeting(ended)
	if err != nil {
		return err
	}
	key := sessionKey{node: h.from, id: h.session}
	session := m.join(key)
	defer m.leave(key, session)
	if of == kindPing {
		defer session.end.Do(func() { close(session.done) })
	}
	in.welcome()
	if !m.goFunc(func() {
		ended <- in.out.run(stream.Context().Done(), func(f *frame) error { return stream.SendMsg(f) })
	}) {
		return errClosing
	}
	return in.watch(session, ended)
}

var errClosing = proto.ErrShuttingDown.Errorf("the node is closing")

// greeting waits for the peer's hello.
func (in *inbound) greeting(ended <-chan error) (hello, error) {
	timer := time.NewTimer(in.mux.cfg.DialTimeout)
	defer timer.Stop()
	select {
	case h := <-in.greeted:
		return h, nil
	case err := <-ended:
		return hello{}, err
	case <-timer.C:
		return hello{}, proto.ErrDeadline.Errorf("no greeting within %s", in.mux.cfg.DialTimeout)
	case <-in.mux.ctx.Done():
		return hello{}, errClosing
	}
}

// check returns an error if a peer may not send requests to this node.
func (m *Mux) check(h *hello, of kind) error {
	switch {
	case h.oldest > m.version:
		return newer(h.from, h.oldest, m.version)
	case h.version < proto.WireOldest:
		return proto.ErrNewerVersion.Errorf("node %s speaks peer protocol %d, node %s needs %d or later", h.from, h.version, m.cfg.Node, proto.WireOldest).
			WithHint("upgrade node " + h.from)
	case h.from == m.cfg.Node:
		return proto.ErrDuplicateNode.Errorf("a second node calls itself %s", h.from)
	case h.to != m.cfg.Node:
		return proto.ErrUnreachable.Errorf("node %s looks for %s at the address of %s", h.from, h.to, m.cfg.Node)
	case h.stream != of || h.from == "":
		return errMalformed
	}
	return m.sameCluster(h.from, h.cluster)
}

func (in *inbound) welcome() {
	w := welcome{version: in.mux.version, oldest: proto.WireOldest, cluster: in.mux.cfg.ClusterID()}
	in.post(w.append, false)
}

// post queues a message for the peer.
func (in *inbound) post(write func([]byte) []byte, lazy bool) {
	d := newData()
	*d = write(*d)
	in.out.put(&message{data: d}, lazy)
}

// watch returns when the stream should end, with the reason.
func (in *inbound) watch(session *incoming, ended <-chan error) error {
	tick := time.NewTicker(in.mux.cfg.PingTimeout)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-session.done:
			return errEnded
		case <-in.mux.ctx.Done():
			return errClosing
		case <-tick.C:
			if in.of == kindPing && in.mux.mono()-time.Duration(in.lastContact.Load()) > silences*in.mux.cfg.PingTimeout {
				return proto.ErrUnreachable.Errorf("node %s is silent", in.peer)
			}
		}
	}
}

// read receives requests until the stream ends. It never sends, and never waits for Raft.
func (in *inbound) read() error {
	var f frame
	defer f.free()
	for {
		err := in.stream.RecvMsg(&f)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		in.lastContact.Store(int64(in.mux.mono()))
		if in.contacted != nil {
			in.contacted.lastRequest.Store(in.lastContact.Load())
		}
		if err := in.frame(f.body); err != nil {
			return err
		}
		if in.out.size() > answersBytesMax {
			return proto.ErrOverloaded.Errorf("node %s does not read its answers", in.peer)
		}
	}
}

func (in *inbound) frame(body []byte) error {
	for len(body) > 0 {
		k, payload, rest, err := nextMessage(body)
		if err == nil {
			err = in.receive(k, payload)
		}
		if err != nil {
			return err
		}
		body = rest
	}
	return nil
}

func (in *inbound) receive(k kind, payload []byte) error {
	if in.peer == "" {
		return in.receiveHello(k, payload)
	}
	switch {
	case k == kindPing && in.of == kindPing:
		return in.pinged(payload)
	case k == kindAsk && in.of == kindPing:
		return in.asked(payload)
	case k == kindAppend, in.of == kindPing && (k == kindVote || k == kindPreVote || k == kindTimeoutNow):
		return in.request(k, payload)
	}
	return errMalformed
}

// receiveHello handles the hello, which must be the first message.
func (in *inbound) receiveHello(k kind, payload []byte) error {
	var h hello
	if k != kindHello {
		return errMalformed
	}
	if err := h.decode(payload); err != nil {
		return err
	}
	if err := in.mux.check(&h, in.of); err != nil {
		return err
	}
	in.peer = h.from
	in.greeted <- h
	return nil
}

func (in *inbound) pinged(payload []byte) error {
	var p ping
	if err := p.decode(payload); err != nil {
		return err
	}
	at := in.mux.mono()
	in.post(func(b []byte) []byte {
		a := pong{
			sent: p.sent, held: in.mux.mono() - at, wall: in.mux.cfg.Now().UnixMicro(),
			full: in.mux.full.Load(), pressed: in.mux.pressed.Load(), diskFull: in.mux.diskFull.Load(),
			cluster: in.mux.cfg.ClusterID(),
		}
		return a.append(b)
	}, false)
	return in.mux.sameCluster(in.peer, p.cluster)
}

func (in *inbound) asked(payload []byte) error {
	id, asks, err := decodeAsks(payload, in.asks[:0])
	if err != nil {
		return err
	}
	in.asks = asks
	in.post(func(b []byte) []byte {
		return appendAskReply(b, id, len(asks), func(i int) bool { return in.mux.confirm(asks[i]) == confirmed })
	}, false)
	return nil
}

// request is one request of a peer to a replica of this node.
type request struct {
	envelope
	in        *inbound
	of        kind
	command   any
	responses chan raft.RPCResponse
	expires   time.Duration // monotonic
	size      int
}

// request passes a request to its replica, or refuses it.
func (in *inbound) request(k kind, payload []byte) error {
	e, command, err := decodeRequest(k, payload, in.peer)
	if err != nil {
		return err
	}
	r := &request{
		envelope: e, in: in, of: k, command: command, size: len(payload),
		responses: make(chan raft.RPCResponse, 1), expires: in.mux.mono() + e.ttl,
	}
	busy := in.working.Add(int64(r.size)) // until respond or discard
	if busy > 2*int64(in.mux.cfg.InFlightBytesMax) {
		r.respond(nil, proto.ErrOverloaded.Errorf("node %s works on %d bytes already", in.mux.cfg.Node, busy))
		return nil
	}
	g, err := in.mux.addressee(&e)
	if err == nil {
		if err = in.recordContact(e.ttl); err == nil {
			err = g.deliver(r)
		}
	}
	if err != nil {
		r.respond(nil, err)
	}
	return nil
}

// recordContact records that a replica of the peer has sent a request. It waits at most for ttl.
func (in *inbound) recordContact(ttl time.Duration) error {
	if in.contacted != nil {
		return nil
	}
	p := in.mux.peer(in.peer)
	if p == nil {
		return errClosing
	}
	if err := p.recordContact(in.mux.ctx, ttl); err != nil {
		return err
	}
	p.lastRequest.Store(in.lastContact.Load())
	in.contacted = p
	return nil
}

// addressee returns the replica that a request is for. It returns an error if the group has another replica here.
func (m *Mux) addressee(e *envelope) (*Group, error) {
	g := m.group(e.group)
	switch {
	case g == nil:
		return nil, proto.ErrUnreachable.Errorf("group %d has no replica on node %s", e.group, m.cfg.Node)
	case g.replica != e.replica:
		return nil, proto.ErrUnreachable.Errorf("group %d has replica %d on node %s, not %d", e.group, g.replica, m.cfg.Node, e.replica)
	}
	return g, nil
}

// isHeartbeat reports whether the request is an AppendEntries without entries.
func (r *request) isHeartbeat() bool {
	a, ok := r.command.(*raft.AppendEntriesRequest)
	return ok && len(a.Entries) == 0
}

// isBallot reports whether the request asks for a vote, or asks the replica to start an election.
func (r *request) isBallot() bool {
	return r.of == kindVote || r.of == kindPreVote || r.of == kindTimeoutNow
}

// respond sends the answer. It must be called at most once for each request.
func (r *request) respond(response any, err error) {
	r.in.working.Add(-int64(r.size))
	if response == nil && err == nil {
		err = proto.ErrInternal.Errorf("raft did not answer")
	}
	if r.in.mux.cfg.Fail.Hit("transport.answer") != nil {
		return
	}
	r.in.post(func(b []byte) []byte {
		return appendAnswer(b, r.in.mux.cfg.Node, r.id, r.of, response, err)
	}, r.isHeartbeat())
}

// discard drops a request for which no caller waits.
func (r *request) discard() { r.in.working.Add(-int64(r.size)) }
