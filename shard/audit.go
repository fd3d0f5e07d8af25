package shard

import (
	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
)

// Audit is a part of a shard. All replicas compute a checksum of it at the same entry of the log.
type Audit struct {
	Index    uint64 // of the entry
	Part, Of uint32 // Of is 0 if there is no audit
}

// auditPartsMax is the largest number of parts of a shard.
const auditPartsMax = 1 << 16

// audit records that an entry asks for an audit. The request is not part of the state: a replica that has no time for
// it has the same state.
func (s *State) audit(body []byte) {
	a := Audit{Index: s.applying}
	fields(body, func(num protowire.Number, v uint64, _ []byte) {
		switch num {
		case fieldAuditPart:
			a.Part = uint32(min(v, auditPartsMax))
		case fieldAuditOf:
			a.Of = uint32(min(v, auditPartsMax))
		}
	})
	if a.Part < a.Of {
		s.asked = a
	}
}

// Audited returns, once, the audit that the last entry asked for.
func (s *State) Audited() (a Audit, ok bool) {
	a, s.asked = s.asked, Audit{}
	return a, a.Of > 0
}

// AuditFormat identifies what PartChecksum covers and how that is encoded: builds whose formats differ compute
// different checksums of equal states. The low byte is for the content of a part. The rest is the snapshot format that
// encodes it: the oldest that this build writes. A newer one comes with a behaviour version, which all replicas have at
// the same entry.
const AuditFormat = formatOldest<<8 | 1

// PartChecksum returns a hash of one of a.Of parts of the replicated state: a share of its keys, bins, dictionaries and
// pieces of a restore, and all that is small. Replicas that have applied the same entries have the same hash, or have
// diverged.
func (f *frame) PartChecksum(a Audit) uint64 {
	h := xxh3.New()
	b := &blockWriter{w: h}
	f.writeHeader(b)
	f.writeNamespaces(b)
	b.section(sectionBins)
	writeAuditPart(b, &f.bins.names, a, func(bin uint32) { b.text(f.bins.bytesOf(bin)) })
	b.section(sectionKeys)
	writeAuditPart(b, &f.summaries.keys, a, func(key uint32) {
		f.writeKey(b, key)
		b.tick(f.expiries.at(key))
		sum := f.stored(key)
		if v := sum.bitmap(); v != nil {
			writeBitmap(b, key, v)
		}
	})
	b.section(sectionDictPartitions)
	for i := range f.dictPartitions {
		if l := &f.dictPartitions[i]; uint32(i)%a.Of == a.Part {
			writeDictPartition(b, l)
		}
	}
	f.writeSlotTables(b)
	b.section(sectionStaged)
	f.staged.writePart(b, a)
	f.writeUploads(b)
	b.flush()
	return h.Sum64() // a hash takes everything: there is no error
}

// writeAuditPart writes a part of a freeList.
func writeAuditPart(b *blockWriter, c freeList, a Audit, item func(i uint32)) {
	slots, free, _ := c.ends()
	b.uvarint(uint64(slots))
	b.uvarint(uint64(free))
	at := func(part uint32) uint32 { return uint32(uint64(slots) * uint64(part) / uint64(a.Of)) }
	writeLinks(b, c, at(a.Part), at(a.Part+1), item)
}
