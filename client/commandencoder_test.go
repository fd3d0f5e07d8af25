package client

import (
	"fmt"
	"testing"
	"time"

	protobuf "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// TestEncoderWritesWhatProtobufReads: whatever is written, a command parses to the
// same sums, is accepted by every node's checks, and names what it was given.
func TestEncoderWritesWhatProtobufReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type place struct {
			key, bin string
			time     int64
			negative bool
		}
		ns := rapid.SampledFrom([]string{"", "default", "a-namespace-of-some-length"}).Draw(t, "ns")
		aggregate := rapid.Bool().Draw(t, "aggregate")
		fromSource := rapid.Bool().Draw(t, "source")
		var e commandEncoder
		room := roomSession
		if fromSource {
			room = roomSource
		}
		e.reset(nil, room)
		if aggregate {
			e.aggregate(rapid.SampledFrom([]int{1, 8, 1000}).Draw(t, "slots"))
		}
		for round := range 2 {
			want := map[place]float64{}
			names := rapid.StringN(1, 40, 200)
			keys := rapid.SliceOfN(names, 1, 5).Draw(t, "keys")
			n := rapid.IntRange(1, 60).Draw(t, "n")
			for i := range n {
				in := item{
					key: rapid.SampledFrom(keys).Draw(t, "key"), bin: rapid.SampledFrom(keys).Draw(t, "bin"),
					amount: float64(rapid.IntRange(-3, 9).Draw(t, "amount")),
					time:   rapid.SampledFrom([]int64{0, 0, 1, 1331923247e6}).Draw(t, "time"),
				}
				if fromSource {
					in.offset = uint64(i*3 + 1)
				}
				if err := checkItem(&in); err != nil {
					t.Fatal(err)
				}
				at, free := e.find(&in)
				if at == 0 || !e.add(at, in.amount) {
					e.write(&in, free)
				}
				want[place{in.key, in.bin, in.time, in.amount < 0}] += in.amount
			}
			if e.entries+e.merged != n || fromSource && e.merged > 0 || !aggregate && e.merged > 0 {
				t.Fatalf("%d written, %d merged of %d", e.entries, e.merged, n)
			}
			q := &pendingCommand{
				buf: e.buf, room: e.room, entries: e.entries, session: 1 << 60, sequence: uint64(round),
			}
			if fromSource {
				q.stampSource(ns, "a/source", 7)
			} else {
				q.stampSession(ns)
			}
			if err := proto.CheckCommand(q.encoded()); err != nil {
				t.Fatal(err)
			}
			var cmd ebbv1.Command
			if err := protobuf.Unmarshal(q.encoded(), &cmd); err != nil {
				t.Fatal(err)
			}
			if cmd.GetNamespace() != ns || cmd.GetSession().GetSequence() != uint64(round)*b2u(!fromSource) || cmd.GetSource().GetEpoch() != 7*b2u(fromSource) {
				t.Fatalf("%v", &cmd)
			}
			got := map[place]float64{}
			for i, in := range cmd.GetIncrements().GetIncrements() {
				got[place{string(in.Key), string(in.Bin), in.TimeUs, in.GetAmount() < 0}] += in.GetAmount()
				wire, ok := q.increment(i)
				if !ok || string(wire.Key) != string(in.Key) || wire.Amount != in.GetAmount() || wire.Offset != in.Offset {
					t.Fatalf("increment %d: %+v, not %v", i, wire, in)
				}
			}
			if len(cmd.GetIncrements().GetIncrements()) != e.entries || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%v, not %v", got, want)
			}
			if _, ok := q.increment(e.entries); ok {
				t.Fatal("an increment behind the last")
			}
			e.reset(e.buf, room)
		}
	})
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func TestSumsStayWithinTheLimit(t *testing.T) {
	var e commandEncoder
	e.reset(nil, roomSession)
	e.aggregate(10)
	in := item{key: "k", bin: "b", amount: proto.AmountMax}
	for range 3 {
		at, free := e.find(&in)
		if at == 0 || !e.add(at, in.amount) {
			e.write(&in, free)
		}
	}
	if e.entries != 3 {
		t.Errorf("%d increments", e.entries)
	}
}

func TestLongestNamesFitTheRoom(t *testing.T) {
	long := func(n int) string { return string(make([]byte, n)) }
	for _, source := range []bool{false, true} {
		var e commandEncoder
		room := roomSession
		if source {
			room = roomSource
		}
		e.reset(nil, room)
		longest := item{
			key: long(proto.KeyLenMax), bin: long(proto.BinLenMax), amount: 1, time: 1 << 62, offset: 1 << 63,
		}
		e.write(&longest, nil)
		if n := len(e.buf) - room; n > entryBytesMax {
			t.Errorf("an increment of %d bytes", n)
		}
		q := &pendingCommand{buf: e.buf, room: room, session: 1<<64 - 1, sequence: 1<<64 - 1}
		if source {
			q.stampSource(long(proto.NamespaceLenMax), long(proto.SourceNameLenMax), 1<<64-1)
		} else {
			q.stampSession(long(proto.NamespaceLenMax))
		}
		if q.start < 0 {
			t.Error("the header does not fit")
		}
	}
}

func TestMicroseconds(t *testing.T) {
	for _, test := range []struct {
		at   time.Time
		want int64
	}{
		{time.Time{}, 0}, {time.UnixMicro(5), 5}, {time.Unix(0, 0), 1}, {time.Unix(-1, 0), -1_000_000},
	} {
		if got := microOf(test.at); got != test.want {
			t.Errorf("%v: %d", test.at, got)
		}
	}
}

func TestBackoff(t *testing.T) {
	c := &Client{cfg: configOf([]Option{WithBackoff(Backoff{Min: 10 * time.Millisecond, Max: time.Second})})}
	for tries := range 70 {
		most := min(10*time.Millisecond<<min(tries, 20), time.Second)
		if d := c.backoff(tries, ErrNoLeader); d < most/2 || d > most+1 {
			t.Errorf("after %d tries %s", tries, d)
		}
	}
	if d := c.backoff(0, nil); d < 5*time.Millisecond || d > 10*time.Millisecond+1 {
		t.Errorf("after no error %s", d)
	}
	busy := *ErrOverloaded
	busy.RetryAfterUS = 3_000_000
	if d := c.backoff(0, &busy); d < 1500*time.Millisecond || d > 3*time.Second+1 {
		t.Errorf("an overloaded node asked for 3s: %s", d)
	}
}

func TestAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"host": "host:7070", "host:1": "host:1", " host ": "host:7070", "::1": "[::1]:7070", "[::1]": "[::1]:7070", "[::1]:5": "[::1]:5",
	} {
		if got := withPort(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
