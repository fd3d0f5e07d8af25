package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/node/acked"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// chunkBytes is the most bytes of a snapshot in one frame.
const chunkBytes = 256 << 10

// InstallSnapshot streams a snapshot to the target. It fails when no chunk could be sent for ChunkTimeout, or when
// there is no answer for InstallTimeout after the last one.
func (g *Group) InstallSnapshot(_ raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := g.sendSnapshot(target, args, resp, data); err != nil {
		return fmt.Errorf("group %d: snapshot to %s: %w", g.id, target, err)
	}
	mark := acked.Mark{Ballot: resp.Term}
	if resp.Success {
		mark.Position = acked.Position{Term: args.LastLogTerm, Index: args.LastLogIndex}
	}
	g.saw(target, mark)
	return nil
}

func (g *Group) sendSnapshot(target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	node, replica, err := ParseAddress(target)
	if err != nil {
		return err
	}
	p := g.mux.peer(node)
	if p == nil || g.ctx.Err() != nil || node == g.mux.cfg.Node {
		return raft.ErrTransportShutdown
	}
	timer := time.NewTimer(g.mux.cfg.AppendTimeout)
	defer timer.Stop()
	s, err := p.session(timer.C, g.ctx.Done())
	if err != nil {
		return err
	}
	slots := p.snapshots
	if g.needed(replica) {
		slots = p.urgent
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-timer.C:
		return proto.ErrOverloaded.Errorf("%d snapshots are on their way to node %s", snapshotStreamsMax, node)
	case <-g.ctx.Done():
		return raft.ErrTransportShutdown
	}
	o := &outgoing{group: g, session: s, replica: replica}
	return o.send(envelope{id: g.mux.ids.Add(1), group: g.id, replica: replica}, args, resp, data)
}

// outgoing is a snapshot that is being sent to a peer.
type outgoing struct {
	group   *Group
	session *session
	replica uint64 // the receiver
	ctx     context.Context
	stream  grpc.ClientStream
	stall   *time.Timer // cancels the stream if there is no progress
}

func (o *outgoing) send(e envelope, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	m := o.group.mux
	m.installs.out.Add(1)
	defer m.installs.out.Add(-1)
	ctx, cancel := context.WithCancelCause(o.session.ctx)
	defer cancel(nil)
	defer context.AfterFunc(o.group.ctx, func() { cancel(raft.ErrTransportShutdown) })()
	o.stall = time.AfterFunc(m.cfg.ChunkTimeout, func() {
		cancel(proto.ErrDeadline.Errorf("node %s makes no progress", o.session.peer.node))
	})
	defer o.stall.Stop()
	err := o.talk(ctx, e, args, resp, data)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if err != nil && o.session.ctx.Err() != nil {
		return o.session.reason()
	}
	return err
}

func (o *outgoing) talk(ctx context.Context, e envelope, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) (err error) {
	s, m := o.session, o.group.mux
	o.ctx = ctx
	if o.stream, err = peerv1.NewPeerClient(s.bulk).Snapshot(ctx); err != nil {
		return s.explain(err)
	}
	if err := s.greet(o.stream, kindInstall); err != nil {
		return err
	}
	listed, ok := data.(Listed)
	var items []snap.Item
	if ok {
		items = listed.Items()
		if err := o.list(items); err != nil {
			return err
		}
	}
	if err := o.post(frameOf(appendRequest(nil, m.cfg.Node, e, args))); err != nil {
		return err
	}
	var size int64
	if ok {
		size, err = o.wanted(listed, items)
	} else {
		size, err = o.chunks(data)
	}
	if err != nil {
		return err
	}
	if err := o.post(frameOf(appendEnd(nil, size))); err != nil {
		return err
	}
	if err := o.stream.CloseSend(); err != nil {
		return s.explain(err)
	}
	o.stall.Reset(m.cfg.InstallTimeout)
	return o.outcome(resp)
}

