// Package mapped is page memory outside Go's heap, which the collector neither marks nor counts.
//
// Pages come from chunks that are mapped from the system. What is given back is handed out again as soon as no view may
// see it. All memory goes back to the system when nothing refers to the Memory any more: a state and its views do.
package mapped
