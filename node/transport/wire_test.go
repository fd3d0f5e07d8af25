package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc/mem"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/peerv1"
)

var sameBytes = cmpopts.EquateEmpty() // nil and empty are the same on the wire

func commands() []any {
	at := time.Unix(1_700_000_000, 123)
	return []any{
		&raft.AppendEntriesRequest{RPCHeader: header("a", 1), Leader: []byte("a/1"), Term: 3},
		&raft.AppendEntriesRequest{
			RPCHeader: header("a", 1), Leader: []byte("elsewhere"), Term: math.MaxUint64, PrevLogEntry: 9, PrevLogTerm: 2, LeaderCommitIndex: 8,
			Entries: []*raft.Log{
				{Index: 10, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext"), AppendedAt: at},
				{Index: 11, Term: 3, Type: raft.LogNoop},
				{Index: 12, Term: 3, Type: raft.LogConfiguration, Data: configuration(2000), AppendedAt: at},
			},
		},
		&raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 2, ID: []byte("id"), Addr: []byte("b/7")}},
		&raft.RequestVoteRequest{RPCHeader: header("a", 1), Candidate: []byte("a/1"), Term: 4, LastLogIndex: 5, LastLogTerm: 3, LeadershipTransfer: true},
		&raft.RequestPreVoteRequest{RPCHeader: header("a", 1), Term: 4, LastLogIndex: 5, LastLogTerm: 3},
		&raft.TimeoutNowRequest{RPCHeader: header("a", 1)},
		&raft.InstallSnapshotRequest{
			RPCHeader: header("a", 1), Leader: []byte("a/1"), SnapshotVersion: 1, Term: 2, LastLogIndex: 3, LastLogTerm: 1,
			Peers: []byte("peers"), Configuration: configuration(3), ConfigurationIndex: 1, Size: 1 << 40,
		},
	}
}

// configuration is one of n servers, as Raft encodes it.
func configuration(n int) []byte {
	var c raft.Configuration
	for i := range n {
		id := strconv.Itoa(i)
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress("a/" + id)})
	}
	return raft.EncodeConfiguration(c)
}

// Raft panics on a configuration that it cannot decode, so none gets there.
func TestConfigurationThatRaftWouldPanicOn(t *testing.T) {
	for _, b := range [][]byte{nil, {}, {7}, []byte("conf"), configuration(3)[:20]} {
		for _, c := range []any{
			&raft.AppendEntriesRequest{RPCHeader: header("a", 1), Entries: []*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: b}}},
			&raft.InstallSnapshotRequest{RPCHeader: header("a", 1), SnapshotVersion: raft.SnapshotVersionMax, Configuration: b},
		} {
			k := commandOf(c)
			if _, _, err := decodeRequest(k, only(t, appendRequest(nil, "a", envelope{}, c), k), "a"); err == nil {
				t.Errorf("%T with configuration %q is let through", c, b)
			}
		}
	}
}

// outOfOrder are requests whose entries do not continue a log.
func outOfOrder() map[string]*raft.AppendEntriesRequest {
	request := func(prev, prevTerm uint64, entries ...*raft.Log) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{RPCHeader: header("a", 1), Term: 9, PrevLogEntry: prev, PrevLogTerm: prevTerm, Entries: entries}
	}
	entry := func(index, term uint64) *raft.Log { return &raft.Log{Index: index, Term: term} }
	return map[string]*raft.AppendEntriesRequest{
		"a gap before them":       request(9, 2, entry(11, 3)),
		"the previous one again":  request(9, 2, entry(9, 2)),
		"not from the beginning":  request(0, 0, entry(2, 1)),
		"a gap between them":      request(9, 2, entry(10, 3), entry(12, 3)),
		"one twice":               request(9, 2, entry(10, 3), entry(10, 3)),
		"backwards":               request(9, 2, entry(10, 3), entry(9, 3)),
		"a term before the last":  request(9, 4, entry(10, 3)),
		"a term that falls":       request(9, 2, entry(10, 3), entry(11, 2)),
		"past the largest number": request(math.MaxUint64, 2, entry(0, 3)),
	}
}