// chunks sends all of data in chunks.
func (o *outgoing) chunks(data io.Reader) (size int64, err error) {
	buf := make([]byte, wordBytes+o.group.mux.cfg.ChunkBytes)
	for {
		n, err := io.ReadFull(data, buf[wordBytes:])
		if n > 0 {
			size += int64(n)
			if err := o.bulk(finish(buf[:wordBytes+n], 0, kindChunk)); err != nil {
				return size, err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return size, nil
		case err != nil:
			return size, fmt.Errorf("read the snapshot: %w", err)
		}
	}
}

// bulk sends a frame of chunks when the rate limit allows it.
func (o *outgoing) bulk(b []byte) error {
	if !o.group.needed(o.replica) {
		if err := o.group.mux.pace.wait(o.ctx, len(b)); err != nil {
			return err
		}
		o.stall.Reset(o.group.mux.cfg.ChunkTimeout) // the wait does not count as a stall of the receiver
	}
	return o.post(frameOf(b))
}

// post sends a frame. A successful send counts as progress.
func (o *outgoing) post(f *frame) error {
	err := o.stream.SendMsg(f)
	if errors.Is(err, io.EOF) {
		_, err = o.receive(0) // why the receiver ended the stream
		return err
	}
	if err != nil {
		return o.session.explain(err)
	}
	o.stall.Reset(o.group.mux.cfg.ChunkTimeout)
	return nil
}

// outcome waits for the answer.
func (o *outgoing) outcome(resp *raft.InstallSnapshotResponse) error {
	var f frame
	defer f.free()
	for {
		if err := o.stream.RecvMsg(&f); err != nil {
			return o.session.explain(err)
		}
		k, payload, _, err := nextMessage(f.body)
		switch {
		case err != nil:
			return err
		case k == kindAnswer:
			return decodeAnswer(payload, o.session.peer.node, kindInstall, resp)
		case k != kindWelcome:
			return errMalformed
		}
	}
}

// reason returns why the session's context has ended.
func (s *session) reason() error {
	if s.peer.ctx.Err() != nil {
		return raft.ErrTransportShutdown
	}
	<-s.broken // closed before the context ends
	return s.err
}

// arriving is a snapshot that a replica of this node receives.
type arriving struct {
	mux    *Mux
	group  *Group // set once the request names it
	stream grpc.ServerStream
	first  chan started  // receives the request
	chunks chan *frame   // filled by the reader, taken by Raft
	gone   chan struct{} // closed when the handler returns

	// Only the goroutine that reads uses these, which is Raft's.
	current *frame // may be nil
	rest    []byte // unread part of current
	size    int64  // read so far
	err     error  // sticky
}

// started is the head of a snapshot stream.
type started struct {
	hello   hello
	e       envelope
	listed  bool        // the chunks were listed before
	items   []snap.Item // the list, if listed
	more    bool        // more of the list follows
	command *raft.InstallSnapshotRequest
	err     error
}

var errEnded = proto.ErrUnreachable.Errorf("the session has ended")

// receiveSnapshot passes a snapshot to Raft as an io.Reader, and sends the answer.
func (m *Mux) receiveSnapshot(stream grpc.ServerStream) error {
	a := &arriving{mux: m, stream: stream, first: make(chan started, 1), chunks: make(chan *frame, 1), gone: make(chan struct{})}
	defer close(a.gone)
	if !m.goFunc(a.read) {
		return errClosing
	}
	timer := time.NewTimer(m.cfg.ChunkTimeout)
	defer timer.Stop()
	var st started
	select {
	case st = <-a.first:
	case <-timer.C:
		return proto.ErrDeadline.Errorf("no snapshot request within %s", m.cfg.ChunkTimeout)
	case <-m.ctx.Done():
		return errClosing
	}
	if st.err != nil {
		return st.err
	}
	key := sessionKey{node: st.hello.from, id: st.hello.session}
	session := m.join(key)
	defer m.leave(key, session)
	return a.install(session, st, timer)
}

func (a *arriving) install(session *incoming, st started, timer *time.Timer) error {
	m := a.mux
	m.installs.in.Add(1)
	defer m.installs.in.Add(-1)
	g, err := m.addressee(&st.e)
	if err != nil {
		return a.reply(st.e.id, nil, err)
	}
	a.group = g
	if resp, has := g.hasAll(st.command); has {
		if err := a.refuse(&st); err != nil {
			return err
		}
		return a.reply(st.e.id, resp, nil)
	}
	var data io.Reader = a
	switch shelf := g.shelf.Load(); {
	case st.listed && shelf != nil:
		to, sign, err := a.fetch(*shelf, &st)
		if err != nil {
			return a.reply(st.e.id, nil, err)
		}
		defer to.Close() //nolint:errcheck // what matters has been answered
		data, st.command.Size = bytes.NewReader(sign), int64(len(sign))
		timer.Reset(m.cfg.ChunkTimeout)
	case st.listed:
		if err := a.ask(len(st.items), func(int) bool { return false }); err != nil {
			return err
		}
	}
	responses := make(chan raft.RPCResponse, 1)
	select {
	case g.consumer <- raft.RPC{Command: st.command, Reader: data, RespChan: responses}:
	case <-timer.C:
		return a.reply(st.e.id, nil, proto.ErrOverloaded.Errorf("group %d on node %s is busy", g.id, m.cfg.Node))
	case <-g.ctx.Done():
		return a.reply(st.e.id, nil, g.refusal())
	case <-session.done:
		return errEnded
	case <-a.stream.Context().Done():
		return errEnded
	}
	return a.conclude(g, session, st.e.id, responses)
}

// conclude waits for Raft's answer and sends it. An answer that is already there is sent, whatever has ended: the
// snapshot is installed. Without the answer, the sender would send all of it again.
func (a *arriving) conclude(g *Group, session *incoming, id uint64, responses <-chan raft.RPCResponse) error {
	ended := errEnded
	select {
	case r := <-responses:
		return a.reply(id, r.Response, r.Error)
	case <-g.ctx.Done():
		ended = nil
	case <-session.done:
	case <-a.stream.Context().Done():
	}
	select {
	case r := <-responses:
		return a.reply(id, r.Response, r.Error)
	default:
	}
	if ended != nil {
		return ended
	}
	return a.reply(id, nil, g.refusal())
}

func (a *arriving) reply(id uint64, response any, err error) error {
	return a.stream.SendMsg(frameOf(appendAnswer(nil, a.mux.cfg.Node, id, kindInstall, response, err)))
}

// read receives frames and waits until Raft takes them: gRPC's flow control slows the sender.
func (a *arriving) read() {
	st := a.head()
	a.first <- st
	for st.err == nil {
		f := &frame{}
		if err := a.stream.RecvMsg(f); err != nil {
			close(a.chunks)
			return
		}
		select {
		case a.chunks <- f:
		case <-a.gone:
			f.free()
			return
		}
	}
}

// head reads the hello, the list if there is one, and the request.
func (a *arriving) head() (st started) {
	st.err = a.expect(kindHello, func(p []byte) error {
		if err := st.hello.decode(p); err != nil {
			return err
		}
		return a.mux.check(&st.hello, kindInstall)
	})
	if st.err != nil {
		return st
	}
	for more := true; more && st.err == nil; {
		more = false
		st.err = a.next(func(k kind, p []byte) error {
			if k == kindList {
				more = true
				return st.add(p)
			}
			return st.request(k, p)
		})
	}
	return st
}

// add appends a part of the list.
func (st *started) add(p []byte) (err error) {
	if st.listed && !st.more {
		return errMalformed
	}
	st.listed = true
	st.items, st.more, err = decodeList(p, st.items)
	return err
}

// request decodes the request, which comes after the list.
func (st *started) request(k kind, p []byte) error {
	if k != kindInstall || st.more {
		return errMalformed
	}
	e, command, err := decodeRequest(kindInstall, p, st.hello.from)
	if err == nil {
		st.e, st.command = e, command.(*raft.InstallSnapshotRequest)
	}
	return err
}

// expect receives a frame with one message of the given kind.
func (a *arriving) expect(want kind, decode func([]byte) error) error {
	return a.next(func(k kind, p []byte) error {
		if k != want {
			return errMalformed
		}
		return decode(p)
	})
}

// next receives a frame with one message.
func (a *arriving) next(decode func(k kind, payload []byte) error) error {
	var f frame
	defer f.free()
	if err := a.stream.RecvMsg(&f); err != nil {
		return err
	}
	k, payload, rest, err := nextMessage(f.body)
	if err != nil || len(rest) > 0 {
		return errMalformed
	}
	return decode(k, payload)
}

// Read returns the snapshot's bytes. It fails if no frame arrives for ChunkTimeout. It returns io.EOF only after the
// sender's end message, with the same size.
func (a *arriving) Read(p []byte) (int, error) {
	for len(a.rest) == 0 && a.err == nil {
		a.err = a.advance()
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	if n == 0 && len(p) > 0 {
		a.current.free()
		return 0, a.err
	}
	a.size += int64(n)
	return n, nil
}

// frame waits for the next frame, while the replica exists.
func (a *arriving) frame() (*frame, error) {
	timer := time.NewTimer(a.mux.cfg.ChunkTimeout)
	defer timer.Stop()
	select {
	case f, ok := <-a.chunks:
		if !ok {
			return nil, io.ErrUnexpectedEOF
		}
		return f, nil
	case <-a.gone:
		return nil, io.ErrUnexpectedEOF
	case <-a.group.ctx.Done(): // its replica may have been dropped: the rest is not wanted
		return nil, a.group.refusal()
	case <-timer.C:
		return nil, proto.ErrDeadline.Errorf("no part of the snapshot for %s", a.mux.cfg.ChunkTimeout)
	}
}

// advance waits for the next chunk or the end.
func (a *arriving) advance() error {
	f, err := a.frame()
	if err != nil {
		return err
	}
	a.current.free()
	a.current = f
	k, payload, rest, err := nextMessage(a.current.body)
	switch {
	case err != nil || len(rest) > 0:
		return errMalformed
	case k == kindChunk:
		a.rest = payload
		return nil
	case k == kindEnd:
		return a.finished(payload)
	}
	return errMalformed
}

// finished returns io.EOF if all bytes have arrived.
func (a *arriving) finished(payload []byte) error {
	f := fields{b: payload}
	size := f.uint()
	if f.end() != nil || size != uint64(a.size) {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}
