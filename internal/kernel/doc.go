// Package kernel has the inner loops of bitmaps over words of bits. They count bits, and compute or count unions,
// intersections and differences of many blocks at once.
//
// Each kernel is unrolled, so that its loads and population counts overlap. For each one the tests have a plain version
// with a single loop. A block is 8 KiB: an accumulator of one block and the blocks that are added to it stay in the
// first-level cache. Nothing here allocates.
package kernel
