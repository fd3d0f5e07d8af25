// Package shard is the state machine that the replicas of a shard agree on.
//
// It is pure: its content is a function of the shard's log and nothing else. It has no clock and no locks, and does no
// I/O of its own. The owner of a State calls Apply and Freeze while no other call runs; calls of Ask may run at the
// same time as each other. Freeze returns a View. Other goroutines may ask the view and write it out while Apply runs.
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
// Free slots (of keys, bins, sessions and so on) are reused last-freed-first, and slot numbers are part of the
// replicated state. Positions of bytes, indexes and heaps are derived from it. So replicas with the same log have the
// same snapshot, byte for byte, also if they were restored from a snapshot on the way.
package shard
