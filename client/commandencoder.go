package client

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
)

// commandEncoder writes the increments of one shard's next command, directly in wire format. It leaves room in front of
// them for the identity, which is known only when the command is sent:
//
//	buf: [ room ........ ][increment][increment]...
//
// An increment always carries its amount, so that an equal one (same key, bin
// and time) can be added to it in place:
//
//	0a len  0a len key  12 len bin  19 amount(8)  [20 time]  [28 offset]  [30 kind]  [39 value(8)]
//	       ^start                      ^amount
//
// Increments with a kind or a value are never summed.
type commandEncoder struct {
	buf     []byte
	room    int
	entries int    // increments in buf
	merged  int    // further increments summed into those
	last    uint64 // largest offset in buf

	slots []slot // open addressing, a power of two; nil: never merge
	round uint32 // slots of an earlier round are free
}

type slot struct {
	round         uint32
	tag           uint32 // of the hash; the lowest bit is set if there is a time
	start, amount uint32 // positions in buf
}

// probesMax bounds the search for an equal increment. If the search finds no place, the increment is written as a
// separate one.
const probesMax = 8

// entryBytesMax is what one increment takes at most.
const entryBytesMax = 1 + 2 + (1 + 2 + proto.KeyLenMax) + (1 + 2 + proto.BinLenMax) + 9 + 11 + 11 + 2 + 9

// item is one increment about to be written.
type item struct {
	key, bin string
	amount   float64
	time     int64  // 0: none
	offset   uint64 // 0: none
	kind     Kind   // 0: the kind of the key
	value    float64
	valued   bool // there is a value
	text     string
	texted   bool // there is a text
}

func (e *commandEncoder) reset(buf []byte, room int) {
	e.buf = append(buf[:0], make([]byte, room)...)
	e.room, e.entries, e.merged, e.last = room, 0, 0, 0
	e.round++
	if e.round == 0 {
		clear(e.slots)
		e.round = 1
	}
}

// aggregate makes the encoder merge equal increments, up to about n different ones. If n is 0, it merges none.
func (e *commandEncoder) aggregate(n int) {
	if n == 0 {
		return
	}
	e.slots = make([]slot, 1<<bits.Len(uint(max(n, 8))))
	e.round = 1
}

// hash returns a hash of the fields by which two increments are equal: key, bin and time.
func (in *item) hash() uint64 {
	h := xxh3.HashString(in.key)
	h = bits.RotateLeft64(h, 32)*0x9e3779b97f4a7c15 ^ xxh3.HashString(in.bin)
	return h ^ uint64(in.time)*0xc2b2ae3d27d4eb4f
}

// find returns the position of the amount of an equal increment, to which in can be added. Otherwise it returns 0 and
// the slot that in should take; nil if none is free.
func (e *commandEncoder) find(in *item) (amount uint32, free *slot) {
	if e.slots == nil || in.amount < 0 || in.offset != 0 || in.kind != 0 || in.valued {
		return 0, nil // a negative one may be refused on its own
	}
	h := in.hash()
	tag := uint32(h>>32) &^ 1
	if in.time != 0 {
		tag |= 1
	}
	mask := uint64(len(e.slots) - 1)
	for i := range uint64(probesMax) {
		s := &e.slots[(h+i)&mask]
		if s.round != e.round {
			s.tag = tag
			return 0, s
		}
		if s.tag == tag && e.same(s, in) {
			return s.amount, nil
		}
	}
	return 0, nil
}

func (e *commandEncoder) same(s *slot, in *item) bool {
	b := e.buf[s.start:s.amount]
	head := 1 + protowire.SizeVarint(uint64(len(in.key)))
	bin := head + len(in.key) + 1 + protowire.SizeVarint(uint64(len(in.bin)))
	if len(b) != bin+len(in.bin)+1 || string(b[head:head+len(in.key)]) != in.key || string(b[bin:bin+len(in.bin)]) != in.bin {
		return false
	}
	if n, _ := protowire.ConsumeVarint(b[1:]); n != uint64(len(in.key)) {
		return false
	}
	if in.time == 0 {
		return true
	}
	t, _ := protowire.ConsumeVarint(e.buf[s.amount+9:])
	return t == uint64(in.time)
}

