package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// kind is the kind of a message. The numbers are part of the wire contract.
type kind uint8

const (
	kindHello      kind = 1
	kindWelcome    kind = 2
	kindAppend     kind = 3
	kindVote       kind = 4
	kindPreVote    kind = 5
	kindTimeoutNow kind = 6
	kindAnswer     kind = 7
	kindPing       kind = 8
	kindPong       kind = 9
	kindAsk        kind = 10
	kindAskReply   kind = 11
	kindInstall    kind = 12
	kindChunk      kind = 13
	kindEnd        kind = 14
	kindList       kind = 15
	kindWant       kind = 16
)

// wordBytes is the size of the word in front of a message.
const wordBytes = 4

// textMax bounds an error's text on the wire.
const textMax = 1 << 10

var errMalformed = errors.New("malformed message")

// begin reserves the word of a message, and finish fills it in.
func begin(b []byte) (out []byte, at int) { return append(b, 0, 0, 0, 0), len(b) }

func finish(b []byte, at int, k kind) []byte {
	binary.LittleEndian.PutUint32(b[at:], uint32(k)<<24|uint32(len(b)-at-wordBytes))
	return b
}

// nextMessage splits the first message off a frame's body.
func nextMessage(b []byte) (k kind, payload, rest []byte, err error) {
	if len(b) < wordBytes {
		return 0, nil, nil, errMalformed
	}
	w := binary.LittleEndian.Uint32(b)
	n := int(w & 0xffffff)
	if n > len(b)-wordBytes {
		return 0, nil, nil, errMalformed
	}
	return kind(w >> 24), b[wordBytes : wordBytes+n], b[wordBytes+n:], nil
}

