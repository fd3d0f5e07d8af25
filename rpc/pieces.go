package rpc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// pieceBytes is the size of the buffers that a large message is encoded in.
const pieceBytes = 32 << 10

// pieces encodes a message in buffers of pieceBytes, which gRPC gives back one by one as it sends them. A message in
// one piece would need an allocation of its own size. If it is large, such as the 26 MiB that a node may answer to
// another, Go clears it, and makes room for it in the memory limit. During that time the garbage collector waits for
// that goroutine, and others wait for the collector. That took up to 160 ms on a machine where new memory is slow. See
// docs/adr/0060.
type pieces struct {
	pool mem.BufferPool
	all  mem.BufferSlice
	buf  []byte // the one that is filled, with room up to its capacity
}

// sized are the options for a message whose sizes have been computed.
var sized = protobuf.MarshalOptions{UseCachedSize: true}

// encodePieces returns the encoding of a message, whose sizes have been computed, in buffers of pool.
func encodePieces(m protobuf.Message, pool mem.BufferPool) (mem.BufferSlice, error) {
	p := pieces{pool: pool}
	if err := p.message(m.ProtoReflect()); err != nil {
		p.all.Free()
		return nil, err
	}
	p.flush()
	return p.all, nil
}

// room begins the next buffer if there is no room for n bytes in this one.
func (p *pieces) room(n int) {
	if len(p.buf)+n > cap(p.buf) {
		p.flush()
		p.buf = (*p.pool.Get(pieceBytes))[:0]
	}
}

func (p *pieces) flush() {
	if len(p.buf) > 0 {
		b := p.buf
		p.all = append(p.all, mem.NewBuffer(&b, p.pool))
	}
	p.buf = nil
}

// bytes appends bytes, in several buffers if need be.
func (p *pieces) bytes(b []byte) {
	for len(b) > 0 {
		p.room(1)
		n := min(len(b), cap(p.buf)-len(p.buf))
		p.buf = append(p.buf, b[:n]...)
		b = b[n:]
	}
}

// prefix appends the number and the length of a field of n bytes.
func (p *pieces) prefix(fd protoreflect.FieldDescriptor, n int) {
	const longest = 2 * 10 // bytes of two varints
	p.room(longest)
	p.buf = protowire.AppendTag(p.buf, fd.Number(), protowire.BytesType)
	p.buf = protowire.AppendVarint(p.buf, uint64(n))
}

// message appends the fields of a message, without its length.
func (p *pieces) message(m protoreflect.Message) error {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		if err := p.field(m, fd); err != nil {
			return err
		}
	}
	p.bytes(m.GetUnknown())
	return nil
}

func (p *pieces) field(m protoreflect.Message, fd protoreflect.FieldDescriptor) error {
	v := m.Get(fd)
	switch {
	case fd.Kind() == protoreflect.MessageKind && fd.IsList():
		for i := range v.List().Len() {
			if err := p.nested(fd, v.List().Get(i).Message()); err != nil {
				return err
			}
		}
	case fd.Kind() == protoreflect.MessageKind && !fd.IsMap():
		return p.nested(fd, v.Message())
	case fd.Kind() == protoreflect.BytesKind && fd.IsList():
		for i := range v.List().Len() {
			b := v.List().Get(i).Bytes()
			p.prefix(fd, len(b))
			p.bytes(b)
		}
	case fd.Kind() == protoreflect.BytesKind:
		p.prefix(fd, len(v.Bytes()))
		p.bytes(v.Bytes())
	default: // numbers and texts, which are short, and packed lists of numbers, of up to some 100 KiB
		alone := m.New()
		alone.Set(fd, v)
		b, err := protobuf.Marshal(alone.Interface())
		p.bytes(b)
		return err
	}
	return nil
}

// nested appends a message that is the value of a field.
func (p *pieces) nested(fd protoreflect.FieldDescriptor, m protoreflect.Message) error {
	n := sized.Size(m.Interface())
	p.prefix(fd, n)
	if len(p.buf)+n > cap(p.buf) {
		return p.message(m)
	}
	b, err := sized.MarshalAppend(p.buf, m.Interface())
	p.buf = b
	return err
}
