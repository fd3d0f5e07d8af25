package main

import (
	"bytes"
	"compress/lzw"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// Types of memberlist's messages.
const (
	gossipPing     = 0
	gossipPushPull = 6
	gossipCompound = 7
	gossipUser     = 8
	gossipCompress = 9
	gossipLabel    = 244
)

// gossip returns attempts on the gossip port, by clients without a key.
func gossip() (out []Attempt) {
	const of = "gossip"
	compressed, err := lzwZeros(30 * mib)
	if err != nil {
		panic(err) // a buffer takes everything
	}
	stream := func(n int, message []byte, hold bool) func(context.Context, *Arena) error {
		return func(ctx context.Context, a *Arena) error {
			limited, cancel := context.WithTimeout(ctx, 8*time.Second)
			defer cancel()
			return together(n, func(int) error {
				c, err := a.raw(limited, "gossip")
				if err != nil {
					return err
				}
				defer c.Close()
				if _, err := c.Write(message); err != nil {
					return nil // it was cut off
				}
				if !hold {
					_ = c.(*net.TCPConn).CloseWrite()
				}
				_ = drainConn(c, mib)
				return nil
			})
		}
	}
	// a msgpack map of two fields: Algo (0) and Buf
	bomb := append([]byte{gossipCompress, 0x82, 0xa4, 'A', 'l', 'g', 'o', 0, 0xa3, 'B', 'u', 'f', 0xc6},
		binary.BigEndian.AppendUint32(nil, uint32(len(compressed)))...)
	bomb = append(bomb, compressed...)
	header := func(nodes, state uint64) []byte {
		b := append([]byte{gossipPushPull, 0x83, 0xa5}, "Nodes"...)
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), nodes)
		b = append(append(b, 0xac), "UserStateLen"...)
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), state)
		return append(append(append(b, 0xa4), "Join"...), 0xc3)
	}
	deep := append([]byte{gossipPing}, bytes.Repeat([]byte{0x91}, 200_000)...)
	wide := append([]byte{gossipPing, 0xdd, 0xff, 0xff, 0xff, 0xff}, bytes.Repeat([]byte{0xc0}, 60_000)...)
	binaryLength := []byte{gossipPing, 0x82, 0xa4, 'N', 'o', 'd', 'e', 0xc6, 0xff, 0xff, 0xff, 0xff}
	for _, mode := range []Mode{Open, Sealed} {
		for _, c := range []struct {
			name    string
			n       int
			message []byte
			hold    bool
			grows   int64
		}{
			{"24 compressed messages of 30 MiB", 24, bomb, false, 128 * mib},
			{"compressed within compressed", 8, append([]byte{gossipCompound, 1, 0xff, 0xff}, bomb...), false, 64 * mib},
			{"a state of 2^62 nodes", 8, header(1<<62, 0), false, 64 * mib},
			{"a state of a million nodes that do not come", 64, header(1<<20, 0), true, 96 * mib},
			{"a user state of 20 MiB that does not come", 64, header(0, 20*mib), true, 96 * mib},
			{"a user state of -1 bytes", 8, header(0, 1<<64-1), false, 64 * mib},
			{
				"a message of a user of 2^63 bytes", 8,
				append([]byte{gossipUser, 0x81, 0xaa, 'U', 's', 'e', 'r', 'M', 's', 'g', 'L', 'e', 'n', 0xcf}, 0x7f, 0xff, 0xff,
					0xff, 0xff, 0xff, 0xff, 0xff), true, 64 * mib,
			},
			{"a label of 255 bytes that does not come", 64, []byte{gossipLabel, 0xff}, true, 64 * mib},
			{"labels within labels", 8, bytes.Repeat([]byte{gossipLabel, 1, 'x'}, 100_000), false, 64 * mib},
			{"msgpack of 200,000 lists in each other", 8, deep, false, 64 * mib},
			{"msgpack of a list of 2^32-1", 8, wide, false, 64 * mib},
			{"msgpack of 2^32-1 bytes", 8, binaryLength, true, 64 * mib},
			{"encrypted rubbish of 2^32-1 bytes", 64, []byte{10, 0xff, 0xff, 0xff, 0xff, 1, 2, 3}, true, 64 * mib},
		} {
			out = append(out, Attempt{
				Group: of, Name: c.name, Mode: mode, Fresh: c.grows >= 128*mib, Grows: c.grows,
				Within: 15 * time.Second, Run: stream(c.n, c.message, c.hold), Long: c.hold,
			})
		}
		out = append(out, Attempt{
			Group: of, Name: "packets of rubbish", Mode: mode,
			Run: func(ctx context.Context, a *Arena) error { return packets(ctx, a, bomb) },
		})
	}
	return append(out,
		Attempt{Group: of, Name: "poses as another node", Mode: Three, Within: 40 * time.Second, Run: pose},
		Attempt{Group: of, Name: "says that all others are dead", Mode: Three, Long: true, Within: 40 * time.Second, Run: bury},
	)
}

