package cluster

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
)

// memberlist decodes a message before it knows the sender, and a few hundred bytes can cost it 40 MiB: it decompresses,
// and it allocates the sizes that a header announces. So the structure of every packet and stream is checked first, and
// refused unless it has the form of the messages that ebb itself sends:
//
//	packet   [crc32 header] message | compound of messages, one level deep
//	stream   one message: push-pull, ping, or the answer to one
//	message  type, then a MessagePack map of at most 15 fields: numbers, booleans, nil and byte strings of at most 1 KiB
//	push-pull  its map {Nodes, UserStateLen, Join}, then one map a node; ebb has no user state
//
// Encrypted messages are decrypted here as well, with the same keys, and checked in the same way.

// Types of memberlist's messages.
const (
	pingType          = 0
	indirectType      = 1
	ackType           = 2
	suspectType       = 3
	aliveType         = 4
	deadType          = 5
	pushPullType      = 6
	compoundType      = 7
	userType          = 8
	compressType      = 9
	encryptType       = 10
	nackType          = 11
	errorType         = 13
	labelType         = 244
	encryptionVersion = 1 // the newest version of memberlist's encryption
)

const (
	// gossipPacketMax bounds a packet in bytes. memberlist sends at most 1,400.
	gossipPacketMax = 4 << 10
	// gossipStreamMax bounds what is read of one stream, in bytes: the states of some thousand nodes.
	gossipStreamMax = 256 << 10
	// gossipNodesMax bounds the nodes of a push-pull.
	gossipNodesMax = 1024
	// gossipFieldsMax and gossipBytesMax bound one map, and one byte string in it.
	gossipFieldsMax = 15
	gossipBytesMax  = 1 << 10
	// gossipReadStep is by how many bytes the buffer of a stream grows at least.
	gossipReadStep = 4 << 10
)

// GossipRefusal is the reason why gossip was refused. Its text is a label of a metric.
type GossipRefusal string

// The reasons for a refusal.
const (
	RefusedCompressed GossipRefusal = "compressed" // ebb compresses no gossip
	RefusedLabel      GossipRefusal = "label"      // ebb does not label gossip
	RefusedType       GossipRefusal = "type"       // a message type that ebb does not send there
	RefusedNested     GossipRefusal = "nested"     // a compound in a compound
	RefusedTooLarge   GossipRefusal = "too_large"  // more bytes, nodes or user state than the limits
	RefusedMalformed  GossipRefusal = "malformed"  // not the form that ebb sends
	RefusedStreams    GossipRefusal = "streams"    // more streams at a time than the limit
	RefusedMembers    GossipRefusal = "members"    // more members, or faster, than the limits
)

// GossipRefusals lists all reasons, in the order of their declaration.
var GossipRefusals = []GossipRefusal{
	RefusedCompressed, RefusedLabel, RefusedType, RefusedNested,
	RefusedTooLarge, RefusedMalformed, RefusedStreams, RefusedMembers,
}

// Error implements error. Its text has none of memberlist's phrases, for which joinFault looks.
func (r GossipRefusal) Error() string { return "gossip refused: " + string(r) }

// screenPacket returns why a packet is refused, nil if it is not. Without keys, gossip is not encrypted. A packet that
// no key decrypts is left to memberlist, which drops and logs it.
func screenPacket(packet []byte, keys [][]byte) error {
	if len(packet) > gossipPacketMax {
		return RefusedTooLarge
	}
	if len(packet) > 0 && packet[0] == labelType {
		return RefusedLabel
	}
	if len(keys) > 0 {
		plain, opened := decrypt(keys, packet, nil)
		if !opened {
			return nil
		}
		packet = plain
	}
	if len(packet) > summedHead && packet[0] == summedType {
		packet = packet[summedHead:]
	}
	if len(packet) > 0 && packet[0] == compoundType {
		return screenCompound(packet[1:])
	}
	_, err := screenPart(packet)
	return err
}

// screenCompound checks the parts of a compound: their number, their lengths, and then the parts. memberlist sends at
// most one message that needs an answer, and news after it. With more of them, a packet could make this node send
// answers to addresses that the packet names.
func screenCompound(b []byte) error {
	if len(b) < 1 || len(b) < 1+2*int(b[0]) {
		return RefusedMalformed
	}
	lengths, b := b[1:1+2*int(b[0])], b[1+2*int(b[0]):]
	answered := 0
	for ; len(lengths) > 0; lengths = lengths[2:] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(b) {
			return RefusedMalformed
		}
		answers, err := screenPart(b[:n])
		if err != nil {
			return err
		}
		if answers {
			answered++
		}
		b = b[n:]
	}
	if answered > 1 {
		return RefusedType
	}
	return nil
}

