// Package bitmap has exact sets of 64-bit ids.
//
// An id is a slice (id >> 16) and a low (its last 16 bits). The lows of one slice are a Container: a view of words that
// others keep, in one of three forms.
//
//	form   words                what they hold
//	array  (n+3)/4, up to 512   the n lows in order, four to a word from the lowest bits on; what is left of the last word is 0
//	dense  1024                 bit l%64 of word l/64 is set where low l is in
//	run    (r+1)/2, up to 512   r pairs (first, last) of runs in order, two to a word: first + last<<16; what is left of the last word is 0
//
// The form is a function of the content: run where there are at most a quarter as many runs as lows and no more than
// 1,024 of them, which is where runs take at most half the memory; otherwise array up to 2,048 lows, dense above. So
// equal sets have equal words, however they came about. Arrays end at half the memory of a block and not at its whole:
// dense ones are united and intersected some ten times as fast.
//
// Costs: a look at a dense container is one word, at the others a binary search. A low set or cleared in place moves at
// most 4 KiB in an array or run container, and one word in a dense one. In nearly all cases its neighbours say whether
// the form must change. Rank and Select count words or runs up to where they look.
//
// A Small is a whole bitmap of few ids in one block; Bitmap asks a directory of containers about the whole. A Program
// is an expression over bitmaps, evaluated on one slice after the other: to count it makes no container. A Walker finds
// the slices in which it may have lows. ReadPortable32 and 64 read what roaring bitmaps write, WritePortable32 and 64
// what they read.
//
// Nothing here keeps words that it was given, and nothing allocates unless it says so.
package bitmap
