// Package shard is the state machine that the replicas of a shard agree on.
//
// It is pure: what it holds is a function of the shard's log and nothing else.
// It has no clock and no locks, and does no I/O of its own. The owner of a State runs Apply and Freeze alone, and Ask
// concurrently with nothing but other questions. Freeze returns a View. Another goroutine may ask it and write it out
// while Apply runs.
//
//	log entry --Apply--> State --Ask------> answer, or a part of one
//	                       |   --Freeze--> View --WriteTo--> snapshot --Restore--> State
//	                       |
//	                       +-- clock, behaviour version
//	                       +-- namespaces      settings, event clock, half-life changes
//	                       +-- bins            interned names with reference counts
//	                       +-- keys            name -> summary (a sketch.Distribution)
//	                       +-- sessions        (session, sequence) -> result
//	                       +-- sources         name -> epoch, last offset
//	                       +-- idempotency     (issued at, 128 bits) -> result
//
// Slots (of keys, bins, sessions and so on) are handed out last-freed-first and
// are part of the replicated state; where bytes lie, indexes and heaps are
// derived from it. So replicas with the same log have the same snapshot, byte
// for byte, whether or not they were restored from one on the way.
package shard