// screenPart checks one message of a packet. It reports whether the message belongs to a probe; otherwise it is news.
func screenPart(b []byte) (probes bool, err error) {
	if len(b) == 0 {
		return false, RefusedMalformed
	}
	switch b[0] {
	case pingType, indirectType, ackType, nackType:
		probes = true
	case suspectType, aliveType, deadType:
	case compoundType:
		return false, RefusedNested
	default:
		return false, refusedType(b[0])
	}
	w := gossipWire{buf: b, at: 1}
	return probes, w.fields(nil)
}

func refusedType(t byte) GossipRefusal {
	switch t {
	case compressType:
		return RefusedCompressed
	case labelType:
		return RefusedLabel
	}
	return RefusedType
}

// screenStream reads the only message of a stream, and returns it without the bytes after it. read is called for more
// bytes. If the stream is encrypted and gossip is not, or the reverse, only its first byte is returned, which is enough
// for memberlist to report the error.
func screenStream(read func([]byte) (int, error), keys [][]byte) ([]byte, error) {
	w := gossipWire{read: read}
	kind, err := w.take(1)
	if err != nil {
		return nil, err
	}
	encrypted := kind[0] == encryptType
	switch {
	case kind[0] == labelType:
		return nil, RefusedLabel
	case encrypted != (len(keys) > 0):
		return w.buf[:1], nil
	case !encrypted:
		err := w.streamed(kind[0])
		return w.buf[:w.at], err
	}
	length, err := w.take(4)
	if err != nil {
		return nil, err
	}
	head := [5]byte{encryptType, length[0], length[1], length[2], length[3]}
	if binary.BigEndian.Uint32(length) > gossipStreamMax {
		return nil, RefusedTooLarge
	}
	text, err := w.take(int(binary.BigEndian.Uint32(length)))
	if err != nil {
		return nil, err
	}
	if plain, opened := decrypt(keys, text, head[:]); opened {
		inner := gossipWire{buf: plain}
		kind, err := inner.take(1)
		if err == nil {
			err = inner.streamed(kind[0])
		}
		if err != nil {
			return nil, err
		}
	}
	return w.buf[:w.at], nil
}

// streamed checks the message of a stream after its type.
func (w *gossipWire) streamed(kind byte) error {
	switch kind {
	case pushPullType:
		return w.pushPull()
	case pingType, ackType, errorType:
		return w.fields(nil)
	}
	return refusedType(kind)
}

// pushPull checks the states of nodes. memberlist allocates by the numbers in the header, so these must come first,
// once each, as integers.
func (w *gossipWire) pushPull() error {
	nodes, seen := uint64(0), 0
	err := w.fields(func(name string, v gossipValue) error {
		switch name {
		case "Nodes":
			if nodes = v.number; !v.integer || nodes > gossipNodesMax {
				return RefusedTooLarge
			}
		case "UserStateLen":
			if !v.integer || v.number != 0 {
				return RefusedTooLarge
			}
		default:
			return nil
		}
		seen++
		return nil
	})
	if err == nil && seen != 2 {
		err = RefusedMalformed
	}
	for i := uint64(0); i < nodes && err == nil; i++ {
		err = w.fields(nil)
	}
	return err
}

// gossipWire reads MessagePack from a buffer or, with read, from a stream.
type gossipWire struct {
	buf  []byte
	at   int                       // position of the next byte
	read func([]byte) (int, error) // nil: buf has all bytes
}

// take returns the next n bytes. It grows the buffer as bytes arrive, never by an announced length alone.
func (w *gossipWire) take(n int) ([]byte, error) {
	for len(w.buf)-w.at < n {
		switch {
		case w.read == nil:
			return nil, RefusedMalformed
		case n > gossipStreamMax || w.at+n > gossipStreamMax:
			return nil, RefusedTooLarge
		}
		if cap(w.buf)-len(w.buf) == 0 {
			grown := make([]byte, len(w.buf), len(w.buf)+max(gossipReadStep, len(w.buf)/2))
			copy(grown, w.buf)
			w.buf = grown
		}
		got, err := w.read(w.buf[len(w.buf):cap(w.buf)])
		w.buf = w.buf[:len(w.buf)+got]
		if err != nil && len(w.buf)-w.at < n {
			return nil, err
		}
	}
	b := w.buf[w.at : w.at+n]
	w.at += n
	return b, nil
}