// Raft stores entries as they come, so those that do not continue a log are refused.
func TestEntriesContinueTheLog(t *testing.T) {
	for name, c := range outOfOrder() {
		p := only(t, appendRequest(nil, "a", envelope{}, c), kindAppend)
		if _, _, err := decodeRequest(kindAppend, p, "a"); !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	ok := &raft.AppendEntriesRequest{
		RPCHeader: header("a", 1), Term: 9, PrevLogEntry: math.MaxUint64 - 2, PrevLogTerm: 3,
		Entries: []*raft.Log{{Index: math.MaxUint64 - 1, Term: 3}, {Index: math.MaxUint64, Term: 9}},
	}
	if _, _, err := decodeRequest(kindAppend, only(t, appendRequest(nil, "a", envelope{}, ok), kindAppend), "a"); err != nil {
		t.Errorf("up to the largest number: %v", err)
	}
}

// An answer to read barriers has a bit for each, and not a byte more.
func TestToldIsExact(t *testing.T) {
	for name, c := range map[string]struct {
		p  []byte
		ok bool
	}{
		"none":            {[]byte{1, 0}, true},
		"three":           {[]byte{1, 3, 5}, true},
		"eight":           {[]byte{1, 8, 5}, true},
		"nine":            {[]byte{1, 9, 5, 1}, true},
		"a byte too many": {[]byte{1, 3, 5, 0}, false},
		"bits of none":    {[]byte{1, 0, 0}, false},
		"a byte too few":  {[]byte{1, 9, 5}, false},
		"no number":       {[]byte{1}, false},
		"no round":        {nil, false},
		"too many":        {append(binary.AppendUvarint([]byte{1}, math.MaxUint64), 5), false},
	} {
		var a askReply
		if err := a.decode(c.p); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A message that counts more than it holds is refused, before anything is made for it.
func TestCountsThatAreTooLarge(t *testing.T) {
	heartbeat := only(t, appendRequest(nil, "a", envelope{}, commands()[0]), kindAppend)
	heartbeat[len(heartbeat)-1] = 1 // entries
	if _, _, err := decodeRequest(kindAppend, heartbeat, "a"); !errors.Is(err, errMalformed) {
		t.Errorf("an entry that is not there: got %v", err)
	}
	asks := only(t, appendAsks(nil, 1, []ask{{group: 1, replica: 2, term: 3}}), kindAsk)
	asks[1] = 2
	if _, out, err := decodeAsks(asks, nil); !errors.Is(err, errMalformed) || len(out) > 0 {
		t.Errorf("an ask that is not there: got %v, %v", out, err)
	}
}

// A frame says its length, and is that long.
func TestFrameIsAsLongAsItSays(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		body []byte
		ok   bool
	}{
		"nothing":          {nil, nil, true},
		"two bytes":        {[]byte{bodyTag, 2, 7, 8}, []byte{7, 8}, true},
		"another field":    {[]byte{bodyTag + 8, 2, 7, 8}, nil, false},
		"a byte too few":   {[]byte{bodyTag, 2, 7}, nil, false},
		"a byte too many":  {[]byte{bodyTag, 2, 7, 8, 9}, nil, false},
		"no length":        {[]byte{bodyTag}, nil, false},
		"half of a length": {[]byte{bodyTag, 0x80}, nil, false},
	} {
		if body, err := frameBody(c.b); (err == nil) != c.ok || !bytes.Equal(body, c.body) {
			t.Errorf("%s: got %x, %v", name, body, err)
		}
	}
}

// A frame is given back once.
func TestFrameIsFreedOnce(t *testing.T) {
	f := newFrame(FrameBytesMax)
	for range 2 {
		if f.free(); f.body != nil {
			t.Error("a frame that was given back still has a body")
		}
	}
}

// What cannot be read makes a message bad, and the rest of it reads as nothing.
func TestBadFields(t *testing.T) {
	long := bytes.Repeat([]byte{0xff}, binary.MaxVarintLen64+1) // no number of 64 bits
	large := []byte{0xff, 0xff, 0xff, 0xff, 0x1f}               // nor of 32
	for name, c := range map[string]struct {
		read func(*fields) any
		bad  [][]byte
	}{
		"uint":   {func(f *fields) any { return f.uint() }, [][]byte{nil, {0x80}, long}},
		"int":    {func(f *fields) any { return f.int() }, [][]byte{nil, {0x80}, long}},
		"uint32": {func(f *fields) any { return f.uint32() }, [][]byte{nil, {0x80}, long, large}},
		"byte":   {func(f *fields) any { return f.byte() }, [][]byte{nil}},
		"flag":   {func(f *fields) any { return f.flag() }, [][]byte{nil, {2}}},
		"string": {func(f *fields) any { return f.string() }, [][]byte{nil, {0x80}, long, {2, 'x'}}},
	} {
		for _, b := range c.bad {
			f := fields{b: b}
			if v := c.read(&f); !reflect.ValueOf(v).IsZero() || f.end() == nil {
				t.Errorf("%s of %x: got %v, and the end is %v", name, b, v, f.end())
			}
			if f.b != nil {
				t.Errorf("%s of %x leaves %x to be read", name, b, f.b)
			}
		}
	}
}

func responses() map[kind][]any {
	h := header("b", 2)
	return map[kind][]any{
		kindAppend:     {&raft.AppendEntriesResponse{RPCHeader: h, Term: 5, LastLog: 77, Success: true}, &raft.AppendEntriesResponse{Term: 5, NoRetryBackoff: true}},
		kindVote:       {&raft.RequestVoteResponse{RPCHeader: h, Term: 5, Peers: []byte("p"), Granted: true}},
		kindPreVote:    {&raft.RequestPreVoteResponse{RPCHeader: h, Term: 5, Granted: true}},
		kindTimeoutNow: {&raft.TimeoutNowResponse{RPCHeader: h}},
		kindInstall:    {&raft.InstallSnapshotResponse{Term: 5, Success: true}},
	}
}

// blank returns an empty response of a kind.
func blank(k kind) any {
	switch k {
	case kindAppend:
		return &raft.AppendEntriesResponse{}
	case kindVote:
		return &raft.RequestVoteResponse{}
	case kindPreVote:
		return &raft.RequestPreVoteResponse{}
	case kindTimeoutNow:
		return &raft.TimeoutNowResponse{}
	}
	return &raft.InstallSnapshotResponse{}
}

// only takes the one message that b must hold.
func only(t *testing.T, b []byte, want kind) []byte {
	t.Helper()
	k, payload, rest, err := nextMessage(b)
	if err != nil || k != want || len(rest) != 0 {
		t.Fatalf("kind %d, %d bytes after it, error %v", k, len(rest), err)
	}
	return payload
}

func TestRequestsSurviveTheWire(t *testing.T) {
	for _, c := range commands() {
		e := envelope{id: 9, group: 1024, replica: math.MaxUint64, ttl: 1500 * time.Millisecond}
		b := appendRequest([]byte("before"), "a", e, c)[len("before"):]
		got, command, err := decodeRequest(commandOf(c), only(t, b, commandOf(c)), "a")
		if err != nil {
			t.Fatalf("%T: %v", c, err)
		}
		if got != e {
			t.Errorf("%T: envelope %+v, want %+v", c, got, e)
		}
		if d := cmp.Diff(c, command, sameBytes); d != "" {
			t.Errorf("%T: %s", c, d)
		}
	}
}

func TestDecodedEntriesOutliveTheFrame(t *testing.T) {
	c := commands()[1].(*raft.AppendEntriesRequest)
	b := appendRequest(nil, "a", envelope{}, c)
	_, got, err := decodeRequest(kindAppend, only(t, b, kindAppend), "a")
	if err != nil {
		t.Fatal(err)
	}
	clear(b)
	if d := cmp.Diff(c, got, sameBytes); d != "" {
		t.Error(d)
	}
	l := got.(*raft.AppendEntriesRequest).Entries[0]
	_ = append(l.Data, 'x') // must not run into the next
	if got.(*raft.AppendEntriesRequest).Entries[2].Data[0] != c.Entries[2].Data[0] {
		t.Error("entries share spare capacity")
	}
}

func TestAnswersSurviveTheWire(t *testing.T) {
	for k, list := range responses() {
		for _, r := range list {
			b := appendAnswer(nil, "b", 42, k, r, nil)
			got := blank(k)
			if err := decodeAnswer(only(t, b, kindAnswer), "b", k, got); err != nil {
				t.Fatalf("%T: %v", r, err)
			}
			if d := cmp.Diff(r, got, sameBytes); d != "" {
				t.Errorf("%T: %s", r, d)
			}
		}
		for _, e := range []error{proto.ErrOverloaded.Errorf("no room"), errors.New("plain")} {
			b := appendAnswer(nil, "b", 42, k, nil, e)
			err := decodeAnswer(only(t, b, kindAnswer), "b", k, blank(k))
			if want := proto.AsError(e); !errors.Is(err, want) || err.Error() != want.Error() {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		if err := decodeAnswer(only(t, appendAnswer(nil, "b", 42, k, list[0], nil), kindAnswer), "b", kindChunk, blank(k)); err == nil {
			t.Errorf("an answer to a request of kind %d was taken for another's", k)
		}
	}
}

func TestAHeartbeatIsSmall(t *testing.T) {
	c := &raft.AppendEntriesRequest{RPCHeader: header("ebb-0", 123), Leader: []byte("ebb-0/123"), Term: 7}
	if n := len(appendRequest(nil, "ebb-0", envelope{id: 1 << 20, group: 1000, replica: 123, ttl: time.Second}, c)); n > 30 {
		t.Errorf("a heartbeat takes %d bytes", n)
	}
}

func TestFrameIsProtobuf(t *testing.T) {
	for _, n := range []int{1, 100, 127, 128, 5000, FrameBytesMax} {
		f := newFrame(n)
		for i := range f.body {
			f.body[i] = byte(i)
		}
		want := bytes.Clone(f.body)
		out, err := codec{}.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var p peerv1.Frame
		if err := pb.Unmarshal(out.Materialize(), &p); err != nil || !bytes.Equal(p.Body, want) {
			t.Fatalf("%d bytes: protobuf reads something else: %v", n, err)
		}
		b, err := pb.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		half := len(b) / 2
		var got frame
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:half]), mem.SliceBuffer(b[half:])}, &got); err != nil || !bytes.Equal(got.body, want) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		got.free()
	}
}

