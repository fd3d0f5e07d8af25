package cluster_test

import (
	"bytes"
	"compress/lzw"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/cluster"
)

// loopback is this machine's own network.
type loopback struct{ net.Dialer }

func (loopback) Listen(_ context.Context, addr string) (net.Listener, error) {
	return net.Listen("tcp", addr)
}

func (loopback) ListenPacket(_ context.Context, addr string) (net.PacketConn, error) {
	return net.ListenPacket("udp", addr)
}

func (l loopback) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return l.DialContext(ctx, "tcp", addr)
}

// openLoopback opens a node on real sockets.
func openLoopback(t *testing.T, keys [][]byte) *cluster.Gossip {
	t.Helper()
	g, err := cluster.OpenGossip(t.Context(), cluster.GossipConfig{
		Node: "ebb-0", Boot: 1, Network: loopback{}, Listen: "127.0.0.1:0", Keys: keys, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
	})
	return g
}

const bombBytes = 8 << 20 // of a message once it is decompressed

// bomb is a compressed message of a few kilobytes.
func bomb(t *testing.T) []byte {
	t.Helper()
	var text bytes.Buffer
	w := lzw.NewWriter(&text, lzw.LSB, 8)
	if _, err := w.Write(make([]byte, bombBytes)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b := append([]byte{9, 0x82, 0xa4}, "Algo\x00\xa3Buf\xdb"...)
	b = binary.BigEndian.AppendUint32(b, uint32(text.Len()))
	return append(b, text.Bytes()...)
}

// pushPull is the beginning of a push-pull, with the fields of its header.
func pushPull(nodes, userState uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte("\x06\x83\xa5Nodes\xce"), nodes)
	b = binary.BigEndian.AppendUint32(append(b, "\xacUserStateLen\xce"...), userState)
	return append(b, "\xa4Join\xc3"...)
}

// encryptedWith is a message as a holder of the key sends it: on a stream, or as a packet.
func encryptedWith(t *testing.T, key, message []byte, stream bool) []byte {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	var head []byte
	if stream {
		head = binary.BigEndian.AppendUint32([]byte{10}, uint32(1+12+len(message)+16))
	}
	sealed := append([]byte{1}, make([]byte, 12)...)
	return append(bytes.Clone(head), gcm.Seal(sealed, sealed[1:13], message, head)...)
}

// peakOf returns by how many bytes the live and not yet collected objects of the heap grow while f runs, at most.
func peakOf(f func()) uint64 {
	read := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	before := read()
	var peak atomic.Uint64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				peak.Store(max(peak.Load(), read()))
				runtime.Gosched()
			}
		}
	}()
	f()
	close(done)
	<-ended
	return max(peak.Load(), before) - before
}

const (
	hostileStreams  = 200
	hostileHeapMost = 24 << 20
)

// Two hundred streams at a time that would have memberlist decompress, or allocate what they announce, cost a node
// less than 24 MiB together, and each is closed. Without the screen one of them costs up to 40 MiB.
func TestHostileStreamsCostLittle(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	large := append([]byte("\x81\xa4Meta\xc5\x04\x00"), make([]byte, 1024)...) // a node
	for _, c := range []struct {
		what string
		keys [][]byte
		text []byte
		why  cluster.GossipRefusal
	}{
		{"compressed", nil, bomb(t), cluster.RefusedCompressed},
		{"compressed by a holder of the key", [][]byte{key}, encryptedWith(t, key, bomb(t), true), cluster.RefusedCompressed},
		{"a million nodes", nil, pushPull(1<<20, 0), cluster.RefusedTooLarge},
		{"20 MiB of user state", nil, pushPull(0, 20<<20), cluster.RefusedTooLarge},
		{"a user message of 20 MiB", nil, append([]byte("\x08\x81\xaaUserMsgLen\xce"), 1, 0x40, 0, 0), cluster.RefusedType},
		{"a label", nil, append([]byte{244, 255}, make([]byte, 255)...), cluster.RefusedLabel},
		{"nodes that never end", nil, append(pushPull(1000, 0), bytes.Repeat(large, 300)...), cluster.RefusedTooLarge},
		{"20 MiB that are sealed", [][]byte{key}, []byte{10, 1, 0x40, 0, 0}, cluster.RefusedTooLarge},
	} {
		t.Run(c.what, func(t *testing.T) {
			g := openLoopback(t, c.keys)
			peak := peakOf(func() {
				ended := make(chan error, hostileStreams)
				for range hostileStreams {
					go func() { ended <- hostileStream(t.Context(), g.Addr(), c.text) }()
				}
				for range hostileStreams {
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
			})
			t.Logf("%d streams of %d bytes: %.1f MiB at most", hostileStreams, len(c.text), float64(peak)/(1<<20))
			if peak > hostileHeapMost {
				t.Errorf("%d streams took %d MiB: the limit is %d", hostileStreams, peak>>20, hostileHeapMost>>20)
			}
			if got, too := g.Refused(c.why), g.Refused(cluster.RefusedStreams); got == 0 || got+too != hostileStreams {
				t.Errorf("%d were refused as %s, and %d as too many: want %d in all", got, c.why, too, hostileStreams)
			}
		})
	}
}

// hostileStream says a text, and waits for the end of the stream.
func hostileStream(ctx context.Context, addr string, text []byte) error {
	conn, err := loopback{}.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	_, _ = conn.Write(text) // it may be refused before all is said
	_, err = io.Copy(io.Discard, conn)
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return fmt.Errorf("the stream is still open: %w", err)
	}
	return nil
}

