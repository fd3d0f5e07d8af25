package transport

import (
	"encoding/binary"
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// codecName is the content-subtype of the peers' streams.
const codecName = "ebb-frame"

// bodyTag is the protobuf tag of Frame.body: field 1, length-delimited.
const bodyTag = 1<<3 | 2

func init() { encoding.RegisterCodecV2(codec{}) }

// buffers is the memory of outgoing frames, and of incoming frames that arrived in parts. Unlike gRPC's own pools it
// does not clear a buffer that is about to be filled.
var buffers mem.BufferPool = &bufferPool{}

// bufferSizes match what is sent: one round of heartbeats, batches of entries, a chunk of a snapshot, a full frame with
// its header.
var bufferSizes = [...]int{2 << 10, 8 << 10, 32 << 10, 128 << 10, chunkBytes + 64, FrameBytesMax + 64}

type bufferPool struct{ pools [len(bufferSizes)]sync.Pool }

// Get returns a buffer of n bytes with undefined contents.
func (p *bufferPool) Get(n int) *[]byte {
	for i, size := range bufferSizes {
		if n <= size {
			if b, ok := p.pools[i].Get().(*[]byte); ok {
				*b = (*b)[:n]
				return b
			}
			b := make([]byte, n, size)
			return &b
		}
	}
	b := make([]byte, n)
	return &b
}

// Put returns a buffer to its pool.
func (p *bufferPool) Put(b *[]byte) {
	for i, size := range bufferSizes {
		if cap(*b) == size {
			p.pools[i].Put(b)
			return // another goroutine may own it now
		}
	}
}

// frame is a Frame message without copies: it takes over gRPC's buffer on receipt, and gives gRPC a pooled one to send.
type frame struct {
	buf  mem.Buffer // owned, if set
	body []byte     // inside buf
}

// free releases a received frame's memory; body is invalid after that. It does nothing for a nil frame.
func (f *frame) free() {
	if f != nil && f.buf != nil {
		f.buf.Free()
		*f = frame{}
	}
}

// newFrame makes a frame to send, with a body of exactly size bytes to fill in.
func newFrame(size int) *frame {
	var head [1 + binary.MaxVarintLen64]byte
	head[0] = bodyTag
	n := 1 + binary.PutUvarint(head[1:], uint64(size))
	b := buffers.Get(n + size)
	copy(*b, head[:n])
	return &frame{buf: mem.NewBuffer(b, buffers), body: (*b)[n : n+size : n+size]}
}

// codec encodes and decodes frame as the protobuf message Frame. Marshal consumes the frame.
type codec struct{}

func (codec) Name() string { return codecName }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok || f.buf == nil {
		return nil, fmt.Errorf("no frame to send: %T", v)
	}
	out := mem.BufferSlice{f.buf}
	*f = frame{}
	return out, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("no frame to receive into: %T", v)
	}
	buf := data.MaterializeToBuffer(buffers)
	body, err := frameBody(buf.ReadOnlyData())
	if err != nil {
		buf.Free()
		return err
	}
	f.free()
	f.buf, f.body = buf, body
	return nil
}

// frameBody returns the body of an encoded Frame.
func frameBody(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[0] != bodyTag {
		return nil, errMalformed
	}
	n, k := binary.Uvarint(b[1:])
	if k <= 0 || n != uint64(len(b)-1-k) {
		return nil, errMalformed
	}
	if n > FrameBytesMax {
		return nil, fmt.Errorf("frame of %d bytes is over the limit of %d", n, FrameBytesMax)
	}
	return b[1+k:], nil
}

// message is one encoded message that waits for its frame. The caller that takes data out of it, under the outbox's
// lock, owns the data.
type message struct{ data *[]byte }

var messageBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 256); return &b }}

// pooledBytesMax bounds the size of a buffer in the pool.
const pooledBytesMax = 128 << 10

func newData() *[]byte { return messageBuffers.Get().(*[]byte) }

func freeData(b *[]byte) {
	if cap(*b) <= pooledBytesMax {
		*b = (*b)[:0]
		messageBuffers.Put(b)
	}
}
