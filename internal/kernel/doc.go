// Package kernel has the loops over words of bits that bitmaps are made of: counts, and counts of unions, intersections
// and differences of many blocks at once.
//
// Each kernel is unrolled, so that its loads and population counts overlap, and has a plain twin in the tests that says
// in one loop what it does. A block is 8 KiB: an accumulator of one and the blocks that go into it stay in the
// first-level cache. Nothing here allocates.
package kernel
