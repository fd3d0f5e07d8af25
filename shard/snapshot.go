package shard

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
)

// A snapshot is the replicated state in bytes; equal states have equal bytes. It is a sequence of blocks (see
// block.go), grouped in sections. Numbers are uvarints unless said otherwise, times are zigzag varints, text is a
// length and its bytes, doubles and hashes take 8 bytes, little endian.
//
//	header      "EBBSHARD" format(1) shard behaviour applied now last-session last-epoch restored
//	namespaces  count { definition [max-jump epoch clock-set] deletion emptied [set-hash] signed event-time began
//	            exposure-from exposure [active-periods { first last events }] slow-of closed
//	            era-base eras { params from fresh [rewound] } [gone since half-life [shortest grown]] }
//	bins        slots { name }
//	keys        slots { space name era due on-event prune-at pruned len distribution }
//	expiries    { 1 + distance-from-last-key time } 0     of keys that have one, by slot
//	bitmaps     { { slice } 0 }     of keys that hold one of more than 64 ids, by slot; a slice as in bodybitmap.go
//	dict-parts  count { space part strings { text } }   in the order in which they began
//	sessions    slots { [namespace secret] id top low used due window { value } extras { sequence more } }
//	sources     slots { [namespace] name epoch token last refused { gap code } }
//	answered    slots { [namespace] issued-at hi lo applied more }
//	orphans     slots { space generation since pending key }
//	staged      name { bytes checksum pieces { text } }     of a restore that is under way; only an empty name without
//	uploads     count { namespace upload bytes at { data } }     large images that are on their way
//	end         crc(4, little endian)
//
//	slots = count first-free { 0 item | 1 + next free }
//
// The format depends on the behaviour version, so that older builds can install the snapshots of older versions:
//
//	format 5   the first
//	format 6   from BehaviourNamespaces on: the rest of what is in []
//	format 7   from BehaviourDeletion on: deletion and emptied
//	format 8   from BehaviourSketches on: uploads, and the rest of what is in [] of a namespace
//	format 9   from BehaviourGone on: gone, since and half-life: what keys that are gone may have held, as a count that
//	           decays from a time on
//	format 10  from BehaviourGoneBack on: shortest and grown: the shortest half-life of keys, and whether the clock was
//	           set back since
//
// Reference counts, indexes, heaps and positions of bytes are derived.
const (
	snapshotMagic  = "EBBSHARD"
	formatOldest   = 5  // small bitmaps are stored with their keys
	formatOwners   = 6  // sessions, sources and idempotency keys have a namespace
	formatDeletion = 7  // definitions say whether their namespace is deleted
	formatUploads  = 8  // with large images that are on their way
	formatGone     = 9  // namespaces have what keys that are gone may have held
	formatGoneBack = 10 // and what that is when the clock is set back
	snapshotFormat = formatGoneBack
)

// format is the snapshot format of this state.
func (f *frame) format() byte {
	if f.behaviour >= BehaviourGoneBack {
		return formatGoneBack
	}
	if f.behaviour >= BehaviourGone {
		return formatGone
	}
	if f.behaviour >= BehaviourSketches {
		return formatUploads
	}
	if f.behaviour >= BehaviourDeletion {
		return formatDeletion
	}
	if f.behaviour >= BehaviourNamespaces {
		return formatOwners
	}
	return formatOldest
}

const (
	sectionHeader = iota + 1
	sectionNamespaces
	sectionBins
	sectionKeys
	sectionSessions
	sectionSources
	sectionAnswered
	sectionEnd
	sectionExpiries
	sectionBitmaps
	sectionDictPartitions
	sectionOrphans = 20
	sectionStaged  = 40
	sectionUploads = 41
)

// distributionBytesMax bounds one encoded distribution: 2^24 bins.
const distributionBytesMax = 1 << 28

// WriteTo writes a snapshot. On a View it may run concurrently with Apply; on a State it must not.
func (f *frame) WriteTo(w io.Writer) (int64, error) {
	b := &blockWriter{w: w}
	f.writeHeader(b)
	f.writeNamespaces(b)
	b.section(sectionBins)
	writeSlotTable(b, &f.bins.names, func(bin uint32, _ *name) { b.text(f.bins.bytesOf(bin)) })
	b.section(sectionKeys)
	writeFreeList(b, &f.summaries.keys, func(key uint32) { f.writeKey(b, key) })
	b.section(sectionExpiries)
	f.writeExpiries(b)
	b.section(sectionBitmaps)
	f.writeBitmaps(b)
	b.section(sectionDictPartitions)
	f.writeDictPartitions(b)
	f.writeSlotTables(b)
	b.section(sectionStaged)
	f.staged.write(b)
	f.writeUploads(b)
	b.section(sectionEnd)
	b.buf = binary.LittleEndian.AppendUint32(b.buf, b.crcs)
	b.flush()
	if b.err != nil {
		return b.written, fmt.Errorf("write snapshot of shard %d: %w", f.id, b.err)
	}
	return b.written, nil
}

// Checksum returns a hash of all that is replicated: the hash of the snapshot's bytes.
func (f *frame) Checksum() uint64 {
	h := xxh3.New()
	_, _ = f.WriteTo(h) // a hash takes everything
	return h.Sum64()
}
