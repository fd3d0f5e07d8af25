package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// frames is an HTTP/2 connection whose frames are all written by hand.
type frames struct {
	net.Conn
	*http2.Framer
	host    string
	headers [][2]string // that every request has
	next    uint32
	decoder *hpack.Decoder
}

// dialFrames connects, and sends the preface and the settings of a client. Only status and ignore read what the server
// sends.
func dialFrames(ctx context.Context, a *Arena, listener string) (*frames, error) {
	conn, err := a.raw(ctx, listener, "h2")
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	f := &frames{
		Conn: conn, Framer: http2.NewFramer(conn, conn), host: a.at[listener], next: 1,
		decoder: hpack.NewDecoder(4096, nil),
	}
	f.AllowIllegalWrites = true
	if err := f.WriteSettings(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return f, nil
}

// ignore reads and drops what the server sends, so that neither side waits for the other.
func (f *frames) ignore() {
	go func() { _ = drainConn(f.Conn, 1<<40) }() // until the connection is closed
}

// block returns the encoded headers of a gRPC request.
func (f *frames) block(path string, more ...[2]string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	fields := [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", path},
		{":authority", f.host},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	}
	for _, h := range append(append(fields, f.headers...), more...) {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // a buffer takes everything
	}
	return b.Bytes()
}

// request begins a stream.
func (f *frames) request(path string, more ...[2]string) (stream uint32, err error) {
	stream = f.next
	f.next += 2
	return stream, f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: f.block(path, more...),
		EndHeaders: true,
	})
}

func (f *frames) data(stream uint32, b []byte, end bool) error { return f.WriteData(stream, end, b) }

// body sends a whole body, within the first window of a stream.
func (f *frames) body(stream uint32, b []byte) error {
	for len(b) > 16<<10 {
		if err := f.data(stream, b[:16<<10], false); err != nil {
			return err
		}
		b = b[16<<10:]
	}
	return f.data(stream, b, true)
}

// status reads frames until a stream has ended, and returns its grpc-status, or how it ended.
func (f *frames) status(ctx context.Context, stream uint32) (string, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = f.SetReadDeadline(deadline)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "", err
		}
		switch fr := frame.(type) {
		case *http2.SettingsFrame:
			if !fr.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			return "goaway " + fr.ErrCode.String(), nil
		case *http2.RSTStreamFrame:
			if fr.StreamID == stream {
				return "reset " + fr.ErrCode.String(), nil
			}
		case *http2.HeadersFrame:
			fields, err := f.decoder.DecodeFull(fr.HeaderBlockFragment())
			if err != nil {
				return "", err
			}
			for _, h := range fields {
				if fr.StreamID == stream && h.Name == "grpc-status" {
					return h.Value, nil
				}
			}
		}
	}
}

// gzipZeros compresses n zeros.
func gzipZeros(n int) ([]byte, error) {
	zeros.Do(func() {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		chunk := make([]byte, mib)
		for range n / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				zerosErr = err
				return
			}
		}
		zerosErr = w.Close()
		zerosGzip = b.Bytes()
	})
	return zerosGzip, zerosErr
}

var (
	zeros     sync.Once
	zerosGzip []byte
	zerosErr  error
)

// floodFor is how long a flood lasts.
const floodFor = 500 * time.Millisecond

// flood writes until the server ends the connection or within has passed.
func flood(ctx context.Context, a *Arena, within time.Duration, write func(f *frames, i int) error) error {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	f, err := dialFrames(limited, a, "grpc")
	if err != nil {
		return err
	}
	defer f.Close()
	f.ignore()
	for i := 0; limited.Err() == nil; i++ {
		if write(f, i) != nil {
			return nil // it was cut off
		}
	}
	return nil
}