func lzwZeros(n int) ([]byte, error) {
	var b bytes.Buffer
	w := lzw.NewWriter(&b, lzw.LSB, 8)
	if _, err := w.Write(make([]byte, n)); err != nil {
		return nil, err
	}
	return b.Bytes(), w.Close()
}

// packets sends 20,000 packets, whose first byte takes every value.
func packets(ctx context.Context, a *Arena, bomb []byte) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", a.at["gossip"])
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range 20_000 {
		b := bytes.Repeat([]byte{byte(i), byte(i >> 8), 0xdd, 0xff}, 16)
		b[0] = byte(i)
		if i%100 == 0 {
			b = bomb[:min(len(bomb), 60_000)]
		}
		if _, err := c.Write(b); err != nil && !errors.Is(err, net.ErrClosed) {
			continue // the kernel has no room for it
		}
	}
	return nil
}

// impostor joins the gossip with the name and the metadata of another node.
type impostor struct{ meta []byte }

func (i impostor) NodeMeta(int) []byte             { return i.meta }
func (impostor) NotifyMsg([]byte)                  {}
func (impostor) GetBroadcasts(int, int) [][]byte   { return nil }
func (impostor) LocalState(bool) []byte            { return nil }
func (impostor) MergeRemoteState(_ []byte, _ bool) {}

func (a *Arena) joinGossip(name string, meta []byte) (*memberlist.Memberlist, error) {
	cfg := memberlist.DefaultLocalConfig()
	cfg.Name, cfg.BindAddr, cfg.BindPort, cfg.EnableCompression = name, "127.0.0.1", 0, false
	cfg.Delegate, cfg.Logger = impostor{meta}, log.New(io.Discard, "", 0)
	list, err := memberlist.Create(cfg)
	if err != nil {
		return nil, err
	}
	if _, err := list.Join([]string{a.at["gossip"]}); err != nil {
		return nil, errors.Join(err, list.Shutdown())
	}
	return list, nil
}

// pose joins the gossip as ebb-1, with its metadata and an earlier start. All nodes must continue to run.
func pose(ctx context.Context, a *Arena) error {
	spy, err := a.joinGossip("spy", nil)
	if err != nil {
		return nil // strangers are not let in
	}
	var meta []byte
	for until := time.Now().Add(5 * time.Second); meta == nil &&
		time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		for _, m := range spy.Members() {
			if name, _, _ := strings.Cut(m.Name, "+"); name == "ebb-1" {
				meta = m.Meta
			}
		}
	}
	if err := spy.Shutdown(); err != nil {
		return err
	}
	if meta == nil {
		return nil // strangers do not get the metadata
	}
	list, err := a.joinGossip("ebb-1+"+strconv.FormatUint(1, 36), meta)
	if err != nil {
		return nil // it is not let in
	}
	defer func() { _ = list.Shutdown() }()
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until) &&
		ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		for i := range a.fleet.Nodes() {
			if !a.fleet.Runs(i) {
				return broke("%s has ended: %s", a.fleet.Name(i), lastLine(a.fleet.LogTail(i)))
			}
		}
	}
	return nil
}