func TestFrameOverTheLimitIsRefused(t *testing.T) {
	out, err := codec{}.Marshal(newFrame(FrameBytesMax + 1))
	if err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := (codec{}).Unmarshal(out, &f); err == nil {
		t.Fatal("a frame over the limit was taken")
	}
}

// FuzzFrame feeds a stream's decoders with anything. What they accept must
// encode to what decodes the same.
func FuzzFrame(f *testing.F) {
	var all []byte
	add := func(b []byte) {
		all = append(all, b...)
		f.Add(b)
	}
	for _, c := range commands()[:1] {
		add(appendRequest(nil, "a", envelope{id: 1, group: 2, replica: 3, ttl: time.Second}, c))
	}
	for _, c := range commands()[2:] {
		add(appendRequest(nil, "a", envelope{id: 1, group: 2, replica: 3, ttl: time.Second}, c))
	}
	for _, c := range outOfOrder() {
		add(appendRequest(nil, "a", envelope{id: 1, group: 2, replica: 3, ttl: time.Second}, c))
	}
	for k, list := range responses() {
		add(appendAnswer(nil, "a", 42, k, list[0], nil))
		add(appendAnswer(nil, "a", 42, k, nil, proto.ErrOverloaded))
	}
	h := hello{version: 1, oldest: 1, session: 77, stream: kindPing, from: "a", to: "b", cluster: "c"}
	w := welcome{version: 1, oldest: 1, cluster: "c"}
	pi, po := ping{sent: 5, cluster: "c"}, pong{sent: 5, held: 1, wall: 1e15, cluster: "c", pressed: true}
	for _, write := range []func([]byte) []byte{h.append, w.append, pi.append, po.append} {
		add(write(nil))
	}
	add(appendAsks(nil, 4, []ask{{1, 2, 3}, {4, 5, 6}}))
	add(appendAskReply(nil, 4, 9, func(i int) bool { return i%2 == 0 }))
	add(appendEnd(nil, 12))
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			k, payload, rest, err := nextMessage(b)
			if err != nil {
				return
			}
			b = rest
			checkMessage(t, k, payload)
		}
	})
}

