package rpc

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// fill gives a message random fields: lists of up to most elements, and bytes of up to most bytes.
func fill(r *rand.Rand, m protoreflect.Message, most, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if r.IntN(3) == 0 || fd.Message() != nil && depth == 0 || fd.IsMap() {
			continue
		}
		if !fd.IsList() {
			m.Set(fd, filled(r, m.NewField(fd), fd, most, depth))
			continue
		}
		list := m.Mutable(fd).List()
		for range r.IntN(most) {
			list.Append(filled(r, list.NewElement(), fd, 20, depth))
		}
	}
	if r.IntN(4) == 0 {
		m.SetUnknown(append([]byte{0xfa, 0x7f, 3}, "new"...)) // field 2047
	}
}

func filled(r *rand.Rand, v protoreflect.Value, fd protoreflect.FieldDescriptor, most, depth int) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		fill(r, v.Message(), most, depth-1)
		return v
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, r.IntN(most*100)))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprint(r.Int64()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(r.NormFloat64())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(fd.Enum().Values().Get(r.IntN(fd.Enum().Values().Len())).Number())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(r.Uint32())
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(r.Uint64())
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(r.Int64())
	default:
		panic(fd.FullName())
	}
}

// What is encoded in pieces is what is encoded in one, and no piece is larger than pieceBytes.
func TestPiecesAreTheMessage(t *testing.T) {
	types := []protobuf.Message{
		&ebbv1.ShardAskResponse{}, &ebbv1.AskResponse{}, &ebbv1.QueryResponse{}, &ebbv1.WatchEvent{}, &ebbv1.TableResponse{},
		&ebbv1.StatusResponse{}, &ebbv1.ApplyRequest{}, &ebbv1.IncrementResponse{},
	}
	large := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := types[r.IntN(len(types))].ProtoReflect().New().Interface()
		fill(r, m.ProtoReflect(), 1+r.IntN(400), 4)
		size := protobuf.Size(m)
		all, err := encodePieces(m, mem.DefaultBufferPool())
		if err != nil {
			t.Fatal(err)
		}
		if all.Len() != size {
			t.Errorf("seed %d: %T has %d bytes in pieces, and %d in one", seed, m, all.Len(), size)
		}
		for _, b := range all {
			if b.Len() > pieceBytes {
				t.Errorf("seed %d: a piece of %d bytes", seed, b.Len())
			}
		}
		got := m.ProtoReflect().New().Interface()
		if err := protobuf.Unmarshal(all.Materialize(), got); err != nil || !protobuf.Equal(got, m) {
			t.Errorf("seed %d: %T is another message: %v", seed, m, err)
		}
		if len(all) > 1 {
			large++
		}
		all.Free()
	}
	if large < 50 {
		t.Errorf("%d messages have several pieces", large)
	}
}

// Text that is not UTF-8 has no encoding, in pieces as in one.
func TestPiecesRefuseWhatHasNoEncoding(t *testing.T) {
	m := &ebbv1.ChangeClusterResponse{Warnings: []string{"\xff"}}
	protobuf.Size(m)
	if all, err := encodePieces(m, mem.DefaultBufferPool()); err == nil {
		t.Errorf("%v", all.Materialize())
	}
}

func BenchmarkAnswerEncode(b *testing.B) {
	for _, size := range []int{20 << 10, 64 << 10, 1 << 20, 4 << 20} {
		a := &ebbv1.AskResponse{Answers: []*ebbv1.Answer{largeAnswer(size)}}
		n := protobuf.Size(a)
		b.Run(fmt.Sprintf("pieces/%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				protobuf.Size(a)
				all, err := encodePieces(a, mem.DefaultBufferPool())
				if err != nil {
					b.Fatal(err)
				}
				all.Free()
			}
		})
		b.Run(fmt.Sprintf("one/%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := sized.MarshalAppend(make([]byte, 0, protobuf.Size(a)), a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