// gossipValue is the value of a field. Only integers are kept.
type gossipValue struct {
	integer bool // and not negative
	number  uint64
}

// fields reads a map, and calls visit for each field if visit is not nil.
func (w *gossipWire) fields(visit func(name string, v gossipValue) error) error {
	head, err := w.take(1)
	if err != nil {
		return err
	}
	if head[0]&0xf0 != 0x80 || head[0]&0x0f > gossipFieldsMax { // memberlist sends only maps of up to 15 fields
		return RefusedMalformed
	}
	for range head[0] & 0x0f {
		name, err := w.name()
		if err != nil {
			return err
		}
		v, err := w.value()
		if err != nil {
			return err
		}
		if visit == nil {
			continue
		}
		if err := visit(name, v); err != nil {
			return err
		}
	}
	return nil
}

// name reads the name of a field, a string of at most 31 bytes.
func (w *gossipWire) name() (string, error) {
	head, err := w.take(1)
	if err != nil {
		return "", err
	}
	if head[0]&0xe0 != 0xa0 {
		return "", RefusedMalformed
	}
	b, err := w.take(int(head[0] & 0x1f))
	return string(b), err
}

// value reads a value. Lists, maps and extensions are malformed: memberlist's messages have none.
func (w *gossipWire) value() (gossipValue, error) {
	head, err := w.take(1)
	if err != nil {
		return gossipValue{}, err
	}
	h := head[0]
	switch {
	case h < 0x80:
		return gossipValue{integer: true, number: uint64(h)}, nil
	case h >= 0xe0, h == 0xc0, h == 0xc2, h == 0xc3: // a small negative number, nil, false, true
		return gossipValue{}, nil
	case h >= 0xcc && h <= 0xcf:
		n, err := w.number(1 << (h - 0xcc))
		return gossipValue{integer: true, number: n}, err
	case h >= 0xd0 && h <= 0xd3:
		size := 1 << (h - 0xd0)
		n, err := w.number(size)
		return gossipValue{integer: n>>(8*size-1) == 0, number: n}, err
	case h&0xe0 == 0xa0:
		return gossipValue{}, w.skip(uint64(h & 0x1f))
	case h == 0xd9 || h == 0xc4:
		return gossipValue{}, w.bytes(1)
	case h == 0xda || h == 0xc5:
		return gossipValue{}, w.bytes(2)
	}
	return gossipValue{}, RefusedMalformed
}

// number reads a big-endian integer of size bytes.
func (w *gossipWire) number(size int) (n uint64, err error) {
	b, err := w.take(size)
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n, err
}

// bytes skips a byte string whose length is an integer of size bytes.
func (w *gossipWire) bytes(size int) error {
	n, err := w.number(size)
	if err != nil {
		return err
	}
	return w.skip(n)
}

func (w *gossipWire) skip(n uint64) error {
	if n > gossipBytesMax {
		return RefusedTooLarge
	}
	_, err := w.take(int(n))
	return err
}

// decrypt decrypts memberlist's encryption: version, nonce of 12 bytes, AES-GCM text. The padding of version 0 is not
// removed; no reader gets that far.
func decrypt(keys [][]byte, text, also []byte) (plain []byte, opened bool) {
	const nonce = 12
	if len(text) < 1+nonce || text[0] > encryptionVersion {
		return nil, false
	}
	for _, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			continue
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			continue
		}
		if plain, err := gcm.Open(nil, text[1:1+nonce], text[1+nonce:], also); err == nil {
			return plain, true
		}
	}
	return nil, false
}

// refusalOf returns why gossip was refused, and whether it was. A stream that ends too early, or a network error, is
// not a refusal.
func refusalOf(err error) (GossipRefusal, bool) {
	var r GossipRefusal
	ok := errors.As(err, &r)
	return r, ok
}

var _ error = GossipRefusal("")

// errStreamRefused is the error that memberlist gets for a refused stream.
func errStreamRefused(err error) error { return fmt.Errorf("read gossip stream: %w", err) }
