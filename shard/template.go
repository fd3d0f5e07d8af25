package shard

import "github.com/ebbdb/ebb/proto/ebbv1"

// The sizes of a namespace in a snapshot, in the order of their definition.

func writeSizes(b *blockWriter, s *ebbv1.Sizes) {
	b.float(s.GetCountminEpsilon())
	b.float(s.GetCountminDelta())
	b.uvarint(uint64(s.GetTopkItems()))
	b.uvarint(uint64(s.GetDistinctPrecision()))
	b.uvarint(uint64(s.GetSetMembers()))
	b.uvarint(s.GetLinearCapacity())
	b.float(s.GetLinearError())
	b.uvarint(uint64(s.GetMorrisBits()))
	b.float(s.GetMorrisBase())
	b.uvarint(s.GetBloomCapacity())
	b.float(s.GetBloomFalseRate())
	b.float(s.GetQuantileError())
	b.uvarint(uint64(s.GetQuantileBuckets()))
}

func readSizes(b *blockReader) *ebbv1.Sizes {
	return &ebbv1.Sizes{
		CountminEpsilon:   b.float(),
		CountminDelta:     b.float(),
		TopkItems:         b.uint32(),
		DistinctPrecision: b.uint32(),
		SetMembers:        b.uint32(),
		LinearCapacity:    b.uvarint(),
		LinearError:       b.float(),
		MorrisBits:        b.uint32(),
		MorrisBase:        b.float(),
		BloomCapacity:     b.uvarint(),
		BloomFalseRate:    b.float(),
		QuantileError:     b.float(),
		QuantileBuckets:   b.uint32(),
	}
}
