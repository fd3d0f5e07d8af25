package rpc

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

const (
	// receiptBytes is what a gRPC request takes before any of its message has arrived: a goroutine, a stream, its
	// headers.
	receiptBytes = 16 << 10
	// frameBytes is what a frame of HTTP/2 takes in addition to its bytes: a message may come a byte a frame.
	frameBytes = 96
	// frameHead is the length of the head of a frame: a length of 3 bytes, a type, flags, and the number of a stream.
	frameHead = 9
	// unreadMax is how many requests of a connection may be refused in a row without a byte of a message on it. Clients
	// send the message with the headers, so only a flood of headers reaches this limit.
	unreadMax = 100
	// smallRead is the most bytes that are read from a connection at a time when there is little space. That is when
	// more than half of the bytes that may arrive have arrived. So requests that come together take less time of a core
	// before others run.
	smallRead = 4 << 10
	// prefaceLen is the length of what an HTTP/2 client sends before its first frame.
	prefaceLen = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
)

// Metered returns credentials of a server whose connections charge the budget for arriving requests.
func Metered(creds credentials.TransportCredentials, b *Budget) credentials.TransportCredentials {
	return metered{creds, b}
}

// errCutOff ends a connection that sends nothing but headers.
var errCutOff = errors.New("too many requests of the connection were refused, and it sent no message")

type metered struct {
	credentials.TransportCredentials
	budget *Budget
}

// ServerHandshake implements credentials.TransportCredentials.
func (m metered) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := m.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := &meteredConn{Conn: conn, budget: m.budget, frames: frames{left: prefaceLen}}
	m.budget.enter(c)
	return c, info, nil
}

// Clone implements credentials.TransportCredentials.
func (m metered) Clone() credentials.TransportCredentials {
	return metered{m.TransportCredentials.Clone(), m.budget}
}

// meteredConn is a connection of gRPC. It counts the DATA frames that arrive while first messages of requests are
// awaited.
//
// It cannot tell to which request a byte belongs. So bytes belong to a generation of requests: those that had begun
// when the bytes came. The bytes are released when all requests of that generation have arrived or ended, and no
// request of an older generation is left. So no bytes are released that a request may still hold. A message that has
// arrived is released at once: it is charged to its request.
type meteredConn struct {
	net.Conn
	budget  *Budget
	frames  frames // of the one reader
	unread  int    // of the same: requests that were refused since the last bytes of messages; see Read
	waiting atomic.Int32
	held    atomic.Int64 // bytes that the budget is charged with for this connection; written with mu held

	mu       sync.Mutex
	ending   int64 // part of held: of ended requests that have not released it yet
	arriving []*receipt
	older    *generation
	newer    *generation
}

// generation is the requests that began to arrive at about the same time.
type generation struct {
	requests int
	bytes    int64 // that arrived, and may belong to them
}

// meteredAddr gives a request access to its connection: handlers get the address of their caller.
type meteredAddr struct {
	net.Addr
	conn *meteredConn
}

// meteredOf returns the connection of a request over gRPC; nil if it is not metered.
func meteredOf(ctx context.Context) *meteredConn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(meteredAddr); ok {
			return a.conn
		}
	}
	return nil
}

// RemoteAddr implements net.Conn.
func (c *meteredConn) RemoteAddr() net.Addr { return meteredAddr{c.Conn.RemoteAddr(), c} }

// Read implements net.Conn. After unreadMax requests that were refused it ends a connection that sends no message.
func (c *meteredConn) Read(p []byte) (int, error) {
	if c.unread >= unreadMax {
		c.budget.cutOff.Add(1)
		return 0, errCutOff // gRPC closes it
	}
	if c.budget.overGRPC.Load() > c.budget.arrivals/2 && len(p) > smallRead {
		p = p[:smallRead]
	}
	n, err := c.Conn.Read(p)
	if arrived := c.frames.read(p[:n]); arrived > 0 {
		c.unread = -n / frameHead // those that begin in p are no more than n/frameHead, and do not count
		if c.waiting.Load() > 0 {
			c.count(arrived)
		}
	}
	return n, err
}

// refusedUnread notes that a request was refused before anything of its message was looked at.
func (c *meteredConn) refusedUnread() { c.unread++ }

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	c.budget.leave(c)
	c.mu.Lock()
	c.forget()
	c.mu.Unlock()
	return c.Conn.Close()
}

// count charges n bytes that have arrived.
func (c *meteredConn) count(n int64) {
	c.mu.Lock()
	if len(c.arriving) == 0 {
		c.mu.Unlock()
		return
	}
	c.newer.bytes += n
	c.charge(n)
	c.mu.Unlock()
	c.budget.relieve()
}

// charge is called with mu held.
func (c *meteredConn) charge(n int64) {
	if c.held.Add(n) < c.ending {
		c.budget.ending.Add(c.held.Load() - c.ending)
		c.ending = c.held.Load()
	}
	c.budget.overGRPC.Add(n)
	c.budget.used.Add(n)
}

