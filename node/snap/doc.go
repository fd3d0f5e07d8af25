// Package snap keeps the snapshots of one raft group as files that are whole or not there. Each file holds what the one
// before does not.
//
// What a state machine writes at once is a chunk, named by its hash. A snapshot is
// one file: the chunks that are new, and a list of all, in it and in older files. It
// is written under a temporary name, synced, renamed, and its directory synced. A
// file stays for as long as one of the snapshots kept names it. Numbers are
// little-endian.
//
//	header   magic "ebb snap" 8 | version 4 | crc 4
//	chunks   the new ones
//	list     per chunk: hash 20 | length | file | distance   varints
//	meta     JSON: index, term, configuration, ... the list's length and hash, and the files
//	trailer  meta's length 4 | crc 4 | zero 8 | magic "pans bbe" 8
//
// The crc in the header is the CRC-32C of what precedes it; the one in the
// trailer that of meta. A chunk's hash is the first 20 bytes of its SHA-256, the
// list's XXH3-64. A chunk lies in the file of a number, 0 for this one or one more
// than its place among meta's, at a distance (zigzag) from the end of the chunk
// before in that file, the first from the end of the header.
//
// The name, index-term-count.snap, sorts by index. A snapshot that does not verify
// is renamed to end in .bad, kept for inspection until the next one is, and not listed.
package snap