func checkMessage(t *testing.T, k kind, p []byte) {
	switch k {
	case kindAppend, kindVote, kindPreVote, kindTimeoutNow, kindInstall:
		e, c, err := decodeRequest(k, p, "a")
		if err != nil {
			return
		}
		e2, c2, err := decodeRequest(k, only(t, appendRequest(nil, "a", e, c), k), "a")
		if err != nil || e2 != e || fmt.Sprintf("%+v", c2) != fmt.Sprintf("%+v", c) && !cmp.Equal(c, c2, sameBytes) {
			t.Fatalf("%+v %+v became %+v %+v: %v", e, c, e2, c2, err)
		}
	case kindAnswer:
		f := fields{b: p}
		id, of := f.uint(), kind(f.byte())
		if !of.isRequest() {
			return
		}
		r := blank(of)
		err := decodeAnswer(p, "a", of, r)
		var coded *proto.Error
		if err != nil && !errors.As(err, &coded) {
			return
		}
		r2 := blank(of)
		err2 := decodeAnswer(only(t, appendAnswer(nil, "a", id, of, r, err), kindAnswer), "a", of, r2)
		if (err == nil) != (err2 == nil) || err == nil && !cmp.Equal(r, r2, sameBytes) {
			t.Fatalf("%+v %v became %+v %v", r, err, r2, err2)
		}
	default:
		checkSmall(t, k, p)
	}
}

