// Package snap keeps the snapshots of one raft group as files that are whole or
// not there.
//
// A snapshot is one file, written under a temporary name, synced, renamed, and
// its directory synced. Numbers are little-endian.
//
//	header   magic "ebb snap" 8 | version 4 | crc 4
//	content  what the state machine wrote
//	meta     JSON: index, term, configuration, ... and the content's size and hash
//	trailer  meta's length 4 | crc 4 | zero 8 | magic "pans bbe" 8
//
// The crc in the header is the CRC-32C of what precedes it; the one in the
// trailer that of meta. The content's hash is XXH3-64. The name,
// index-term-count.snap, sorts by index. A file that does not verify is renamed
// to end in .bad, kept for inspection, and not listed.
package snap
