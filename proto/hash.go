package proto

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// ShardOf returns the shard, 1 to shards, that holds a key. It is part of the wire contract: clients, nodes and
// restored backups must all compute the same shard, now and in later versions.
//
//	shard = 1 + xxh3-64(uvarint(len(ns)) ns route) % shards
//
// The hash is unseeded. route is the key. If the last segment of the key is a period (2011, 2011-Q4, 2011-11, 2011-W44,
// 2011-11-01, 2011-11-01T13), route is the part before that segment. So all periods of one family are in one shard.
func ShardOf(namespace string, key []byte, shards uint32) uint32 {
	route := Route(key)
	if len(namespace)+len(route) <= 128-binary.MaxVarintLen64 {
		var short [128]byte // most keys are, and a longer buffer costs more to clear than to hash
		return shardOf(short[:0], namespace, route, shards)
	}
	var long [640]byte
	return shardOf(long[:0], namespace, route, shards)
}

func shardOf(b []byte, namespace string, route []byte, shards uint32) uint32 {
	b = binary.AppendUvarint(b, uint64(len(namespace)))
	b = append(b, namespace...)
	b = append(b, route...)
	return 1 + uint32(xxh3.Hash(b)%uint64(shards))
}

// Route returns the part of a key that decides its shard.
func Route(key []byte) []byte {
	for i := len(key) - 1; i >= 0 && len(key)-i <= len("2011-11-01T13")+1; i-- {
		if key[i] == '/' {
			if isPeriod(key[i+1:]) {
				return key[:i]
			}
			return key
		}
	}
	return key
}

// isPeriod recognises the period shapes, where 0 stands for any digit.
func isPeriod(segment []byte) bool {
	switch len(segment) {
	case len("2011"):
		return matches(segment, "0000")
	case len("2011-11"):
		return matches(segment, "0000-00") || matches(segment, "0000-Q0")
	case len("2011-W44"):
		return matches(segment, "0000-W00")
	case len("2011-11-01"):
		return matches(segment, "0000-00-00")
	case len("2011-11-01T13"):
		return matches(segment, "0000-00-00T00")
	}
	return false
}

func matches(segment []byte, shape string) bool {
	for i, c := range segment {
		if shape[i] == '0' {
			if c < '0' || c > '9' {
				return false
			}
		} else if c != shape[i] {
			return false
		}
	}
	return true
}

// SliceShardOf returns the shard, 1 to shards, that holds a slice of every bitmap of a namespace whose bitmaps are
// placed by slice. A slice is an id without its 16 lower bits. Like ShardOf it is part of the wire contract.
//
//	shard = 1 + xxh3-64(uvarint(len(ns)) ns slice) % shards, slice as 8 bytes, big endian
func SliceShardOf(namespace string, slice uint64, shards uint32) uint32 {
	var room [128]byte
	b := binary.AppendUvarint(room[:0], uint64(len(namespace)))
	b = append(b, namespace...)
	b = binary.BigEndian.AppendUint64(b, slice)
	return 1 + uint32(xxh3.Hash(b)%uint64(shards))
}