// bury sends every node messages that the others are dead, again and again. Writes must succeed afterwards.
func bury(ctx context.Context, a *Arena) error {
	spy, err := a.joinGossip("spy2", nil)
	if err != nil {
		return nil // strangers are not let in
	}
	defer func() { _ = spy.Shutdown() }()
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for incarnation := uint32(1); limited.Err() == nil; incarnation++ {
		for _, m := range spy.Members() {
			b := append([]byte{5, 0x83, 0xab}, "Incarnation"...) // dead
			b = binary.BigEndian.AppendUint32(append(b, 0xce), incarnation)
			b = append(append(b, 0xa4), "Node"...)
			b = append(append(b, 0xd9, byte(len(m.Name))), m.Name...)
			b = append(append(b, 0xa4), "From"...)
			b = append(append(b, 0xa4), "spy2"...)
			for i := range a.fleet.Nodes() {
				if c, err := (&net.Dialer{}).DialContext(limited, "udp", a.fleet.Gossip(i)); err == nil {
					_, _ = c.Write(b)
					c.Close()
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := a.ebb(ctx, "", "incr", "-n", own, "k", "b", "--timeout", "5s"); err != nil {
		return broke("a write after it: %v", err)
	}
	return nil
}

// slowness returns attempts that hold connections to all listeners, and send almost nothing.
func slowness() (out []Attempt) {
	const of = "slow"
	says := map[string]string{
		"nothing": "", "half a line": "GET / HT", "headers without end": "GET / HTTP/1.1\r\nHost: x\r\nX-A: b\r\n",
		"a body that does not come":  "POST /v1/increment HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
		"a chunk that does not come": "POST /v1/increment HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n{",
		"the preface alone":          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	}
	for _, listener := range []string{"grpc", "http", "gossip", "admin"} {
		for name, text := range says {
			out = append(out, Attempt{
				Group: of, Name: "200 connections to " + listener + " say " + name, Mode: Open,
				Within: 40 * time.Second, Long: name != "nothing" && (name != "a body that does not come" || listener != "http"),
				Run: func(ctx context.Context, a *Arena) error { return hold(ctx, a, listener, text, 200) },
			})
		}
	}
	return append(out, Attempt{
		Group: of, Name: "200 handshakes of TLS that stop", Mode: Sealed, Long: true,
		Within: 40 * time.Second, Run: func(ctx context.Context, a *Arena) error {
			for _, listener := range []string{"grpc", "http"} {
				if err := holdAt(ctx, a, a.at[listener], "\x16\x03\x01\x02\x00\x01\x00", 200); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

func hold(ctx context.Context, a *Arena, listener, text string, n int) error {
	return holdAt(ctx, a, a.at[listener], text, n)
}

// holdAt opens connections that send text and then nothing more. While it holds them, the cluster must answer others.
// One of the held connections must be closed within 35 seconds, unless it sent nothing at all.
func holdAt(ctx context.Context, a *Arena, address, text string, n int) error {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range n {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, text); err != nil {
			break // it was cut off
		}
	}
	limited, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	if err := a.Probe(limited); err != nil {
		return broke("with %d connections held: %v", n, err)
	}
	if text == "" || address == a.at["gossip"] {
		return nil
	}
	_ = conns[0].SetReadDeadline(time.Now().Add(35 * time.Second))
	_, err := io.Copy(io.Discard, conns[0])
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return broke("a connection that says %.30q is open after 35 s", text)
	}
	return nil
}

// crowds returns attempts with many connections, watches and paths.
func crowds() []Attempt {
	const of = "crowds"
	return []Attempt{
		{
			Group: of, Name: "2,000 connections at once", Mode: Open, Grows: 160 * mib,
			Run: func(ctx context.Context, a *Arena) error {
				for _, listener := range []string{"grpc", "http", "admin", "gossip"} {
					if err := holdAt(ctx, a, a.at[listener], "", 500); err != nil {
						return fmt.Errorf("%s: %w", listener, err)
					}
				}
				return nil
			},
		},
		{
			Group: of, Name: "5,000 connections one after the other", Mode: Open,
			Run: func(ctx context.Context, a *Arena) error {
				return together(4, func(i int) error {
					address := []string{a.at["grpc"], a.at["http"], a.at["gossip"], a.at["admin"]}[i]
					for range 1_250 {
						c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
						if err != nil {
							return err
						}
						_ = c.(*net.TCPConn).SetLinger(0)
						c.Close()
					}
					return nil
				})
			},
		},
		{Group: of, Name: "watches of health", Mode: Tokens, Run: healthWatches},
		{Group: of, Name: "1,100 watches", Mode: Open, Grows: 160 * mib, Within: 30 * time.Second, Run: manyWatches},
		{Group: of, Name: "paths that become metrics", Mode: Open, Run: manySeries},
	}
}