func (k kind) isRequest() bool {
	return k == kindAppend || k == kindVote || k == kindPreVote || k == kindTimeoutNow || k == kindInstall
}

// checkSmall does the same for messages that are no requests or answers.
func checkSmall(t *testing.T, k kind, p []byte) {
	same := func(a, b any, err error) {
		if err != nil || !cmp.Equal(a, b, cmp.AllowUnexported(hello{}, welcome{}, ping{}, pong{}, ask{}), sameBytes) {
			t.Fatalf("%+v became %+v: %v", a, b, err)
		}
	}
	switch k {
	case kindHello:
		var a, b hello
		if a.decode(p) == nil {
			same(&a, &b, b.decode(only(t, a.append(nil), k)))
		}
	case kindWelcome:
		var a, b welcome
		if a.decode(p) == nil {
			same(&a, &b, b.decode(only(t, a.append(nil), k)))
		}
	case kindPing:
		var a, b ping
		if a.decode(p) == nil {
			same(&a, &b, b.decode(only(t, a.append(nil), k)))
		}
	case kindPong:
		var a, b pong
		if a.decode(p) == nil {
			same(&a, &b, b.decode(only(t, a.append(nil), k)))
		}
	case kindAsk:
		if id, asks, err := decodeAsks(p, nil); err == nil {
			id2, asks2, err := decodeAsks(only(t, appendAsks(nil, id, asks), k), nil)
			same(asks, asks2, err)
			same(id, id2, nil)
		}
	case kindAskReply:
		var a askReply
		if a.decode(p) == nil {
			for i := range a.n {
				a.ok(i)
			}
		}
	}
}

// A node that is not under pressure says it in the bytes that builds know which cannot read more.
func TestPongOfOlderBuilds(t *testing.T) {
	calm := pong{sent: 5, held: 1, wall: 9, full: true, cluster: "c"}
	pressed := pong{sent: 5, held: 1, wall: 9, cluster: "c", pressed: true}
	read := func(p *pong) (got pong, payload []byte) {
		_, payload, _, err := nextMessage(p.append(nil))
		if err == nil {
			err = got.decode(payload)
		}
		if err != nil || got != *p {
			t.Errorf("%+v became %+v: %v", *p, got, err)
		}
		return got, payload
	}
	_, short := read(&calm)
	if _, long := read(&pressed); len(long) != len(short)+1 {
		t.Errorf("%d bytes under pressure, %d without", len(long), len(short))
	}
	var got pong
	if err := got.decode(append(short[:len(short):len(short)], 0)); err == nil {
		t.Error("a flag is read that no node writes")
	}
}
