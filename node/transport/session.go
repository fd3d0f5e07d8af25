package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// Flow control windows of a connection's streams. They are fixed, because gRPC's own estimate sends a ping for every
// answer.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// session is a set of streams to one peer that end together.
type session struct {
	peer   *peer
	id     uint64
	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	broken chan struct{} // closed when the first stream breaks
	fault  sync.Once
	err    error // why it broke, set before broken is closed

	heads       *grpc.ClientConn // control messages: never queued behind a megabyte of entries
	bulk        *grpc.ClientConn // entries and snapshots
	control     *link
	appends     []*link
	budget      budget // for bytes on the append streams
	lastContact atomic.Int64
	wg          sync.WaitGroup // readers, writers, pulse
}

// open dials a peer and exchanges hello and welcome on all streams. Its error has a code of package proto.
func (p *peer) open() (*session, error) {
	m := p.mux
	s := &session{peer: p, id: rand.Uint64(), broken: make(chan struct{})}
	s.budget.free = m.cfg.InFlightBytesMax
	s.ctx, s.cancel = context.WithCancel(p.ctx)
	late := time.AfterFunc(m.cfg.DialTimeout, func() {
		s.fail(proto.ErrUnreachable.Errorf("node %s did not answer within %s", p.node, m.cfg.DialTimeout))
	})
	err := m.cfg.Fail.Hit("transport.open")
	if err == nil {
		err = s.connect()
	}
	late.Stop()
	if err != nil {
		s.fail(err)
	}
	select {
	case <-s.broken: // also if late fired first
		s.close()
		return nil, s.err
	default:
	}
	s.start()
	return s, nil
}

// connect opens the streams, all at once.
func (s *session) connect() error {
	var err error
	if s.heads, err = s.dial(); err != nil {
		return err
	}
	if s.bulk, err = s.dial(); err != nil {
		return err
	}
	s.appends = make([]*link, s.peer.mux.cfg.AppendStreams)
	errs := make(chan error, 1+len(s.appends))
	go func() {
		var err error
		s.control, err = s.stream(kindPing)
		errs <- err
	}()
	for i := range s.appends {
		go func() {
			var err error
			s.appends[i], err = s.stream(kindAppend)
			errs <- err
		}()
	}
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (s *session) dial() (*grpc.ClientConn, error) {
	m, node := s.peer.mux, s.peer.node
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return m.cfg.Dial(ctx, node) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: m.cfg.DialTimeout}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.CallContentSubtype(codecName)),
	}
	conn, err := grpc.NewClient("passthrough:///"+node, append(options, m.cfg.DialOptions...)...)
	if err != nil {
		return nil, proto.ErrUnreachable.Errorf("node %s: %v", node, err)
	}
	return conn, nil
}

// stream opens one stream and waits for the peer's welcome.
func (s *session) stream(of kind) (*link, error) {
	var (
		stream   grpc.ClientStream
		err      error
		coalesce time.Duration
	)
	if of == kindPing {
		coalesce = s.peer.mux.cfg.Coalesce
		stream, err = peerv1.NewPeerClient(s.heads).Control(s.ctx)
	} else {
		stream, err = peerv1.NewPeerClient(s.bulk).Append(s.ctx)
	}
	if err != nil {
		return nil, s.explain(err)
	}
	if err := s.greet(stream, of); err != nil {
		return nil, err
	}
	return newLink(stream, coalesce), s.welcomed(stream)
}

func (s *session) greet(stream grpc.ClientStream, of kind) error {
	m := s.peer.mux
	h := hello{
		version: m.version, oldest: proto.WireOldest, session: s.id, stream: of,
		from: m.cfg.Node, to: s.peer.node, cluster: m.cfg.ClusterID(),
	}
	return s.explainSend(stream, stream.SendMsg(frameOf(h.append(nil))))
}

// welcomed waits for the answer to a hello.
func (s *session) welcomed(stream grpc.ClientStream) error {
	var f frame
	defer f.free()
	if err := stream.RecvMsg(&f); err != nil {
		return s.explain(err)
	}
	k, payload, _, err := nextMessage(f.body)
	var w welcome
	if err == nil && k != kindWelcome {
		err = errMalformed
	}
	if err == nil {
		err = w.decode(payload)
	}
	if err != nil {
		return proto.ErrInternal.Errorf("node %s: welcome: %v", s.peer.node, err)
	}
	if w.oldest > s.peer.mux.version {
		return newer(s.peer.node, w.oldest, s.peer.mux.version)
	}
	return s.peer.mux.sameCluster(s.peer.node, w.cluster)
}