// begin notes that the first message of a request is awaited.
func (c *meteredConn) begin(r *receipt) {
	c.mu.Lock()
	if c.newer == nil {
		c.older, c.newer = new(generation), new(generation)
	}
	r.place, r.generation = len(c.arriving), c.newer
	c.arriving = append(c.arriving, r)
	c.waiting.Add(1)
	c.newer.requests++
	c.charge(receiptBytes)
	c.mu.Unlock()
}

// arrived notes that a message of n bytes has arrived.
func (c *meteredConn) arrived(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.newer != nil {
		// No less than it was charged with, unless its frames are very small.
		c.charge(-c.take(n + (n/1024+2)*frameBytes))
	}
}

// end notes that nothing more of a request arrives. It may be called again.
func (c *meteredConn) end(r *receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.generation == nil {
		return
	}
	last := len(c.arriving) - 1
	c.arriving[r.place] = c.arriving[last]
	c.arriving[r.place].place = r.place
	c.arriving[last] = nil
	c.arriving = c.arriving[:last]
	c.waiting.Add(-1)
	r.generation.requests--
	r.generation = nil
	back := int64(receiptBytes)
	for range 2 {
		if c.older.requests > 0 {
			break
		}
		back += c.older.bytes
		c.older.bytes = 0
		c.older, c.newer = c.newer, c.older
	}
	c.charge(-back)
}

// take takes up to n bytes out of the generations.
func (c *meteredConn) take(n int64) (taken int64) {
	for _, g := range []*generation{c.newer, c.older} {
		k := min(n-taken, g.bytes)
		g.bytes -= k
		taken += k
	}
	return taken
}

// arrivingBytes returns the bytes that the connection holds of requests that are not being ended.
func (c *meteredConn) arrivingBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held.Load() - c.ending
}

// forget releases all that the connection holds. It is called with mu held.
func (c *meteredConn) forget() {
	for _, r := range c.arriving {
		r.generation = nil
	}
	c.arriving, c.older, c.newer = nil, nil, nil
	c.waiting.Store(0)
	c.charge(-c.held.Load())
}

// refuse ends all requests that arrive on the connection. What it holds stays charged until the requests have released
// it.
func (c *meteredConn) refuse() {
	c.mu.Lock()
	all := slices.Clone(c.arriving)
	c.budget.ending.Add(c.held.Load() - c.ending)
	c.ending = c.held.Load()
	c.mu.Unlock()
	go func() { // the caller may hold locks of gRPC's transport
		for _, r := range all {
			r.refuse()
		}
	}()
}

func (b *Budget) enter(c *meteredConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[c] = struct{}{}
}

func (b *Budget) leave(c *meteredConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
}

// overLimit reports whether more has arrived over gRPC than is allowed.
func (b *Budget) overLimit() bool {
	ending := b.ending.Load()
	n := b.overGRPC.Load() - ending
	return n > b.arrivals || n > 0 && b.used.Load()-ending > b.limit
}

// sparedBytes is what a connection may hold without ever being ended: one small request, such as a health probe. To end
// it would free too little to matter, and admit keeps other requests within the limit.
const sparedBytes = receiptBytes + 1<<10

// relieve ends the requests that arrive on the connections that hold most, until there is space again.
func (b *Budget) relieve() {
	for b.overLimit() {
		b.mu.Lock()
		var most *meteredConn
		for c := range b.conns {
			if most == nil || c.arrivingBytes() > most.arrivingBytes() {
				most = c
			}
		}
		b.mu.Unlock()
		if most == nil || most.arrivingBytes() <= sparedBytes {
			return
		}
		most.refuse()
	}
}

// share is the part of each connection in what may arrive, if all have the same part.
func (b *Budget) share() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.arrivals / int64(max(1, len(b.conns)))
}

// admit refuses a request over gRPC before anything of it is read, if there is no space for it. c is its connection,
// nil if it is not metered. When there is no space, a connection that holds its equal share begins no other request. To
// refuse a request here costs much less than to end it, because it has no goroutine yet. A request of another
// connection takes the place of those that arrive on the connection with most of them.
func (b *Budget) admit(c *meteredConn) error {
	if b.overGRPC.Load()+receiptBytes > b.arrivals {
		if c != nil && c.held.Load()+receiptBytes > b.share() {
			return b.errSpent()
		}
		b.relieve()
	}
	if b.used.Load()+receiptBytes > b.limit {
		return b.errSpent()
	}
	return nil
}

// frames finds DATA frames in the bytes read from a connection.
type frames struct {
	left   int  // bytes of the current frame, or of the preface
	data   bool // it is a DATA frame
	head   [frameHead]byte
	filled int // bytes of head
}

// read continues with b. It returns how many bytes of memory the DATA frames in b take.
func (f *frames) read(b []byte) (arrived int64) {
	for len(b) > 0 {
		if f.left > 0 {
			n := min(f.left, len(b))
			if f.data {
				arrived += int64(n)
			}
			f.left -= n
			b = b[n:]
			continue
		}
		n := copy(f.head[f.filled:], b)
		b = b[n:]
		if f.filled += n; f.filled < frameHead {
			break
		}
		f.filled = 0
		f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		const typeData = 0
		if f.data = f.head[3] == typeData; f.data {
			arrived += frameBytes
		}
	}
	return arrived
}