// Packets that ebb does not send are refused before memberlist decodes them.
func TestHostilePacketsAreRefused(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	ping := []byte("\x00\x82\xa5SeqNo\x01\xa4Node\xa0")
	compound := func(parts ...[]byte) []byte {
		b := []byte{7, byte(len(parts))}
		for _, p := range parts {
			b = binary.BigEndian.AppendUint16(b, uint16(len(p)))
		}
		return append(b, bytes.Join(parts, nil)...)
	}
	small := append([]byte{9, 0x82, 0xa4}, "Algo\x00\xa3Buf\xa1x"...)
	for _, c := range []struct {
		what string
		keys [][]byte
		text []byte
		why  cluster.GossipRefusal
	}{
		{"compressed", nil, small, cluster.RefusedCompressed},
		{"compressed in a compound", nil, compound(ping, small), cluster.RefusedCompressed},
		{"compressed by a holder of the key", [][]byte{key}, encryptedWith(t, key, small, false), cluster.RefusedCompressed},
		{"a compound in a compound", nil, compound(compound(ping)), cluster.RefusedNested},
		{"a hundred pings", nil, compound(slices.Repeat([][]byte{ping}, 100)...), cluster.RefusedType},
		{"a user message", nil, []byte("\x08x"), cluster.RefusedType},
		{"a label", nil, []byte("\xf4\x01xping"), cluster.RefusedLabel},
		{"a long packet", nil, append(bytes.Clone(ping), make([]byte, 5<<10)...), cluster.RefusedTooLarge},
		{"a list for a map", nil, []byte("\x04\x92\x01\x02"), cluster.RefusedMalformed},
		{"a map in a map", nil, []byte("\x04\x81\xa4Meta\x81\xa1x\x01"), cluster.RefusedMalformed},
		{"a string of 4 GiB", nil, []byte("\x04\x81\xa4Meta\xc6\xff\xff\xff\xff"), cluster.RefusedMalformed},
		{"a string of 60 KiB", nil, []byte("\x04\x81\xa4Meta\xc5\xf0\x00"), cluster.RefusedTooLarge},
	} {
		t.Run(c.what, func(t *testing.T) {
			g := openLoopback(t, c.keys)
			conn, err := net.Dial("udp", g.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for end := time.Now().Add(20 * time.Second); g.Refused(c.why) == 0; {
				if _, err := conn.Write(c.text); err != nil {
					t.Fatal(err)
				}
				if time.Now().After(end) {
					t.Fatalf("not refused as %s", c.why)
				}
				runtime.Gosched()
			}
		})
	}
}

// Streams that say nothing, or a byte and no more, end after 2 seconds each way, and keep no node from joining:
// one host has a third of the room.
func TestSlowStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		v.open("ebb-0", "ebb-0", 1, ip(0))
		mean := v.net.Host("10.0.9.9")
		start, ended := time.Now(), make(chan time.Duration)
		const slow = 100
		for i := range slow {
			go func() {
				conn, err := mean.Dial(t.Context(), ip(0)+gossipPort)
				if err != nil {
					t.Error(err)
					ended <- 0
					return
				}
				_, _ = conn.Write([]byte{6}[:i%2])
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
				ended <- time.Since(start)
			}()
		}
		synctest.Wait()
		v.open("ebb-1", "ebb-1", 1, ip(1), ip(0)+gossipPort)
		took := v.within(1500*time.Millisecond, "join while streams are held", v.allSee("ebb-0", "ebb-1"))
		t.Logf("joined in %v", took)
		longest := time.Duration(0)
		for range slow {
			longest = max(longest, <-ended)
		}
		if longest > 5*time.Second {
			t.Errorf("a stream that says nothing was open for %v", longest)
		}
		if got := v.nodes["ebb-0"].Refused(cluster.RefusedStreams); got != slow-16 {
			t.Errorf("%d of %d streams of one host were refused, want all but 16", got, slow)
		}
	})
}

