package cluster

import (
	"encoding/binary"
	"hash/crc32"
)

// Every packet of gossip in the clear carries memberlist's checksum, which it verifies and takes off in any build:
//
//	type 1 (summedType)   CRC-32 (IEEE) of the message 4, big-endian   message
//
// memberlist itself sums only what it sends to a node that it finds under the receiver's IP address, where it looks for
// a name: pings, their answers and the news that ride on them went without. A ping in which the field that names who is
// meant had another name was for anybody, and a node that came back was told that it ran twice. Packets without a
// checksum, of older builds, are heard.
const (
	summedType = 12 // memberlist's hasCrcMsg
	summedHead = 5
)

// withSum returns a packet with a checksum, which is b if that has one.
func withSum(b []byte) []byte {
	if len(b) == 0 || b[0] == summedType {
		return b
	}
	summed := make([]byte, summedHead, summedHead+len(b))
	summed[0] = summedType
	binary.BigEndian.PutUint32(summed[1:], crc32.ChecksumIEEE(b))
	return append(summed, b...)
}

// sound reports whether a packet may be what was sent. One bit that was inverted in a packet with a checksum is always
// noticed, also in its type: what has none must not look like the rest of one that has.
func sound(b []byte) bool {
	return len(b) <= summedHead || (b[0] == summedType) == (binary.BigEndian.Uint32(b[1:]) == crc32.ChecksumIEEE(b[summedHead:]))
}
