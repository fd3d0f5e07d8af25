// Package wal is the one log that all raft groups of a node share: one write and one sync make the records of all
// groups durable.
//
// A log is a directory of segments, numbered files of preallocated zeros that
// are filled front to back. All numbers are little-endian.
//
//	segment    magic 8 | version 4 | size 4 | number 8 | salt 4 | crc 4
//	           +-------+-------+-------+-- ... --+------+--------------+
//	           | batch | batch | batch |         | mark | zeros ...    |
//	           +-------+-------+-------+-- ... --+------+--------------+
//
//	batch      magic 4 | crc 4 | sequence 8 | length 4 | count 4 | sum 4 | zero 4
//	           +--------+--------+-- ... --+
//	           | record | record |         |   length bytes, count records
//	           +--------+--------+-- ... --+
//
//	record     crc 4 | length 4 | kind 1 | type 1 | flags 2 | group 4
//	           | index 8 | term 8 | body (length bytes) | zeros to a multiple of 8
//
//	entry body appended 8 | [extensions' length 4 | extensions] | data
//
// Every crc is CRC-32C, started from the salt. It covers all that follows it in its header and, for a record, the body.
// sum is the CRC-32C of the records' crcs, so that the parts of two batches cannot pass for one.
//
// A batch is what one sync covers. It is atomic: it counts completely or not at all. The next batch is written only
// when the one before is durable; hence
//
//	INVARIANT one-at-a-time: of all batches at most the last is torn.
//
// A batch that fails verification is thus one of two things. It may be the last one: then it was never acknowledged and
// is cut off when the log opens. Otherwise it is damaged, and Open returns proto.ErrCorrupt. A mark is a batch without
// records that has the next sequence number. The writer writes one after a durable batch when it has nothing else to
// do. The mark proves that the last batch was complete, and the next batch overwrites it. A segment that is no longer
// written ends with a synced mark whose sum is the next segment's number: without that segment, Open returns an error.
//
// A segment gets its name, and a batch its place, only when the segment is durable in its full size, and the file never
// shrinks. A torn write does not change the file's length. A file shorter than its size was cut off, and Open returns
// an error.
//
// Each segment starts with a batch of the state of all groups: their terms, votes, values, boundaries and which entries
// they hold. So the log can be read from any segment on, and
//
//	INVARIANT oldest-first: segments are removed from the oldest on, once no
//	entry in them is held by a group.
//
// No record is visible before it is durable. The writer applies a batch to the index with the same code as recovery.
package wal
