package cluster

import (
	"encoding/binary"
	"hash/crc32"
)

// Every packet of unencrypted gossip carries memberlist's checksum, which any build verifies and removes:
//
//	type 1 (summedType)   CRC-32 (IEEE) of the message 4, big-endian   message
//
// memberlist itself adds a checksum only if it finds the receiver in a map by node name, but it searches there for the
// receiver's IP address. So pings, their answers and the news in the same packets had no checksum. A bit error in the
// key of the field that names a ping's receiver made the ping valid for any node, and a restarted node was reported to
// run twice. Packets of older builds, without a checksum, are accepted.
const (
	summedType = 12 // memberlist's hasCrcMsg
	summedHead = 5
)

// withSum returns a packet with a checksum, or b itself if it has one.
func withSum(b []byte) []byte {
	if len(b) == 0 || b[0] == summedType {
		return b
	}
	summed := make([]byte, summedHead, summedHead+len(b))
	summed[0] = summedType
	binary.BigEndian.PutUint32(summed[1:], crc32.ChecksumIEEE(b))
	return append(summed, b...)
}

// sound reports whether a packet is undamaged, as far as this can be checked. In a packet with a checksum, one inverted
// bit is always detected, even in its type: a packet without a checksum must not look like the remainder of one with
// it.
func sound(b []byte) bool {
	return len(b) <= summedHead || (b[0] == summedType) == (binary.BigEndian.Uint32(b[1:]) == crc32.ChecksumIEEE(b[summedHead:]))
}
