package transport

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/mem"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/peerv1"
)

// FuzzBody: a message of a stream, however gRPC cuts it up, is refused or read as protobuf reads it.
func FuzzBody(f *testing.F) {
	for _, body := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("y"), 300)} {
		raw, err := pb.Marshal(&peerv1.Frame{Body: body})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint16(len(raw)/2))
	}
	f.Add([]byte{bodyTag, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, uint16(1)) // it says that 2^64-1 bytes follow
	f.Add([]byte{bodyTag, 0x80, 0}, uint16(0))
	f.Fuzz(func(t *testing.T, raw []byte, cut uint16) {
		at := int(cut) % (len(raw) + 1)
		var got frame
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw[:at:at]), mem.SliceBuffer(raw[at:])}, &got); err != nil {
			return
		}
		defer got.free()
		var want peerv1.Frame
		if err := pb.Unmarshal(raw, &want); err != nil || !bytes.Equal(got.body, want.GetBody()) {
			t.Fatalf("%q has body %q, %v; protobuf reads %q", raw, got.body, err, want.GetBody())
		}
	})
}

// FuzzAddress: a raft address is refused, or says the same when it is written again.
func FuzzAddress(f *testing.F) {
	for _, a := range []string{"ebb-0/1", "ebb-0/", "/1", "a/b/2", "ebb-0/18446744073709551616", "ebb-0/01", ""} {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, text string) {
		node, replica, err := ParseAddress(raft.ServerAddress(text))
		if err != nil {
			return
		}
		again, r, err := ParseAddress(Address(node, replica))
		if err != nil || again != node || r != replica {
			t.Fatalf("%q is %s, %d, and then %s, %d, %v", text, node, replica, again, r, err)
		}
	})
}
