package rpc

import (
	"context"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// DefaultTimeout is the deadline of a request whose caller gave none.
const DefaultTimeout = 2 * time.Second

// receiveTimeout is how long the first message of a gRPC stream may take to arrive, regardless of the caller's
// deadline. Until the message is complete, memory is held for a caller that may never send the rest.
const receiveTimeout = 5 * time.Second

// recvBytesMax is the size from which gRPC itself drops a message, without a code. It is above proto.MessageBytesMax,
// so that a message slightly too large gets a coded error.
const recvBytesMax = 2 * proto.MessageBytesMax

// Limits of one connection: bytes of one request's headers, and requests at a time (the client delays further
// requests).
const (
	headerBytesMax = 64 << 10
	streamsMax     = 1_000
)

// handshakeMax is how long the handshake of a connection may take.
const handshakeMax = 10 * time.Second

// streamWorkers are goroutines that keep their stacks between requests. A new one grows its stack twice: with 32
// workers, and 128 callers of three nodes that asked one question a request, that was 5% of the CPU. A stream of a peer
// keeps one for itself; when all are taken, gRPC starts goroutines as it would anyway.
const streamWorkers = 128

// NewGRPC returns a server of the services Ebb and Shards, with reflection and health. opts come after its own options
// and override them. The caller serves and stops it.
func NewGRPC(s Services, opts ...grpc.ServerOption) *grpc.Server {
	if s.Watches == nil {
		s.Watches = NewWatches(s.Registerer)
	}
	if s.Budget == nil {
		s.Budget = NewBudget(0, s.Registerer)
	}
	m := newMetrics("grpc", s.Registerer)
	own := []grpc.ServerOption{
		grpc.Creds(Metered(insecure.NewCredentials(), s.Budget)),
		experimental.BufferPool(&receiveBuffers{budget: s.Budget}),
		grpc.MaxRecvMsgSize(recvBytesMax),
		grpc.MaxHeaderListSize(headerBytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.ConnectionTimeout(handshakeMax),
		grpc.InTapHandle(s.receive),
		grpc.ChainUnaryInterceptor(unary(&s, m)),
		grpc.ChainStreamInterceptor(s.stream(m)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.StaticStreamWindowSize(proto.StreamWindow),
		grpc.StaticConnWindowSize(proto.ConnWindow),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.WaitForHandlers(true),
	}
	srv := grpc.NewServer(append(own, opts...)...)
	srv.RegisterService(s.weighed(ebbv1grpc.Ebb_ServiceDesc, m), &ebbServer{Services: &s})
	srv.RegisterService(s.weighed(ebbv1grpc.Shards_ServiceDesc, m), &shardsServer{Services: &s})
	srv.RegisterService(s.weighed(grpc_health_v1.Health_ServiceDesc, m), newHealth(s.ready, s.Registerer))
	reflection.Register(srv)
	return srv
}

// receipt is the context of a stream whose first message is awaited, and the record of the request while it arrives.
// Both are one object, because there is one for each request. If the message takes longer than receiveTimeout, the
// stream is answered with errLate, which ends this context with DeadlineExceeded.
type receipt struct {
	context.Context
	caller caller
	in     receiving
	here   atomic.Bool // its message has arrived, or will not come; written with mu held

	mu     sync.Mutex
	over   error                      // with which it was answered before its message arrived; nil: it was not
	stream grpc.ServerTransportStream // nil before its handler has begun

	budget *Budget
	conn   *meteredConn // nil if it is not metered
	// Guarded by mu of its connection.
	place      int         // among those that arrive
	generation *generation // nil when it does not arrive any more
	// Guarded by mu of the budget's awaited.
	since         time.Time
	listed        bool
	before, after *receipt
}

type receiptKey struct{}

// receive begins a stream when its headers have arrived, if they identify the caller. No memory is held for the request
// of an unknown caller.
func (s *Services) receive(ctx context.Context, info *tap.Info) (context.Context, error) {
	if err := ctx.Err(); err != nil { // gRPC ends the stream without a handler: its charge would stay for receiveTimeout
		return nil, status.FromContextError(err).Err()
	}
	r := &receipt{Context: ctx, budget: s.Budget, conn: meteredOf(ctx)}
	if err := s.welcome(r, info); err != nil {
		if r.conn != nil {
			r.conn.refusedUnread()
		}
		return nil, ebbv1grpc.Status(err)
	}
	s.Budget.awaited.add(r)
	// Streams between nodes never end, and what they bring is not charged.
	if rule, served := rules[info.FullMethodName]; served && rule.who != nodes && r.conn != nil {
		r.conn.begin(r)
	}
	return r, nil
}

// welcome refuses a stream because of its caller, or for lack of memory. Calls between nodes and health checks are not
// refused for lack of memory.
func (s *Services) welcome(r *receipt, info *tap.Info) error {
	if s.Access != nil {
		if err := s.Access.welcome(r, info); err != nil {
			return err
		}
	}
	if who := rules[info.FullMethodName].who; s.Budget == nil || who == nodes || who == everyone || r.caller.node {
		return nil
	}
	return s.Budget.admit(r.conn)
}

// refuse ends a stream that has partly arrived, for lack of memory.
func (r *receipt) refuse() {
	if r.finish(r.budget.errSpent()) {
		r.budget.ended.Add(1)
	}
}

// expire ends a stream whose message has taken too long.
func (r *receipt) expire() { r.finish(errLate) }

// errLate is the answer to a request that does not arrive in time.
var errLate = proto.ErrDeadline.Errorf("the request was not whole within %v", receiveTimeout).
	WithHint("send the whole message at once, after the headers")

// finish answers a stream whose message has not arrived. It returns false, and does nothing, if the message has arrived
// or the stream was answered before.
func (r *receipt) finish(err error) bool {
	r.mu.Lock()
	if r.over != nil || r.here.Load() {
		r.mu.Unlock()
		return false
	}
	r.over = err
	stream := r.stream
	r.mu.Unlock()
	turnAway(stream, err)
	return true
}

// starts records the stream when its handler begins, and ends it if it was answered before.
func (r *receipt) starts(stream grpc.ServerTransportStream) {
	r.mu.Lock()
	r.stream = stream
	err := r.over
	r.mu.Unlock()
	if err != nil {
		turnAway(stream, err)
	}
}

// turnAway answers a stream whose handler waits for the message. It does nothing if the handler has not begun. gRPC's
// transport sends the answer, and ends the context of the stream. turnAway takes locks of the transport, so the caller
// must hold none.
func turnAway(stream grpc.ServerTransportStream, err error) {
	if w, ok := stream.(interface{ WriteStatus(*status.Status) error }); ok {
		st, _ := status.FromError(ebbv1grpc.Status(err))
		_ = w.WriteStatus(st) // it fails where the connection ends, and all of its streams with it
	}
}

// arrived notes that the message has arrived, or will not come. It returns the error with which the stream was answered
// before, nil if it was not. After an error, a message that has arrived all the same is not handled.
func (r *receipt) arrived() error {
	if r.here.Load() {
		return nil // it is not the first message
	}
	r.mu.Lock()
	err := r.over
	r.here.Store(err == nil)
	r.mu.Unlock()
	r.ended()
	return err
}

// ended notes that nothing more of the request arrives. It may be called again.
func (r *receipt) ended() {
	r.budget.awaited.remove(r)
	if r.conn != nil {
		r.conn.end(r)
	}
}

// Err implements context.Context.
func (r *receipt) Err() error {
	err := r.Context.Err()
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over == error(errLate) {
		return context.DeadlineExceeded // gRPC has cancelled it
	}
	return err
}

// Value implements context.Context.
func (r *receipt) Value(key any) any {
	switch key {
	case receiptKey{}:
		return r
	case callerKey{}:
		return &r.caller
	}
	return r.Context.Value(key)
}

// stream is the interceptor of methods with several messages. It awaits the first message. A panic in a client's stream
// ends only that stream. Reflection must end with all of its messages in the time of the first.
func (s *Services) stream(m *metrics) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return s.streams(m, srv, ss, info, handler)
	}
}

func (s *Services) streams(m *metrics, srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	if rules[info.FullMethod].who != nodes { // a replica must not continue after a panic
		defer func() {
			if p := recover(); p != nil { // also of what looks at the first message, which is not the handler's
				err = ebbv1grpc.Status(panicked(s, info.FullMethod, p))
			}
		}()
	}
	if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		in := s.receivingOf(ss.Context(), m, info.FullMethod)
		defer in.end()
		return handler(srv, ss)
	}
	if rules[info.FullMethod].who != granted { // the others are checked when the request has arrived
		if err := s.Access.admit(ss.Context(), info.FullMethod, nil); err != nil {
			return ebbv1grpc.Status(err)
		}
	}
	in := s.receivingOf(ss.Context(), m, info.FullMethod)
	defer in.end()
	stream := &receivingStream{ServerStream: ss, services: s, method: info.FullMethod, in: in}
	stream.unproven = rules[info.FullMethod].who == nodes && !callerOf(ss.Context()).own
	return handler(srv, stream)
}