// wholePool is for messages in one piece, up to proto.MessageBytesMax. Its buffers have 256 bytes at the least, and are
// at most twice as large as the message. Those of gRPC's own pool are up to 32 times as large.
var wholePool = func() mem.BufferPool {
	p, err := mem.NewBinaryTieredBufferPool(8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22)
	if err != nil {
		panic(err) // an exponent is too large
	}
	return p
}()

// arrival is a message that is being received. The codec charges its bytes before they are decoded.
type arrival struct {
	message protobuf.Message
	charge  *charge
	conn    *meteredConn // that the message arrives on; nil if it is not metered
	decoded bool
	err     error // why it is refused
}

// codec is protobuf's codec, and also charges for arriving messages. It replaces gRPC's own, which it uses for
// everything that is not an arrival.
type codec struct{ encoding.CodecV2 }

func init() { encoding.RegisterCodecV2(codec{encoding.GetCodecV2(protocodec.Name)}) }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*arrival)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if !a.decoded { // gRPC refuses a second message, once it has read it
		a.decoded = true
		a.err = a.decode(data)
	}
	return nil // gRPC would answer with an error of its own, without a code
}

// decode charges for the bytes and for what they take once they are decoded, and then decodes them.
func (a *arrival) decode(data mem.BufferSlice) error {
	n := int64(data.Len())
	if a.conn != nil {
		a.conn.arrived(n)
	}
	if n > proto.MessageBytesMax {
		return errMessageTooLarge(int(n))
	}
	arrived := n // the frames
	if len(data) > 1 {
		arrived += 2 * n // and in one piece, of a buffer of the next power of two
	}
	if err := a.charge.add(arrived); err != nil {
		return err
	}
	defer a.charge.drop(arrived)
	done, err := a.charge.slot(int(n))
	if err != nil {
		return err
	}
	defer done()
	whole := data.MaterializeToBuffer(wholePool)
	defer whole.Free()
	weight, bad := proto.Weigh(whole.ReadOnlyData(), a.message.ProtoReflect().Descriptor())
	if bad != nil {
		return bad
	}
	if err := a.charge.add(weight); err != nil {
		return err
	}
	if err := protobuf.Unmarshal(whole.ReadOnlyData(), a.message); err != nil {
		return proto.ErrBadRequest.Errorf("malformed %s: %v", a.message.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

// receiving is a request over gRPC whose first message is being received.
type receiving struct {
	services *Services
	metrics  *metrics
	method   string
	receipt  *receipt     // nil in tests that call a method as it is
	conn     *meteredConn // nil if it is not metered
	charge   charge
	message  arrival // the one that is received
}

// receivingOf begins to receive a request. The caller ends it.
func (s *Services) receivingOf(ctx context.Context, m *metrics, method string) *receiving {
	r, _ := ctx.Value(receiptKey{}).(*receipt)
	in := new(receiving)
	if r != nil {
		in = &r.in
		in.receipt, in.conn = r, r.conn
	}
	in.services, in.metrics, in.method = s, m, method
	who, c := rules[method].who, callerOf(ctx)
	in.charge = charge{budget: s.Budget, ctx: ctx, forced: who == nodes || who == everyone || c.node}
	if r != nil {
		r.starts(grpc.ServerTransportStreamFromContext(ctx))
	}
	return in
}

// end releases what the request is charged with.
func (in *receiving) end() {
	_ = in.arrived() // the handler is over
	in.message = arrival{}
	in.charge.end()
}

// arrived notes that the first message has arrived, or will not come. It returns the error with which the request was
// already answered, nil if it was not.
func (in *receiving) arrived() error {
	if in.receipt == nil {
		return nil
	}
	return in.receipt.arrived()
}

// receive receives v by dec. An error of its own has the status of a coded error.
func (in *receiving) receive(dec func(any) error, v any) error {
	m, ok := v.(protobuf.Message)
	if !ok {
		return dec(v) // a frame between nodes
	}
	a := &in.message
	*a = arrival{message: m, charge: &in.charge, conn: in.conn}
	err := dec(a)
	over := in.arrived()
	switch {
	case a.err != nil:
		err = a.err
	case over != nil:
		err = over
	default:
		return err // gRPC's own, which streams look at
	}
	in.metrics.refused(in.method, err)
	return ebbv1grpc.Status(err)
}

// weighed returns a service whose requests are charged as they arrive, for all of its methods with one answer. Methods
// with several answers use receivingStream.
func (s *Services) weighed(desc grpc.ServiceDesc, m *metrics) *grpc.ServiceDesc {
	desc.Methods = append([]grpc.MethodDesc(nil), desc.Methods...)
	for i, method := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + method.MethodName
		desc.Methods[i].Handler = func(
			srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor,
		) (any, error) {
			in := s.receivingOf(ctx, m, name)
			defer in.end()
			return method.Handler(srv, ctx, func(v any) error { return in.receive(dec, v) }, interceptor)
		}
	}
	return &desc
}