// explain converts a stream's error into an error with a code.
func (s *session) explain(err error) error {
	if errors.Is(err, io.EOF) {
		return proto.ErrUnreachable.Errorf("node %s ended the session", s.peer.node)
	}
	err = ebbv1grpc.FromStatus(err)
	var e *proto.Error
	if !errors.As(err, &e) || errors.Is(err, context.Canceled) {
		e = proto.ErrUnreachable.Errorf("node %s: %v", s.peer.node, err)
	}
	return e
}

// explainSend finds the reason of a failed send: gRPC reports it on the receiving side.
func (s *session) explainSend(stream grpc.ClientStream, err error) error {
	if !errors.Is(err, io.EOF) {
		if err != nil {
			err = s.explain(err)
		}
		return err
	}
	for {
		var f frame
		err := stream.RecvMsg(&f)
		f.free()
		if err != nil {
			return s.explain(err)
		}
	}
}

func (s *session) start() {
	s.lastContact.Store(int64(s.peer.mux.mono()))
	for _, l := range append([]*link{s.control}, s.appends...) {
		s.wg.Go(func() {
			if err := l.out.run(s.ctx.Done(), func(f *frame) error { return l.stream.SendMsg(f) }); err != nil && !errors.Is(err, io.EOF) {
				s.fail(s.explain(err)) // on EOF the reader has the reason
			}
		})
		s.wg.Go(func() { s.fail(s.read(l)) })
	}
	s.wg.Go(s.pulse)
}

// read receives answers from a stream until it breaks. It never sends.
func (s *session) read(l *link) error {
	var f frame
	defer f.free()
	for {
		if err := l.stream.RecvMsg(&f); err != nil {
			return s.explain(err)
		}
		if l == s.control {
			s.lastContact.Store(int64(s.peer.mux.mono()))
		}
		for rest := f.body; len(rest) > 0; {
			k, payload, tail, err := nextMessage(rest)
			if err == nil {
				err = s.receive(l, k, payload)
			}
			if err != nil {
				return fmt.Errorf("from node %s: %w", s.peer.node, proto.AsError(err))
			}
			rest = tail
		}
	}
}

func (s *session) receive(l *link, k kind, payload []byte) error {
	switch k {
	case kindAnswer:
		return l.answered(payload)
	case kindPong:
		return s.ponged(payload)
	case kindAskReply:
		var t askReply
		if err := t.decode(payload); err != nil {
			return err
		}
		s.peer.reads.deliver(&t)
		return nil
	}
	return errMalformed
}

func (s *session) ponged(payload []byte) error {
	var p pong
	if err := p.decode(payload); err != nil {
		return err
	}
	s.peer.clock.sample(s.peer.mux.mono(), &p)
	s.peer.full.Store(p.full)
	s.peer.pressed.Store(p.pressed)
	s.peer.diskFull.Store(p.diskFull)
	return s.peer.mux.sameCluster(s.peer.node, p.cluster)
}

// pulse samples the peer's clock, and breaks the session when the peer is silent: otherwise a half-open connection
// would look alive.
func (s *session) pulse() {
	m := s.peer.mux
	tick := time.NewTicker(m.cfg.PingInterval)
	defer tick.Stop()
	for {
		s.ping()
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		if silent := m.mono() - time.Duration(s.lastContact.Load()); silent > m.cfg.PingTimeout {
			s.fail(proto.ErrUnreachable.Errorf("node %s has been silent for %s", s.peer.node, silent.Round(time.Millisecond)))
			return
		}
	}
}

func (s *session) ping() {
	m := s.peer.mux
	p := ping{sent: m.mono(), cluster: m.cfg.ClusterID()}
	s.post(p.append)
}

// post sends a message without a call on the control stream, at once.
func (s *session) post(write func([]byte) []byte) bool {
	d := newData()
	*d = write(*d)
	return s.control.out.put(&message{data: d}, false)
}

// fail breaks the session with the first reason. If the peer's context has ended, the reason is that the transport shut
// down.
func (s *session) fail(err error) {
	if s.peer.ctx.Err() != nil {
		err = raft.ErrTransportShutdown
	}
	s.fault.Do(func() {
		s.err = err
		close(s.broken)
		s.cancel()
	})
}

// close ends the calls of a broken session with its error and waits for all goroutines.
func (s *session) close() {
	for _, l := range append([]*link{s.control}, s.appends...) {
		if l != nil {
			l.fail(s.err)
		}
	}
	for _, c := range []*grpc.ClientConn{s.heads, s.bulk} {
		if c != nil {
			_ = c.Close() // the only possible error is a second Close
		}
	}
	s.wg.Wait()
}

// frameOf makes a frame of encoded messages.
func frameOf(b []byte) *frame {
	f := newFrame(len(b))
	copy(f.body, b)
	return f
}
