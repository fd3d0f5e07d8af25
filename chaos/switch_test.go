package chaos

import (
	"io"
	"testing"

	"github.com/ebbdb/ebb/node"
)

// Isolating a node breaks its streams, refuses new ones and drops its packets;
// healing lets all of them through again.
func TestSwitch(t *testing.T) {
	s := NewSwitch(node.OSNetwork{})
	a, b := s.Port("ebb-0"), s.Port("ebb-1")
	l, err := a.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := b.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	pa, err := a.ListenPacket(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pa.Close()
	pb, err := b.ListenPacket(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pb.Close()

	s.Isolate("ebb-1")
	if _, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a stream over an unplugged port: %v, want EOF", err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("wrote over an unplugged port")
	}
	if _, err := b.Dial(t.Context(), l.Addr().String()); err == nil {
		t.Error("dialled over an unplugged port")
	}
	pb.WriteTo([]byte("lost"), pa.LocalAddr())

	s.Heal()
	if c, err = b.Dial(t.Context(), l.Addr().String()); err != nil {
		t.Fatalf("after healing: %v", err)
	}
	defer c.Close()
	pb.WriteTo([]byte("arrives"), pa.LocalAddr())
	buf := make([]byte, 16)
	n, _, err := pa.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "arrives" {
		t.Errorf("packet %q, %v", buf[:n], err)
	}
}
