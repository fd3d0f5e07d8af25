package proto

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// FuzzWeigh brings requests any bytes: what is weighed is what protobuf decodes, what it does not decode has no weight,
// and a message that is decoded has no list over its limit.
func FuzzWeigh(f *testing.F) {
	for _, m := range []pb.Message{
		&ebbv1.IncrementRequest{Namespace: "a", Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}}},
		&ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{{Key: []byte("k"), Ids: []uint64{1, 2, 300}}}},
		&ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: 1, Also: []uint32{2, 3}}}},
	} {
		raw, err := pb.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add(bytes.Repeat([]byte{2<<3 | byte(protowire.BytesType), 0}, 10_001))
	f.Add([]byte{2<<3 | byte(protowire.BytesType), 0x85, 0x80, 0, 'x'})
	f.Add([]byte{0x0b, 0x0c}) // a group
	types := []pb.Message{
		&ebbv1.IncrementRequest{}, &ebbv1.BitsRequest{}, &ebbv1.AskRequest{}, &ebbv1.ShardAskRequest{}, &ebbv1.QueryRequest{},
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, like := range types {
			m := like.ProtoReflect().New().Interface()
			weight, refused := Weigh(raw, m.ProtoReflect().Descriptor())
			err := pb.Unmarshal(raw, m)
			switch {
			case refused == nil && weight < layoutOf(m.ProtoReflect().Descriptor()).size:
				t.Errorf("%T weighs %d", m, weight)
			case refused != nil && refused.Is(ErrBadRequest) && err == nil:
				t.Errorf("%T is decoded, and is not weighed: %v", m, refused)
			case refused != nil || err != nil:
				continue
			case weight > DecodedBytesMax:
				t.Errorf("%T weighs %d", m, weight)
			}
			if req, ok := m.(*ebbv1.IncrementRequest); ok && len(req.GetIncrements()) > BatchOpsMax {
				t.Errorf("%d increments pass", len(req.GetIncrements()))
			}
			if err := Decode(raw, m.ProtoReflect().New().Interface()); err != nil {
				t.Errorf("%T passes, and is not decoded: %v", m, err)
			}
		}
	})
}