// receivingStream handles the first message of a stream: it has arrived, and shows what the caller wants.
type receivingStream struct {
	grpc.ServerStream
	services *Services
	method   string
	in       *receiving
	begun    bool
	// unproven means that the stream is for nodes, and its caller has not proven that it is one. It was admitted
	// because no token was in force. It ends with its next message after a token is in force.
	unproven bool
}

// begun is what is known of a stream's outcome when its request has been looked at.
type begun struct{}

// RecvMsg is called by one goroutine at a time, as gRPC has it.
func (s *receivingStream) RecvMsg(m any) error {
	if err := s.in.receive(s.ServerStream.RecvMsg, m); err != nil {
		return err
	}
	if !s.begun {
		s.begun = true
		if err := s.in.arrived(); err != nil { // a frame between nodes
			return ebbv1grpc.Status(err)
		}
		_, err := s.services.guarded(s.Context(), s.method, m, func(context.Context, any) (any, error) { return begun{}, nil })
		return ebbv1grpc.Status(err)
	}
	if s.unproven {
		return ebbv1grpc.Status(s.services.Access.admit(s.Context(), s.method, m))
	}
	return nil
}

// unary is the interceptor of methods with one answer: it adds a deadline, a latency and a code. A panic ends only its
// request.
func unary(s *Services, m *metrics) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		start := time.Now()
		answers := s.Answers.Begin(answerLimit(info.FullMethod))
		ctx = budget.With(ctx, answers)
		if _, ok := ctx.Deadline(); !ok && info.FullMethod != ebbv1grpc.Ebb_Ask_FullMethodName { // the coordinator bounds it
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
			defer cancel()
		}
		defer func() {
			if p := recover(); p != nil {
				resp, err = nil, panicked(s, info.FullMethod, p)
			}
			if err != nil {
				resp = nil
				answers.Close()
			}
			m.observe(info.FullMethod, start, err)
			err = ebbv1grpc.Status(err)
		}()
		if resp, err = s.guarded(ctx, info.FullMethod, req, handler); err != nil {
			return nil, err
		}
		return s.leaving(ctx, info.FullMethod, answers, resp)
	}
}

// panicked logs a handler's panic with its stack and makes an error of it.
func panicked(s *Services, method string, p any) error {
	s.logger().Error("request handler panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return proto.ErrInternal.Errorf("%s: internal error; the node's log has the details", method)
}