// add adds n to the amount at a position. It returns false if the sum would exceed the limit.
func (e *commandEncoder) add(amount uint32, n float64) bool {
	at := e.buf[amount : amount+8]
	sum := math.Float64frombits(binary.LittleEndian.Uint64(at)) + n
	if sum > proto.AmountMax {
		return false
	}
	binary.LittleEndian.PutUint64(at, math.Float64bits(sum))
	e.merged++
	return true
}

// write appends one increment, and notes it in the slot found for it, if any.
func (e *commandEncoder) write(in *item, free *slot) {
	size := 1 + protowire.SizeBytes(len(in.key)) + 1 + protowire.SizeBytes(len(in.bin)) + 9
	if in.time != 0 {
		size += 1 + protowire.SizeVarint(uint64(in.time))
	}
	if in.offset != 0 {
		size += 1 + protowire.SizeVarint(in.offset)
		e.last = in.offset
	}
	if in.kind != 0 {
		size += 1 + protowire.SizeVarint(uint64(in.kind))
	}
	if in.valued {
		size += 9
	}
	if in.texted {
		size += 1 + protowire.SizeBytes(len(in.text))
	}
	b := append(e.buf, tagIncrement)
	b = protowire.AppendVarint(b, uint64(size))
	start := len(b)
	b = append(b, tagKey)
	b = protowire.AppendString(b, in.key)
	b = append(b, tagBin)
	b = protowire.AppendString(b, in.bin)
	b = append(b, tagAmount)
	amount := len(b)
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(in.amount))
	if in.time != 0 {
		b = protowire.AppendVarint(append(b, tagTime), uint64(in.time))
	}
	if in.offset != 0 {
		b = protowire.AppendVarint(append(b, tagOffset), in.offset)
	}
	if in.kind != 0 {
		b = protowire.AppendVarint(append(b, tagKind), uint64(in.kind))
	}
	if in.valued {
		b = binary.LittleEndian.AppendUint64(append(b, tagValue), math.Float64bits(in.value))
	}
	if in.texted {
		b = protowire.AppendString(append(b, tagText), in.text)
	}
	e.buf = b
	e.entries++
	if free != nil {
		free.round, free.start, free.amount = e.round, uint32(start), uint32(amount)
	}
}

// Tags, each one byte: field number << 3 | wire type.
const (
	tagIncrement = proto.FieldIncrementsIncrements<<3 | byte(protowire.BytesType)
	tagKey       = proto.FieldIncrementKey<<3 | byte(protowire.BytesType)
	tagBin       = proto.FieldIncrementBin<<3 | byte(protowire.BytesType)
	tagAmount    = proto.FieldIncrementAmount<<3 | byte(protowire.Fixed64Type)
	tagTime      = proto.FieldIncrementTimeUS<<3 | byte(protowire.VarintType)
	tagOffset    = proto.FieldIncrementOffset<<3 | byte(protowire.VarintType)
	tagKind      = proto.FieldIncrementKind<<3 | byte(protowire.VarintType)
	tagText      = proto.FieldIncrementText<<3 | byte(protowire.BytesType)
	tagValue     = proto.FieldIncrementValue<<3 | byte(protowire.Fixed64Type)
)

// checkItem refuses what every node would refuse.
func checkItem(in *item) error {
	if n := len(in.key); n == 0 || n > proto.KeyLenMax {
		return proto.CheckKey([]byte(in.key))
	}
	if in.kind != 0 || in.valued {
		w := proto.IncrementWire{Bin: []byte(in.bin), Amount: in.amount, Kind: in.kind, Value: in.value, HasValue: in.valued, HasText: in.texted}
		if in.texted {
			w.Text = []byte(in.text)
		}
		if err := w.CheckEvent(); err != nil {
			return err
		}
	} else if n := len(in.bin); n == 0 || n > proto.BinLenMax {
		return proto.CheckBin([]byte(in.bin))
	}
	if !(in.amount >= -proto.AmountMax && in.amount <= proto.AmountMax) {
		return proto.CheckAmount(in.amount)
	}
	if in.time < 0 {
		return proto.CheckTime(in.time)
	}
	return nil
}
