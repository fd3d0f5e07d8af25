// Package mapped is page memory outside Go's heap: the garbage collector neither marks nor counts it.
//
// Pages are cut from chunks that are mapped from the system. Freed pages are reused as soon as no view can see them.
// When neither a state nor one of its views refers to a Memory any more, all its memory returns to the system.
package mapped