// floods returns attempts that send HTTP/2 frames without end.
func floods() []Attempt {
	const of = "HTTP/2"
	const path = ebbv1grpc.Ebb_Ask_FullMethodName
	each := func(write func(f *frames, i int) error) func(context.Context, *Arena) error {
		return func(ctx context.Context, a *Arena) error {
			return together(4, func(int) error { return flood(ctx, a, floodFor, write) })
		}
	}
	attempts := []Attempt{
		{Group: of, Name: "rapid reset", Mode: Open, Run: each(func(f *frames, _ int) error {
			stream, err := f.request(path)
			return errors.Join(err, f.WriteRSTStream(stream, http2.ErrCodeCancel))
		})},
		{Group: of, Name: "SETTINGS flood", Mode: Open, Run: each(func(f *frames, i int) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(i)})
		})},
		{
			Group: of, Name: "PING flood", Mode: Open,
			Run: each(func(f *frames, i int) error { return f.WritePing(false, [8]byte{byte(i)}) }),
		},
		{Group: of, Name: "empty DATA flood", Mode: Open, Run: each(func(f *frames, i int) error {
			if i == 0 {
				_, err := f.request(path)
				return err
			}
			return f.data(1, nil, false)
		})},
		{
			Group: of, Name: "WINDOW_UPDATE flood", Mode: Open,
			Run: each(func(f *frames, _ int) error { return f.WriteWindowUpdate(0, 1) }),
		},
		{
			Group: of, Name: "window beyond 2^31", Mode: Open,
			Run: each(func(f *frames, _ int) error { return f.WriteWindowUpdate(0, 1<<31-1) }),
		},
		{
			Group: of, Name: "frames of unknown types", Mode: Open,
			Run: each(func(f *frames, _ int) error { return f.WriteRawFrame(0xee, 0xff, 0, make([]byte, 16<<10)) }),
		},
		{Group: of, Name: "PRIORITY flood", Mode: Open, Run: each(func(f *frames, i int) error {
			return f.WritePriority(uint32(2*i+1), http2.PriorityParam{StreamDep: uint32(i), Weight: 255})
		})},
		{
			Group: of, Name: "frame larger than allowed", Mode: Open,
			Run: each(func(f *frames, _ int) error { return f.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 8*mib)) }),
		},
		{Group: of, Name: "CONTINUATION without end", Mode: Open, Grows: 64 * mib, Run: each(func(f *frames, i int) error {
			if i == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(path)})
			}
			return f.WriteContinuation(1, false, bytes.Repeat(literal, 500))
		})},
		{Group: of, Name: "empty CONTINUATION without end", Mode: Open, Run: each(func(f *frames, i int) error {
			if i == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(path)})
			}
			return f.WriteContinuation(1, false, nil)
		})},
		{Group: of, Name: "10,000 streams held open on a connection", Mode: Open, Run: each(func(f *frames, _ int) error {
			_, err := f.request(path)
			return err
		})},
		{
			Group: of, Name: "1,000 streams on each of 100 connections", Mode: Open, Fresh: true,
			Answers: floodProbeWithin,
			Run:     func(ctx context.Context, a *Arena) error { return manyStreams(ctx, a, 100) },
		},
		{
			Group: of, Name: "1,000 streams on each of 400 connections", Mode: Open, Fresh: true, Long: true,
			Answers: floodProbeWithin,
			Run:     func(ctx context.Context, a *Arena) error { return manyStreams(ctx, a, 400) },
		},
		{
			Group: of, Name: "HPACK table that is named again and again", Mode: Open, Fresh: true, Grows: 64 * mib,
			Run: each(hpackBomb),
		},
		{Group: of, Name: "streams of even numbers and backwards", Mode: Open, Run: each(func(f *frames, i int) error {
			f.next = uint32(1_000_000 - 3*i)
			_, err := f.request(path)
			return err
		})},
		{Group: of, Name: "headers of 1 MiB", Mode: Open, Run: largeHeaders},
		{Group: of, Name: "rapid reset over TLS", Mode: Sealed, Run: each(func(f *frames, _ int) error {
			stream, err := f.request(path)
			return errors.Join(err, f.WriteRSTStream(stream, http2.ErrCodeCancel))
		})},
		{Group: of, Name: "HTTP/2 to the HTTP listener", Mode: Open, Run: func(ctx context.Context, a *Arena) error {
			f, err := dialFrames(ctx, a, "http")
			if err != nil {
				return err
			}
			defer f.Close()
			_ = drainConn(f.Conn, 1<<20)
			return nil
		}},
		{Group: of, Name: "HTTP/1 to the gRPC listener", Mode: Open, Run: func(ctx context.Context, a *Arena) error {
			c, err := a.raw(ctx, "grpc")
			if err != nil {
				return err
			}
			defer c.Close()
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", path)
			_ = drainConn(c, 1<<20)
			return nil
		}},
	}
	for i := range attempts {
		if attempts[i].Grows == 0 {
			attempts[i].Grows = floodGrows // for streams of 4 connections, and garbage that is not collected yet
		}
	}
	return attempts
}

// literal is a header field that no table has: x: y, not indexed.
var literal = []byte{0, 1, 'x', 1, 'y'}

// hpackBomb makes the server store a header of 4,000 bytes in its HPACK table, and refers to it thousands of times with
// one byte.
func hpackBomb(f *frames, _ int) error {
	block := append(f.block(ebbv1grpc.Ebb_Ask_FullMethodName), 0x40, 1, 'z', 0x7f, 0xa1,
		0x1e) // indexed, with a value of 4,000 bytes
	block = append(block, bytes.Repeat([]byte("v"), 4_000)...)
	block = append(block, bytes.Repeat([]byte{0xbe}, 10_000)...) // the newest entry of the table
	stream := f.next
	f.next += 2
	return f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block, EndHeaders: true,
		EndStream: true,
	})
}

// manyStreams begins as many streams as a connection may have, on many connections, and sends no message.
func manyStreams(ctx context.Context, a *Arena, n int) error {
	var conns []*frames
	defer func() {
		for _, f := range conns {
			f.Close()
		}
	}()
	for range n {
		f, err := dialFrames(ctx, a, "grpc")
		if err != nil {
			return err
		}
		conns = append(conns, f)
		f.ignore()
	}
	_ = together(len(conns), func(i int) error {
		for range 1_000 {
			if _, err := conns[i].request(ebbv1grpc.Ebb_Ask_FullMethodName); err != nil {
				return err // it was cut off
			}
		}
		return nil
	})
	limited, cancel := context.WithTimeout(ctx, floodProbeWithin)
	defer cancel()
	if err := a.Probe(limited); err != nil {
		return broke("meanwhile: %v", err)
	}
	return nil
}

func largeHeaders(ctx context.Context, a *Arena) error {
	f, err := dialFrames(ctx, a, "grpc")
	if err != nil {
		return err
	}
	defer f.Close()
	block := f.block(ebbv1grpc.Ebb_Ask_FullMethodName, [2]string{"x-large", string(bytes.Repeat([]byte("v"), mib))})
	err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]})
	for block = block[16<<10:]; err == nil && len(block) > 0; {
		n := min(len(block), 16<<10)
		err = f.WriteContinuation(1, n == len(block), block[:n])
		block = block[n:]
	}
	if got, err := f.status(ctx, 1); err == nil && (got == "0" || got == "16") {
		return broke("headers of a MiB were read to their end: grpc-status %s", got)
	}
	return nil
}