// fields reads a payload. After the first bad field everything reads as zero,
// and end reports it.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) uint() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.fail()
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) int() int64 {
	v, n := binary.Varint(f.b)
	if n <= 0 {
		f.fail()
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) uint32() uint32 {
	v := f.uint()
	if v > math.MaxUint32 {
		f.fail()
		return 0
	}
	return uint32(v)
}

func (f *fields) byte() byte {
	if len(f.b) == 0 {
		f.fail()
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

// flag reads a byte that is 0 or 1.
func (f *fields) flag() bool {
	v := f.byte()
	if v > 1 {
		f.fail()
	}
	return v == 1
}

// bytes returns a part of the payload itself: a caller that keeps it beyond the frame must copy it.
func (f *fields) bytes() []byte {
	n := f.uint()
	if n > uint64(len(f.b)) {
		f.fail()
		return nil
	}
	v := f.b[:n:n]
	f.b = f.b[n:]
	return v
}

func (f *fields) string() string { return string(f.bytes()) }

func (f *fields) fail() { f.b, f.bad = nil, true }

// end returns an error if a field was bad, or if bytes are left.
func (f *fields) end() error {
	if f.bad || len(f.b) != 0 {
		return errMalformed
	}
	return nil
}

func appendBytes[T ~string | ~[]byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendFlag(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// hello is the first message on a stream.
type hello struct {
	version, oldest uint64
	session         uint64 // the same on all streams of a session
	stream          kind   // kindPing control, kindAppend append, kindInstall snapshot
	from, to        string
	cluster         string
}

func (h *hello) append(b []byte) []byte {
	b, at := begin(b)
	b = binary.AppendUvarint(b, h.version)
	b = binary.AppendUvarint(b, h.oldest)
	b = binary.AppendUvarint(b, h.session)
	b = append(b, byte(h.stream))
	b = appendBytes(b, h.from)
	b = appendBytes(b, h.to)
	b = appendBytes(b, h.cluster)
	return finish(b, at, kindHello)
}

// decode reads the fields that this version knows; a later version may append some.
func (h *hello) decode(p []byte) error {
	f := fields{b: p}
	*h = hello{
		version: f.uint(), oldest: f.uint(), session: f.uint(), stream: kind(f.byte()),
		from: f.string(), to: f.string(), cluster: f.string(),
	}
	if f.bad {
		return errMalformed
	}
	return nil
}

// welcome is the answer to a hello.
type welcome struct {
	version, oldest uint64
	cluster         string
}

func (w *welcome) append(b []byte) []byte {
	b, at := begin(b)
	b = binary.AppendUvarint(b, w.version)
	b = binary.AppendUvarint(b, w.oldest)
	b = appendBytes(b, w.cluster)
	return finish(b, at, kindWelcome)
}

func (w *welcome) decode(p []byte) error {
	f := fields{b: p}
	*w = welcome{version: f.uint(), oldest: f.uint(), cluster: f.string()}
	if f.bad {
		return errMalformed
	}
	return nil
}

// envelope precedes every request to a replica.
type envelope struct {
	id      uint64
	group   uint32
	replica uint64
	ttl     time.Duration // how long the caller waits after sending
}

func (e *envelope) append(b []byte) []byte {
	b = binary.AppendUvarint(b, e.id)
	b = binary.AppendUvarint(b, uint64(e.group))
	b = binary.AppendUvarint(b, e.replica)
	return binary.AppendUvarint(b, uint64(max(e.ttl, 0)/time.Millisecond))
}

func (e *envelope) decode(f *fields) {
	*e = envelope{id: f.uint(), group: f.uint32(), replica: f.uint()}
	ttl := f.uint()
	if ttl > uint64(math.MaxInt64/time.Millisecond) {
		f.fail()
		return
	}
	e.ttl = time.Duration(ttl) * time.Millisecond
}

// Bits of a header's first byte.
const (
	addrDerived  = 1 << 0 // Addr is "<sender's node>/<ID>"
	leaderIsAddr = 1 << 1 // Leader or Candidate is Addr
	headerBits   = addrDerived | leaderIsAddr
)

func appendHeader(b []byte, node string, h raft.RPCHeader, leader []byte) []byte {
	var bits byte
	if isAddressOf(h.Addr, node, h.ID) {
		bits |= addrDerived
	}
	if string(leader) == string(h.Addr) {
		bits |= leaderIsAddr
	}
	b = append(b, bits)
	b = binary.AppendVarint(b, int64(h.ProtocolVersion))
	b = appendBytes(b, h.ID)
	if bits&addrDerived == 0 {
		b = appendBytes(b, h.Addr)
	}
	if bits&leaderIsAddr == 0 {
		b = appendBytes(b, leader)
	}
	return b
}

func isAddressOf(addr []byte, node string, id []byte) bool {
	return len(addr) == len(node)+1+len(id) && string(addr[:len(node)]) == node &&
		addr[len(node)] == '/' && string(addr[len(node)+1:]) == string(id)
}

// decodeHeader copies the values that it returns, with one allocation in the usual case.
func decodeHeader(f *fields, node string) (h raft.RPCHeader, leader []byte) {
	bits := f.byte()
	h.ProtocolVersion = raft.ProtocolVersion(f.int())
	id := f.bytes()
	if bits&^headerBits != 0 {
		f.fail()
	}
	if bits&addrDerived != 0 {
		h.Addr = make([]byte, 0, len(node)+1+len(id))
		h.Addr = append(append(append(h.Addr, node...), '/'), id...)
		h.ID = h.Addr[len(node)+1:]
	} else {
		h.ID = append([]byte(nil), id...)
		h.Addr = append([]byte(nil), f.bytes()...)
	}
	if bits&leaderIsAddr != 0 {
		return h, h.Addr
	}
	return h, append([]byte(nil), f.bytes()...)
}

// commandOf returns the kind of message for a command.
func commandOf(command any) kind {
	switch command.(type) {
	case *raft.AppendEntriesRequest:
		return kindAppend
	case *raft.RequestVoteRequest:
		return kindVote
	case *raft.RequestPreVoteRequest:
		return kindPreVote
	case *raft.TimeoutNowRequest:
		return kindTimeoutNow
	case *raft.InstallSnapshotRequest:
		return kindInstall
	}
	panic(fmt.Sprintf("transport: no such command: %T", command))
}

// appendRequest encodes a request from a replica on node.
func appendRequest(b []byte, node string, e envelope, command any) []byte {
	b, at := begin(b)
	b = e.append(b)
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		b = appendAppend(b, node, c)
	case *raft.RequestVoteRequest:
		b = appendHeader(b, node, c.RPCHeader, c.Candidate)
		b = binary.AppendUvarint(b, c.Term)
		b = binary.AppendUvarint(b, c.LastLogIndex)
		b = binary.AppendUvarint(b, c.LastLogTerm)
		b = appendFlag(b, c.LeadershipTransfer)
	case *raft.RequestPreVoteRequest:
		b = appendHeader(b, node, c.RPCHeader, c.Addr)
		b = binary.AppendUvarint(b, c.Term)
		b = binary.AppendUvarint(b, c.LastLogIndex)
		b = binary.AppendUvarint(b, c.LastLogTerm)
	case *raft.TimeoutNowRequest:
		b = appendHeader(b, node, c.RPCHeader, c.Addr)
	case *raft.InstallSnapshotRequest:
		b = appendInstall(b, node, c)
	}
	return finish(b, at, commandOf(command))
}

// decodeRequest decodes a request; the command shares no memory with the payload.
func decodeRequest(k kind, p []byte, node string) (e envelope, command any, err error) {
	f := fields{b: p}
	e.decode(&f)
	command = decodeCommand(k, &f, node)
	return e, command, f.end()
}

func decodeCommand(k kind, f *fields, node string) any {
	switch k {
	case kindAppend:
		return decodeAppend(f, node)
	case kindVote:
		c := &raft.RequestVoteRequest{}
		c.RPCHeader, c.Candidate = decodeHeader(f, node)
		c.Term, c.LastLogIndex, c.LastLogTerm = f.uint(), f.uint(), f.uint()
		c.LeadershipTransfer = f.flag()
		return c
	case kindPreVote:
		c := &raft.RequestPreVoteRequest{}
		c.RPCHeader, _ = decodeHeader(f, node)
		c.Term, c.LastLogIndex, c.LastLogTerm = f.uint(), f.uint(), f.uint()
		return c
	case kindTimeoutNow:
		c := &raft.TimeoutNowRequest{}
		c.RPCHeader, _ = decodeHeader(f, node)
		return c
	case kindInstall:
		return decodeInstall(f, node)
	}
	f.fail()
	return nil
}

func appendAppend(b []byte, node string, c *raft.AppendEntriesRequest) []byte {
	b = appendHeader(b, node, c.RPCHeader, c.Leader)
	b = binary.AppendUvarint(b, c.Term)
	b = binary.AppendUvarint(b, c.PrevLogEntry)
	b = binary.AppendUvarint(b, c.PrevLogTerm)
	b = binary.AppendUvarint(b, c.LeaderCommitIndex)
	b = binary.AppendUvarint(b, uint64(len(c.Entries)))
	for _, l := range c.Entries {
		b = appendLog(b, l)
	}
	return b
}

// logBytesMin is the size of the smallest encoded entry. logOverhead is an upper bound of what an entry needs in
// addition to its Data and Extensions.
const (
	logBytesMin = 6
	logOverhead = 3*binary.MaxVarintLen64 + 1 + 2*binary.MaxVarintLen32
)

func appendLog(b []byte, l *raft.Log) []byte {
	b = binary.AppendUvarint(b, l.Index)
	b = binary.AppendUvarint(b, l.Term)
	b = append(b, byte(l.Type))
	var at int64 // 0: not set
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = binary.AppendVarint(b, at)
	b = appendBytes(b, l.Extensions)
	return appendBytes(b, l.Data)
}

func decodeAppend(f *fields, node string) *raft.AppendEntriesRequest {
	c := &raft.AppendEntriesRequest{}
	c.RPCHeader, c.Leader = decodeHeader(f, node)
	c.Term, c.PrevLogEntry, c.PrevLogTerm, c.LeaderCommitIndex = f.uint(), f.uint(), f.uint(), f.uint()
	n := f.uint()
	if n > uint64(len(f.b)/logBytesMin) {
		f.fail()
		return c
	}
	if n > 0 {
		c.Entries = decodeLogs(f, int(n))
	}
	if !inOrder(c) {
		f.fail()
	}
	return c
}

// inOrder reports whether the entries continue the log after the previous one, with consecutive indexes and terms that
// do not fall. Raft stores them without a check.
func inOrder(c *raft.AppendEntriesRequest) bool {
	index, term := c.PrevLogEntry, c.PrevLogTerm
	for _, l := range c.Entries {
		index++
		if index == 0 || l.Index != index || l.Term < term {
			return false
		}
		term = l.Term
	}
	return true
}

// decodeLogs makes three allocations, however many entries there are: Raft keeps these entries, and drops them,
// together.
func decodeLogs(f *fields, n int) []*raft.Log {
	logs, ptrs := make([]raft.Log, n), make([]*raft.Log, n)
	data := make([]byte, 0, len(f.b)-n*(logBytesMin-2))
	for i := range logs {
		l := &logs[i]
		l.Index, l.Term, l.Type = f.uint(), f.uint(), raft.LogType(f.byte())
		if at := f.int(); at != 0 {
			l.AppendedAt = time.Unix(0, at)
		}
		l.Extensions, data = keep(data, f.bytes())
		l.Data, data = keep(data, f.bytes())
		if l.Type == raft.LogConfiguration && !isConfiguration(l.Data) {
			f.fail()
		}
		ptrs[i] = l
	}
	return ptrs
}

// keep copies v to the end of data and returns the copy; nil if v is empty.
func keep(data, v []byte) (kept, grown []byte) {
	if len(v) == 0 {
		return nil, data
	}
	at := len(data)
	data = append(data, v...)
	return data[at:len(data):len(data)], data
}

func appendInstall(b []byte, node string, c *raft.InstallSnapshotRequest) []byte {
	b = appendHeader(b, node, c.RPCHeader, c.Leader)
	b = binary.AppendVarint(b, int64(c.SnapshotVersion))
	b = binary.AppendUvarint(b, c.Term)
	b = binary.AppendUvarint(b, c.LastLogIndex)
	b = binary.AppendUvarint(b, c.LastLogTerm)
	b = appendBytes(b, c.Peers)
	b = appendBytes(b, c.Configuration)
	b = binary.AppendUvarint(b, c.ConfigurationIndex)
	return binary.AppendUvarint(b, uint64(c.Size))
}

func decodeInstall(f *fields, node string) *raft.InstallSnapshotRequest {
	c := &raft.InstallSnapshotRequest{}
	c.RPCHeader, c.Leader = decodeHeader(f, node)
	c.SnapshotVersion = raft.SnapshotVersion(f.int())
	c.Term, c.LastLogIndex, c.LastLogTerm = f.uint(), f.uint(), f.uint()
	c.Peers = append([]byte(nil), f.bytes()...)
	c.Configuration = append([]byte(nil), f.bytes()...)
	c.ConfigurationIndex = f.uint()
	size := f.uint()
	if size > math.MaxInt64 || c.SnapshotVersion > 0 && !isConfiguration(c.Configuration) {
		f.fail()
	}
	c.Size = int64(size)
	return c
}

// isConfiguration reports whether Raft can decode b. Otherwise Raft panics on its own goroutine, and the process ends.
func isConfiguration(b []byte) (ok bool) {
	defer func() { ok = recover() == nil }()
	raft.DecodeConfiguration(b)
	return true
}

// appendAnswer encodes the answer of a replica on node to request id: a response, or an error.
func appendAnswer(b []byte, node string, id uint64, of kind, response any, err error) []byte {
	b, at := begin(b)
	b = binary.AppendUvarint(b, id)
	b = append(b, byte(of))
	b = appendFlag(b, err == nil)
	if err != nil {
		return finish(appendError(b, err), at, kindAnswer)
	}
	switch r := response.(type) {
	case *raft.AppendEntriesResponse:
		b = appendHeader(b, node, r.RPCHeader, r.Addr)
		b = binary.AppendUvarint(b, r.Term)
		b = binary.AppendUvarint(b, r.LastLog)
		b = appendFlag(b, r.Success)
		b = appendFlag(b, r.NoRetryBackoff)
	case *raft.RequestVoteResponse:
		b = appendHeader(b, node, r.RPCHeader, r.Addr)
		b = binary.AppendUvarint(b, r.Term)
		b = appendBytes(b, r.Peers)
		b = appendFlag(b, r.Granted)
	case *raft.RequestPreVoteResponse:
		b = appendHeader(b, node, r.RPCHeader, r.Addr)
		b = binary.AppendUvarint(b, r.Term)
		b = appendFlag(b, r.Granted)
	case *raft.TimeoutNowResponse:
		b = appendHeader(b, node, r.RPCHeader, r.Addr)
	case *raft.InstallSnapshotResponse:
		b = appendHeader(b, node, r.RPCHeader, r.Addr)
		b = binary.AppendUvarint(b, r.Term)
		b = appendFlag(b, r.Success)
	default:
		panic(fmt.Sprintf("transport: no such response: %T", response))
	}
	return finish(b, at, kindAnswer)
}

func appendError(b []byte, err error) []byte {
	e := proto.AsError(err)
	text := e.Message
	if len(text) > textMax {
		text = text[:textMax]
	}
	b = binary.AppendUvarint(b, uint64(e.Code))
	return appendBytes(b, text)
}

// decodeAnswer decodes an answer of a replica on node into response, whose type must match the kind of the request. It
// returns the other side's error.
func decodeAnswer(p []byte, node string, of kind, response any) error {
	f := fields{b: p}
	f.uint() // the id was used to find the call
	if kind(f.byte()) != of {
		return errMalformed
	}
	if !f.flag() {
		return decodeError(&f)
	}
	switch r := response.(type) {
	case *raft.AppendEntriesResponse:
		h, _ := decodeHeader(&f, node)
		*r = raft.AppendEntriesResponse{RPCHeader: h, Term: f.uint(), LastLog: f.uint(), Success: f.flag(), NoRetryBackoff: f.flag()}
	case *raft.RequestVoteResponse:
		h, _ := decodeHeader(&f, node)
		*r = raft.RequestVoteResponse{RPCHeader: h, Term: f.uint(), Peers: append([]byte(nil), f.bytes()...), Granted: f.flag()}
	case *raft.RequestPreVoteResponse:
		h, _ := decodeHeader(&f, node)
		*r = raft.RequestPreVoteResponse{RPCHeader: h, Term: f.uint(), Granted: f.flag()}
	case *raft.TimeoutNowResponse:
		h, _ := decodeHeader(&f, node)
		*r = raft.TimeoutNowResponse{RPCHeader: h}
	case *raft.InstallSnapshotResponse:
		h, _ := decodeHeader(&f, node)
		*r = raft.InstallSnapshotResponse{RPCHeader: h, Term: f.uint(), Success: f.flag()}
	default:
		f.fail()
	}
	return f.end()
}

func decodeError(f *fields) error {
	code, text := f.uint32(), f.string()
	if err := f.end(); err != nil {
		return err
	}
	return &proto.Error{Code: ebbv1.Code(code), Message: text}
}

// ping asks for a clock sample; its answer also shows that the session is alive.
type ping struct {
	sent    time.Duration // the sender's monotonic time
	cluster string
}

func (p *ping) append(b []byte) []byte {
	b, at := begin(b)
	b = binary.AppendVarint(b, int64(p.sent))
	b = appendBytes(b, p.cluster)
	return finish(b, at, kindPing)
}

func (p *ping) decode(b []byte) error {
	f := fields{b: b}
	*p = ping{sent: time.Duration(f.int()), cluster: f.string()}
	return f.end()
}

// pong answers a ping.
type pong struct {
	sent    time.Duration // copied from the ping
	held    time.Duration // time between the ping's arrival and this answer
	wall    int64         // the answerer's wall clock, µs since the Unix epoch
	full    bool          // the node has no memory left for more
	cluster string
	// pressed says that much of the node's memory is used. Builds before storage version 9 cannot decode it, so it is
	// encoded only when it is true, and no node sets it before that version is in force.
	pressed bool
	// diskFull says that the node has no disk space left for more. The same holds for builds before storage version 12.
	diskFull bool
}

func (p *pong) append(b []byte) []byte {
	b, at := begin(b)
	b = binary.AppendVarint(b, int64(p.sent))
	b = binary.AppendVarint(b, int64(p.held))
	b = binary.AppendVarint(b, p.wall)
	b = appendFlag(b, p.full)
	b = appendBytes(b, p.cluster)
	if p.pressed || p.diskFull {
		b = appendFlag(b, p.pressed)
	}
	if p.diskFull {
		b = appendFlag(b, true)
	}
	return finish(b, at, kindPong)
}

func (p *pong) decode(b []byte) error {
	f := fields{b: b}
	*p = pong{sent: time.Duration(f.int()), held: time.Duration(f.int()), wall: f.int(), full: f.flag(), cluster: f.string()}
	if len(f.b) > 0 {
		p.pressed = f.flag()
		if p.diskFull = len(f.b) > 0 && f.flag(); !p.pressed && !p.diskFull {
			f.fail()
		}
	}
	return f.end()
}

// ask asks whether a replica's term is exactly this.
type ask struct {
	group   uint32
	replica uint64
	term    uint64
}

const askBytesMin = 3

func appendAsks(b []byte, round uint64, asks []ask) []byte {
	b, at := begin(b)
	b = binary.AppendUvarint(b, round)
	b = binary.AppendUvarint(b, uint64(len(asks)))
	for _, a := range asks {
		b = binary.AppendUvarint(b, uint64(a.group))
		b = binary.AppendUvarint(b, a.replica)
		b = binary.AppendUvarint(b, a.term)
	}
	return finish(b, at, kindAsk)
}

// decodeAsks appends to asks, so that a stream can reuse one slice.
func decodeAsks(p []byte, asks []ask) (round uint64, out []ask, err error) {
	f := fields{b: p}
	round = f.uint()
	n := f.uint()
	if n > uint64(len(f.b)/askBytesMin) {
		return 0, asks, errMalformed
	}
	for range n {
		asks = append(asks, ask{group: f.uint32(), replica: f.uint(), term: f.uint()})
	}
	return round, asks, f.end()
}

// appendAskReply encodes the answers to asks, in their order, one bit each.
func appendAskReply(b []byte, round uint64, n int, ok func(i int) bool) []byte {
	b, at := begin(b)
	b = binary.AppendUvarint(b, round)
	b = binary.AppendUvarint(b, uint64(n))
	bits := len(b)
	b = append(b, make([]byte, (n+7)/8)...)
	for i := range n {
		if ok(i) {
			b[bits+i/8] |= 1 << (i % 8)
		}
	}
	return finish(b, at, kindAskReply)
}

type askReply struct {
	round uint64
	n     int
	bits  []byte // part of the payload
}

func (t *askReply) decode(p []byte) error {
	f := fields{b: p}
	t.round = f.uint()
	n := f.uint()
	if n > uint64(len(f.b))*8 || (int(n)+7)/8 != len(f.b) || f.bad {
		return errMalformed
	}
	t.n, t.bits = int(n), f.b
	return nil
}

func (t *askReply) ok(i int) bool { return t.bits[i/8]>>(i%8)&1 == 1 }

// appendEnd encodes the end of a snapshot of size bytes.
func appendEnd(b []byte, size int64) []byte {
	b, at := begin(b)
	b = binary.AppendUvarint(b, uint64(size))
	return finish(b, at, kindEnd)
}
