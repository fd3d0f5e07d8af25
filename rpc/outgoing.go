package rpc

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// The memory of an answer is charged from before the answer is built until it has left the node:
//
//	shards      each answer, before it is built                     node/take.go
//	coordinator answers of other nodes, before they are asked       cluster/answers.go
//	edge        the encoded answer, before it is encoded            here
//	transport   the encoded answer, until gRPC or HTTP wrote it     here
//
// The last step matters: a client that does not read leaves its answer in the memory of the node.

// answersMax is how many bytes of memory the finished answers of one request for questions may take. A decoded answer
// of proto.MessageBytesMax takes less.
const answersMax = 4 * proto.MessageBytesMax

// answerLimit is the limit of the finished answers of a request. Those of shards are limited by what a peer receives,
// and questions in the query language have one answer.
func answerLimit(method string) int64 {
	if method == ebbv1grpc.Ebb_Ask_FullMethodName {
		return answersMax
	}
	return 0
}

// outgoing is a message that is being sent. Its size is computed once; gRPC's own codec would compute it again. Its
// budget is closed when gRPC has written the message, or given up.
type outgoing struct {
	protobuf.Message
	size   int             // as encoded; the message has its own sizes from when it was computed
	budget *budget.Request // nil: it is not charged
	conn   *meteredConn    // nil if it is not metered
	door   *Budget         // whose slots it is encoded in
}

// asks reports whether a method only reads, so that a refusal may replace its answer.
func asks(method string) bool {
	switch method {
	case ebbv1grpc.Ebb_Ask_FullMethodName, ebbv1grpc.Ebb_Query_FullMethodName, ebbv1grpc.Ebb_Watch_FullMethodName,
		ebbv1grpc.Shards_Ask_FullMethodName:
		return true
	}
	return false
}

// freeAnswer is how many encoded bytes an answer may have that is not charged while it is sent.
const freeAnswer = 16 << 10

// leaving charges for the encoded message, before it is encoded. It returns what gRPC encodes. Only questions are
// refused for lack of memory. Other requests are done already, and a refusal would claim that they are not.
func (s *Services) leaving(ctx context.Context, method string, b *budget.Request, resp any) (any, error) {
	m, ok := resp.(protobuf.Message)
	if b == nil || !ok {
		b.Close()
		return resp, nil
	}
	size := protobuf.Size(m)
	if size <= freeAnswer {
		b.Close()
		return &outgoing{Message: m, size: size, door: s.Budget}, nil
	}
	if err := b.Charge(ctx, size); err != nil {
		b.Close()
		if !asks(method) {
			return resp, nil
		}
		return nil, err
	}
	return &outgoing{Message: m, size: size, budget: b, conn: meteredOf(ctx), door: s.Budget}, nil
}

// answerCodec is gRPC's codec of protobuf messages. It encodes outgoing messages too, and holds their budget for as
// long as gRPC holds the bytes.
type answerCodec struct{ encoding.CodecV2 }

func init() { encoding.RegisterCodecV2(answerCodec{encoding.GetCodecV2(encodingproto.Name)}) }

// Marshal implements encoding.CodecV2.
func (c answerCodec) Marshal(v any) (mem.BufferSlice, error) {
	o, ok := v.(*outgoing)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	if o.budget == nil && mem.IsBelowBufferPoolingThreshold(o.size) { // as gRPC does
		b, err := sized.MarshalAppend(make([]byte, 0, o.size), o.Message)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	done := o.door.encodeSlot(context.Background(), o.size) // gRPC has no context here
	defer done()
	if o.budget == nil {
		return o.encode(mem.DefaultBufferPool())
	}
	pool := newHeldPool(mem.DefaultBufferPool(), o.budget, o.conn)
	all, err := o.encode(pool)
	if err != nil {
		pool.close()
		return nil, err
	}
	pool.left.Add(int64(len(all)))
	o.budget.Refund(o.budget.Held() - o.size)
	return all, nil
}

// encode returns the message in buffers of pool: in one if it has pieceBytes at most.
func (o *outgoing) encode(pool mem.BufferPool) (mem.BufferSlice, error) {
	if o.size > pieceBytes {
		return encodePieces(o.Message, pool)
	}
	buf := pool.Get(o.size)
	if _, err := sized.MarshalAppend((*buf)[:0], o.Message); err != nil {
		pool.Put(buf)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

// heldPool takes back the buffers of one answer, and closes their budget when it has the last. When a connection ends,
// gRPC drops what it has not sent, and gives no buffer back. Then the budget is closed when the garbage collector finds
// the pool, to which the buffers belong.
type heldPool struct {
	mem.BufferPool
	budget *budget.Request
	left   atomic.Int64 // buffers that gRPC has
	lost   runtime.Cleanup
	slow   *time.Timer
}

// sendMax is how long a charged answer may wait for its client to read it; it is the same over HTTP. Then the
// connection ends.
const sendMax = 40 * time.Second

func newHeldPool(pool mem.BufferPool, b *budget.Request, conn *meteredConn) *heldPool {
	p := &heldPool{BufferPool: pool, budget: b}
	if conn != nil {
		p.slow = time.AfterFunc(sendMax, func() { _ = conn.Close() }) // the client reads nothing
	}
	p.lost = runtime.AddCleanup(p, (*budget.Request).Close, b)
	return p
}

// Put is called when gRPC does not need the bytes of a buffer any more.
func (p *heldPool) Put(b *[]byte) {
	p.BufferPool.Put(b)
	if p.left.Add(-1) == 0 {
		p.close()
	}
}

func (p *heldPool) close() {
	p.lost.Stop()
	if p.slow != nil {
		p.slow.Stop()
	}
	p.budget.Close()
}

// jsonGrowth is how many bytes of memory a byte of JSON takes at most while it is written: the slice is copied as it
// grows.
const jsonGrowth = 3

// jsonFree is how many bytes of JSON are not charged.
const jsonFree = 16 << 10

// chargedJSON returns the JSON of a message, charged while it grows.
func chargedJSON(ctx context.Context, b []byte, m protobuf.Message) ([]byte, error) {
	charge, door, size := budget.From(ctx), chargeOf(ctx).budget, protobuf.Size(m)
	done := door.encodeSlot(ctx, size)
	defer func() { done() }()
	w := jsonWriter{b: b, room: jsonFree}
	if charge != nil {
		w.grow = func(n int) error {
			if charge.Try(n) {
				return nil
			}
			done() // others may be encoded while this one waits for memory
			err := charge.Charge(ctx, n)
			done = door.encodeSlot(ctx, size)
			if err != nil {
				return err
			}
			return nil
		}
	}
	err := w.message(m.ProtoReflect())
	return w.b, err
}

// begin gives a request of an HTTP interface its budget. The caller closes the budget when the answer is written.
func (s *Services) begin(ctx context.Context, answer int64) (context.Context, *budget.Request) {
	b := s.Answers.Begin(answer)
	return budget.With(ctx, b), b
}

// kept is the last answer that a watch holds, to compare the next one with it.
type kept struct {
	pool *budget.Pool
	held *budget.Request
}

// hold charges for an answer, and releases the one before.
func (k *kept) hold(ctx context.Context, a *ebbv1.Answer) error {
	k.close()
	k.held = k.pool.Begin(0)
	if err := k.held.Charge(ctx, cluster.AnswerSize(a)); err != nil {
		return err.WithHint("end watches of this node that have large answers, or watch for the top n bins")
	}
	return nil
}

func (k *kept) close() { k.held.Close() }
