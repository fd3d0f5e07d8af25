package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/bits"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func pair(t *testing.T, n *Net) (client, server net.Conn) {
	t.Helper()
	l, err := n.Host("10.0.0.1").Listen(t.Context(), "10.0.0.1:7070")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = n.Host("10.0.0.2").Dial(t.Context(), "10.0.0.1:7070")
	if err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// A stream carries every byte in order, and ends with EOF.
func TestStreamCarriesBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		c, s := pair(t, n)
		want := bytes.Repeat([]byte("0123456789"), 500_000)
		go func() {
			for part := range chunks(want, 70_001) {
				c.Write(part)
			}
			c.Close()
		}()
		got, err := io.ReadAll(s)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(want))
		}
		s.Close()
		if len(n.streams) != 0 {
			t.Fatalf("%d streams left", len(n.streams))
		}
	})
}

func chunks(b []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			k := min(size, len(b))
			if !yield(b[:k]) {
				return
			}
			b = b[k:]
		}
	}
}

// A cut stalls a stream for as long as it lasts; healing delivers what waited.
func TestCutStallsAndHealDelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		c, s := pair(t, n)
		n.Cut("10.0.0.1", "10.0.0.2")
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		s.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read over a cut: %v", err)
		}
		s.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Hour, n.Heal)
		start := time.Now()
		if k, err := s.Read(make([]byte, 1)); k != 1 || err != nil {
			t.Fatal(k, err)
		}
		if d := time.Since(start); d < time.Hour || d > time.Hour+time.Second {
			t.Fatalf("delivered after %v", d)
		}
		c.Close()
		s.Close()
	})
}

// A dial over a cut waits as long as its context; without a listener it is refused at once.
func TestDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		h := n.Host("10.0.0.2")
		if _, err := h.Dial(t.Context(), "10.0.0.1:1"); !errors.Is(err, errRefused) {
			t.Fatalf("dial nobody: %v", err)
		}
		n.CutOneWay("10.0.0.1", "10.0.0.2")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := h.Dial(ctx, "10.0.0.1:1"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Fatalf("dial over a cut: %v after %v", err, time.Since(start))
		}
	})
}

// A crash resets the streams of its host at both ends and frees its addresses.
func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		c, s := pair(t, n)
		n.Crash("10.0.0.1")
		for _, end := range []net.Conn{c, s} {
			if _, err := end.Read(make([]byte, 1)); !errors.Is(err, errReset) {
				t.Fatalf("after a crash: %v", err)
			}
		}
		pair(t, n)
	})
}

// Packets get lost and doubled at the stated rates, and do not pass a cut.
func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		a, err := n.Host("10.0.0.1").ListenPacket(t.Context(), "10.0.0.1:7071")
		if err != nil {
			t.Fatal(err)
		}
		b, err := n.Host("10.0.0.2").ListenPacket(t.Context(), "10.0.0.2:7071")
		if err != nil {
			t.Fatal(err)
		}
		count := func(l Link) int {
			n.SetLink("10.0.0.1", "10.0.0.2", l)
			got := 0
			for range 10_000 {
				a.WriteTo([]byte("p"), b.LocalAddr())
				time.Sleep(time.Millisecond)
				for len(b.(*packetConn).in) > 0 {
					b.ReadFrom(make([]byte, 10))
					got++
				}
			}
			return got
		}
		for _, c := range []struct {
			link     Link
			low, top int
		}{
			{Link{}, 10_000, 10_000},
			{Link{Loss: 0.3}, 6_800, 7_200},
			{Link{Dup: 0.5}, 14_800, 15_200},
			{Link{Cut: true}, 0, 0},
		} {
			if got := count(c.link); got < c.low || got > c.top {
				t.Errorf("%+v: %d of 10000 arrived, want %d to %d", c.link, got, c.low, c.top)
			}
		}
		a.Close()
		b.Close()
	})
}

// Over a cut, the end of a connection is not heard of: the other end's writes
// vanish, and meet a reset, which ends its reads too, once that can arrive.
func TestCloseIsNotHeardOverACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		c, s := pair(t, n)
		n.CutOneWay("10.0.0.1", "10.0.0.2")
		s.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatalf("write, when nobody could say that the other end is closed: %v", err)
		}
		n.Heal()
		if _, err := c.Write([]byte("x")); !errors.Is(err, errReset) {
			t.Fatalf("write to a closed end: %v", err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errReset) {
			t.Fatalf("read after a reset: %v", err)
		}
		c.Close()
	})
}

// A damaged packet comes with one bit inverted, and what was sent stays as it was.
func TestDamagedPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		n.SetUsual(Link{Flip: 1})
		a, err := n.Host("10.0.0.1").ListenPacket(t.Context(), ":1")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := n.Host("10.0.0.2").ListenPacket(t.Context(), ":1")
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		sent := []byte("what is said")
		if _, err := a.WriteTo(sent, b.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 100)
		size, _, err := b.ReadFrom(got)
		if err != nil || size != len(sent) || string(sent) != "what is said" {
			t.Fatalf("%q of %q, %v", got[:size], sent, err)
		}
		inverted := 0
		for i := range sent {
			inverted += bits.OnesCount8(sent[i] ^ got[i])
		}
		if inverted != 1 {
			t.Errorf("%d bits are inverted", inverted)
		}
	})
}

// A damaged segment comes with one bit inverted if it goes from node to node where they check, and as it was said if a
// client says it.
func TestDamagedSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, who := range []struct {
			checks string
			bits   int
		}{{"7070", 1}, {"", 0}, {"7071", 0}} {
			n := NewNet(1)
			n.SetUsual(Link{Spoil: 1})
			l, err := n.Host("10.0.0.1").Listen(t.Context(), "10.0.0.1:7070")
			if err != nil {
				t.Fatal(err)
			}
			from := n.Host("10.0.0.2")
			from.checks = who.checks
			asker, err := from.Dial(t.Context(), "10.0.0.1:7070")
			if err != nil {
				t.Fatal(err)
			}
			answerer, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			for _, way := range [][2]net.Conn{{asker, answerer}, {answerer, asker}} {
				said := []byte("what is said")
				if _, err := way[0].Write(said); err != nil || string(said) != "what is said" {
					t.Fatalf("%q, %v", said, err)
				}
				got := make([]byte, len(said))
				if _, err := io.ReadFull(way[1], got); err != nil {
					t.Fatal(err)
				}
				inverted := 0
				for i := range said {
					inverted += bits.OnesCount8(said[i] ^ got[i])
				}
				if inverted != who.bits {
					t.Errorf("%d bits are inverted of what is said to %q", inverted, who.checks)
				}
			}
			for _, c := range []io.Closer{asker, answerer, l} {
				_ = c.Close()
			}
		}
	})
}
