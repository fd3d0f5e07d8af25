package transport

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/proto"
)

// A connection without TLS between nodes is checked: it carries the bytes of gRPC in records, and delivers no byte of a
// record before its checksum was verified. TLS does the same with its own records.
//
//	client   preface              server   preface, then records both ways
//	preface  24 bytes, as many as the preface of HTTP/2, which it replaces
//	record   length 4  sum of the payload 4  sum of these eight 4  payload[length]      little-endian, CRC-32C
//
// The checksum of the head ensures that no reader waits for the bytes of a damaged length.
//
// A server of an older build does not know this preface: it answers with HTTP/2 settings and closes the connection. The
// client then dials again, without the preface. A damaged preface does not make a server look old: a server that knows
// the preface does not answer if at least half the bytes match. All else is left to gRPC, which may refuse it.
const (
	checkedPreface = "EBB CHECKED CONNECTION 1"

	recordHead     = 12
	recordBytesMax = 64 << 10

	settingsHead = 9 // of a frame of HTTP/2
	settingsKind = 4
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errNoChecksums = errors.New("the other end speaks HTTP/2 and knows no checksums")
)

// Checks verifies the connections of a node, and counts damaged ones.
type Checks struct {
	logger  *slog.Logger
	damaged atomic.Uint64
}

// NewChecks returns Checks that log closed connections.
func NewChecks(logger *slog.Logger) *Checks { return &Checks{logger: logger} }

// Damaged returns how many connections were closed because of a wrong checksum.
func (c *Checks) Damaged() uint64 { return c.damaged.Load() }

// Dial opens a connection to another node with dial. The connection is checked if the other node supports it.
func (c *Checks) Dial(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	over := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = exchangePreface(conn)
	if !over() {
		return nil, ctx.Err()
	}
	if err == nil {
		return c.checked(conn), nil
	}
	_ = conn.Close() // the error is known
	if errors.Is(err, errNoChecksums) {
		c.logger.Warn("no checksums on a connection: the build of the peer is older, or a proxy speaks HTTP/2", slog.Any("at", conn.RemoteAddr()))
		return dial(ctx)
	}
	return nil, fmt.Errorf("greet %s: %w", conn.RemoteAddr(), err)
}

// exchangePreface writes the preface and waits for the other end's preface.
func exchangePreface(conn net.Conn) error {
	if _, err := io.WriteString(conn, checkedPreface); err != nil {
		return err
	}
	var answer [len(checkedPreface)]byte
	if _, err := io.ReadFull(conn, answer[:settingsHead]); err != nil {
		return err
	}
	if answer[0] == 0 && answer[3] == settingsKind && [5]byte(answer[4:settingsHead]) == [5]byte{} {
		return errNoChecksums
	}
	if _, err := io.ReadFull(conn, answer[settingsHead:]); err != nil {
		return err
	}
	if string(answer[:]) != checkedPreface {
		return proto.ErrUnreachable.Errorf("%q is no greeting of a node", answer)
	}
	return nil
}

// Credentials returns the credentials of a server without TLS. Connections of nodes are checked; those of clients and
// older nodes are not.
func (c *Checks) Credentials() credentials.TransportCredentials {
	return checkedCredentials{insecure.NewCredentials(), c}
}

type checkedCredentials struct {
	credentials.TransportCredentials
	checks *Checks
}

// ServerHandshake implements credentials.TransportCredentials.
func (s checkedCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	accepted, err := s.checks.accept(conn)
	if err != nil {
		return nil, nil, err
	}
	return s.TransportCredentials.ServerHandshake(accepted)
}

// Clone implements credentials.TransportCredentials.
func (s checkedCredentials) Clone() credentials.TransportCredentials {
	return checkedCredentials{s.TransportCredentials.Clone(), s.checks}
}

// accept reads the first bytes of a connection. A connection that begins with the preface is checked.
func (c *Checks) accept(conn net.Conn) (net.Conn, error) {
	var first [len(checkedPreface)]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return nil, err
	}
	switch matching := prefaceMatch(first); {
	case matching == len(checkedPreface):
		_, err := io.WriteString(conn, checkedPreface)
		return c.checked(conn), err
	case matching >= len(checkedPreface)/2:
		return nil, proto.ErrUnreachable.Errorf("%q is no greeting of a node, and was damaged on its way from %s", first, conn.RemoteAddr())
	}
	return &begun{Conn: conn, first: first[:]}, nil
}

// prefaceMatch returns how many bytes match the preface.
func prefaceMatch(first [len(checkedPreface)]byte) (n int) {
	for i := range first {
		if first[i] == checkedPreface[i] {
			n++
		}
	}
	return n
}

// begun is a connection whose first bytes were already read.
type begun struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

// checkedConn is a connection after the exchange of prefaces.
type checkedConn struct {
	net.Conn
	checks *Checks

	in   *bufio.Reader // used by one reader only
	left int           // bytes of the record's payload in the buffer that are verified and not read yet
	err  error         // sticky

	mu  sync.Mutex // guards what follows
	out []byte     // reused
}

func (c *Checks) checked(conn net.Conn) *checkedConn {
	return &checkedConn{Conn: conn, checks: c, in: bufio.NewReaderSize(conn, recordHead+recordBytesMax)}
}

// Read implements net.Conn.
func (c *checkedConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		if c.err != nil {
			return 0, c.err
		}
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// next waits for a record and verifies its checksum.
func (c *checkedConn) next() error {
	head, err := c.in.Peek(recordHead)
	if err != nil {
		return cutOff(err, len(head) > 0)
	}
	size, sum := binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:])
	if got, want := crc32.Checksum(head[:8], castagnoli), binary.LittleEndian.Uint32(head[8:]); got != want {
		return c.damage("the head of a record", got, want)
	}
	if size == 0 || size > recordBytesMax {
		return c.broken(proto.ErrUnreachable.Errorf("connection with %s: a record of %d bytes is over the limit of %d, or empty", c.RemoteAddr(), size, recordBytesMax))
	}
	all, err := c.in.Peek(recordHead + int(size))
	if err != nil {
		return cutOff(err, true)
	}
	if got := crc32.Checksum(all[recordHead:], castagnoli); got != sum {
		return c.damage(fmt.Sprintf("a record of %d bytes", size), got, sum)
	}
	c.left = int(size)
	_, err = c.in.Discard(recordHead)
	return err
}

// cutOff returns the error of a connection that ended, possibly inside a record.
func cutOff(err error, amid bool) error {
	if amid && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// damage closes a connection after a wrong checksum.
func (c *checkedConn) damage(what string, got, want uint32) error {
	c.checks.damaged.Add(1)
	return c.broken(proto.ErrUnreachable.Errorf("connection with %s: %s has the checksum %08x and says %08x: it was damaged on its way", c.RemoteAddr(), what, got, want))
}

func (c *checkedConn) broken(err error) error {
	c.err = err
	c.checks.logger.Warn("a connection is closed", slog.Any("error", err))
	_ = c.Close() // the error is known
	return err
}

// Write implements net.Conn.
func (c *checkedConn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(p) && err == nil {
		part := p[n:min(len(p), n+recordBytesMax)]
		c.out = appendRecord(c.out[:0], part)
		if _, err = c.Conn.Write(c.out); err == nil {
			n += len(part)
		}
	}
	return n, err
}

func appendRecord(b, payload []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
	return append(b, payload...)
}
