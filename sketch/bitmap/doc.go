// Package bitmap implements exact sets of 64-bit ids.
//
// An id consists of a slice (id >> 16) and a low (its last 16 bits). The lows of one slice are a Container: a view of
// words in the caller's memory, in one of three forms.
//
//	form   words                what they hold
//	array  (n+3)/4, up to 512   the n lows in order, four to a word from the lowest bits on; the rest of the last
//	                            word is 0
//	dense  1024                 bit l%64 of word l/64 is set if low l is in the container
//	run    (r+1)/2, up to 512   r pairs (first, last) of runs in order, two to a word: first + last<<16; the rest of
//	                            the last word is 0
//
// The form is a function of the content. It is run if there are at most a quarter as many runs as lows and at most
// 1,024 runs: then runs take at most half the memory. Otherwise it is array up to 2,048 lows, and dense above. So equal
// sets have equal words, whatever their history. The longest array takes half the memory of a block, not all of it,
// because dense containers are united and intersected some ten times as fast.
//
// Costs: a lookup reads one word of a dense container; in the other forms it is a binary search. Setting or clearing a
// low in place moves at most 4 KiB in an array or run container, and writes one word in a dense one. In nearly all
// cases the neighbours of the low show whether the form must change. Rank and Select count words or runs up to their
// position.
//
// A Small is a whole bitmap of few ids in one block. A Directory is a whole bitmap as containers in the order of their
// slices. A Program is an expression over bitmaps, evaluated one slice after the other; counting makes no container. A
// Walker finds the slices in which the result may have lows. ReadPortable32 and 64 read the format of roaring bitmaps,
// and WritePortable32 and 64 write it.
//
// No function here keeps a reference to the caller's words, and none allocates unless its comment says so.
package bitmap
