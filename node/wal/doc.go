// Package wal is the one log that all raft groups of a node share: what any of
// them stores is durable with one write and one sync for all.
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
// Every crc is CRC-32C, started from the salt, over all that follows it in its
// header and, of a record, its body. sum is the CRC-32C of the records' crcs,
// so that a batch cannot be pieced together from two.
//
// A batch is what one sync covers, and it is atomic: it counts whole or not at
// all. The next batch is written only when the one before is durable; hence
//
//	INVARIANT one-at-a-time: of all batches at most the last is torn.
//
// A batch that does not verify is thus either the last, never acknowledged and
// cut off when the log opens, or damaged, which is refused with
// proto.ErrCorrupt. A mark, a batch without records that bears the next
// sequence number, follows a durable batch when the writer has nothing else to
// do; it proves that the last batch was complete, and is overwritten by the next.
// A segment in which nothing more is written ends with a mark, synced, whose sum
// is the next segment's number: without that one the log is refused.
//
// A segment gets its name, and a batch its place, only when all of the segment's
// size is durable, and it never shrinks. A torn write leaves the file's length
// alone; a file shorter than its size was cut off, and is refused too.
//
// Each segment starts with a batch of the state of all groups: their terms,
// votes, values, boundaries and which entries they hold. So the log is read
// from any segment on, and
//
//	INVARIANT oldest-first: segments are removed from the oldest on, once no
//	entry in them is held by a group.
//
// Nothing is visible before it is durable, and nothing is decided twice: the
// writer applies a batch to the index by the same code that recovery runs.
package wal