// Whoever can send packets can make up members: a node remembers so many of them and no more, and those it has a
// record of keep their places.
func TestMembersThatAreMadeUpAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		known := func(node string) string {
			if node == "ebb-1" {
				return "a-disk"
			}
			return ""
		}
		g, err := cluster.OpenGossip(t.Context(), cluster.GossipConfig{
			Node: "ebb-0", Boot: 1, Network: v.net.Host(ip(0)), Listen: ip(0) + gossipPort, DiskOf: known,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		v.nodes["ebb-0"] = g
		mean, err := v.net.Host("10.0.9.9").ListenPacket(t.Context(), "10.0.9.9:9")
		if err != nil {
			t.Fatal(err)
		}
		defer mean.Close()
		to, err := net.ResolveUDPAddr("udp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		say := func(name string) {
			text := append([]byte("\x04\x86\xabIncarnation\x01\xa4Node"), 0xa0|byte(len(name)))
			text = append(text, name...)
			text = append(text, "\xa4Addr\xa4\x0a\x00\x09\x09\xa4Port\x09\xa4Meta\xa0\xa3Vsn\xa6\x01\x05\x02\x00\x00\x00"...)
			if _, err := mean.WriteTo(text, to); err != nil {
				t.Fatal(err)
			}
		}
		const madeUp = 2000
		for i := range madeUp {
			say(fmt.Sprintf("evil-%d+1", i))
			say(fmt.Sprintf("ebb-0+%d", 2+i))
			time.Sleep(time.Millisecond)
		}
		members := len(g.Members())
		t.Logf("%d of %d members were believed, and %d refused", members, madeUp, g.Refused(cluster.RefusedMembers))
		if members > 300 || g.Refused(cluster.RefusedMembers) < madeUp {
			t.Errorf("%d members, and %d refused", members, g.Refused(cluster.RefusedMembers))
		}
		v.open("ebb-1", "ebb-1", 1, ip(1), ip(0)+gossipPort)
		v.within(time.Minute, "a member that has a record", func() bool { m, ok := g.Member("ebb-1"); return ok && m.Alive })
	})
}

// Starts of a node that are made up, and answer, do not keep a real start of it out: it takes the place of the one that
// was heard of first, but for that at whose address the node is connected.
func TestStartsThatAreMadeUpMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		g, err := cluster.OpenGossip(t.Context(), cluster.GossipConfig{
			Node: "ebb-0", Boot: 1, Network: v.net.Host(ip(0)), Listen: ip(0) + gossipPort,
			DiskOf: func(string) string { return "a-disk" },
			Proven: func(m cluster.Member) bool { return m.Boot == 50 },
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		v.nodes["ebb-0"] = g
		v.open("first", "ebb-1", 50, ip(1), ip(0)+gossipPort)
		v.within(time.Minute, "the real start",
			func() bool { m, ok := g.Member("ebb-1"); return ok && m.Alive && m.Boot == 50 })
		for i := range 20 {
			v.open(fmt.Sprint("evil", i), "ebb-1", uint64(20+i), ip(10+i), ip(0)+gossipPort)
			time.Sleep(time.Second)
		}
		if m, _ := g.Member("ebb-1"); m.Boot != 50 {
			t.Errorf("start %d speaks for the node, and it is connected with 50", m.Boot)
		}
		v.open("again", "ebb-1", 100, ip(2), ip(0)+gossipPort)
		v.within(time.Minute, "the start after it",
			func() bool { m, ok := g.Member("ebb-1"); return ok && m.Alive && m.Boot == 100 })
	})
}
