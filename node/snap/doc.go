// Package snap keeps the snapshots of one raft group as files that are complete or absent. Each file holds only the
// chunks that older files do not have.
//
// Each Write of a state machine is a chunk, identified by its hash. A snapshot is one file: the new chunks, and a list
// of all chunks, in this file and in older ones. The file is written under a temporary name, synced and renamed; then
// its directory is synced. A file stays as long as one of the kept snapshots names it. Numbers are little-endian.
//
//	header   magic "ebb snap" 8 | version 4 | crc 4
//	chunks   the new ones
//	list     per chunk: hash 20 | length | file | distance   varints
//	meta     JSON: index, term, configuration, ... the list's length and hash, and the files
//	trailer  meta's length 4 | crc 4 | zero 8 | magic "pans bbe" 8
//
// The crc in the header is the CRC-32C of the bytes before it; the crc in the trailer is the CRC-32C of meta. A chunk's
// hash is the first 20 bytes of its SHA-256; the list's hash is its XXH3-64. file is a number: 0 for this file, or one
// more than the older file's position in meta's files. distance (zigzag) is counted from the end of the chunk before in
// that file; for the first chunk there, from the end of the header.
//
// The name, index-term-count.snap, sorts by index. A damaged snapshot is renamed to end in .bad and is not listed. It
// is kept for inspection until the next damaged one.
package snap
